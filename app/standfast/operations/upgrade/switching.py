"""The steps of a switch, in their order, each in the journal before it begins.

    facts    what the business consists of, while the old release still works
    stop     the old service; shown by the manager, its control group and the writer's lock, which is kept
    backup   of the store as it now is; its manifest names both releases
    migrate  with the target's code, in one transaction that also shows that no business fact changed by it
    unit     of the target, durably in place and read by the manager
    start    until the manager has its READY
    canary   fresh work, finished by that very process
    compare  every difference of the facts since the stop is explained by rows written since

A rollback of code and a change of the configuration have neither backup nor migration. The writer's lock is
kept from the stop to the start, so that nobody else acts for the state directory in between; commands of
operators still may add work, which is why the migration compares within its own transaction.

A step that fails raises StepFailed, and `falling_back` decides what becomes of it.
"""

import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Protocol

from standfast.authority import writer_lock
from standfast.errors import Refused, StandfastError
from standfast.layout import Layout
from standfast.operations.backup.creating import Request, create
from standfast.operations.canary import Flight, withdraw
from standfast.operations.initialise import initialise_instance
from standfast.operations.schema import COMPONENTS, raised, understood
from standfast.operations.upgrade import facts, reserve
from standfast.operations.upgrade.journal import Journal, Keeper, Step
from standfast.operations.upgrade.manager import AT_REST, Manager, ManagerFailed, UnitState, release_of, until
from standfast.operations.upgrade.result import Proof
from standfast.operations.upgrade.sides import Side
from standfast.store import open_readonly, open_store, schema_versions, triggers

UPGRADE: tuple[Step, ...] = ("facts", "stop", "backup", "migrate", "unit", "start", "canary", "compare")
ROLLBACK: tuple[Step, ...] = ("facts", "stop", "unit", "start", "canary", "compare")

type Tell = Callable[[str], None]


@dataclass(frozen=True)
class Limits:
    """How long things may take, in seconds."""

    stop: float = 100.0
    """Above the 90 s after which the manager kills a service that does not stop."""
    start: float = 60.0
    """Until READY."""
    canary: float = 60.0


class ConfigurationFiles(Protocol):
    """What a change of the configuration puts in place."""

    def keep(self) -> None:
        """Put the bytes of before aside."""

    def place(self) -> None:
        """Put the new ones in place."""

    def put_back(self) -> None:
        """Put those of before in place again."""

    def owed(self) -> bool:
        """Whether the bytes of before are kept, and others are in place."""

    def forget(self) -> None:
        """Remove the bytes of before."""


class StepFailed(StandfastError):
    """A step of the switch failed."""

    def __init__(self, step: Step, reason: str, code: str | None = None) -> None:
        super().__init__(reason)
        self.step, self.reason, self.code = step, reason, code


class Signals:
    """A lost connection does not end a switch; a request to end it is heeded between two steps."""

    def __init__(self) -> None:
        self.asked: str | None = None
        """The name of the signal that asked."""

    @contextmanager
    def heard(self) -> Iterator["Signals"]:
        """For the main thread of a process."""
        numbers = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
        before = {number: signal.getsignal(number) for number in numbers}
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in numbers[1:]:
            signal.signal(number, self._ask)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, _: FrameType | None) -> None:
        self.asked = signal.Signals(number).name


@dataclass
class Switching:
    """One switch from `old` to `new`, with its journal."""

    layout: Layout
    keeper: Keeper
    manager: Manager
    old: Side
    new: Side
    new_unit: str
    """The text of the unit of `new`."""
    limits: Limits
    tell: Tell
    signals: Signals = field(default_factory=Signals)
    resumed_from: Step | None = None
    resumed_because: str | None = None
    files: ConfigurationFiles | None = None
    """Of a change of the configuration, which is no change of the release."""
    flight: Flight | None = None
    canary: Proof | None = None
    comparison: facts.Comparison | None = None
    silence: float | None = None
    main_pid: int | None = None
    _restarts: int = 0
    _held: ExitStack = field(default_factory=ExitStack)
    _holds: bool = False

    @property
    def journal(self) -> Journal:
        """As it is on disk."""
        return self.keeper.journal

    @property
    def steps(self) -> tuple[Step, ...]:
        """Of this kind of switch."""
        return UPGRADE if self.journal.operation == "upgrade" else ROLLBACK

    def forward(self, first: Step) -> None:
        """Every step from `first` on. Raises StepFailed."""
        do: dict[Step, Callable[[], None]] = {
            "facts": self._facts,
            "stop": self._stop,
            "backup": self._backup,
            "migrate": self._migrate,
            "unit": self._unit,
            "start": self._start,
            "canary": self._canary,
            "compare": self._compare,
        }
        for step in self.steps[self.steps.index(first) :]:
            try:
                if self.signals.asked:
                    raise StandfastError(f"{self.signals.asked} asked to end before this step")  # noqa: TRY301
                self.tell(step)
                self.keeper.enter(step)
                do[step]()
            except Exception as error:
                raise self.failed(step, error) from error
            triggers.reach(f"upgrade.{step}.done")

    def failed(self, step: Step, error: Exception) -> StepFailed:
        """The step that failed, and whether for want of room; why a service failed only its journal says."""
        of_service = step in {"start", "canary"}
        return StepFailed(step, reason_of(error), reserve.code_of(error, self.layout if of_service else None))

    def let_go(self) -> None:
        """Let another process act for the state directory."""
        self._held.close()
        self._holds = False

    def stopped(self, seen: UnitState | None = None) -> None:
        """Stop whatever the unit runs, and show that nobody acts; from then on only this process may.

        `seen`: the unit as it was just now. Raises ManagerFailed, with what still runs, or who holds the
        writer's lock.
        """
        self.manager.stop(self.limits.stop, (seen or self.manager.look()).cgroup)
        refused: list[Refused] = []

        def held() -> bool:
            try:
                self._held.enter_context(writer_lock(self.layout))
            except Refused as error:
                refused[:] = [error]
                return False
            self._holds = True
            return True

        if not self._holds and not until(held, self.manager.settle):
            raise ManagerFailed(f"{self.manager.unit} is at rest, but {reason_of(refused[0])}")

    def _facts(self) -> None:
        self.keeper.note(facts_before=facts.take(self.layout, time.time()).facts)

    def _stop(self) -> None:
        seen = self.manager.look()
        if seen.active not in AT_REST or self.journal.stop_asked_at is None:
            self.keeper.note(stop_asked_at=time.time())
        self.stopped(seen)
        reading = facts.take(self.layout, time.time())
        self.keeper.note(facts_stopped=reading.facts, marks=reading.marks)

    def _backup(self) -> None:
        request = Request.of(
            asked_by=f"upgrade {self.journal.run_id}"[:100],
            release_before=self.journal.release_from,
            release_after=self.journal.release_to,
        )
        self.keeper.note(backup=create(self.layout, request).folder)

    def _migrate(self) -> None:
        with closing(open_store(self.layout.database, COMPONENTS, around=_unchanged)):
            pass
        self.keeper.note(migrated=raised(self.journal.schema_before, understood()))
        # What shop.toml adds, and the schedule: explained by their rows when the facts are compared.
        initialise_instance(self.layout, now=time.time())

    def _unit(self) -> None:
        if self.files is not None:
            self.files.keep()
            self.files.place()
        self.manager.place(self.new_unit)

    def _start(self) -> None:
        self.flight = self.new.ask()
        triggers.reach("upgrade.start.asked")
        self.started(self.new)

    def withdraw(self) -> None:
        """Take back a canary that was asked for, where nobody has it; whoever serves next may do it, too."""
        if self.flight is not None:
            with suppress(StandfastError, sqlite3.Error):
                withdraw(self.layout, self.flight, "the switch failed")

    def started(self, side: Side) -> None:
        """Start the unit that is in place, and show that `side` runs by it. Raises ManagerFailed."""
        self.let_go()
        found = self.manager.start(self.limits.start)
        self.watch(side, found)
        if not found.enabled:  # only after an earlier end that left it stopped; the business works already
            self.manager.enable(on=True)

    def watch(self, side: Side, found: UnitState) -> None:
        """From now on the service of `side` must neither end nor be started again."""
        runs = release_of(found.main_pid)
        if found.active != "active" or runs != side.id:
            raise ManagerFailed(
                f"{self.manager.unit} is {found.told()} and runs release {runs}, not {side.id}"
            )
        self.main_pid, self._restarts = found.main_pid, found.restarts

    def still(self) -> None:
        """Raises ManagerFailed when the service has ended or was started again since `watch`."""
        found = self.manager.look()
        if (found.active, found.main_pid, found.restarts) != ("active", self.main_pid, self._restarts):
            raise ManagerFailed(f"{self.manager.unit} ended meanwhile: it is {found.told()}")

    def _canary(self) -> None:
        if self.main_pid is None:
            self.watch(self.new, self.manager.look())
        assert self.main_pid is not None
        self.canary = self.new.canary(self.main_pid, self.limits.canary, self.flight)

    def _compare(self) -> None:
        self.compared(self.new)

    def compared(self, side: Side) -> None:
        """Compare the facts with those at the stop; the service of `side` must have stayed the same."""
        before = self.journal.before
        if before is not None:
            self.comparison = facts.compare(self.layout, before, time.time())
            first = facts.first_finished(self.layout, before.marks, side.id)
            asked = self.journal.stop_asked_at
            if first is not None and asked is not None:
                silence = round(first - max(asked, before.marks.last_finished or asked), 3)
                self.silence = silence if silence >= 0 else None  # a clock was set back: it is not known
            if self.comparison.unexplained:
                raise StandfastError(
                    f"business facts differ without an explanation: {'; '.join(self.comparison.unexplained)}"
                )
        self.still()


@contextmanager
def _unchanged(connection: sqlite3.Connection) -> Iterator[None]:
    """Around migrations, inside their transaction: one that changes a business fact is undone as a whole."""
    before = facts.read(connection, time.time()).facts
    yield
    found = facts.differences(before, facts.read(connection, time.time()).facts)
    if found:
        raise StandfastError(
            f"the migration changes business facts, and was undone as a whole: {'; '.join(found)}"
        )


def schema_now(layout: Layout) -> dict[str, int]:
    """Of the live store. Raises Refused as opening it does."""
    with closing(open_readonly(layout.database)) as connection:
        return schema_versions(connection)


def reason_of(error: BaseException) -> str:
    """One sentence for the journal and the operator."""
    if isinstance(error, Refused):
        return f"{error.reason}{f' ({error.seen})' if error.seen else ''}"
    if isinstance(error, StandfastError):
        seen = getattr(error, "observed", "")
        return f"{error}{f' ({seen})' if seen else ''}"
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
