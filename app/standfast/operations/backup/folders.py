"""Where backups lie: the names of their folders, the folder of them all, and who may change it now."""

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from standfast.clock import rfc3339
from standfast.durable import create_folder, sync_folder, write_file
from standfast.errors import Refused
from standfast.layout import PRIVATE, Layout, refuse_shared
from standfast.locking import FOLDER, locked

SNAPSHOT = "snapshot.sqlite"
PARTIAL = "snapshot.sqlite.partial"
"""The snapshot while it is made; it never has more permissions than later."""
MANIFEST = "manifest.json"
"""Written last: a folder without it is no backup."""
MAKING = "making"
"""There from a folder's first moment until its manifest is: only what holds it is ever cleaned up."""
VERIFIED = "verified.json"
REHEARSED = "rehearsed.json"
"""In a backup's folder the result of its own last rehearsal; in the folder of them all, of the last one."""
FAILED = "failed.json"
"""In the folder of all backups: why the last attempt failed; gone after the next good one."""
SEND_FAILED = "send-failed.json"
"""Beside it: why the last copy to a repository failed; gone after the next good one."""
SEQUENCE = "sequence"
"""In the folder of all backups: the highest number that was given out."""
SIDECARS = ("-wal", "-shm", "-journal")

FOLDER_MODE = PRIVATE
FILE_MODE = 0o600
LAST_SEQUENCE = 10**12 - 1
"""The highest number that a folder's name holds."""
OWN_FILES = {REHEARSED, FAILED, SEND_FAILED, SEQUENCE}
"""What lies beside the backups and belongs there."""
_FOLDER = FOLDER | os.O_NOFOLLOW

_NAME = re.compile(
    r"(?P<sequence>\d{6,12})-(?P<made>\d{8}T\d{6}Z)-(?P<release>[A-Za-z0-9][A-Za-z0-9_.+-]{0,99})"
)


def folder_name(sequence: int, made_at: float, release: str) -> str:
    """`000007-20260301T060000Z-RELEASE`: sorted by name they are sorted by sequence."""
    made = datetime.fromtimestamp(made_at, UTC).strftime("%Y%m%dT%H%M%SZ")
    return f"{sequence:06d}-{made}-{release}"


def sequence_in(name: str) -> int | None:
    """The sequence of a backup folder's name; None for any other name."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found["sequence"])


def seconds_of(text: str) -> float:
    """Epoch seconds of an RFC 3339 time; ValueError when it is none."""
    return datetime.fromisoformat(text).timestamp()


def backups_folder(layout: Layout, *, make: bool = False) -> Path:
    """The folder of all backups, refused unless it is a private folder of this user.

    Raises Refused: `backups_absent`, `backups_folder` (a link, a file), `backups_mode`, `backups_owner`.
    """
    folder = layout.backups
    if make and not os.path.lexists(folder):
        try:
            create_folder(folder, FOLDER_MODE)
        except FileExistsError:
            pass  # another process was faster
        except OSError as error:
            raise _absent(folder, error.strerror or "") from error
    try:
        refuse_shared(folder, "backups", elsewhere="; to keep a backup elsewhere, name the place with --to")
    except OSError as error:
        raise _absent(folder, error.strerror or "") from error
    return folder


def _absent(folder: Path, observed: str) -> Refused:
    return Refused(
        "backups_absent",
        f"there is no folder for backups at {folder}",
        observed=observed,
        remedy=f"install the instance, or make it as its user: mkdir -m 0700 {folder}",
    )


@contextmanager
def told_of_failure(note: Path) -> Iterator[None]:
    """Keep the failure of the block for health to see, until one succeeds; a full disk may prevent it."""
    try:
        yield
    except BaseException as error:
        told = {"at": rfc3339(time.time()), "reason": str(error) or type(error).__name__}
        with suppress(OSError):
            write_file(note, (json.dumps(told) + "\n").encode(), FILE_MODE)
        raise
    if note.exists():
        note.unlink()
        sync_folder(note.parent)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Be the only one that makes or removes backups of this instance; Refused `backup_running` otherwise."""
    with locked(folder, _FOLDER) as mine:
        if not mine:
            raise Refused(
                "backup_running",
                "another backup of this instance is being made or removed",
                observed=f"{folder} is locked",
                remedy="wait until it has ended; `standfast backup list` shows what there is",
            )
        yield


@contextmanager
def in_use(backup: Path) -> Iterator[None]:
    """Keep one backup from being pruned while it is read."""
    with locked(backup, _FOLDER, shared=True):
        yield


@contextmanager
def unused(backup: Path) -> Iterator[bool]:
    """Whether nobody reads this backup; nobody begins to, while the block lasts."""
    with locked(backup, _FOLDER) as mine:
        yield mine


@contextmanager
def scratch(home: Path, name: str) -> Iterator[Path]:
    """A private folder that is gone afterwards; what a killed process left of it is removed first.

    Raises Refused `rehearsal_running` when another process has it.
    """
    folder = home / name
    if folder.is_symlink():
        folder.unlink()
    if folder.is_dir():
        with unused(folder) as free:
            if not free:
                raise Refused(
                    "rehearsal_running",
                    f"another {name} of this instance is running",
                    observed=f"{folder} is locked",
                    remedy="wait until it has ended",
                )
            shutil.rmtree(folder)
    create_folder(folder, FOLDER_MODE)
    try:
        with in_use(folder):
            yield folder
    finally:
        shutil.rmtree(folder)
        sync_folder(home)


def next_sequence(folder: Path) -> int:
    """The number after every one that was given out, whatever clocks said. The caller is `alone`.

    Raises Refused `backups_numbered_out` when no folder's name could hold it: that backup nobody would find.
    """
    try:
        kept = int((folder / SEQUENCE).read_text("ascii"))
    except (OSError, ValueError):
        kept = 0
    given = max([0, kept, *(sequence_in(path.name) or 0 for path in _inside(folder))])
    if given >= LAST_SEQUENCE:
        raise Refused(
            "backups_numbered_out",
            "no number is left for a backup: something here bears the last one",
            observed=f"{given}, in {folder / SEQUENCE} or in the name of a folder beside it",
            remedy="move the folder away that has no business there, and the file; the next backup goes on",
        )
    return given + 1


def _inside(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def keep_sequence(folder: Path, sequence: int) -> None:
    """Remember durably that the number was given out."""
    write_file(folder / SEQUENCE, f"{sequence}\n".encode(), FILE_MODE)
