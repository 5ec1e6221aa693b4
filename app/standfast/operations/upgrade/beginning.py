"""What every switch begins with: what is asked, what is refused, and where one that was cut short goes on.

A process can die at any moment: by SIGKILL, with the host, with its disk. Below is what is then there, and
what the next run of the same command does. "As before" means that the store's schema is what it was and that
no process of the target has ever begun to serve it. "Old*" is an old release that refuses a migrated store
and so serves nobody. What a reboot starts by itself is the unit that is in place.

    died in                   store        unit           may run        after a reboot   the next run
    facts                     as before    old            old            old              begins anew
    stop                      as before    old            old, nobody    old              begins anew
    backup                    as before    old            nobody         old              begins anew
    migrate, not committed    as before    old            nobody         old              begins anew
    migrate, committed        migrated     old            nobody         old*             stop; migrate
    unit                      as before    old or target  nobody         old or target    begins anew
    unit                      migrated     old or target  nobody         old* or target   (A)
    start                     either       target         target, or not target           (A)
    canary, compare, done     either       target         target         target           (A)
    back-stop                 any          old or target  either         old* or target   (B)
    back-unit, back-start     any          old or target  old, nobody    old* or target   (B)
    back-canary, back-compare any          old            old            old              (B)
    after outcome `stopped`   any          any            nobody         nobody           a new switch

(A) Where the target runs under its own unit, it is asked for a canary and the facts are compared; else the
unit is stopped, and it goes on at `unit`. (B) The unit is stopped again, and what is to become of it is
decided once more, by the store and the journal: that comes out the same. Where only the disk was full, there
is room again now, and it goes on as if nothing had failed. "Begins anew" makes a new backup;
the earlier one stays. At `migrate` nothing is pending then, and the facts were compared in the transaction
that committed.

A kill between the effect of a step and the next entry is a kill in that step: every step may be done twice.
"""

import hashlib
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from standfast.authority import (
    host_identity,
    operations,
    refuse_other_host,
    refuse_other_marker,
    refuse_while_held,
)
from standfast.errors import BadInput, Refused
from standfast.layout import Layout, checked_path
from standfast.operations.opening import refuse_other_user
from standfast.operations.schema import COMPONENTS, raised, understood
from standfast.operations.upgrade import reserve
from standfast.operations.upgrade.falling_back import finish, go_back, was_started
from standfast.operations.upgrade.journal import Journal, Keeper, Step, at_work, read
from standfast.operations.upgrade.manager import AT_REST, Manager, UnitState, release_of
from standfast.operations.upgrade.result import GOOD, Operation, Switch
from standfast.operations.upgrade.sides import Own, Side
from standfast.operations.upgrade.switching import (
    ConfigurationFiles,
    Limits,
    Signals,
    StepFailed,
    Switching,
    Tell,
    schema_now,
)
from standfast.release.installed import SEAL
from standfast.store import Store, look_at, schema_versions
from standfast.store.migrations import refuse_newer

_LONGEST_NAME = 64
_NAMES = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-")


@dataclass(frozen=True)
class Asked:
    """What an operator, or a playbook, wants of any switch."""

    run_id: str
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def of(cls, run_id: str | None, limits: Limits) -> "Asked":
        """From what was typed; BadInput names what is wrong."""
        return cls(named(run_id or f"{int(time.time()):x}-{secrets.token_hex(3)}", "--run-id"), limits)


def named(text: str, option: str) -> str:
    """The text again when it can be an id; else BadInput, which names the option."""
    if not text or len(text) > _LONGEST_NAME or not set(text) <= _NAMES:
        raise BadInput(f"{option}: 1 to {_LONGEST_NAME} letters, digits, . _ + or -")
    return text


@dataclass(frozen=True)
class Opening:
    """What every switch finds before it looks for what speaks against it; nobody else switches meanwhile."""

    layout: Layout
    own: Own
    own_unit: str
    """What the release that runs this writes for the service."""
    manager: Manager
    unfinished: Journal | None
    """Of a run that was cut short."""
    last: Journal | None
    """Of the last run, at its end or not."""
    signals: Signals

    def switching(
        self,
        found: Journal,
        asked: Asked,
        tell: Tell,
        *,
        old: Side,
        new: Side,
        new_unit: str,
        files: ConfigurationFiles | None = None,
    ) -> Switching:
        """The switch of that journal."""
        return Switching(
            layout=self.layout,
            keeper=Keeper(self.layout, found),
            manager=self.manager,
            old=old,
            new=new,
            new_unit=new_unit,
            limits=asked.limits,
            tell=tell,
            signals=self.signals,
            files=files,
        )


@contextmanager
def opened(layout: Layout, manager: Manager | None, *, check: bool) -> Iterator[Opening]:
    """Be the one that switches, with the code of a release of this root.

    Raises Refused, with nothing touched: `other_user`, `not_a_release`, `upgrade_at_work`,
    `journal_unreadable`.
    """
    refuse_other_user(layout)
    own = Own(layout)
    text = own.unit_text()
    manager = manager or Manager.of(layout.instance().instance)
    with at_work(layout, make=not check), Signals().heard() as signals:
        last = read(layout)
        unfinished = last if last is not None and last.outcome is None else None
        yield Opening(layout, own, text, manager, unfinished, last, signals)


def begin(work: Switching) -> Switch:
    """A new switch. Refused `disk_full`, with nothing touched, without the room for its way back."""
    reserve.keep(work.layout)
    return _carry_on(work, "facts")


def _carry_on(work: Switching, first: Step) -> Switch:
    """Forward from a step, and back when one fails."""
    try:
        work.forward(first)
    except StepFailed as failed:
        return go_back(work, failed)
    return finish(work, GOOD[work.journal.operation])


def resume(work: Switching) -> Switch:
    """Bring a run that was cut short to its end. What it left decides how, not what it meant to do.

    Going on needs the room for a way back, as a new one does; going back does not.
    """
    found = work.journal
    work.resumed_from = found.step
    if found.failed is not None and found.code != reserve.FULL:
        work.resumed_because = f"{found.failed} had failed and going back was under way: it goes on"
        return go_back(work, StepFailed(found.failed, found.reason or "unknown", found.code))
    reserve.keep(work.layout)
    try:
        first, work.resumed_because = _where(work)
    except Exception as error:  # noqa: BLE001 - the safe way is the one back
        return go_back(work, work.failed(found.step, error))
    work.keeper.note(failed=None, reason=None, code=None)  # there is room now: nothing else had failed
    work.tell(f"an earlier run was cut short at {found.step}: {work.resumed_because}")
    return _carry_on(work, first)


def _where(work: Switching) -> tuple[Step, str]:
    """The step to go on from, by the table above; and why."""
    found, before = work.journal, work.journal.before
    migrated = schema_now(work.layout) != found.schema_before
    if before is None or not (migrated or was_started(work)):
        return "facts", "nothing was migrated and the target never began to work, so it begins anew"
    if runs(work.manager, work.manager.look(), work.new.id, work.new_unit):
        return "canary", "the target runs, so it is to show that it works"
    work.stopped()
    if found.step == "migrate":
        return "migrate", "the store was migrated and the target never started, so it goes on there"
    return "unit", "the target does not run and the store is ready for it, so it is started again"


def runs(manager: Manager, state: UnitState, release: str, text: str) -> bool:
    """Whether the service is that release's, under the very text that it writes."""
    return state.active == "active" and release_of(state.main_pid) == release and manager.text() == text


def refuse_other_end(last: Journal, operation: Operation, to: str) -> None:
    """Raise Refused `upgrade_unfinished` unless what was cut short is what is asked for now."""
    if (last.operation, last.release_to) == (operation, to):
        return
    raise Refused(
        "upgrade_unfinished",
        f"another {last.operation} was cut short and must come to its end first",
        observed=f"{last.operation} from {last.release_from} to {last.release_to}, at {last.step}",
        remedy=(
            f"repeat the {last.operation} to {last.release_to}: it goes on, or back; where that release is"
            " gone or cannot, see `standfast upgrade abandon`"
        ),
    )


def installed(layout: Layout, release: str) -> bool:
    """Whether it is there, sealed."""
    return (layout.releases / release / SEAL).is_file()


def refuse_absent(layout: Layout, release: str) -> None:
    """Raise Refused `release_absent` unless a release is installed here, sealed."""
    folder = checked_path(str(layout.releases / release), "release")
    if not installed(layout, release):
        raise Refused(
            "release_absent",
            "there is no such installed release",
            observed=f"{folder} is {'half-made' if folder.is_dir() else 'absent'}",
            remedy="see `standfast release list`",
        )


def refuse_inactive(layout: Layout) -> None:
    """Raise Refused unless this instance's era goes on, here: else no canary could be finished."""
    refuse_other_host(layout.marker, host_identity())

    def look(connection: Store) -> None:
        refuse_newer(connection, COMPONENTS)
        control = operations(connection)
        refuse_other_marker(connection, layout.marker)
        if control.paused:
            raise Refused(
                "paused",
                "the instance is paused, so a release could not show that it works",
                observed=f"paused: {control.reason}",
                remedy="see `standfast health` for why; recover, and let operations go on, first",
            )

    look_at(layout.database, look)


def refuse_held(layout: Layout, state: UnitState) -> None:
    """Raise Refused `writer_held` when the service is at rest and another process acts: a restore, mostly."""
    if state.active in AT_REST:
        refuse_while_held(layout)


def schema_seen(layout: Layout) -> dict[str, int]:
    """Of the live store, leaving no trace."""
    return look_at(layout.database, schema_versions)


def foreseen(begun: Journal, text: str) -> Switch:
    """What would be done; nothing was."""
    return Switch(
        changed=True,
        check=True,
        operation=begun.operation,
        outcome=GOOD[begun.operation],
        run_id=begun.run_id,
        release_from=begun.release_from,
        release_to=begun.release_to,
        resumed_from=begun.step if begun.steps else None,
        facts_before=begun.facts_before,
        backup=begun.backup,
        migrated=raised(begun.schema_before, understood()) if begun.operation == "upgrade" else {},
        unit_sha256=hashlib.sha256(text.encode()).hexdigest(),
        forced=begun.forced,
    )


def unchanged(
    operation: Operation, asked: Asked, left: str, to: str, *, text: str, state: UnitState, check: bool
) -> Switch:
    """Release `to` runs already, under its own unit: there is nothing to do."""
    return Switch(
        changed=False,
        check=check,
        operation=operation,
        outcome=GOOD[operation],
        run_id=asked.run_id,
        release_from=left,
        release_to=to,
        unit_sha256=hashlib.sha256(text.encode()).hexdigest(),
        main_pid=state.main_pid,
    )
