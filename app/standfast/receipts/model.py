"""The published shapes: the draft that a playbook hands in, and the receipt that is kept.

A draft holds times as epoch seconds; a receipt holds them as RFC 3339 with `Z`. A secret has no place in
either: a draft with an unknown key is refused, and free text is bounded.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

MAX_TEXT = 4_000
"""Characters of free text that are kept; the rest is counted, not kept."""


def _bounded(value: Any) -> Any:  # a validator sees what came in
    if not isinstance(value, str):
        return value
    text = value.encode("utf-8", "replace").decode()
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}... ({len(text) - MAX_TEXT} more characters)"


Text = Annotated[str, BeforeValidator(_bounded)]
"""What a person reads: an error of a tool is cut rather than lost."""
Word = Annotated[str, StringConstraints(pattern=r"\A[a-z][a-z0-9-]{0,31}\z")]
Name = Annotated[str, StringConstraints(pattern=r"\A[A-Za-z0-9_.:@+-]{1,128}\z")]
Digest = Annotated[str, StringConstraints(pattern=r"\A[0-9a-f]{64}\z")]
Seconds = Annotated[float, Field(ge=0, lt=253_402_300_800, allow_inf_nan=False)]
"""Epoch seconds before the year 10000."""


class _Part(BaseModel):
    # Numbers become strings because a template may have turned the id 12345678 into one.
    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_absent(cls, value: Any) -> Any:
        # A template that has nothing to say gives an empty text where a fact may be null.
        if not isinstance(value, dict):
            return value
        absent = {name for name, field in cls.model_fields.items() if field.default is None}
        return {name: None if given == "" and name in absent else given for name, given in value.items()}


class Check(_Part):
    """One thing that was looked at."""

    name: Text
    outcome: Literal["pass", "attention", "refuse", "fail"]
    observed: Text = ""


class Unit(_Part):
    """The service's unit, and how systemd saw it at the end."""

    name: Name
    text_sha256: Digest | None = None
    active_state: Text | None = None
    sub_state: Text | None = None
    main_pid: int | None = None
    n_restarts: int | None = None
    exit_code: int | None = None


class Boot(_Part):
    """Which boot of the host this was: when PID 1 started, or another marker's text."""

    pid1_started_at: float | Text | None = None
    pid1_start_ticks: int | None = None
    """Kernel ticks from the kernel's boot to PID 1's start: exact where the wall clock steps."""
    marker: Text | None = None


class Run(_Part):
    """The process that finished the canary."""

    id: Name
    release: Name
    pid: int


class Canary(_Part):
    """The fresh unit of work that proved the operation."""

    work: Name
    generation: int
    seconds: float
    run: Run


class Step(_Part):
    """One step of a change of code; it lasts until the next one. By the host's clock."""

    name: Word
    started_at: Text


class Switch(_Part):
    """What changing the code of a working service came to; the release ids stand in the receipt itself."""

    outcome: Literal["upgraded", "rolled_back", "configured", "resumed", "stopped"]
    """What works now: the new release; an old one, by a rollback of code; the new configuration; what was
    there before, again; nothing."""
    step: Word | None = None
    """Where it failed."""
    resumed_from: Word | None = None
    """The step at which an earlier run was cut short that this one finished, or took back."""
    resumed_because: Text | None = None
    silence_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """From the last moment at which the old process could finish work to the first that the new one did."""
    facts_before: Digest | None = None
    facts_after: Digest | None = None
    explained: Annotated[list[Text], Field(max_length=200)] = []
    """Each difference between the facts, and the rows written since the start that account for it."""
    backup: Text | None = None
    migrated: dict[Name, tuple[int, int]] = {}
    """Schema before and after, of each component that was brought forward."""
    below_floor: Text | None = None
    """The floor that was named to go below it, and the reason that was given."""
    ways_on: Annotated[list[Text], Field(max_length=10)] = []
    steps: Annotated[list[Step], Field(max_length=100)] = []


class DraftPhase(_Part):
    """One phase of an operation; it lasts until the next one, or the end."""

    name: Text
    started_at: Seconds


class Controller(_Part):
    """Who ran the operation, with what."""

    ansible_core: Text | None = None
    user: Text | None = None
    bundle_commit: Text | None = None


class _Facts(_Part):
    operation: Word
    run_id: Name
    instance: Name
    host: Name
    release_before: Name | None = None
    release_after: Name | None = None
    verdict: Literal["done", "failed", "refused"]
    stopped_at: Text | None = None
    """The phase or task at which it stopped; null when done."""
    reason: Text | None = None
    checks: Annotated[list[Check], Field(max_length=500)] = []
    unit: Unit | None = None
    boot: Boot | None = None
    canary: Canary | None = None
    switch: Switch | None = None
    """Of an upgrade or a rollback that came so far."""
    controller: Controller | None = None

    @model_validator(mode="after")
    def _say_where_it_stopped(self) -> Self:
        stopped = self.stopped_at is not None or self.reason is not None
        if stopped == (self.verdict == "done"):
            raise ValueError("stopped_at or reason is given exactly when the verdict is not done")
        return self


class Draft(_Facts):
    """What `standfast receipt record` reads on stdin."""

    started_at: Seconds
    finished_at: Seconds
    phases: Annotated[list[DraftPhase], Field(max_length=200)] = []


class Phase(_Part):
    """One phase and how long it took."""

    name: Text
    started_at: str
    seconds: float


class Receipt(_Facts):
    """One kept receipt. A later version may add fields: a reader ignores what it does not know."""

    model_config = ConfigDict(extra="ignore")

    format: Literal[1] = 1
    sequence: Annotated[int, Field(ge=1)]
    previous: Digest | None
    """The digest of the receipt before it; null for the first."""
    digest: Digest
    """sha256 of the canonical JSON of everything but this field."""
    recorded_at: str
    recorded_by: Name
    """The release whose CLI recorded it."""
    adopted_from: str | None = None
    """The pending receipt that a run left which failed before a CLI was there."""
    started_at: str
    finished_at: str
    seconds: float
    phases: list[Phase] = []


class Recorded(BaseModel):
    """What `receipt record` did, or with `--check` would do."""

    changed: bool
    check: bool
    file: str
    receipt: Receipt
    adopted: list[str]
    """Pending receipts that were chained before it."""
    not_adopted: list[str]
    """Pending receipts that could not be read, and why; they are left where they are."""


class ReceiptLine(BaseModel):
    """One line of the list."""

    sequence: int
    file: str
    operation: str
    verdict: str
    started_at: str
    seconds: float
    release_before: str | None
    release_after: str | None
    stopped_at: str | None


class ReceiptList(BaseModel):
    """The kept receipts, newest first."""

    receipts: list[ReceiptLine]
    pending: list[str]


class Difference(BaseModel):
    """One way in which the folder is not one whole chain."""

    file: str
    problem: Literal["missing", "edited", "reordered", "forked", "unreadable", "exposed", "foreign"]
    detail: str


class Verification(BaseModel):
    """Whether the receipts are one whole chain. The newest receipts being deleted cannot be seen from
    the rest: compare `newest` with the copy on the controller.
    """

    verified: bool
    receipts: int
    newest: str | None
    """The digest of the newest receipt."""
    pending: list[str]
    differences: list[Difference]
