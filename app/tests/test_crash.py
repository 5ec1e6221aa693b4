"""SIGKILL at every commit boundary of a day's work; afterwards nothing is lost and nothing is doubled."""

import signal
from pathlib import Path

import pytest
from support import Instance
from world import START, World, child

from standfast import work

BOUNDARIES = ("start_run", "claim_own", "fire", "claim", "observe", "finish", "deliver", "delivered")
POINTS = [f"{name}.{when}" for name in BOUNDARIES for when in ("before_commit", "committed")] + [
    "deliver.left"
]
IN_A_TURN = {"claim.committed", "observe.before_commit", "observe.committed", "finish.before_commit"}


@pytest.mark.parametrize("point", POINTS)
def test_a_day_survives_sigkill(tmp_path: Path, point: str) -> None:
    """The next service recovers by itself; only the turn that was cut off is not done, and says so."""
    instance = Instance.make(tmp_path)
    due = instance.clock.wall() - 3600
    with instance.store() as store:
        work.add_schedule(store, name="brief", prompt="brief", every=3600, now=due)
    asked = instance.add("look").work
    killed = child("die_serving", instance.layout.state, point, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr

    instance.settle()
    assert instance.settle() == 0
    with instance.store() as store:
        items = {item.id: item for item in work.list_work(store)}
        slots = work.list_slots(store, "brief")
        reports = work.list_reports(store)
    assert len(items) == 2
    assert sorted(item.status for item in items.values()) == [
        "CANCELED" if point in IN_A_TURN else "DONE",
        "DONE",
    ]
    assert items[asked].session == "test"
    assert [(slot.slot, slot.outcome) for slot in slots] == [(int(due) + 3600, "fired")]
    assert sorted(report.work for report in reports) == sorted(items)
    assert {report.delivery for report in reports} == {"sent"}
    for report in reports:
        assert ("please ask again" in report.body) == (items[report.work].status == "CANCELED")
    assert {path.stem for path in instance.layout.outbox.iterdir()} == {report.id for report in reports}
    assert instance.rows("PRAGMA integrity_check") == [("ok",)]
    assert instance.rows("PRAGMA foreign_key_check") == []


def test_after_sigkill_another_worker_finds_the_claim_once_its_lease_has_passed(world: World) -> None:
    work.add_schedule(world.connection, name="later", prompt="x", every=86400, now=START + 86400)
    assert child("die", world.layout.state, "claim.committed", check=False).returncode == -signal.SIGKILL
    [item] = work.list_work(world.connection, status="RUNNING")
    assert item.generation == 1
    assert item.lease_until is not None
    world.time.wall = item.lease_until - 1
    world.clock = world.time.clock()
    assert world.claim("other") is None
    world.time.passes(1)
    again = world.claim("other")
    assert again is not None
    assert (again.work, again.generation) == (item.id, 2)
    assert world.claim("third") is None
