"""Which backups there are: a cheap look that opens no snapshot, so that health can afford it."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from standfast.errors import BadInput, Refused
from standfast.layout import Layout, checked_path
from standfast.operations.backup import folders
from standfast.operations.backup.folders import (
    MANIFEST,
    REHEARSED,
    SNAPSHOT,
    VERIFIED,
    seconds_of,
    sequence_in,
)
from standfast.operations.backup.manifest import (
    BackupManifest,
    Result,
    parse_manifest,
    read_private,
    read_result,
)

SKEW = 300
"""Seconds that a backup may be dated in the future before its age is called unknown."""


class Checked(BaseModel):
    """The last verification or rehearsal of one backup."""

    ok: bool
    at: str


class BackupEntry(BaseModel):
    """One backup, as a look at its small files tells it."""

    path: str
    name: str
    sequence: int
    """Newest means: highest sequence, whatever the clocks said."""
    made_at: str
    age_seconds: float
    """0 for one that is dated in the future; see `problem`."""
    release: str
    epoch: str
    bytes: int
    sha256: str
    """What the manifest says of the snapshot; only a verification compares."""
    verified: Checked | None
    rehearsed: Checked | None
    problem: str | None
    """Why it may be no good; null says only that nothing can be seen without reading the snapshot."""


class BackupList(BaseModel):
    """The backups of an instance, newest (highest sequence) first."""

    backups: list[BackupEntry]
    junk: list[str]
    """Names there that are no finished backup: left-overs of killed runs, and what others put there."""


@dataclass(frozen=True)
class Kept:
    """One backup with its manifest."""

    path: Path
    manifest: BackupManifest
    data: bytes
    """The manifest's own bytes."""
    entry: BackupEntry


def listing(layout: Layout, now: float) -> BackupList:
    """Every backup of the instance; empty when there is no folder for them."""
    found, junk = kept(layout.backups, now)
    return BackupList(backups=[one.entry for one in found], junk=junk)


def kept(folder: Path, now: float) -> tuple[list[Kept], list[str]]:
    """The backups in `folder`, newest first, and the names of everything else."""
    found: list[Kept] = []
    junk: list[str] = []
    for name in _names(folder):
        one = None if sequence_in(name) is None else look(folder / name, now)
        if one is not None:
            found.append(one)
        elif name not in folders.OWN_FILES:
            junk.append(name)
    found.sort(key=lambda one: (one.manifest.sequence, one.entry.name), reverse=True)
    return found, sorted(junk)


def look(path: Path, now: float) -> Kept | None:
    """The backup in the folder `path`; None when that is no finished one."""
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            return None
        data = read_private(path / MANIFEST)
        manifest = parse_manifest(data, path / MANIFEST)
        made = seconds_of(manifest.made_at)
    except (OSError, ValueError, Refused):
        return None
    assert data is not None
    verified, rehearsed = read_result(path, VERIFIED, data), read_result(path, REHEARSED, data)
    entry = BackupEntry(
        path=str(path),
        name=path.name,
        sequence=manifest.sequence,
        made_at=manifest.made_at,
        age_seconds=round(max(0.0, now - made), 3),
        release=manifest.release,
        epoch=manifest.epoch,
        bytes=manifest.bytes,
        sha256=manifest.sha256,
        verified=_checked(verified),
        rehearsed=_checked(rehearsed),
        problem=_problem(path, manifest, made - now, (verified, rehearsed)),
    )
    return Kept(path=path, manifest=manifest, data=data, entry=entry)


def named(layout: Layout, which: str | None, now: float) -> Path:
    """The folder of a backup: by its name, by its absolute path, or the newest.

    Raises BadInput when `which` is neither; Refused `backup_unknown` when there is no such folder.
    """
    if which is None:
        found, _ = kept(layout.backups, now)
        if found:
            return found[0].path
        raise _unknown("there is no backup yet", str(layout.backups), "make one: `standfast backup create`")
    if not which.startswith("/") and sequence_in(which) is None:
        raise BadInput(f"{which!r} is neither a backup's name nor an absolute path")
    path = checked_path(which, "backup") if which.startswith("/") else layout.backups / which
    if not path.is_symlink() and path.is_dir():
        return path
    seen = "is no folder" if os.path.lexists(path) else "is absent"
    raise _unknown(
        f"there is no backup {which}", f"{path} {seen}", "`standfast backup list` shows this instance's"
    )


def _unknown(reason: str, observed: str, remedy: str) -> Refused:
    return Refused("backup_unknown", reason, observed=observed, remedy=remedy)


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def _checked(result: Result | None) -> Checked | None:
    return None if result is None else Checked(ok=result.ok, at=result.at)


def _problem(
    path: Path, manifest: BackupManifest, ahead: float, results: tuple[Result | None, Result | None]
) -> str | None:
    for kind, result in zip(("verification", "rehearsal"), results, strict=True):
        if result is not None and not result.ok:
            return f"its {kind} failed at {result.at}"
    try:
        size = (path / SNAPSHOT).lstat().st_size
    except OSError:
        return "its snapshot is missing"
    if size != manifest.bytes:
        return f"its snapshot has {size} bytes, its manifest says {manifest.bytes}"
    if sequence_in(path.name) not in {None, manifest.sequence}:
        return f"its manifest says sequence {manifest.sequence}"
    if ahead > SKEW:
        return f"it is dated {ahead:.0f} s in the future: its age is not known"
    return None
