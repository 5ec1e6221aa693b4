"""Making a backup: everything that can be refused is refused first, and the manifest is written last."""

import getpass
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from standfast.authority import host_identity, operations
from standfast.clock import rfc3339
from standfast.durable import create_empty, create_folder, publish, sync_file, sync_folder, write_file
from standfast.errors import BadInput, Refused, StandfastError
from standfast.layout import Layout, checked_path, running_release
from standfast.operations.backup import folders, meaning, snapshot
from standfast.operations.backup.companions import Wanted, gather
from standfast.operations.backup.folders import (
    FAILED,
    FILE_MODE,
    FOLDER_MODE,
    MAKING,
    MANIFEST,
    PARTIAL,
    SNAPSHOT,
)
from standfast.operations.backup.limits import (
    Guard,
    Limits,
    Progress,
    Report,
    cancelable,
    no_space,
    quiet,
    refuse_little_space,
)
from standfast.operations.backup.listing import BackupEntry, look
from standfast.operations.backup.manifest import BackupManifest, Releases, write_manifest
from standfast.operations.opening import refuse_other_user
from standfast.operations.schema import COMPONENTS
from standfast.store import open_readonly, schema_versions, triggers
from standfast.store.migrations import refuse_newer

_LONGEST_NAME = 100


class Created(BaseModel):
    """What `backup create` did, or with `--check` would do."""

    changed: bool
    check: bool
    backup: BackupEntry | None
    """null under `--check`."""
    folder: str
    """Where it is, or would be."""
    not_included: list[str]
    cleaned: list[str]
    """Left-overs of killed runs that were (or would be) removed first."""


@dataclass(frozen=True)
class Request:
    """One backup that is wanted."""

    to: Path | None = None
    """The folder to make; None: the next one below the instance's backups."""
    companions: Wanted = field(default_factory=lambda: Wanted.of((), ()))
    asked_by: str = ""
    """Who wants it; the user that runs it when empty."""
    release_after: str | None = None
    """The release that an upgrade is about to start; names both in the manifest."""
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def of(
        cls,
        *,
        to: str | None = None,
        told: Sequence[str] = (),
        copied: Sequence[str] = (),
        asked_by: str = "",
        release_after: str | None = None,
        limits: Limits | None = None,
    ) -> "Request":
        """From what an operator typed; BadInput names what is wrong."""
        asked_by = asked_by or getpass.getuser()
        for name, text in (("--asked-by", asked_by), ("--release-after", release_after or "x")):
            if not text.strip() or not text.isprintable() or len(text) > _LONGEST_NAME:
                raise BadInput(f"{name}: one line of 1 to {_LONGEST_NAME} printable characters")
        limits = limits or Limits()
        if limits.deadline <= 0 or limits.wal_cap < 0 or limits.floor < 0:
            raise BadInput("--deadline is above 0; --wal-cap and --floor are not below 0")
        return cls(
            to=None if to is None else checked_path(to, "--to"),
            companions=Wanted.of(told, copied),
            asked_by=asked_by,
            release_after=release_after,
            limits=limits,
        )


def create(layout: Layout, request: Request, *, report: Report = quiet, check: bool = False) -> Created:
    """Make one backup of the live store. The service goes on meanwhile.

    Raises Refused, with nothing left behind: `backup_running`, `destination_*`, `not_encrypted`,
    `backup_no_space`, `backup_deadline`, `backup_wal`, `canceled`, `backup_damaged`, and what opening the
    store refuses. A failure never removes an earlier backup.
    """
    refuse_other_user(layout)
    home = folders.backups_folder(layout, make=True)
    with folders.alone(home), closing(open_readonly(layout.database)) as source, cancelable() as canceled:
        refuse_newer(source, COMPONENTS)
        operations(source)  # an uninitialised store has no business to back up
        sequence = folders.next_sequence(home)
        release, now = running_release(), time.time()
        folder = request.to or home / folders.folder_name(sequence, now, release)
        _refuse_destination(layout, folder, request)
        refuse_little_space(folder.parent, _pages(source) + request.limits.floor)
        cleaned = clean(home, check=check)
        if check:
            return _created(None, folder, request, cleaned, check=True)
        folders.keep_sequence(home, sequence)
        guard = Guard(request.limits, live=layout.database, target=folder.parent, canceled=canceled)
        with _told_of_failure(home), making(folder):
            make = _Making(layout, request, folder, guard, report)
            entry = make.from_live(source, sequence, release)
    return _created(entry, folder, request, cleaned, check=False)


def _created(
    entry: BackupEntry | None, folder: Path, request: Request, cleaned: list[str], *, check: bool
) -> Created:
    return Created(
        changed=True,
        check=check,
        backup=entry,
        folder=str(folder),
        not_included=request.companions.not_included(),
        cleaned=cleaned,
    )


def _pages(connection: sqlite3.Connection) -> int:
    """The size that a copy will have."""
    count, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return int(count) * int(size)


def _refuse_destination(layout: Layout, folder: Path, request: Request) -> None:
    if request.to is not None:
        refuse_place(layout, folder)
    elif os.path.lexists(folder):
        raise _taken(folder)
    request.companions.refuse_exposed(folder.parent)


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
        raise _taken(folder)


def _taken(folder: Path) -> Refused:
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
    found = []
    for path in sorted(home.iterdir()):
        if folders.sequence_in(path.name) is None or path.is_symlink() or not path.is_dir():
            continue
        inside = {entry.name for entry in path.iterdir()}
        if MANIFEST in inside:
            if MAKING in inside and not check:  # killed after its last step: it is whole
                _finish(path)
        elif MAKING in inside or not inside:
            found.append(path.name)
            if not check:
                _discard(path)
    return found


@contextmanager
def making(folder: Path) -> Iterator[None]:
    """The folder of a backup that is being made: there for the block, and gone again if it fails."""
    try:
        create_folder(folder, FOLDER_MODE)
    except FileExistsError:
        raise _taken(folder) from None
    try:
        create_empty(folder / MAKING, FILE_MODE)
        triggers.reach("backup.folder")
        yield
    except BaseException as error:
        _discard(folder)
        typed = _typed(error)
        if typed is error:
            raise
        raise typed from error
    _finish(folder)


def _typed(error: BaseException) -> BaseException:
    """A full disk is a refusal with a remedy; what SQLite or the disk says else is told, not traced."""
    if no_space(error):
        return Refused(
            "backup_no_space",
            "there was not enough free space for the backup",
            observed=str(error),
            remedy="make room (`standfast backup prune`), or name another place with --to",
        )
    if isinstance(error, sqlite3.Error | OSError):
        return StandfastError(f"the backup failed and what was made of it is removed: {error}")
    return error


def _discard(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=False)
    sync_folder(folder.parent)


def _finish(folder: Path) -> None:
    (folder / MAKING).unlink()
    sync_folder(folder)
    triggers.reach("backup.finished")


@contextmanager
def _told_of_failure(home: Path) -> Iterator[None]:
    """Keep the failure of the block for health to see, until one succeeds; a full disk may prevent it."""
    try:
        yield
    except BaseException as error:
        told = {"at": rfc3339(time.time()), "reason": str(error) or type(error).__name__}
        with suppress(OSError):
            write_file(home / FAILED, (json.dumps(told) + "\n").encode(), FILE_MODE)
        raise
    if (home / FAILED).exists():
        (home / FAILED).unlink()
        sync_folder(home)


@dataclass
class _Making:
    """The steps of one backup, in their order, in a folder that is already ours."""

    layout: Layout
    request: Request
    folder: Path
    guard: Guard
    report: Report
    began: float = field(default_factory=time.monotonic)

    def from_live(self, source: sqlite3.Connection, sequence: int, release: str) -> BackupEntry:
        """Copy, check, publish, describe."""
        partial = self._partial()
        moment = snapshot.copy_database(source, partial, self.guard, self.report)
        triggers.reach("backup.sealed")
        after = self.request.release_after
        manifest = self.describe(partial, sequence, moment)
        manifest = manifest.model_copy(
            update={
                "release": release,
                "releases": None if after is None else Releases(before=release, after=after),
            }
        )
        return self.publish(partial, manifest)

    def _partial(self) -> Path:
        partial = self.folder / PARTIAL
        create_empty(partial, FILE_MODE)
        triggers.reach("backup.partial")
        return partial

    def describe(self, partial: Path, sequence: int, moment: float) -> BackupManifest:
        """Check the sealed copy and say what is in it. Raises Refused `backup_damaged`."""
        self.report(Progress("check", 0, 0))
        with snapshot.sealed(partial, self.guard) as copy:
            found = [*snapshot.damage(copy), *snapshot.dangling(copy)]
            if found:
                raise Refused(
                    "backup_damaged",
                    "the copy does not pass its checks, so the live store may be damaged too",
                    observed=found,
                    remedy="keep the last good backup; stop the service and look at the store's disk",
                )
            triggers.reach("backup.checked")
            companions = gather(self.layout, self.request.companions, copy, self.folder, self.guard)
            triggers.reach("backup.companions")
            facts = {
                "schema": schema_versions(copy),
                "application_id": copy.execute("PRAGMA application_id").fetchone()[0],
                "epoch": operations(copy).epoch,
                "page_size": copy.execute("PRAGMA page_size").fetchone()[0],
                "rows": meaning.rows(copy),
                "totals": meaning.totals(copy),
            }
        return BackupManifest(
            sequence=sequence,
            release=running_release(),
            sqlite=sqlite3.sqlite_version,
            bytes=partial.stat().st_size,
            sha256=snapshot.digest(partial, self.guard, self.report),
            host=host_identity(),
            made_at=rfc3339(moment),
            seconds=round(time.monotonic() - self.began, 3),
            asked_by=self.request.asked_by,
            companions=companions,
            not_included=self.request.companions.not_included(),
            **facts,
        )

    def publish(self, partial: Path, manifest: BackupManifest) -> BackupEntry:
        """File, its name, the folder, and then the manifest: the order in which they reach the disk."""
        self.guard.check()
        sync_file(partial)
        triggers.reach("backup.synced")
        publish(partial, self.folder / SNAPSHOT)
        triggers.reach("backup.published")
        self.guard.check()
        write_manifest(self.folder, manifest)
        triggers.reach("backup.described")
        found = look(self.folder, time.time())
        assert found is not None
        return found.entry
