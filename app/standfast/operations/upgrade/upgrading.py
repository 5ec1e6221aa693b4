"""`upgrade switch`: the service goes over to the release that runs this, or comes back from trying."""

from standfast.errors import Refused
from standfast.layout import Layout
from standfast.operations.schema import understood
from standfast.operations.upgrade.beginning import (
    Asked,
    begin,
    foreseen,
    opened,
    refuse_absent,
    refuse_held,
    refuse_inactive,
    refuse_other_end,
    resume,
    runs,
    schema_seen,
    unchanged,
)
from standfast.operations.upgrade.journal import Journal
from standfast.operations.upgrade.manager import AT_REST, Manager, UnitState, release_in
from standfast.operations.upgrade.result import Switch
from standfast.operations.upgrade.sides import side
from standfast.operations.upgrade.switching import Tell


def upgrade(
    layout: Layout,
    old: str,
    asked: Asked,
    *,
    tell: Tell,
    manager: Manager | None = None,
    check: bool = False,
) -> Switch:
    """Change the service over from release `old`, or bring an earlier such run to its end.

    Raises Refused, with nothing touched: `not_a_release`, `release_elsewhere`, `upgrade_at_work`,
    `upgrade_unfinished`, `release_absent`, `unit_absent`, `unit_foreign`, `same_release`, `paused`,
    `marker_disagrees`, `other_host`, `other_user`, `store_newer`, `writer_held`. Everything later ends in a
    result that says what was done.
    """
    with opened(layout, manager, check=check) as opening:
        new, text, manager = opening.own, opening.own_unit, opening.manager
        if (found := opening.unfinished) is not None:
            refuse_other_end(found, "upgrade", new.id)
        else:
            state = manager.look()
            if runs(manager, state, new.id, text) and schema_seen(layout) == understood():
                return _unchanged(old, asked, opening.last, own=new.id, text=text, state=state, check=check)
            found = _begun(layout, old, asked, manager=manager, state=state, to=new.id)
        if check:
            return foreseen(found, text)
        left = side(layout, found.release_from)
        work = opening.switching(found, asked, tell, old=left, new=new, new_unit=text)
        return resume(work) if opening.unfinished else begin(work)


def _begun(layout: Layout, old: str, asked: Asked, *, manager: Manager, state: UnitState, to: str) -> Journal:
    """The journal of a new upgrade, once nothing speaks against it."""
    if old == to:
        raise Refused(
            "same_release",
            "an upgrade leaves another release than the one that it goes to",
            observed=f"--from {old}, run by {to}",
            remedy="name the release that the service ran before; systemctl starts one that is down",
        )
    refuse_absent(layout, old)
    refuse_inactive(layout)
    refuse_held(layout, state)
    present = manager.text()
    if present is None:
        raise Refused(
            "unit_absent",
            "this instance has no unit, so there is nothing to switch",
            observed=str(manager.path),
            remedy="install the instance",
        )
    named = release_in(present)
    if named not in {old, to}:
        raise Refused(
            "unit_foreign",
            "the unit in place is of neither of the two releases",
            observed=f"{manager.path} names {named or 'no release'}; from {old} to {to}",
            remedy="name the release that the unit runs with --from",
        )
    return Journal(
        operation="upgrade",
        run_id=asked.run_id,
        release_from=old,
        release_to=to,
        step="facts",
        was_active=state.active not in AT_REST,
        # After an earlier failure the target's own unit may be in place.
        unit_before=present if named == old else side(layout, old).unit_text(),
        schema_before=schema_seen(layout),
    )


def _unchanged(
    old: str, asked: Asked, last: Journal | None, *, own: str, text: str, state: UnitState, check: bool
) -> Switch:
    """It runs already; what an earlier run of the same upgrade had to say is said again."""
    if last is not None and last.result is not None and (last.release_to, last.outcome) == (own, "upgraded"):
        return last.result.model_copy(update={"changed": False, "check": check, "main_pid": state.main_pid})
    return unchanged("upgrade", asked, old, own, text=text, state=state, check=check)
