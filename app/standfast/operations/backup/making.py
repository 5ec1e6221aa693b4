"""What every way of making a backup shares: a place that is free, a folder that is whole or gone, the order.

The order in which things reach the disk: the folder's name, the snapshot, its name, and the manifest last.
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from standfast.authority import operations
from standfast.durable import create_empty, create_folder, publish, sync_file, sync_folder
from standfast.errors import Refused, StandfastError, no_space
from standfast.layout import Layout
from standfast.operations.backup import folders, meaning, snapshot
from standfast.operations.backup.folders import FILE_MODE, FOLDER_MODE, MAKING, MANIFEST, PARTIAL, SNAPSHOT
from standfast.operations.backup.limits import Guard, Progress, Report
from standfast.operations.backup.listing import BackupEntry, look
from standfast.operations.backup.manifest import (
    BackupManifest,
    Companion,
    Migrated,
    Releases,
    write_manifest,
)
from standfast.store import schema_versions, triggers


@dataclass(frozen=True)
class Origin:
    """What a manifest says that is not in the snapshot."""

    sequence: int
    release: str
    asked_by: str
    host: str
    not_included: list[str]
    gather: Callable[[sqlite3.Connection], list[Companion]]
    """Told of, and copied, when the snapshot has passed its checks."""
    releases: Releases | None = None
    migrated: Migrated | None = None


@dataclass
class Making:
    """The steps of one backup, in their order, in a folder that is already ours."""

    folder: Path
    guard: Guard
    report: Report
    began: float = field(default_factory=time.monotonic)

    def partial(self) -> Path:
        """The file that the snapshot is made in, private from its first byte."""
        partial = self.folder / PARTIAL
        create_empty(partial, FILE_MODE)
        triggers.reach("backup.partial")
        return partial

    def describe(self, partial: Path, origin: Origin, made_at: str) -> BackupManifest:
        """Sync and check the sealed copy, and say what is in it. Raises Refused `backup_damaged`."""
        self.report(Progress("check", 0, 0))
        with ThreadPoolExecutor(2) as beside, snapshot.sealed(partial, self.guard) as copy:
            synced = beside.submit(_sync, partial)  # the disk's time, beside the one core and the other
            sha256 = beside.submit(snapshot.digest, partial, self.guard, self.report)
            _refuse_damaged(copy)
            triggers.reach("backup.checked")
            companions = origin.gather(copy)
            triggers.reach("backup.companions")
            synced.result()
            return BackupManifest(
                sequence=origin.sequence,
                release=origin.release,
                releases=origin.releases,
                schema=schema_versions(copy),
                application_id=copy.execute("PRAGMA application_id").fetchone()[0],
                epoch=operations(copy).epoch,
                sqlite=sqlite3.sqlite_version,
                page_size=copy.execute("PRAGMA page_size").fetchone()[0],
                bytes=partial.stat().st_size,
                sha256=sha256.result(),
                rows=meaning.rows(copy),
                totals=meaning.totals(copy),
                host=origin.host,
                made_at=made_at,
                seconds=round(time.monotonic() - self.began, 3),
                asked_by=origin.asked_by,
                companions=companions,
                not_included=origin.not_included,
                migrated=origin.migrated,
            )

    def publish(self, partial: Path, manifest: BackupManifest) -> BackupEntry:
        """The synced file's name, the folder, and then the manifest."""
        self.guard.check()
        publish(partial, self.folder / SNAPSHOT)
        triggers.reach("backup.published")
        self.guard.check()
        write_manifest(self.folder, manifest)
        triggers.reach("backup.described")
        found = look(self.folder, time.time())
        assert found is not None
        return found.entry


def _sync(partial: Path) -> None:
    sync_file(partial)
    triggers.reach("backup.synced")


def _refuse_damaged(copy: sqlite3.Connection) -> None:
    found = [*snapshot.damage(copy), *snapshot.dangling(copy)]
    if found:
        raise Refused(
            "backup_damaged",
            "the copy does not pass its checks, so its source may be damaged too",
            observed=found,
            remedy="keep the last good backup; stop the service and look at the store's disk",
        )


def refuse_place(layout: Layout, folder: Path) -> None:
    """Refuse a place outside the instance's backups that is taken, reached by a link, or of another use.

    Raises Refused: `destination_taken`, `destination_linked`, `destination_inside`, `destination_absent`.
    """
    parent = folder.parent
    if not parent.is_dir():
        raise Refused(
            "destination_absent",
            f"there is no folder {parent} to make the backup in",
            observed=f"{parent} is {'not a folder' if os.path.lexists(parent) else 'absent'}",
            remedy="mount or make it first",
        )
    if Path(os.path.realpath(parent)) != parent or folder.is_symlink():
        raise Refused(
            "destination_linked",
            "the destination is reached through a symbolic link",
            observed=f"{folder} is {os.path.realpath(folder)}",
            remedy="name the place itself, so that nobody can turn the link meanwhile",
        )
    for own in (layout.state, layout.backups, layout.receipts, layout.releases):
        if folder.is_relative_to(own):
            raise Refused(
                "destination_inside",
                f"{own} is for other things",
                observed=f"{folder} lies in it",
                remedy="leave --to away for a backup below backups/, or name a place elsewhere",
            )
    if os.path.lexists(folder):
        raise taken(folder)


def taken(folder: Path) -> Refused:
    """What to say of a name that is not free."""
    half_made = (folder / MAKING).exists() and not (folder / MANIFEST).exists()
    return Refused(
        "destination_taken",
        f"{folder} is taken; a backup never replaces anything",
        observed="a left-over of a backup that was cut short" if half_made else "it exists",
        remedy="remove it once you have looked at it, or name another place",
    )


def clean(home: Path, *, check: bool = False) -> list[str]:
    """Remove what killed runs left below `home`; the caller is `folders.alone`. Returns the names.

    Only a folder with a backup's name that holds the mark of a run, or nothing at all, and no manifest is
    a left-over; everything else is left to people.
    """
    if not check and home.is_dir():
        _remove_temporaries(home, folders.SEQUENCE, folders.FAILED, folders.SEND_FAILED)
    found = []
    for path in sorted(home.iterdir()) if home.is_dir() else []:
        if folders.sequence_in(path.name) is None or path.is_symlink() or not path.is_dir():
            continue
        inside = {entry.name for entry in path.iterdir()}
        if MANIFEST in inside:
            if MAKING in inside and not check:  # killed after its last step: it is whole
                _finish(path)
        elif MAKING in inside or not inside:
            found.append(path.name)
            if not check:
                discard(path)
    return found


@contextmanager
def making(folder: Path) -> Iterator[None]:
    """The folder of a backup that is being made: there for the block, and gone again if it fails."""
    try:
        create_folder(folder, FOLDER_MODE)
    except FileExistsError:
        raise taken(folder) from None
    try:
        create_empty(folder / MAKING, FILE_MODE)
        triggers.reach("backup.folder")
        yield
    except BaseException:
        discard(folder)
        raise
    _finish(folder)


@contextmanager
def typed_errors() -> Iterator[None]:
    """A full disk is a refusal with a remedy; what SQLite or the disk says else is told, not traced."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if no_space(error):
            raise Refused(
                "backup_no_space",
                "there was not enough free space for the backup",
                observed=str(error),
                remedy="make room (`standfast backup prune`), or name another place with --to",
            ) from error
        raise StandfastError(f"the backup failed and what was made of it is removed: {error}") from error


def _remove_temporaries(folder: Path, *names: str) -> None:
    """What a kill in the middle of a durable write of ours has left."""
    for name in names:
        for path in folder.glob(f".{name}.*.tmp"):
            path.unlink()


def discard(folder: Path) -> None:
    """Remove what is no backup, its mark last: after a kill in the middle the next run cleans up."""
    for path in sorted(folder.iterdir()):
        if path.name == MAKING:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        triggers.reach("backup.discard")
    (folder / MAKING).unlink(missing_ok=True)
    folder.rmdir()
    sync_folder(folder.parent)


def _finish(folder: Path) -> None:
    _remove_temporaries(folder, MANIFEST)
    (folder / MAKING).unlink()
    sync_folder(folder)
    triggers.reach("backup.finished")
