"""SIGKILL at every commit boundary of a day's work; afterwards nothing is lost and nothing is doubled."""

import signal

import pytest
from world import START, World, child

from standfast import authority, work
from standfast.work import Outbox

POINTS = [
    f"{boundary}.{when}"
    for boundary in ("fire", "admit", "claim", "observe", "finish", "deliver", "delivered")
    for when in ("before_commit", "committed")
] + ["deliver.left"]


@pytest.mark.parametrize("point", POINTS)
def test_a_day_survives_sigkill(world: World, point: str) -> None:
    work.add_schedule(world.connection, name="brief", prompt="brief", every=3600, now=START)
    killed = child("die", world.layout.state, point, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr

    left = {item.id: item for item in work.list_work(world.connection)}
    world.time.wall = START + 3600
    world.clock = world.time.clock()

    # The service starts again, under its own label, and lives through the same day.
    owned = authority.claim_own(world.connection, owner="worker", now=world.now(), marker=world.marker)
    work.resume_deliveries(world.connection, Outbox(world.layout.outbox))
    for own in owned:
        assert own.generation == left[own.work].generation + 1
        world.finish(own, "please ask again")
    work.fire_due(world.connection, now=world.now())
    world.admit("o", "s", "look")
    while claim := world.claim():
        world.observe(claim)
        world.finish(claim, "all is well")
    work.deliver_pending(world.connection, Outbox(world.layout.outbox), clock=world.clock)

    items = work.list_work(world.connection)
    assert [item.status for item in items] == ["DONE", "DONE"]
    assert sorted(item.session for item in items) == ["s", "schedule:brief"]
    slots = work.list_slots(world.connection, "brief")
    assert [(slot.slot, slot.outcome) for slot in slots] == [(START + 3600, "fired")]
    reports = work.list_reports(world.connection)
    assert sorted(report.work for report in reports) == sorted(item.id for item in items)
    assert {report.delivery for report in reports} == {"sent"}
    assert {path.stem for path in world.layout.outbox.iterdir()} == {report.id for report in reports}
    for item in items:
        rows = work.transcript(world.connection, item.id)
        assert len(rows) <= 1
    assert world.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert world.connection.execute("PRAGMA foreign_key_check").fetchone() is None


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
