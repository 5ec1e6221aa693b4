"""Copying into the live file: through SQLite, so that it stays the same file and every copy is one commit.

`install` works beside other connections: an open one sees the old content until its transaction ends, and
then the new, whose fence refuses it. Every page goes into the write-ahead log and from there into the file.
`fill` is for a file that holds nothing and that nobody else has open: every page goes straight there.
"""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from standfast.durable import create_empty
from standfast.errors import StandfastError, StoreBusy
from standfast.operations.backup.limits import Progress, Report, quiet
from standfast.store import BUSY_SECONDS, triggers
from standfast.store.connection import is_busy

_MOST_PAGES = 4096
_RETRY = 0.05
CHECKPOINT_SECONDS = 2.0
"""How long the checkpoint waits for a reader of the old state; then the log is emptied later, by itself."""
ALONE_SECONDS = 2.0
"""How long to wait until nobody else has the file open; then the copy goes through the log."""


class Changed(Exception):
    """Another process has written since the safety backup; nothing was copied."""


def install(database: Path, image: Path, unchanged: Callable[[], None], report: Report = quiet) -> None:
    """Replace the content of the live database by the image's, in one commit, also beside other connections.

    ``unchanged`` is called once the live file is locked for writing, and may raise: then nothing was copied.
    Raises StoreBusy when another process holds the write lock for too long.
    """
    with closing(_source(image)) as source, closing(_live(database)) as live:
        _copy(source, live, unchanged, report)


def fill(database: Path, image: Path, report: Report = quiet) -> None:
    """Replace the content of a live database that holds next to nothing, in one commit; as `install`.

    While it lasts, nobody else can open the file: they wait, and are refused as for any busy store.
    """
    with closing(_source(image)) as source, closing(_live(database)) as live:
        if not _alone(live):
            _copy(source, live, lambda: None, report)
            return
        triggers.reach("restore.alone")
        # A rollback journal keeps what a page held before; here no page held anything.
        _copy(source, live, lambda: None, report)
        triggers.reach("restore.filled")
        live.execute("PRAGMA locking_mode = NORMAL").fetchall()
        live.execute("PRAGMA journal_mode = WAL").fetchall()


def _alone(live: sqlite3.Connection) -> bool:
    """Leave write-ahead logging and keep everybody else out, unless others stay connected."""
    # A journal that came back after the commit that removed it would undo that: its removal is synced too.
    live.execute("PRAGMA synchronous = EXTRA")
    live.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
    live.execute(f"PRAGMA busy_timeout = {int(_RETRY * 1000)}")
    until = time.monotonic() + ALONE_SECONDS
    try:
        while True:
            try:
                live.execute("PRAGMA journal_mode = DELETE").fetchall()
                live.execute("BEGIN EXCLUSIVE")
                live.execute("COMMIT")  # the lock stays
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
            else:
                return True
            if time.monotonic() > until:
                live.execute("PRAGMA locking_mode = NORMAL").fetchall()
                return False
            time.sleep(_RETRY)
    finally:
        live.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")


def _copy(
    source: sqlite3.Connection, live: sqlite3.Connection, unchanged: Callable[[], None], report: Report
) -> None:
    pages = int(source.execute("PRAGMA page_count").fetchone()[0])
    until = time.monotonic() + BUSY_SECONDS

    def step(status: int, remaining: int, total: int) -> None:
        if status in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            if time.monotonic() > until:
                raise StoreBusy("another process kept the live store locked; nothing was copied into it")
            return
        report(Progress("install", total - remaining, total))
        if remaining:
            unchanged()
            triggers.reach("restore.step")

    # At least two steps: after the first the file is locked, and before the last nothing is committed.
    source.backup(live, pages=max(1, min(_MOST_PAGES, pages // 2)), sleep=_RETRY, progress=step)


def begin(database: Path, page_size: int) -> None:
    """Make an absent live store: a private file, which SQLite makes a database without tables.

    A kill on the way leaves a store that is still absent.
    """
    if not database.exists():
        create_empty(database, 0o600)
    with closing(_connect(database, "mode=rw")) as live:
        live.execute(f"PRAGMA page_size = {int(page_size)}")
        live.execute("PRAGMA journal_mode = WAL")


def checkpoint(live: sqlite3.Connection) -> bool:
    """Move the whole write-ahead log into the file; False when a reader of the old state keeps it there."""
    live.execute(f"PRAGMA busy_timeout = {int(CHECKPOINT_SECONDS * 1000)}")
    busy, _frames, _moved = live.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def refuse_damaged(connection: sqlite3.Connection) -> None:
    """Raise StandfastError unless the restored file is whole."""
    found = [str(row[0]) for row in connection.execute("PRAGMA quick_check(10)")]
    if found != ["ok"]:
        raise StandfastError(f"the restored store is damaged, and stays paused: {'; '.join(found)[:500]}")


def _source(image: Path) -> sqlite3.Connection:
    return _connect(image, "mode=ro&immutable=1")


def _live(database: Path) -> sqlite3.Connection:
    connection = _connect(database, "mode=rw")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _connect(path: Path, how: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True, autocommit=True, timeout=BUSY_SECONDS)
