"""How the backups of an instance stand, for health: cheap to ask, opens no snapshot, changes nothing."""

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from standfast.errors import Refused
from standfast.layout import Layout
from standfast.operations.backup import folders
from standfast.operations.backup.folders import FAILED, MAKING, REHEARSED, SEND_FAILED, seconds_of
from standfast.operations.backup.listing import SKEW, BackupEntry, kept
from standfast.operations.backup.manifest import read_private
from standfast.operations.unit import user_units

BACKUP_SECONDS = 36 * 3600
"""The newest backup is old after this: a nightly one was missed, and half a day has passed."""
REHEARSAL_SECONDS = 8 * 86400
"""The last rehearsal is old after this: a weekly one was missed, and a day has passed."""


class LastBackup(BaseModel):
    """The newest finished backup: the one with the highest sequence."""

    path: str
    made_at: str
    age_seconds: float
    sequence: int
    verified: bool | None
    """null when it was never verified."""


class LastRehearsal(BaseModel):
    """The last rehearsal of any backup of the instance, also when that backup is gone."""

    path: str
    sequence: int
    ok: bool
    at: str
    age_seconds: float = 0.0


@dataclass(frozen=True)
class Standing:
    """What is known without reading a snapshot. Times are epoch seconds."""

    newest: BackupEntry | None
    ahead: float
    """Seconds by which the newest is dated in the future."""
    failure: str | None
    """Why the last attempt gave no backup."""
    unsent: str | None
    """Why the last copy to a repository failed."""
    rehearsal: LastRehearsal | None
    since: float | None
    """Since when there are backups, or a timer that makes them; None: this instance makes none."""
    oldest: float | None
    """When the oldest backup was made."""

    @property
    def last_backup(self) -> LastBackup | None:
        """The newest backup as health tells it."""
        one = self.newest
        if one is None:
            return None
        return LastBackup(
            path=one.path,
            made_at=one.made_at,
            age_seconds=one.age_seconds,
            sequence=one.sequence,
            verified=None if one.verified is None else one.verified.ok,
        )


def standing(layout: Layout, now: float) -> Standing:
    """How the backups stand at `now`."""
    found, junk = kept(layout.backups, now)
    made = [seconds_of(one.manifest.made_at) for one in found]
    timer = _timer_since(layout)
    oldest = min(made, default=None)
    return Standing(
        newest=found[0].entry if found else None,
        ahead=max(0.0, made[0] - now) if made else 0.0,
        failure=_failure(layout.backups, junk),
        unsent=_told(layout.backups / SEND_FAILED),
        rehearsal=_rehearsal(layout.backups, now),
        since=min((time for time in (timer, oldest) if time is not None), default=None),
        oldest=oldest,
    )


def is_ahead(standing: Standing) -> bool:
    """Whether the newest backup's age cannot be known: it is dated in the future."""
    return standing.ahead > SKEW


def timer_of(layout: Layout, job: str) -> Path:
    """Where the instance's user timer for a job would lie."""
    return user_units() / f"{layout.instance().instance}-{job}.timer"


def _timer_since(layout: Layout) -> float | None:
    try:
        return timer_of(layout, "backup").stat().st_mtime
    except (OSError, KeyError, Refused):
        return None


def _failure(home: Path, junk: list[str]) -> str | None:
    told = _told(home / FAILED)
    if told is not None:
        return told
    cut = [name for name in junk if (home / name / MAKING).is_file()]
    if not cut or _running(home):
        return None
    return f"a run was cut short and left {', '.join(cut[:3])}"


def _told(note: Path) -> str | None:
    data = read_private(note)
    if data is None:
        return None
    try:
        told = json.loads(data)
        return f"{told['reason']} ({told['at']})"
    except (ValueError, KeyError, TypeError):
        return f"{note} cannot be read"


def _running(home: Path) -> bool:
    try:
        with folders.alone(home):
            return False
    except Refused:
        return True


def _rehearsal(home: Path, now: float) -> LastRehearsal | None:
    data = read_private(home / REHEARSED)
    try:
        last = None if data is None else LastRehearsal.model_validate_json(data)
        if last is None:
            return None
        age = round(max(0.0, now - seconds_of(last.at)), 3)
    except (ValidationError, ValueError):
        return None
    return last.model_copy(update={"age_seconds": age})
