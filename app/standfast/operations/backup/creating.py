"""Making a backup: everything that can be refused is refused first, and the manifest is written last."""

import getpass
import os
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from standfast.authority import host_identity, operations
from standfast.clock import rfc3339
from standfast.errors import BadInput
from standfast.layout import Layout, checked_path, running_release
from standfast.operations.backup import folders
from standfast.operations.backup.companions import Wanted, gather
from standfast.operations.backup.folders import FAILED, told_of_failure
from standfast.operations.backup.limits import (
    Guard,
    Limits,
    Report,
    cancelable,
    quiet,
    refuse_little_space,
)
from standfast.operations.backup.listing import BackupEntry
from standfast.operations.backup.making import (
    Making,
    Origin,
    clean,
    making,
    refuse_place,
    taken,
    typed_errors,
)
from standfast.operations.backup.manifest import Releases
from standfast.operations.backup.snapshot import copy_database, map_small, size_of_copy
from standfast.operations.opening import refuse_other_user
from standfast.operations.schema import COMPONENTS
from standfast.store import open_readonly, triggers
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
    release_before: str | None = None
    """The release that wrote the store, when the code of another one makes the backup."""
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
        release_before: str | None = None,
        limits: Limits | None = None,
    ) -> "Request":
        """From what an operator typed; BadInput names what is wrong."""
        asked_by = asked_by or _user()
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
            release_before=release_before,
            limits=limits,
        )

    @property
    def release(self) -> str:
        """The release whose store it is."""
        return self.release_before or running_release()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.geteuid()}"


def create(layout: Layout, request: Request, *, report: Report = quiet, check: bool = False) -> Created:
    """Make one backup of the live store. The service goes on meanwhile.

    Raises Refused, with nothing left behind: `backup_running`, `destination_*`, `not_encrypted`,
    `backup_no_space`, `backup_deadline`, `backup_wal`, `canceled`, `backup_damaged`, and what opening the
    store refuses. A failure never removes an earlier backup.
    """
    refuse_other_user(layout)
    absent = check and not os.path.lexists(layout.backups)
    home = layout.backups if absent else folders.backups_folder(layout, make=not check)
    with (
        typed_errors(),
        nullcontext() if absent else folders.alone(home),
        closing(open_readonly(layout.database)) as source,
        cancelable() as canceled,
    ):
        refuse_newer(source, COMPONENTS)
        operations(source)  # an uninitialised store has no business to back up
        sequence = folders.next_sequence(home)
        release, now = request.release, time.time()
        folder = request.to or home / folders.folder_name(sequence, now, release)
        _refuse_destination(layout, folder, request)
        size = size_of_copy(source)
        refuse_little_space(layout.root if absent else folder.parent, size + request.limits.floor)
        cleaned = clean(home, check=check)
        if check:
            return _created(None, folder, request, cleaned, check=True)
        folders.keep_sequence(home, sequence)
        guard = Guard(request.limits, live=layout.database, target=folder.parent, canceled=canceled)
        with told_of_failure(home / FAILED), making(folder):
            make = Making(folder, guard, report)
            partial = make.partial()
            map_small(source, size)
            moment = copy_database(source, partial, guard, report)
            triggers.reach("backup.sealed")
            origin = _origin(layout, request, folder, guard, sequence)
            entry = make.publish(partial, make.describe(partial, origin, rfc3339(moment)))
    return _created(entry, folder, request, cleaned, check=False)


def _origin(layout: Layout, request: Request, folder: Path, guard: Guard, sequence: int) -> Origin:
    release, after = request.release, request.release_after
    return Origin(
        sequence=sequence,
        release=release,
        releases=None if after is None else Releases(before=release, after=after),
        asked_by=request.asked_by,
        host=host_identity(),
        not_included=request.companions.not_included(),
        gather=lambda copy: gather(layout, request.companions, copy, folder, guard),
    )


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


def _refuse_destination(layout: Layout, folder: Path, request: Request) -> None:
    if request.to is not None:
        refuse_place(layout, folder)
    elif os.path.lexists(folder):
        raise taken(folder)
    request.companions.refuse_exposed(folder.parent if folder.parent.is_dir() else layout.root)
