"""Copying a live database through SQLite, sealing the copy, and looking at a sealed one.

The source stays in one read transaction for the whole copy. Without it every commit of another process makes
the copy start over, and beside a busy writer it never ends; with it the writer goes on and the write-ahead
log grows, which is why that is bounded.
"""

import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from standfast.errors import Refused
from standfast.operations.backup.folders import SIDECARS
from standfast.operations.backup.limits import Guard, Progress, Report, quiet
from standfast.store import triggers
from standfast.store.connection import is_busy

PAGES = 1024
"""In one step: after each the limits are looked at."""
PAUSE = 0.05
"""Seconds to wait when another process holds a lock that keeps even readers out."""
BLOCK = 1 << 20
"""Bytes that are hashed between two looks at the limits."""
STEPS = 200_000
"""Instructions of SQLite's machine between two looks at the limits: some milliseconds."""

MAPPED = 128 << 20
"""Bytes of a database up to which it is read through a memory map, without a call for each page.

Larger ones are not: mapped pages are counted as memory of ours, though they are the kernel's own cache.
"""

HEADER = 100
_MAGIC = b"SQLite format 3\0"


def copy_database(
    source: sqlite3.Connection, destination: Path, guard: Guard, report: Report = quiet
) -> float:
    """Copy the database of `source` into the empty file `destination`, as it is at one moment.

    Returns that moment (epoch seconds). `source` must not be in a transaction. The copy is sealed
    (`journal_mode=DELETE`, no sidecars) and not yet synced. Raises Refused as `Guard.check`.
    """
    with pinned(source, guard) as moment:
        # What becomes of the file when the machine dies before it is published is of no interest.
        with closing(_writable(destination)) as target:
            target.execute("PRAGMA journal_mode = OFF")
            target.execute("PRAGMA synchronous = OFF")
            copy_pages(source, target, guard, report)
        triggers.reach("backup.copied")
    seal(destination)
    return moment


def copy_pages(source: sqlite3.Connection, target: sqlite3.Connection, guard: Guard, report: Report) -> None:
    """Copy every page, in steps, under the limits of `guard`. The caller has pinned the source."""

    def step(status: int, remaining: int, total: int) -> None:
        guard.check()
        triggers.reach("backup.step")
        if status in {sqlite3.SQLITE_OK, sqlite3.SQLITE_DONE}:  # after BUSY, `remaining` says nothing
            report(Progress("copy", total - remaining, total))

    source.backup(target, pages=PAGES, sleep=PAUSE, progress=step)


@contextmanager
def pinned(source: sqlite3.Connection, guard: Guard) -> Iterator[float]:
    """Hold one read transaction on the source; gives the time at which it began.

    BEGIN alone holds nothing: the first read does. Raises Refused `backup_deadline` when another process
    keeps readers out for longer than the deadline.
    """
    source.execute("PRAGMA busy_timeout = 100")
    while True:
        source.execute("BEGIN")
        try:
            source.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            break
        except sqlite3.OperationalError as error:
            source.execute("ROLLBACK")
            if not is_busy(error):
                raise
        guard.check()
        time.sleep(PAUSE)
    try:
        yield time.time()
    finally:
        if source.in_transaction:
            source.execute("ROLLBACK")


def map_small(connection: sqlite3.Connection, size: int) -> None:
    """Read a database of `size` bytes through a memory map, if that is not too much.

    Only where nobody shortens the file meanwhile: a sealed one, or a live one that SQLite's locks protect.
    """
    connection.execute(f"PRAGMA mmap_size = {MAPPED if size <= MAPPED else 0}")


def size_of_copy(connection: sqlite3.Connection) -> int:
    """The bytes that a copy of this database will have."""
    count, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return int(count) * int(size)


def seal(path: Path) -> None:
    """Make a copied database one plain file: no write-ahead logging in its header, no file beside it."""
    with closing(_writable(path)) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # nobody else knows it: no shared memory file
        connection.execute("PRAGMA synchronous = OFF")  # whoever publishes it syncs it, once
        mode = connection.execute("PRAGMA journal_mode = DELETE").fetchone()[0]
    if mode != "delete" or not is_sealed(path):
        raise Refused(
            "backup_not_sealed",
            "the copy could not be taken out of write-ahead logging",
            observed=f"{path}: journal mode {mode}",
            remedy="name a place on a local file system with --to",
        )


def is_sealed(path: Path) -> bool:
    """Whether a file is a database that needs no other: its header says so and nothing lies beside it."""
    header = header_of(path)
    return header[:16] == _MAGIC and header[18:20] == b"\x01\x01" and not sidecars(path)


def header_of(path: Path) -> bytes:
    """The first bytes of a file that is no live database."""
    with path.open("rb") as file:
        return file.read(HEADER)


def sidecars(path: Path) -> list[str]:
    """The names of SQLite's files beside a database."""
    return [path.name + suffix for suffix in SIDECARS if os.path.lexists(path.with_name(path.name + suffix))]


@contextmanager
def sealed(path: Path, guard: Guard | None = None) -> Iterator[sqlite3.Connection]:
    """Read a sealed database; makes no file beside it and takes no lock.

    A statement that runs into a limit of `guard` raises the Refused of that limit.
    """
    with closing(_connect(path, "mode=ro&immutable=1")) as connection:
        map_small(connection, path.stat().st_size)
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA trusted_schema = OFF")
        if guard is not None:
            connection.set_progress_handler(lambda: _passed(guard), STEPS)
        try:
            yield connection
        except sqlite3.OperationalError as error:
            if guard is not None and error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                guard.check()
            raise


def _passed(guard: Guard) -> bool:
    try:
        guard.check()
    except Refused:
        return True
    return False


def damage(connection: sqlite3.Connection) -> list[str]:
    """What `integrity_check` objects to; empty for a whole database."""
    found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(10)")]
    return [] if found == ["ok"] else found


def dangling(connection: sqlite3.Connection) -> list[str]:
    """References to rows that are not there; at most ten are told."""
    rows: list[tuple[Any, ...]] = connection.execute("PRAGMA foreign_key_check").fetchmany(10)
    return [f"table {row[0]}, row {row[1]}, refers to {row[2]}" for row in rows]


def digest(path: Path, guard: Guard | None = None, report: Report = quiet) -> str:
    """sha256 of a file that is no live database."""
    found, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        total = os.fstat(file.fileno()).st_size
        while block := file.read(BLOCK):
            if guard is not None:
                guard.check()
            found.update(block)
            done += len(block)
            report(Progress("digest", done, total))
    return found.hexdigest()


def _writable(path: Path) -> sqlite3.Connection:
    return _connect(path, "mode=rw")


def _connect(path: Path, how: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True, autocommit=True)
