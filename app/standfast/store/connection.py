"""Opening the store and writing to it."""

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from urllib.parse import quote

from standfast.durable import create_file
from standfast.errors import Refused, StoreBusy
from standfast.store import triggers
from standfast.store.migrations import (
    Component,
    apply_migrations,
    pending,
    refuse_foreign,
    refuse_newer,
)

BUSY_SECONDS = 5.0
"""How long a statement waits for another process's lock before StoreBusy."""

_RETRY_SECONDS = 0.01
_SHORTEST_DATABASE = 512


class Store(sqlite3.Connection):
    """A connection that knows the components it was opened with."""

    components: tuple[Component, ...] = ()


type Around = Callable[[sqlite3.Connection], AbstractContextManager[None]]
"""What surrounds pending migrations inside their transaction: an exception undoes them all."""


def open_store(
    path: Path,
    components: Sequence[Component],
    *,
    create: bool = False,
    around: Around = lambda _connection: nullcontext(),
) -> Store:
    """Open the store at ``path`` for writing and bring every component's schema forward.

    ``create`` makes a missing file (0600). ``around`` may judge the migrations, when any are pending. Raises
    Refused: ``store_absent``, ``store_foreign`` (another application's file), ``store_newer`` (a component is
    newer than this code; the file stays byte for byte as it was); and StoreBusy.
    """
    if create and not path.exists():
        _create(path)
    connection = _connect(path, "rw", Store)
    try:
        connection.components = tuple(components)
        _prepare(connection, path, create=create, around=around)
    except BaseException:
        connection.close()
        raise
    return connection


def open_readonly(path: Path) -> Store:
    """Open the store at ``path`` for reading only (``mode=ro``).

    Raises Refused: ``store_absent`` or ``store_foreign``. A newer schema is not refused here, so that health
    can describe it.
    """
    return _open_readonly(path, "ro")


def open_untouched(path: Path, *, is_open: bool) -> Store:
    """As ``open_readonly``, and no byte beside the store changes. For ``store.looking``, which says when.

    ``is_open``: its -wal and -shm are there; else nobody has it open, and all of it is in its one file.
    """
    return _open_readonly(path, "ro&readonly_shm=1" if is_open else "ro&immutable=1")


def _open_readonly(path: Path, mode: str) -> Store:
    connection = _connect(path, mode, Store)
    try:
        _refuse_foreign(connection, path, create=False)
    except BaseException:
        connection.close()
        raise
    return connection


def open_image(path: Path, components: Sequence[Component]) -> Store:
    """Open a private copy that is thrown away when its process dies: no write-ahead log, nothing synced.

    Its schema is not raised. Raises Refused as ``open_readonly`` and ``store_newer``.
    """
    connection = _connect(path, "rw", Store)
    try:
        connection.components = tuple(components)
        _refuse_foreign(connection, path, create=False)
        refuse_newer(connection, connection.components)
        for pragma in (
            "journal_mode = MEMORY",
            "synchronous = OFF",
            "foreign_keys = ON",
            "trusted_schema = OFF",
        ):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


class Transaction:
    """A write transaction: BEGIN IMMEDIATE, then COMMIT, or ROLLBACK on any exception.

    Transactions do not nest (RuntimeError). StoreBusy when another process holds the write lock for longer
    than BUSY_SECONDS. ``boundary`` names the commit for crash tests. A class rather than a generator, and few
    calls: every write enters one.
    """

    __slots__ = ("_boundary", "_connection")

    def __init__(self, connection: sqlite3.Connection, boundary: str = "transaction") -> None:
        self._connection = connection
        self._boundary = boundary

    def begin(self) -> None:
        """What every way of entering does first; from then on it must be left."""
        if self._connection.in_transaction:
            raise RuntimeError("a write transaction is already open; transactions do not nest")
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if is_busy(error):
                raise _busy() from error
            raise

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        connection = self._connection
        if raised is not None:
            _roll_back(connection)
            return
        try:
            if triggers.armed:
                triggers.reach(f"{self._boundary}.before_commit")
            connection.execute("COMMIT")
        except BaseException:
            _roll_back(connection)
            raise
        if triggers.armed:
            triggers.reach(f"{self._boundary}.committed")


class immediate(Transaction):  # noqa: N801 - used as a `with` word
    """A write transaction that no claim stands behind."""

    __slots__ = ()

    __enter__ = Transaction.begin


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:  # SQLite does it by itself when, for example, the disk is full
        connection.execute("ROLLBACK")


def _busy() -> StoreBusy:
    return StoreBusy(
        f"another process held the store's write lock for {BUSY_SECONDS:g} s; nothing was written"
    )


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Whether another connection's lock is the cause."""
    return error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _connect(path: Path, mode: str, factory: type[Store]) -> Store:
    try:
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode={mode}",
            uri=True,
            autocommit=True,
            timeout=BUSY_SECONDS,
            factory=factory,
        )
    except sqlite3.OperationalError as error:
        raise Refused(
            "store_absent",
            "there is no store that this user can open",
            observed=f"{path}: {error}",
            remedy="run `standfast init` as the service user, or name the right --state",
        ) from error
    return connection


def _create(path: Path) -> None:
    """An empty file, private from its first byte; SQLite fills it. Another process may be faster."""
    try:
        create_file(path, b"", 0o600)
    except FileExistsError:
        return


def _prepare(connection: Store, path: Path, *, create: bool, around: Around) -> None:
    # A refusal must leave every byte alone, so closing must not move the WAL into the database file.
    connection.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)
    _refuse_foreign(connection, path, create=create)
    refuse_newer(connection, connection.components)
    connection.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, False)
    _enter_wal(connection)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    # A statement that a trigger may refuse keeps what it changes until its end: in 64 KB that are taken from
    # the system and given back each time, or, so, in as little memory as it needs.
    connection.execute("PRAGMA temp_store = MEMORY")
    if pending(connection, connection.components):
        with immediate(connection, "migrate"):
            refuse_newer(connection, connection.components)
            with around(connection):
                apply_migrations(connection, connection.components)


def _refuse_foreign(connection: sqlite3.Connection, path: Path, *, create: bool) -> None:
    try:
        _refuse_fragment(path)
        refuse_foreign(connection, create=create)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode != sqlite3.SQLITE_CANTOPEN:
            if is_busy(error):
                raise _busy() from error
            raise
        raise Refused(
            "store_foreign",
            "the file is not a Standfast store",
            observed=f"{path}: {error}",
            remedy="name the right --state, or restore a backup; the file was left alone",
        ) from error


def _refuse_fragment(path: Path) -> None:
    """SQLite may take a file that is too short for a database for an empty one, and overwrite it."""
    if 0 < path.stat().st_size < _SHORTEST_DATABASE:
        raise sqlite3.DatabaseError("the file is shorter than any database")


def _enter_wal(connection: sqlite3.Connection) -> None:
    """Write-ahead logging is a property of the file; SQLite does not wait for locks while switching to it."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            with closing(connection.execute("PRAGMA journal_mode = WAL")) as cursor:
                mode = cursor.fetchone()[0]
            if mode == "wal":
                return
            raise Refused(
                "store_not_wal", "the store's file system cannot do write-ahead logging", observed=mode
            )
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if time.monotonic() > deadline:
                raise StoreBusy("another process keeps the new store locked; nothing was written") from error
        time.sleep(_RETRY_SECONDS)
