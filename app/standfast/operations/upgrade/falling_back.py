"""What becomes of a switch that failed: the old release again where that is safe, else a stopped service.

Nothing was migrated, and the target's process never started, or found no room to: the old release starts
again (`resumed`). Else only a code rollback that a person has reviewed beforehand (`rolled_back`): matching
schema numbers prove too little. Facts that differ without an explanation are never answered by starting
anything, and no database is restored by itself: the service stays stopped, does not start at boot either, and
`ways_on` names the lawful ways.
"""

import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from standfast.errors import StandfastError
from standfast.operations.upgrade import facts, reserve
from standfast.operations.upgrade.fallback import why_not
from standfast.operations.upgrade.journal import Step
from standfast.operations.upgrade.result import Outcome, Switch
from standfast.operations.upgrade.switching import StepFailed, Switching, reason_of, schema_now
from standfast.store import triggers

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Decision:
    """What is to become of it, and why."""

    outcome: Outcome
    because: str


def go_back(switch: Switching, failed: StepFailed) -> Switch:
    """Bring the host to a safe end after `failed`. Safe to repeat after a kill at any of its own steps."""
    switch.tell(f"{failed.step} failed: {failed.reason}")
    switch.keeper.if_there_is_room()
    reserve.free(switch.layout)
    switch.keeper.note(failed=failed.step, reason=failed.reason, code=failed.code)
    if not switch.journal.began("stop"):
        return finish(switch, "resumed", "the service was not touched")
    switch.canary = switch.comparison = switch.silence = switch.main_pid = None
    try:
        _enter(switch, "back-stop")
        switch.stopped()
        switch.withdraw()
        decision = decide(switch)
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing is started any more
        # The unit of before is in place still, and what holds it up may be gone at the next boot.
        because = f"going back failed at back-stop: {reason_of(error)}"
        return _stay_stopped(switch, because, for_good=switch.journal.began("unit"))
    switch.tell(f"going back: {decision.outcome}: {decision.because}")
    if decision.outcome == "stopped":
        return _stay_stopped(switch, decision.because)
    return _start_again(switch, decision)


def decide(switch: Switching) -> Decision:
    """By what the store holds and the journal says, so that it comes out the same after a kill."""
    journal, before = switch.journal, switch.journal.before
    seen = schema_now(switch.layout)
    migrated, started = seen != journal.schema_before, was_started(switch)
    if before is not None:
        found = facts.compare(switch.layout, before, time.time())
        if found.unexplained:
            return Decision(
                "stopped", f"business facts differ without an explanation: {'; '.join(found.unexplained)}"
            )
    if not migrated and not started:
        if not journal.was_active:
            return Decision("stopped", "the service did not run before either; nothing was migrated")
        return Decision("resumed", "nothing was migrated and the target never began to work")
    if journal.operation != "upgrade":
        understood = "what was left understands its own store"
        return Decision("resumed" if journal.was_active else "stopped", understood)
    if reasons := why_not(switch.layout, target=switch.new.id, old=switch.old.id, schema=seen):
        return Decision("stopped", f"no code rollback to {switch.old.id}: {'; '.join(reasons)}")
    return Decision("rolled_back", f"{switch.old.id} is a reviewed fallback and understands the store")


def was_started(switch: Switching) -> bool:
    """Whether the target may have worked on the store.

    Its process records its run before it does anything else. Where the disk was full when it was to start,
    that record tells; of another cause nobody knows what such a process did.
    """
    journal, before = switch.journal, switch.journal.before
    if journal.began("start") and journal.code != reserve.FULL:
        return True
    return before is not None and facts.was_started(switch.layout, before.marks, switch.new.id)


def _start_again(switch: Switching, decision: Decision) -> Switch:
    step: Step = "back-unit"
    unproven = ""
    try:
        _enter(switch, step)
        if switch.files is not None:
            switch.files.put_back()
        switch.manager.place(switch.journal.unit_before)
        step = "back-start"
        _enter(switch, step)
        switch.started(switch.old)
        step = "back-canary"
        _enter(switch, step)
        assert switch.main_pid is not None
        try:
            switch.canary = switch.old.canary(switch.main_pid, switch.limits.canary)
        except StandfastError as error:
            # It runs again on the very store that it left, so it is not stopped for a canary that may just
            # wait in a queue. After a code rollback nothing else shows that it works.
            if decision.outcome != "resumed":
                raise
            unproven = f"; but it has not finished its canary: {reason_of(error)}"
        step = "back-compare"
        _enter(switch, step)
        switch.compared(switch.old)
    except Exception as error:  # noqa: BLE001 - as above
        return _stay_stopped(switch, f"{decision.because}; going back failed at {step}: {reason_of(error)}")
    return finish(switch, decision.outcome, decision.because + unproven)


def _enter(switch: Switching, step: Step) -> None:
    switch.tell(step)
    switch.keeper.enter(step)


def _stay_stopped(switch: Switching, because: str, *, for_good: bool = True) -> Switch:
    """Stopped, and so at the next boot too; what cannot be done of that is said, each by itself."""
    acts: list[tuple[str, Callable[[], None]]] = [
        ("the service could not be shown to be stopped", switch.stopped)
    ]
    if for_good:
        acts.append(("it starts with the host still", lambda: switch.manager.enable(on=False)))
        if switch.files is not None:
            acts.append(("the configuration of before is not in place", switch.files.put_back))
        # That of the release which `current` names: a restore, or whoever starts it then, gets it.
        before = switch.journal.unit_before
        acts.append(("the unit of before is not in place", lambda: switch.manager.place(before)))
    for untrue, act in acts:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - there is nothing left to fall back to
            because += f"; and {untrue}: {reason_of(error)}"
    switch.main_pid = None
    return finish(switch, "stopped", because)


def finish(switch: Switching, outcome: Outcome, because: str = "") -> Switch:
    """Record the end of the switch, and say it.

    A change of the configuration whose files of before could not be put back is not at its end: they are
    kept, and the next run puts them back.
    """
    journal, comparison = switch.journal, switch.comparison
    reason = None if journal.reason is None else f"{journal.reason}; {because}"
    text = switch.manager.text()
    switch.keeper.if_there_is_room()
    reserve.free(switch.layout)
    switch.keeper.enter("done")
    journal = switch.journal
    result = Switch(
        changed=journal.began("stop"),
        check=False,
        operation=journal.operation,
        outcome=outcome,
        run_id=journal.run_id,
        release_from=journal.release_from,
        release_to=journal.release_to,
        resumed_from=switch.resumed_from,
        resumed_because=switch.resumed_because,
        step=journal.failed,
        code=journal.code,
        reason=reason,
        silence_seconds=switch.silence,
        facts_before=journal.facts_before,
        facts_after=None if comparison is None else comparison.facts,
        explained=[] if comparison is None else comparison.explained,
        backup=journal.backup,
        migrated=journal.migrated,
        canary=switch.canary,
        unit_sha256=None if text is None else hashlib.sha256(text.encode()).hexdigest(),
        main_pid=switch.main_pid,
        forced=journal.forced,
        phases=journal.steps,
        ways_on=_ways_on(switch, outcome),
    )
    if outcome == "stopped" and switch.files is not None and switch.files.owed():
        switch.keeper.note(reason=reason)
    else:
        switch.keeper.note(outcome=outcome, reason=reason, result=result)
        if switch.files is not None:
            switch.files.forget()
    if switch.keeper.unwritten:
        result = result.model_copy(update={"ways_on": [_UNWRITTEN, *result.ways_on]})
    switch.let_go()
    triggers.reach("upgrade.finished")
    return result


_UNWRITTEN = (
    "the disk has no room for the note that it ended: make room, and do the same again; it goes on from there"
)

_OWED = (
    "make room (runbooks/service-down.md, `Act: disk full`); then `standfast upgrade configure`, without"
    " options, puts the configuration of before back and starts the service"
)


def _ways_on(switch: Switching, outcome: Outcome) -> list[str]:
    journal = switch.journal
    if journal.failed is None:
        return []
    full = journal.code == reserve.FULL
    if journal.operation == "configure":
        if switch.files is not None and switch.files.owed():
            return [_OWED]
        if full:
            return [reserve.REMEDY]
        return [
            "correct the configuration and change it again; `journalctl` shows what the service said to it"
        ]
    if outcome != "stopped":
        again = reserve.REMEDY if full else f"switch again to a corrected {journal.release_to}"
        return [f"release {journal.release_from} works on; {again}"]
    ways = ["fix forward: make a release that understands this store and upgrade to it (runbooks/upgrade.md)"]
    if full:
        ways = [f"fix forward: nothing but the disk was seen to fail: {reserve.REMEDY}"]
    if not journal.migrated:
        ways.append(f"nothing was migrated: roll back to {journal.release_from} (runbooks/rollback.md)")
    if journal.backup is not None:
        lost = "everything since that backup is lost from the books, the era ends, operations are paused"
        last = "and the account must be recovered before work goes on"
        aside = "; the store is put aside with -e restore_newer_aside=true" if journal.migrated else ""
        ways.append(f"restore {journal.backup} (runbooks/restore.md): {lost}, {last}{aside}")
    return ways
