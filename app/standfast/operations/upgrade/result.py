"""What a switch says at its end: the published object of `upgrade switch` and `rollback`."""

from typing import Literal

from pydantic import BaseModel

from standfast.operations.canary import CanaryRun
from standfast.operations.upgrade.facts import Facts

type Operation = Literal["upgrade", "rollback", "configure"]

type Outcome = Literal["upgraded", "rolled_back", "configured", "resumed", "stopped"]
"""upgraded: the new release works; rolled_back: an older one does, by a code rollback; configured: the new
configuration works; resumed: what was left runs again, and nothing was migrated; stopped: the service stays
stopped."""

GOOD: dict[Operation, Outcome] = {
    "upgrade": "upgraded",
    "rollback": "rolled_back",
    "configure": "configured",
}
"""What each operation comes to when it succeeds."""


class Phase(BaseModel):
    """One step, which lasts until the next one."""

    name: str
    started_at: str


class Proof(BaseModel):
    """The fresh unit of work that the release which runs now has finished."""

    work: str
    generation: int
    seconds: float
    run: CanaryRun


class Switch(BaseModel):
    """What became of it."""

    changed: bool
    check: bool
    operation: Operation
    outcome: Outcome
    run_id: str
    release_from: str
    release_to: str
    resumed_from: str | None = None
    """The step that an earlier run was cut short in; null when this one began at the beginning."""
    resumed_because: str | None = None
    """What was found of the earlier run, and so what was done about it."""
    step: str | None = None
    """Where it failed."""
    code: str | None = None
    """`disk_full` when that is why it failed."""
    reason: str | None = None
    """Why it failed, and what was done and not done then."""
    silence_seconds: float | None = None
    """From the later of the stop and the last work finished before it, to the first work finished after."""
    facts_before: Facts | None = None
    facts_after: Facts | None = None
    explained: list[str] = []
    """Every difference between them, and the rows that explain it."""
    backup: str | None = None
    migrated: dict[str, tuple[int, int]] = {}
    canary: Proof | None = None
    unit_sha256: str | None = None
    """Of the unit that is in place."""
    main_pid: int | None = None
    forced: str | None = None
    """Why somebody went below the rollback floor."""
    phases: list[Phase] = []
    ways_on: list[str] = []
    """What an operator may do next."""
    receipt: str | None = None
    """The file of the operation receipt, of one that was typed by hand."""
