"""`upgrade abandon`: a switch that its own command can no longer bring to an end is given up, on record.

Its command is that of the release which it went to. Where that release is gone, or cannot do it any more, any
other release that knows the store may say what stands: nobody acts, or a release of this root serves that is
not the one given up; no business fact differs without an explanation; and the store is one that the release
which says so can open. Nothing is started, migrated or restored by it. The journal stays, as evidence.
"""

from dataclasses import dataclass

from pydantic import BaseModel

from standfast.durable import write_file
from standfast.errors import BadInput, Refused
from standfast.layout import Layout
from standfast.operations.schema import COMPONENTS, raised
from standfast.operations.upgrade import facts, journal, reserve
from standfast.operations.upgrade.beginning import installed, opened, refuse_held
from standfast.operations.upgrade.configuring import Files, Wanted
from standfast.operations.upgrade.journal import Journal, Keeper
from standfast.operations.upgrade.manager import AT_REST, Manager, UnitState, release_of
from standfast.operations.upgrade.result import Operation
from standfast.receipts.model import Check
from standfast.store import Store, look_at, schema_versions
from standfast.store.migrations import refuse_newer

_LONGEST_NAME = 64
_LONGEST_REASON = 200


@dataclass(frozen=True)
class Word:
    """Who gives it up, and why."""

    operator: str
    reason: str

    @classmethod
    def of(cls, operator: str, reason: str) -> "Word":
        """From what was typed; BadInput names what is wrong."""
        for text, option, longest in (
            (operator, "--operator", _LONGEST_NAME),
            (reason, "--reason", _LONGEST_REASON),
        ):
            if not text.strip() or not text.isprintable() or len(text) > longest:
                raise BadInput(f"{option}: one line of 1 to {longest} printable characters")
        return cls(operator, reason)


class Abandoned(BaseModel):
    """What stands, and what was given up."""

    changed: bool
    """false: nothing is unfinished."""
    check: bool
    operation: Operation | None = None
    run_id: str | None = None
    release_from: str | None = None
    release_to: str | None = None
    step: str | None = None
    """Where it was cut short."""
    operator: str | None = None
    reason: str | None = None
    service: str | None = None
    """What the manager says of the unit."""
    release: str | None = None
    """The release that serves now; null: nobody does."""
    migrated: dict[str, tuple[int, int]] = {}
    """What the store's schema is now, where it was raised since."""
    facts: str | None = None
    """How the business facts stand to those of before."""
    explained: list[str] = []
    """Every difference between them, and the rows that explain it."""
    put_back: list[str] = []
    """What of before is in place again: the unit, the configuration."""
    evidence: str | None = None
    """The journal as it was."""
    ways_on: list[str] = []
    receipt: str | None = None

    def seen(self) -> list[Check]:
        """What the operation's receipt says."""
        told = f"{self.operation} {self.release_from} -> {self.release_to}, cut short at {self.step}"
        stands = f"{self.service}; serves: {self.release or 'nobody'}; facts {self.facts}"
        said = f"given up by {self.operator}: {self.reason}; the journal as it was: {self.evidence}"
        return [
            Check(name="abandoned", outcome="attention", observed=f"{told}; {said}"),
            Check(name="stands", outcome="pass", observed=stands),
        ]


def abandon(
    layout: Layout, word: Word, *, now: float, manager: Manager | None = None, check: bool = False
) -> Abandoned:
    """Give the unfinished switch up, so that others may begin.

    Raises Refused, with nothing touched: `not_a_release`, `other_user`, `upgrade_at_work`,
    `journal_unreadable`, `store_newer`, `target_serves`, `unit_busy`, `writer_held`, `facts_differ`.
    """
    with opened(layout, manager, check=check) as opening:
        manager = opening.manager
        if (last := opening.unfinished) is None:
            return Abandoned(changed=False, check=check)
        state = manager.look()
        _refuse_unknown_store(layout, last)
        _refuse_at_work(layout, last, state)
        compared, explained = _facts(layout, last, now)
        schema = look_at(layout.database, schema_versions)
        evidence = layout.state / f"upgrade.abandoned-{int(now)}.json"
        found = Abandoned(
            changed=True,
            check=check,
            operation=last.operation,
            run_id=last.run_id,
            release_from=last.release_from,
            release_to=last.release_to,
            step=last.step,
            operator=word.operator,
            reason=word.reason,
            service=f"{manager.unit} is {state.told()}",
            release=release_of(state.main_pid) if state.active == "active" else None,
            migrated=raised(last.schema_before, schema),
            facts=compared,
            explained=explained,
            put_back=_owed(layout, last, manager, state),
            evidence=str(evidence),
        )
        found.ways_on = _ways_on(found, last, opening.own.id)
        if not check:
            write_file(evidence, journal.path(layout).read_bytes(), 0o600)
            _put_back(layout, last, manager, found)
            reserve.free(layout)
            reason = f"given up by {word.operator}: {word.reason}"
            Keeper(layout, last).note(outcome="abandoned", reason=reason)
        return found


def is_the_way(layout: Layout, last: Journal) -> bool:
    """Whether the command that began it cannot go on with it: its release is gone."""
    return last.outcome is None and not installed(layout, last.release_to)


def _refuse_unknown_store(layout: Layout, last: Journal) -> None:
    def look(connection: Store) -> None:
        try:
            refuse_newer(connection, COMPONENTS)
        except Refused as error:
            back = f"restore {last.backup} (runbooks/restore.md)" if last.backup else "restore a backup"
            raise Refused(
                error.code,
                "the store was migrated, and this release does not know what it became",
                observed=error.observed,
                remedy=(
                    "fix forward: run this command, then the upgrade, with a release that understands it;"
                    f" or {back} with --newer-aside and what a restore costs"
                ),
            ) from None

    look_at(layout.database, look)


def _refuse_at_work(layout: Layout, last: Journal, state: UnitState) -> None:
    if state.active not in AT_REST | {"active"}:
        raise Refused(
            "unit_busy",
            "the service is neither at rest nor at work, so what stands is not known",
            observed=state.told(),
            remedy="wait until it is, or stop it; then again",
        )
    refuse_held(layout, state)
    if last.release_from != last.release_to and release_of(state.main_pid) == last.release_to:
        raise Refused(
            "target_serves",
            "the release that it went to serves, and was not shown to work",
            observed=state.told(),
            remedy=f"repeat the {last.operation} to it; where that cannot be, stop the service first",
        )
    if state.active == "active" and last.operation == "configure" and Files(layout, Wanted()).owed():
        raise Refused(
            "target_serves",
            "the service works with a configuration that was not shown to work",
            observed=state.told(),
            remedy="`standfast upgrade configure` puts the one of before back; or stop the service first",
        )


def _facts(layout: Layout, last: Journal, now: float) -> tuple[str, list[str]]:
    """How they stand. Raises Refused `facts_differ` when a difference is explained by nothing."""
    if last.before is None:
        return "were not touched: the service was not stopped yet", []
    found = facts.compare_untouched(layout, last.before, now)
    if found.facts.epoch != last.before.facts.epoch:
        return "are of another era: the state was restored or adopted since", []
    if found.unexplained:
        raise Refused(
            "facts_differ",
            "business facts differ without an explanation",
            observed=found.unexplained,
            remedy=f"find out why; or restore {last.backup or 'a backup'}, which ends that era",
        )
    return ("differ by what was done since" if found.explained else "are equal"), found.explained


def _owed(layout: Layout, last: Journal, manager: Manager, state: UnitState) -> list[str]:
    """What of before is not in place, where nobody serves."""
    if state.active == "active":
        return []
    unit = [] if manager.text() == last.unit_before else [f"the unit of {last.release_from}"]
    kept = last.operation == "configure" and Files(layout, Wanted()).owed()
    return [*unit, *(["the configuration"] if kept else [])]


def _put_back(layout: Layout, last: Journal, manager: Manager, found: Abandoned) -> None:
    """The unit and the files of before, disabled where the release of before cannot have the store."""
    if found.put_back:
        if last.operation == "configure":
            Files(layout, Wanted()).put_back()
        if found.migrated:
            manager.enable(on=False)
        manager.place(last.unit_before)
    if last.operation == "configure":
        Files(layout, Wanted()).forget()


def _ways_on(found: Abandoned, last: Journal, own: str) -> list[str]:
    if found.release is not None:
        return [f"release {found.release} serves; another upgrade may begin"]
    if not found.migrated:
        start = f"nothing was migrated: start the service, release {last.release_from} works on"
        return [start, "another upgrade may begin"]
    ways = [
        f"fix forward: upgrade to a release that understands the store, such as {own} (runbooks/upgrade.md)"
    ]
    if last.backup is not None:
        ways.append(f"restore {last.backup} (runbooks/restore.md), with what a restore costs")
    return ways
