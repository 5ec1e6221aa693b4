"""The receipt of a switch that was typed by hand: what a playbook keeps of one, as far as the host sees it.

A switch that failed has changed the host too, and leaves one as well. What it came to is told also where the
receipt cannot be kept: an operator who does not learn that the service stays stopped is worse off.
"""

import secrets
import time
from collections.abc import Callable

from standfast.errors import StandfastError
from standfast.layout import Layout, running_release
from standfast.operations.receipting import failure_kept, host_name
from standfast.operations.upgrade.result import GOOD, Switch
from standfast.receipts import chain, model
from standfast.receipts.recorder import record


def with_switch_receipt(layout: Layout, operation: str, act: Callable[[], Switch]) -> Switch:
    """Do it, and keep a receipt if it changed anything; `receipt` of the result names the file.

    Refused, before anything is done, when there is no receipts folder that one could be kept in.
    """
    chain.check_folder(layout.receipts)
    began = time.time()
    with failure_kept(layout, operation, began):
        found = act()
    if not found.changed:
        return found
    now = time.time()
    try:
        kept = record(layout.receipts, _draft(layout, found, began, now), release=running_release(), now=now)
    except (StandfastError, OSError) as error:
        told = f"its receipt could not be kept: {error}; nothing is to be repeated for that"
        return found.model_copy(update={"ways_on": [*found.ways_on, told]})
    return found.model_copy(update={"receipt": kept.file})


def _draft(layout: Layout, found: Switch, began: float, now: float) -> model.Draft:
    good = found.outcome == GOOD[found.operation]
    stands = {"resumed": found.release_from, "rolled_back": found.release_from, "stopped": None}
    instance = layout.instance().instance
    return model.Draft(
        operation=found.operation,
        # That of the journal is an earlier run's where this one went on with it.
        run_id=secrets.token_hex(8),
        instance=instance,
        host=host_name(),
        release_before=found.release_from,
        release_after=found.release_to if good else stands[found.outcome],
        verdict="done" if good else "failed",
        stopped_at=found.step,
        reason=found.reason,
        checks=[model.Check(name="run", outcome="pass", observed=f"by hand; in the journal: {found.run_id}")],
        unit=model.Unit(name=f"{instance}.service", text_sha256=found.unit_sha256, main_pid=found.main_pid),
        canary=None if found.canary is None else model.Canary.model_validate(found.canary.model_dump()),
        switch=_switch(found),
        started_at=min(began, now),
        finished_at=now,
    )


def _switch(found: Switch) -> model.Switch:
    before, after = found.facts_before, found.facts_after
    return model.Switch(
        outcome=found.outcome,
        step=found.step,
        resumed_from=found.resumed_from,
        resumed_because=found.resumed_because,
        silence_seconds=found.silence_seconds,
        facts_before=None if before is None else before.digest,
        facts_after=None if after is None else after.digest,
        explained=found.explained[:200],
        backup=found.backup,
        migrated=found.migrated,
        below_floor=found.forced,
        ways_on=found.ways_on,
        steps=[model.Step(name=phase.name, started_at=phase.started_at) for phase in found.phases],
    )
