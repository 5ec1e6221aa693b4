"""`upgrade switch`: from what is refused and what is resumed to the end, whatever that is."""

import hashlib
import secrets
import time
from contextlib import closing
from dataclasses import dataclass, field

from standfast.authority import agrees, host_identity, operations, refuse_other_host
from standfast.errors import BadInput, Refused
from standfast.layout import Layout, checked_path
from standfast.operations.opening import refuse_other_user
from standfast.operations.schema import COMPONENTS, understood
from standfast.operations.upgrade import facts, journal
from standfast.operations.upgrade.falling_back import finish, go_back
from standfast.operations.upgrade.journal import Journal, Keeper, Step
from standfast.operations.upgrade.manager import Manager, UnitState, release_in, release_of
from standfast.operations.upgrade.result import Switch
from standfast.operations.upgrade.sides import Own, side
from standfast.operations.upgrade.switching import (
    Limits,
    Signals,
    StepFailed,
    Switching,
    Tell,
    reason_of,
    schema_now,
)
from standfast.release.installed import SEAL
from standfast.store import open_readonly
from standfast.store.migrations import refuse_newer

_LONGEST_NAME = 64


@dataclass(frozen=True)
class Asked:
    """What an operator, or a playbook, wants."""

    old: str
    """The release that is left."""
    run_id: str
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def of(cls, *, old: str, run_id: str | None, limits: Limits) -> "Asked":
        """From what was typed; BadInput names what is wrong."""
        run_id = run_id or f"{int(time.time()):x}-{secrets.token_hex(3)}"
        for name, text in (("--from", old), ("--run-id", run_id)):
            if not text or len(text) > _LONGEST_NAME or not set(text) <= _NAMES:
                raise BadInput(f"{name}: 1 to {_LONGEST_NAME} letters, digits, . _ + or -")
        return cls(old=old, run_id=run_id, limits=limits)


_NAMES = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-")


def upgrade(
    layout: Layout, asked: Asked, *, manager: Manager | None = None, tell: Tell, check: bool = False
) -> Switch:
    """Change the service over to the release that runs this, or bring an earlier such run to its end.

    Raises Refused, with nothing touched: `not_a_release`, `release_elsewhere`, `upgrade_at_work`,
    `upgrade_unfinished`, `release_absent`, `unit_absent`, `unit_foreign`, `paused`, `marker_disagrees`,
    `other_host`, `other_user`, `store_newer`. Everything later ends in a result that says what was done.
    """
    refuse_other_user(layout)
    new = Own(layout)
    text = new.unit_text()
    manager = manager or Manager.of(layout.instance().instance)
    with journal.at_work(layout), Signals().heard() as signals:
        last = journal.read(layout)
        if last is not None and last.outcome is None:
            _refuse_other_end(last, new.id)
            work = Switching(
                layout,
                Keeper(layout, last),
                manager,
                side(layout, last.release_from),
                new,
                text,
                asked.limits,
                tell,
                signals,
            )
            return _foreseen(last, text) if check else resume(work)
        state = manager.look()
        if _already(layout, manager, state, new.id, text):
            return _unchanged(asked, last, new.id, text, state, check=check)
        begun = _begun(layout, asked, manager, state, new.id)
        if check:
            return _foreseen(begun, text)
        work = Switching(
            layout,
            Keeper(layout, begun),
            manager,
            side(layout, begun.release_from),
            new,
            text,
            asked.limits,
            tell,
            signals,
        )
        return carry_on(work, "facts")


def carry_on(work: Switching, first: Step) -> Switch:
    """Forward from a step, and back when one fails."""
    try:
        work.forward(first)
    except StepFailed as failed:
        return go_back(work, failed)
    return finish(work, "upgraded" if work.journal.operation == "upgrade" else "rolled_back")


def resume(work: Switching) -> Switch:
    """Bring a run that was cut short to its end. What it left decides how, not what it meant to do."""
    found = work.journal
    work.resumed_from = found.step
    if found.failed is not None:
        work.resumed_because = f"{found.failed} had failed, and going back was under way: it goes on"
        return go_back(work, StepFailed(found.failed, found.reason or "unknown"))
    try:
        first, work.resumed_because = _where(work)
        work.tell(f"the earlier run was cut short at {found.step}; {work.resumed_because}")
    except Exception as error:  # noqa: BLE001 - the safe way is the one back
        return go_back(work, StepFailed(found.step, reason_of(error)))
    return carry_on(work, first)


def _where(work: Switching) -> tuple[Step, str]:
    """The step to go on from, after a kill or a reboot at any step; and why."""
    found, before = work.journal, work.journal.before
    migrated = schema_now(work.layout) != found.schema_before
    started = found.began("start") or (
        before is not None and facts.was_started(work.layout, before.marks, work.new.id)
    )
    if before is None or not (migrated or started):
        return "facts", "nothing was migrated and the target was never started: begun anew"
    state = work.manager.look()
    if (
        state.active == "active"
        and release_of(state.main_pid) == work.new.id
        and work.manager.text() == work.new_unit
    ):
        return "canary", "the target runs: it is to show that it works"
    work.stopped()
    if found.step == "migrate":
        return "migrate", "the schema was raised, and the target was never started: it goes on from there"
    return "unit", "the target does not run, and its schema is in place: it is started again"


def _refuse_other_end(last: Journal, to: str) -> None:
    if last.operation == "upgrade" and last.release_to == to:
        return
    raise Refused(
        "upgrade_unfinished",
        f"a {last.operation} to another release was cut short and must come to its end first",
        observed=f"{last.operation} from {last.release_from} to {last.release_to}, at {last.step}",
        remedy=f"repeat the {last.operation} to {last.release_to}: it goes on, or back",
    )


def _already(layout: Layout, manager: Manager, state: UnitState, own: str, text: str) -> bool:
    return (
        state.active == "active"
        and release_of(state.main_pid) == own
        and manager.text() == text
        and schema_now(layout) == understood()
    )


def _begun(layout: Layout, asked: Asked, manager: Manager, state: UnitState, to: str) -> Journal:
    """The journal of a new upgrade, once nothing speaks against it."""
    refuse_absent(layout, asked.old)
    refuse_inactive(layout)
    present = manager.text()
    if present is None:
        raise Refused(
            "unit_absent",
            "this instance has no unit, so there is nothing to switch",
            observed=str(manager.path),
            remedy="install the instance",
        )
    named = release_in(present)
    if named not in {asked.old, to}:
        raise Refused(
            "unit_foreign",
            "the unit in place is of neither of the two releases",
            observed=f"{manager.path} names {named or 'no release'}; from {asked.old} to {to}",
            remedy="name the release that the unit runs with --from",
        )
    return Journal(
        operation="upgrade",
        run_id=asked.run_id,
        release_from=asked.old,
        release_to=to,
        step="facts",
        was_active=state.active not in {"inactive", "failed"},
        # After an earlier failure the target's own unit may be in place.
        unit_before=present if named == asked.old else side(layout, asked.old).unit_text(),
        schema_before=schema_now(layout),
    )


def refuse_absent(layout: Layout, release: str) -> None:
    """Raise Refused `release_absent` unless a release is installed here, sealed."""
    folder = checked_path(str(layout.releases / release), "release")
    if not (folder / SEAL).is_file():
        raise Refused(
            "release_absent",
            "there is no such installed release to leave or to go back to",
            observed=f"{folder} is {'half-made' if folder.is_dir() else 'absent'}",
            remedy="see `standfast release list`",
        )


def refuse_inactive(layout: Layout) -> None:
    """Raise Refused unless this instance's era goes on, here: else no canary could be finished."""
    refuse_other_host(layout.marker, host_identity())
    with closing(open_readonly(layout.database)) as connection:
        refuse_newer(connection, COMPONENTS)
        control = operations(connection)
        if not agrees(connection, layout.marker):
            raise Refused(
                "marker_disagrees",
                "the marker does not name the store's epoch, so nothing would be finished",
                observed=str(layout.marker),
                remedy="see `standfast health`",
            )
    if control.paused:
        raise Refused(
            "paused",
            "the instance is paused, so the new release could not show that it works",
            observed=f"paused: {control.reason}",
            remedy="see `standfast health` for why; recover and resume first",
        )


def _unchanged(
    asked: Asked, last: Journal | None, own: str, text: str, state: UnitState, *, check: bool
) -> Switch:
    """It runs already; what an earlier run of the same upgrade had to say is said again."""
    if last is not None and last.result is not None and (last.release_to, last.outcome) == (own, "upgraded"):
        return last.result.model_copy(update={"changed": False, "check": check, "main_pid": state.main_pid})
    return Switch(
        changed=False,
        check=check,
        operation="upgrade",
        outcome="upgraded",
        run_id=asked.run_id,
        release_from=asked.old,
        release_to=own,
        unit_sha256=hashlib.sha256(text.encode()).hexdigest(),
        main_pid=state.main_pid,
    )


def _foreseen(begun: Journal, text: str) -> Switch:
    """What would be done; nothing was."""
    resumes = bool(begun.steps)
    return Switch(
        changed=True,
        check=True,
        operation=begun.operation,
        outcome="upgraded",
        run_id=begun.run_id,
        release_from=begun.release_from,
        release_to=begun.release_to,
        resumed_from=begun.step if resumes else None,
        facts_before=begun.facts_before,
        backup=begun.backup,
        migrated={
            name: (begun.schema_before.get(name, 0), version)
            for name, version in understood().items()
            if begun.schema_before.get(name, 0) != version
        },
        unit_sha256=hashlib.sha256(text.encode()).hexdigest(),
    )
