"""The state that a restore replaces: whole, absent, damaged, or newer; only SQLite ever opens its file."""

import os
import secrets
import sqlite3
import stat
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from standfast.authority import Operations, operations
from standfast.durable import create_folder, sync_folder
from standfast.errors import Refused
from standfast.layout import Layout
from standfast.operations.backup.folders import SIDECARS
from standfast.operations.backup.snapshot import sidecars
from standfast.operations.schema import COMPONENTS, understood
from standfast.store import open_readonly, schema_versions
from standfast.store.migrations import refuse_newer

_DAMAGE = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}


@dataclass(frozen=True)
class Active:
    """What is there before the restore."""

    kind: Literal["whole", "absent", "damaged", "newer"]
    observed: str = ""
    """Why it is not whole."""
    control: Operations | None = None
    page_size: int = 0
    bytes: int = 0
    inode: int | None = None


def examine(layout: Layout, *, newer_aside: bool = False) -> Active:
    """Look at the live store through SQLite alone; changes nothing.

    With `newer_aside` one of a newer release is no refusal: an upgrade that stopped for good leaves it, and
    going back to the backup of before is one of the lawful ways on. Raises Refused: `store_linked`,
    `store_foreign` (another application's database), `store_newer`, `store_older`, and StoreBusy.
    """
    path = layout.database
    beside = sidecars(path)
    try:
        found = path.lstat()
    except FileNotFoundError:
        return _nothing(f"{path} is not there", beside, None)
    if not stat.S_ISREG(found.st_mode):
        raise Refused(
            "store_linked",
            "the live store is not a plain file of its own",
            observed=f"{path} is {'a link to ' + os.path.realpath(path) if path.is_symlink() else 'no file'}",
            remedy="put the state directory itself on the other file system; move this aside by hand",
        )
    if found.st_size == 0:
        return _nothing(f"{path} is empty", beside, found.st_ino)
    if path.name + "-journal" in beside:  # the store is never in that mode once it is made
        return Active("damaged", "a rollback journal lies beside it", inode=found.st_ino)
    return _opened(path, found, newer_aside=newer_aside)


def _nothing(observed: str, beside: list[str], inode: int | None) -> Active:
    """Side files without their database would be replayed over the next one."""
    if beside:
        return Active("damaged", f"{observed}, and beside it lies {', '.join(beside)}", inode=inode)
    return Active("absent", observed, inode=inode)


def _opened(path: Path, found: os.stat_result, *, newer_aside: bool) -> Active:
    try:
        return _look(path, found)
    except Refused as refused:
        if refused.code == "store_absent" and refused.__cause__ is None:
            return Active("absent", "a database without tables", inode=found.st_ino)
        if refused.code == "store_newer":
            if newer_aside:
                told = f"{refused.reason}: {refused.observed}"
                return Active("newer", told, inode=found.st_ino, bytes=found.st_size)
            raise Refused(
                refused.code,
                refused.reason,
                observed=refused.observed,
                remedy=f"{refused.remedy}; or, to go back to the backup of before it, give up what happened"
                " since: --newer-aside",
            ) from refused
        if refused.code != "store_foreign" or not (damage := damage_in(refused.__cause__)):
            raise
    except sqlite3.DatabaseError as error:
        if not (damage := damage_in(error)):
            raise
    return Active("damaged", damage, inode=found.st_ino, bytes=found.st_size)


def _look(path: Path, found: os.stat_result) -> Active:
    with closing(open_readonly(path)) as connection:
        present = schema_versions(connection)
        refuse_newer(connection, COMPONENTS)
        if present != understood():
            raise Refused(
                "store_older",
                "the live store was written by an older release and has not been brought forward yet",
                observed=f"store {present}, this release {understood()}",
                remedy="run `standfast init`, or use the release that wrote it",
            )
        try:
            control = operations(connection)
        except Refused as refused:
            return Active("damaged", refused.reason, inode=found.st_ino, bytes=found.st_size)
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        return Active("whole", "", control, size, size * pages, found.st_ino)


def damage_in(error: BaseException | None) -> str:
    """What an error says is wrong with the file; nothing when it is something else that went wrong."""
    if not isinstance(error, sqlite3.DatabaseError):
        return ""
    code = getattr(error, "sqlite_errorcode", None)  # None: too short for any database, says the store
    return str(error) if code is None or code & 0xFF in _DAMAGE else ""


def put_aside(layout: Layout, kind: str, now: float) -> Path:
    """Move the store and its side files into a folder of their own, `KIND-TIME-RANDOM`, as evidence.

    Returns the folder. The caller holds the writer lock. Raises Refused `store_held` when a process has one
    of them open: it would go on with the file that was moved.
    """
    files = [layout.database, *(layout.database.with_name(layout.database.name + end) for end in SIDECARS)]
    there = [path for path in files if os.path.lexists(path)]
    if holders := _holders(there):
        raise Refused(
            "store_held",
            f"a process has the {kind} store open",
            observed=[f"process {pid}" for pid in holders],
            remedy="stop it first; then restore again",
        )
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    folder = layout.state / f"{kind}-{moment}-{secrets.token_hex(2)}"
    create_folder(folder)
    # The side files first: a log without its database is nothing, but beside a new one it would be replayed.
    for path in reversed(there):
        path.rename(folder / path.name)
    sync_folder(folder)
    sync_folder(layout.state)
    return folder


def _holders(paths: list[Path]) -> list[int]:
    """The processes that have one of the files open, as far as this user may see them."""
    files = {(found.st_dev, found.st_ino) for found in (path.lstat() for path in paths)}
    processes = (process for process in Path("/proc").iterdir() if process.name.isdigit())
    return sorted(int(process.name) for process in processes if _opens(process) & files)


def _opens(process: Path) -> set[tuple[int, int]]:
    """Device and inode of every file that a process has open; nothing of one that may not be looked at."""
    found = set()
    with suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                opened = descriptor.stat()
                found.add((opened.st_dev, opened.st_ino))
    return found
