"""The journal of a switch: what it has begun, on disk before it begins it; and the lock of the one at work.

`<state>/upgrade.json` (0600) stays after the end, with outcome and result, until the next switch: a
controller that lost its connection reads there what became of it. It holds the text of a unit and counts of
rows, and never anything of agent.env.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from standfast.clock import rfc3339
from standfast.durable import write_file
from standfast.errors import Refused, no_space
from standfast.layout import Layout
from standfast.locking import FILE, locked
from standfast.operations.upgrade.facts import Facts, Marks, Reading
from standfast.operations.upgrade.result import Operation, Outcome, Phase, Switch
from standfast.store import triggers

type Step = Literal[
    "facts",
    "stop",
    "backup",
    "migrate",
    "unit",
    "start",
    "canary",
    "compare",
    "done",
    "back-stop",
    "back-unit",
    "back-start",
    "back-canary",
    "back-compare",
]
"""Names that scripts rely on. `back-` is the way back to the release that was left."""


class Journal(BaseModel):
    """`upgrade.json`."""

    model_config = ConfigDict(
        extra="forbid", serialize_by_alias=True, validate_by_alias=True, validate_by_name=True
    )

    format: Literal[1] = 1
    operation: Operation
    run_id: str
    release_from: Annotated[str, Field(alias="from")]
    release_to: Annotated[str, Field(alias="to")]
    step: Step
    """What was begun last."""
    steps: list[Phase] = []
    """Every step that was begun, in its order; those of an attempt that was cut short too."""
    was_active: bool
    """Whether the service ran before the first stop."""
    unit_before: str
    """The text of the unit of the release that is left."""
    schema_before: dict[str, int]
    facts_before: Facts | None = None
    """While the old release still worked."""
    facts_stopped: Facts | None = None
    """Once it was stopped: what the switch must leave as it was."""
    marks: Marks | None = None
    """Where the store's rows ended then."""
    stop_asked_at: float | None = None
    backup: str | None = None
    migrated: dict[str, tuple[int, int]] = {}
    forced: str | None = None
    """Why somebody went below the rollback floor."""
    failed: Step | None = None
    """The step that failed: from there on it goes back."""
    reason: str | None = None
    """Why."""
    code: str | None = None
    """`disk_full` when that is why."""
    outcome: Outcome | Literal["abandoned"] | None = None
    """null: not at its end; abandoned: an operator gave it up."""
    result: Switch | None = None

    @property
    def before(self) -> Reading | None:
        """The facts that the switch must leave as they were, once they are known."""
        if self.facts_stopped is None or self.marks is None:
            return None
        return Reading(self.facts_stopped, self.marks)

    def began(self, step: Step) -> bool:
        """Whether the step was begun, in this attempt or an earlier one."""
        return any(phase.name == step for phase in self.steps)


class Nothing(BaseModel):
    """`{}`: there was no switch yet."""

    model_config = ConfigDict(extra="forbid")


def path(layout: Layout) -> Path:
    """Where the journal is."""
    return layout.state / "upgrade.json"


def read(layout: Layout) -> Journal | None:
    """The journal of the last switch; None when there was none. Refused `journal_unreadable`."""
    try:
        return Journal.model_validate_json(path(layout).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise Refused(
            "journal_unreadable",
            f"{path(layout)} does not say how the last switch stands",
            observed=str(error).splitlines()[0],
            remedy="see runbooks/upgrade-stopped-half-way.md; it may be moved aside once the service works",
        ) from None


class Keeper:
    """Writes one journal: each step before it begins."""

    def __init__(self, layout: Layout, journal: Journal) -> None:
        self._path = path(layout)
        self._must = True
        self.journal = journal
        self.unwritten = False
        """Whether the disk had no room for what is known by now."""

    def enter(self, step: Step) -> None:
        """Record on disk that `step` begins; where that fails, it has not begun."""
        before = self.journal
        phase = Phase(name=step, started_at=rfc3339(time.time()))
        try:
            self.note(step=step, steps=[*before.steps, phase])
        except OSError:
            self.journal = before
            raise
        triggers.reach(f"upgrade.{step}")

    def note(self, **known: object) -> None:
        """Record on disk what is known by now, within a step."""
        self.journal = self.journal.model_copy(update=known)
        try:
            write_file(self._path, self.journal.model_dump_json(indent=1).encode() + b"\n", 0o600)
        except OSError as error:
            if self._must or not no_space(error):
                raise
            self.unwritten = True
        else:
            self.unwritten = False

    def if_there_is_room(self) -> None:
        """From here on a full disk ends nothing: no way back and no end for want of a note.

        The next run reads the last step that could be written, looks at the store and at what runs, and
        decides by that, as after a kill.
        """
        self._must = False


@contextmanager
def at_work(layout: Layout, *, make: bool = True) -> Iterator[None]:
    """Be the only switch of this state directory; the kernel frees the lock when the process dies.

    Without `make` a lock that is not there is not made: nobody else is at work then.
    """
    lock = layout.state / "upgrade.lock"
    if not make and not lock.exists():
        yield
        return
    with locked(lock, FILE) as mine:
        if not mine:
            raise Refused(
                "upgrade_at_work",
                "another switch of this instance is at work",
                observed=f"{lock} is locked",
                remedy="wait for its end: `standfast upgrade status` shows its step",
            )
        yield
