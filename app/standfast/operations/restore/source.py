"""What is to be restored: a finished backup that is none of the live files, verified to its last byte."""

import os
from dataclasses import dataclass
from pathlib import Path

from standfast.errors import BadInput, Refused
from standfast.layout import Layout
from standfast.operations.backup.folders import SIDECARS, SNAPSHOT
from standfast.operations.backup.limits import Report
from standfast.operations.backup.listing import named
from standfast.operations.backup.manifest import BackupManifest, read_manifest
from standfast.operations.backup.verifying import verify
from standfast.operations.schema import understood

_FOREIGN = {"application": "source_foreign", "schema": "source_differs"}


@dataclass(frozen=True)
class Source:
    """One backup that may be restored."""

    folder: Path
    manifest: BackupManifest

    @property
    def snapshot(self) -> Path:
        """Its database: one sealed file."""
        return self.folder / SNAPSHOT


def find(layout: Layout, given: str, now: float) -> Source:
    """The backup of this name or folder, looked at from outside; opens nothing of the live state.

    Raises BadInput and Refused: `backup_unknown`, `source_linked`, `same_file`, `backup_incomplete`,
    `manifest_invalid`, `source_newer`, `source_older`.
    """
    folder = named(layout, given, now)
    _refuse_live(layout, folder)
    source = Source(folder=folder, manifest=read_manifest(folder))
    refuse_other_schema(source.manifest.schema_versions)
    return source


def refuse_unverified(source: Source, report: Report) -> None:
    """Read all of the backup; Refused `source_*`, named after the check that failed first."""
    found = verify(source.folder, report=report, record=False)
    failed = [check for check in found.checks if check.outcome == "fail"]
    if failed:
        first = failed[0].name
        raise Refused(
            _FOREIGN.get(first, f"source_{first.replace(' ', '_')}"),
            f"the backup is not what its manifest says: {first}",
            observed=[f"{check.name}: {check.observed}" for check in failed],
            remedy="restore another backup; `standfast backup list` shows them, `backup verify` judges one",
        )


def refuse_other_schema(versions: dict[str, int]) -> None:
    """Refused `source_newer` or `source_older` unless the backup has the schema of this release."""
    present = understood()
    newer = [f"{name} {version}" for name, version in versions.items() if version > present.get(name, 0)]
    if newer:
        raise Refused(
            "source_newer",
            "the backup was written by a newer release",
            observed=[f"{one} (this release understands {_of(present, one)})" for one in newer],
            remedy="install the release that made it, or a later one",
        )
    older = [
        f"{name} {versions.get(name, 0)} (this release: {version})"
        for name, version in present.items()
        if versions.get(name, 0) < version
    ]
    if older:
        raise Refused(
            "source_older",
            "the backup was written by an older release",
            observed=older,
            remedy="bring a copy of it forward: `standfast backup migrate`; restore that one",
        )


def _of(present: dict[str, int], told: str) -> int | str:
    return present.get(told.partition(" ")[0], "none")


def _refuse_live(layout: Layout, folder: Path) -> None:
    """By device and inode: a path can lie, and opening the live file would cost SQLite its locks."""
    live = {
        (found.st_dev, found.st_ino)
        for suffix in ("", *SIDECARS)
        if (found := _stat(layout.database.with_name(layout.database.name + suffix))) is not None
    }
    snapshot = folder / SNAPSHOT
    found = _stat(snapshot)
    if found is not None and (found.st_dev, found.st_ino) in live:
        raise Refused(
            "same_file",
            "the source is the live store itself",
            observed=f"{snapshot} is {layout.database}",
            remedy="name a backup: `standfast backup list` shows them",
        )
    for path in (folder, snapshot):
        if path.is_symlink():
            raise Refused(
                "source_linked",
                "the source is reached through a symbolic link",
                observed=f"{path} is {os.path.realpath(path)}",
                remedy="name the backup's own folder, so that nobody can turn the link meanwhile",
            )
    if os.path.realpath(folder) == os.path.realpath(layout.state):
        raise BadInput(f"{folder} is the state directory, not a backup")


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
