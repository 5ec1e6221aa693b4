"""Looking at a live store without leaving a trace: no byte and no time of its folder changes.

Opened with `mode=ro` alone, SQLite notes its reader in the -shm file, and it makes -wal and -shm beside a
store that nobody has open. So the index of an open store is mapped for reading only (`readonly_shm`), and a
store that nobody has open is read as the plain file that it is then (`immutable`). When that changes
meanwhile, as a service starts or stops, what was read counts for nothing and is read again.
"""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from standfast.errors import Refused
from standfast.store.connection import Store, open_untouched

_ATTEMPTS = 100
_RETRY_SECONDS = 0.02
_PASSING = {
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY_CANTINIT,
    sqlite3.SQLITE_READONLY_CANTLOCK,
    sqlite3.SQLITE_READONLY_RECOVERY,
}


class _Files(NamedTuple):
    """What lies there now. Sizes in bytes; -1: there is no such file."""

    database: tuple[int, int, int]
    """Inode, size and time of change, in nanoseconds."""
    wal: int
    shm: int

    @property
    def open(self) -> bool:
        """Whether a process has it open, or had when it was killed: whoever closes it last removes both."""
        return self.wal >= 0 and self.shm >= 0

    @property
    def plain(self) -> bool:
        """Whether all of it is in the one file."""
        return self.wal <= 0 and self.shm < 0


def look_at[T](path: Path, look: Callable[[Store], T]) -> T:
    """What `look` reads from the store at `path`. It may be called more than once.

    Raises Refused: `store_absent`, `store_foreign`, and `store_unsettled` when its files do not belong
    together, which only a start of the service can mend.
    """
    for attempt in range(_ATTEMPTS):
        time.sleep(_RETRY_SECONDS if attempt else 0)
        before = _files(path)
        if not before.open and not before.plain:
            continue
        try:
            with closing(open_untouched(path, is_open=before.open)) as connection:
                found = look(connection)
        except (sqlite3.DatabaseError, Refused) as error:
            if _lasting(error) if before.open else _files(path) == before:
                raise
        else:
            if before.open or _files(path) == before:
                return found
    raise Refused(
        "store_unsettled",
        "the store's files do not belong together",
        observed=f"{path}: -wal {_told(before.wal)}, -shm {_told(before.shm)}",
        remedy="start the service, which settles what a crash left, and look again",
    )


def _lasting(error: sqlite3.DatabaseError | Refused) -> bool:
    """Whether the cause is another one than an index that a process just makes, mends or removes."""
    found = error.__cause__ if isinstance(error, Refused) else error
    return getattr(found, "sqlite_errorcode", 0) not in _PASSING


def _files(path: Path) -> _Files:
    try:
        found = path.stat()
        database = (found.st_ino, found.st_size, found.st_mtime_ns)
    except OSError:
        database = (-1, -1, -1)
    return _Files(database, *(_size(path.with_name(path.name + suffix)) for suffix in ("-wal", "-shm")))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _told(size: int) -> str:
    return "absent" if size < 0 else f"{size} bytes"
