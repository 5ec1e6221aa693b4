"""Bringing an older backup forward as a copy: the original stays as it is, as evidence."""

import time
from contextlib import closing
from pathlib import Path

from pydantic import BaseModel

from standfast.authority import host_identity
from standfast.clock import rfc3339
from standfast.errors import Refused
from standfast.layout import Layout, checked_path, running_release
from standfast.operations.backup.folders import SNAPSHOT, in_use
from standfast.operations.backup.limits import (
    Guard,
    Limits,
    Report,
    cancelable,
    quiet,
    refuse_little_space,
)
from standfast.operations.backup.listing import BackupEntry, named
from standfast.operations.backup.making import Making, Origin, making, refuse_place, typed_errors
from standfast.operations.backup.manifest import BackupManifest, Companion, Migrated, read_manifest
from standfast.operations.backup.snapshot import copy_database, seal, sealed
from standfast.operations.backup.verifying import verify
from standfast.operations.schema import COMPONENTS
from standfast.store import open_store
from standfast.store.migrations import pending, refuse_newer


class MigratedBackup(BaseModel):
    """What `backup migrate` did, or with `--check` would do."""

    changed: bool
    check: bool
    source: str
    """Untouched."""
    folder: str
    backup: BackupEntry | None
    """null under `--check`."""
    schema_before: dict[str, int]


def migrate(
    layout: Layout, which: str, to: str, *, limits: Limits, report: Report = quiet, check: bool = False
) -> MigratedBackup:
    """Make a backup at `to` that holds what `which` does, with the schema of this release.

    Sequence, time and epoch stay the original's: it is the same moment of the business. Raises Refused:
    `backup_not_good`, `store_newer`, `nothing_to_migrate`, `destination_*`, `backup_no_space`, ...
    """
    folder = checked_path(to, "--to")
    source = named(layout, which, time.time())
    refuse_place(layout, folder)
    with typed_errors(), in_use(source), cancelable() as canceled:
        before = _original(source, report)
        refuse_little_space(folder.parent, 2 * before.bytes + limits.floor)
        entry = None
        if not check:
            guard = Guard(limits, live=None, target=folder.parent, canceled=canceled)
            with making(folder):
                entry = _bring_forward(source, before, Making(folder, guard, report))
    return MigratedBackup(
        changed=True,
        check=check,
        source=str(source),
        folder=str(folder),
        backup=entry,
        schema_before=before.schema_versions,
    )


def _original(source: Path, report: Report) -> BackupManifest:
    found = verify(source, report=report, record=False)
    if not found.ok:
        raise Refused(
            "backup_not_good",
            f"{source} is not a good backup",
            observed=[f"{one.name}: {one.observed}" for one in found.checks if one.outcome == "fail"],
            remedy="use another backup; `standfast backup list` shows them",
        )
    with sealed(source / SNAPSHOT) as copy:
        refuse_newer(copy, COMPONENTS)
        if not pending(copy, COMPONENTS):
            raise Refused(
                "nothing_to_migrate",
                "the backup has the schema of this release already",
                observed=str(source),
                remedy="restore it as it is",
            )
    return read_manifest(source)


def _bring_forward(source: Path, before: BackupManifest, make: Making) -> BackupEntry:
    partial = make.partial()
    with sealed(source / SNAPSHOT) as original:
        copy_database(original, partial, make.guard, make.report)
    with closing(open_store(partial, COMPONENTS)):
        pass  # opening it brings it forward, all of it or nothing
    seal(partial)

    def with_the_original(_: object) -> list[Companion]:
        return [one.model_copy(update={"copied": None}) for one in before.companions]

    origin = Origin(
        sequence=before.sequence,
        release=running_release(),
        asked_by=before.asked_by,
        host=host_identity(),
        not_included=[*before.not_included, f"companions: their copies lie with the original, {source}"],
        gather=with_the_original,
        migrated=Migrated(
            from_sha256=before.sha256, from_schema=before.schema_versions, at=rfc3339(time.time())
        ),
    )
    return make.publish(partial, make.describe(partial, origin, before.made_at))
