"""Copying the image into the live file: through SQLite, so that pages, epoch and pause are one commit.

The file stays the same file. A connection that is open sees the old state until its transaction ends, and
then the new one, whose fence refuses it; a kill leaves the one or the other.
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

_MOST_PAGES = 4096
_RETRY = 0.05
CHECKPOINT_SECONDS = 2.0
"""How long the checkpoint waits for a reader of the old state; then the log is emptied later, by itself."""


class Changed(Exception):
    """Another process has written since the safety backup; nothing was copied."""


def install(database: Path, image: Path, unchanged: Callable[[], None], report: Report = quiet) -> None:
    """Replace the content of the live database by the image's, in one commit.

    ``unchanged`` is called once the live file is locked for writing, and may raise: then nothing was copied.
    Raises StoreBusy when another process holds the write lock for too long.
    """
    with (
        closing(_connect(image, "mode=ro&immutable=1")) as source,
        closing(_connect(database, "mode=rw")) as live,
    ):
        live.execute("PRAGMA synchronous = FULL")
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


def _connect(path: Path, how: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True, autocommit=True, timeout=BUSY_SECONDS)
