"""Which backups go: never on another command's behalf, and never the last one that is known to be good."""

from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from standfast.durable import create_empty, sync_folder
from standfast.errors import BadInput, Refused
from standfast.layout import Layout
from standfast.operations.backup import folders
from standfast.operations.backup.folders import FILE_MODE, MAKING, MANIFEST
from standfast.operations.backup.listing import Kept, kept
from standfast.operations.backup.making import discard
from standfast.operations.backup.verifying import verify
from standfast.operations.opening import refuse_other_user
from standfast.store import triggers

KEEP = 7
"""Newest backups that stay in any case."""


class Pruned(BaseModel):
    """What `backup prune` did, or with `--check` would do."""

    changed: bool
    check: bool
    removed: list[str]
    kept: list[str]
    """Newest first."""
    good: str | None
    """The newest that was verified just now; null when nothing was to be removed."""


def prune(layout: Layout, *, now: float, keep: int = KEEP, days: float = 0, check: bool = False) -> Pruned:
    """Remove what is neither among the `keep` newest nor younger than `days`.

    Newest means the highest sequence, and a backup counts as no older than any with a lower sequence: a clock
    that was wrong removes nothing too early. Before anything is removed the newest backup that verifies is
    found, and it stays; so does the newest whose last rehearsal was good, because only a rehearsed backup
    counts. Raises BadInput; Refused `no_good_backup` (nothing is removed), `backup_running`.
    """
    if keep < 1 or days < 0:
        raise BadInput("--keep is at least 1, and --days not below 0")
    refuse_other_user(layout)
    home = folders.backups_folder(layout)
    with folders.alone(home):
        found, _ = kept(home, now)
        rehearsed = next((one for one in found if one.entry.rehearsed and one.entry.rehearsed.ok), None)
        doomed = [
            one
            for one in _doomed(found, keep, timedelta(days=days).total_seconds(), now)
            if one is not rehearsed
        ]
        good = None
        if doomed:
            good = _newest_good(found, record=not check)
            doomed = [one for one in doomed if one.path != good]
        removed = [one.path for one in doomed if check or remove(one.path)]
    return Pruned(
        changed=bool(removed),
        check=check,
        removed=[path.name for path in removed],
        kept=[one.entry.name for one in found if one.path not in removed],
        good=None if good is None else good.name,
    )


def _doomed(found: list[Kept], keep: int, seconds: float, now: float) -> list[Kept]:
    doomed, latest = [], float("-inf")
    for position, one in reversed(list(enumerate(found))):  # from the lowest sequence on
        latest = max(latest, folders.seconds_of(one.manifest.made_at))
        if position >= keep and now - latest >= seconds:
            doomed.append(one)
    return doomed[::-1]


def _newest_good(found: list[Kept], *, record: bool) -> Path:
    for one in found:
        if verify(one.path, record=record).ok:
            return one.path
    raise Refused(
        "no_good_backup",
        "none of the backups is good, so none is removed",
        observed=[
            f"{one.entry.name}: {one.entry.problem or 'its verification failed'}" for one in found[:10]
        ],
        remedy="make a new one: `standfast backup create`; see each with `standfast backup verify NAME`",
    )


def remove(path: Path) -> bool:
    """Remove one backup; False, with nothing changed, while somebody reads it.

    It stops being a backup first, so that a kill in the middle leaves what the next run cleans up.
    """
    with folders.unused(path) as free:
        if not free:
            return False
        with suppress(FileExistsError):
            create_empty(path / MAKING, FILE_MODE)
        (path / MANIFEST).unlink()
        sync_folder(path)
        triggers.reach("backup.unmade")
        discard(path)
    return True
