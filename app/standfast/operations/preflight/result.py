"""What a preflight found: one row for each check."""

from typing import Literal

from pydantic import BaseModel

type Outcome = Literal["pass", "attention", "refuse"]

_ORDER: tuple[Outcome, ...] = ("refuse", "attention", "pass")


class Check(BaseModel):
    """One thing that was looked at."""

    name: str
    outcome: Outcome
    observed: str
    remedy: str
    """What to do about it; empty for what passes."""


class Rehearsal(BaseModel):
    """The migrations, tried on a copy of the live store with this release's code."""

    ok: bool
    bytes: int
    """Of the copy, before."""
    copy_seconds: float
    seconds: float
    """What the migrations took; an upgrade's silence grows by as much."""
    rows: int
    """In all tables, before."""
    facts_before: str
    """The digest of the business facts."""
    facts_after: str | None
    """null: the migrations failed."""
    problems: list[str]


class Preflight(BaseModel):
    """What `standfast preflight` prints. Exit code 0 for `pass`, 4 for `attention`, 3 for `refuse`."""

    ok: bool
    """Whether everything passes."""
    outcome: Outcome
    """The worst of all checks."""
    target: str
    """The release that looked."""
    current: str | None
    """The release that the link `current` leads to."""
    checks: list[Check]
    migrations: dict[str, tuple[int, int]]
    """Component -> its version now, and the one that the target would bring it to."""
    rehearsal: Rehearsal | None
    """null when no migration is needed, or none could be tried."""


def worst(checks: list[Check]) -> Outcome:
    """The outcome of all of them."""
    found = {check.outcome for check in checks}
    return next((outcome for outcome in _ORDER if outcome in found), "pass")
