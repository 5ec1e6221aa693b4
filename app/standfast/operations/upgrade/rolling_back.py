"""`rollback`: code only. An older kept release takes the service over, and the state stays as it is.

No database is restored, and none ever is by itself: `standfast restore` is another operation.
"""

from dataclasses import dataclass

from packaging.version import Version

from standfast.errors import BadInput, Refused
from standfast.layout import Layout, running_release
from standfast.operations.kept import Ground, Objection, altered, below, floors, may_go_back
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
from standfast.operations.upgrade.sides import Other
from standfast.operations.upgrade.switching import Tell
from standfast.operations.verdicts import Floor, read_record
from standfast.release.installed import read_manifest

_LONGEST_REASON = 200
_REMEDIES = {
    "schema_unknown": "fix forward, or see runbooks/restore.md and what a restore costs",
    "schema_older": "it would migrate the store: that is an upgrade",
    "contract_differs": "fix forward with a release that keeps the authority contract",
    "below_floor": "choose a release above the floor; or name it with --below-floor, and give a --reason",
    "condemned": "choose another release: see `standfast release list`",
}


@dataclass(frozen=True)
class Force:
    """Somebody goes below the rollback floor, knowing which."""

    floor: str
    reason: str

    @classmethod
    def of(cls, floor: str | None, reason: str | None) -> "Force | None":
        """From what was typed; BadInput unless both were, or neither."""
        if floor is None and reason is None:
            return None
        if floor is None or reason is None or not reason.strip():
            raise BadInput("--below-floor and --reason are given together: the floor that is passed, and why")
        if not reason.isprintable() or len(reason) > _LONGEST_REASON:
            raise BadInput(f"--reason: one line of 1 to {_LONGEST_REASON} printable characters")
        return cls(floor, reason)


def roll_back(
    layout: Layout,
    to: str,
    asked: Asked,
    *,
    tell: Tell,
    force: Force | None = None,
    manager: Manager | None = None,
    check: bool = False,
) -> Switch:
    """Let the kept release `to` take the service over; run with the code of the release that is left.

    Raises Refused, with nothing touched: `not_a_release`, `upgrade_at_work`, `upgrade_unfinished`,
    `release_absent`, `release_altered`, `not_current`, `floor_differs`, the rules of `kept.may_go_back`, and
    what `refuse_inactive` says.
    """
    with opened(layout, manager, check=check) as opening:
        refuse_absent(layout, to)
        manager, new = opening.manager, Other(layout, to)
        state = manager.look()
        if (found := opening.unfinished) is not None:
            refuse_other_end(found, "rollback", to)
            text = new.unit_text()
        else:
            text = _text_of(layout, new)
            if runs(manager, state, to, text):
                return unchanged("rollback", asked, to, to, text=text, state=state, check=check)
            forced = _refuse_unfit(layout, to, force)
            found = _begun(layout, to, asked, manager=manager, state=state, forced=forced)
        if check:
            return foreseen(found, text)
        work = opening.switching(found, asked, tell, old=opening.own, new=new, new_unit=text)
        return resume(work) if opening.unfinished else begin(work)


def _text_of(layout: Layout, new: Other) -> str:
    """What it writes for the service; its code is asked only once its files were compared with its seal."""
    if found := altered(layout.releases / new.id):
        raise Refused(
            "release_altered",
            "the release is not what was installed",
            observed=found,
            remedy="choose another release, or install it anew from its archive",
        )
    return new.unit_text()


def _refuse_unfit(layout: Layout, to: str, force: Force | None) -> str | None:
    """Raise Refused with the first objection to `to`; returns why one to its version was passed over."""
    refuse_inactive(layout)
    own, target = (read_manifest(layout.releases / one) for one in (running_release(), to))
    record = read_record(layout)
    known = floors(record, own)
    ground = Ground(schema_seen(layout), own.authority_contract, known)
    objections = may_go_back(target, ground, record.latest(to) if record else None)
    under = below(target.version, known)
    forced = _forced(under, force) if under and force else None
    for one in objections:
        if one.rule != "below_floor" or forced is None:
            raise _refused(to, one)
    return forced


def _forced(under: list[Floor], force: Force) -> str:
    highest = max(under, key=lambda floor: Version(floor.version))
    if force.floor != highest.version:
        raise Refused(
            "floor_differs",
            "--below-floor names another floor than the one that would be passed",
            observed=f"named {force.floor}; the floor is {highest.version}, set by {highest.release}",
            remedy="see what that floor protects from, before you name it",
        )
    return f"below floor {highest.version} of {highest.release}: {force.reason}"


def _refused(to: str, objection: Objection) -> Refused:
    return Refused(
        objection.rule,
        f"release {to} may not be gone back to",
        observed=objection.observed,
        remedy=_REMEDIES[objection.rule],
    )


def _begun(
    layout: Layout, to: str, asked: Asked, *, manager: Manager, state: UnitState, forced: str | None
) -> Journal:
    present, own = manager.text(), running_release()
    named = None if present is None else release_in(present)
    if present is None or named != own:
        raise Refused(
            "not_current",
            "a rollback is run with the code of the release that the unit names",
            observed=f"{manager.path} names {named or 'no release'}, this is {own}",
            remedy="run the command of that release",
        )
    refuse_held(layout, state)
    return Journal(
        operation="rollback",
        run_id=asked.run_id,
        release_from=own,
        release_to=to,
        step="facts",
        was_active=state.active not in AT_REST,
        unit_before=present,
        schema_before=schema_seen(layout),
        forced=forced,
    )
