"""How work ends: with its report and its run in one transaction, or canceled."""

from typing import Any

import pytest
from world import World

from standfast import work
from standfast.authority import StaleClaim
from standfast.errors import BadInput, Refused
from standfast.store import immediate


def child_of(world: World, parent: str, origin: str) -> str:
    identity = world.admit(origin, origin)
    with immediate(world.connection):
        world.connection.execute(
            "UPDATE work SET parent = ?, deadline = ? WHERE id = ?", (parent, world.now() + 1000, identity)
        )
    return identity


def test_finishing_writes_the_report_and_names_the_run(world: World) -> None:
    run = work.start_run(world.connection, release="r-1", pid=7, invocation="i", now=world.now())
    claim = world.claimed()
    finished = work.finish(
        world.connection, claim, "DONE", report="vanilla: 2", run=run, clock=world.clock, marker=world.marker
    )
    item = work.show_work(world.connection, claim.work)
    assert (item.status, item.generation, item.run, item.finished_at) == ("DONE", 1, run, world.now())
    report = work.show_report(world.connection, finished.report or "")
    assert (report.work, report.generation, report.body, report.delivery) == (
        claim.work,
        1,
        "vanilla: 2",
        "pending",
    )
    assert work.list_reports(world.connection, work=claim.work) == [report]
    assert work.show_run(world.connection, run).release == "r-1"


@pytest.mark.parametrize(
    "bad", [{"status": "READY"}, {"report": " "}, {"report": None}, {"report": "x" * 65537}]
)
def test_a_malformed_ending_is_refused_and_the_claim_goes_on(world: World, bad: dict[str, Any]) -> None:
    claim = world.claimed()
    before = world.dump()
    ending = {"status": "DONE", "report": "done", **bad}
    with pytest.raises(BadInput):
        work.finish(world.connection, claim, clock=world.clock, marker=world.marker, **ending)
    assert world.dump() == before
    world.finish(claim)


@pytest.mark.parametrize("status", ["DONE", "BLOCKED", "CANCELED"])
def test_a_stale_claim_ends_its_work_in_no_way(world: World, status: work.Ending) -> None:
    claim = world.claimed()
    world.time.passes(300)
    before = world.dump()
    with pytest.raises(StaleClaim, match="superseded"):
        work.finish(world.connection, claim, status, report="x", clock=world.clock, marker=world.marker)
    assert world.dump() == before


def test_a_claim_ends_once(world: World) -> None:
    claim = world.claimed()
    world.finish(claim, "report")
    with pytest.raises(StaleClaim, match="superseded"):
        world.finish(claim, "report")
    assert len(work.list_reports(world.connection)) == 1


def test_finishing_and_claiming_the_next_is_one_commit(world: World) -> None:
    first = world.claimed()
    second = world.admit("next", "next")
    commits: list[str] = []
    world.connection.set_trace_callback(lambda text: commits.append(text) if text == "COMMIT" else None)
    finished, claim = work.finish_and_claim(
        world.connection, first, "DONE", report="r", clock=world.clock, marker=world.marker
    )
    world.connection.set_trace_callback(None)
    assert commits == ["COMMIT"]
    assert finished.work == first.work
    assert claim is not None
    assert (claim.work, claim.owner) == (second, first.owner)
    _, none = work.finish_and_claim(
        world.connection, claim, "DONE", report="r", clock=world.clock, marker=world.marker
    )
    assert none is None


class TestCancel:
    @pytest.mark.parametrize("status", ["READY", "RUNNING", "BLOCKED"])
    def test_open_work_is_canceled_once(self, world: World, status: str) -> None:
        claim = world.claimed() if status != "READY" else None
        if claim and status == "BLOCKED":
            work.finish(world.connection, claim, "BLOCKED", clock=world.clock, marker=world.marker)
        identity = claim.work if claim else world.admit()
        first = work.cancel(world.connection, identity, reason="enough", now=world.now())
        assert (first.changed, first.status_before) == (True, status)
        before = world.dump()
        assert not work.cancel(world.connection, identity, reason="enough", now=world.now()).changed
        assert world.dump() == before
        item = work.show_work(world.connection, identity)
        assert (item.status, item.reason, item.lease_until) == ("CANCELED", "enough", None)
        assert world.claim() is None
        if claim:
            with pytest.raises(StaleClaim):
                world.observe(claim)

    def test_finished_work_is_not(self, world: World) -> None:
        claim = world.claimed()
        world.finish(claim)
        with pytest.raises(Refused) as refused:
            work.cancel(world.connection, claim.work, reason="", now=world.now())
        assert refused.value.code == "work_finished"
        with pytest.raises(Refused) as refused:
            work.cancel(world.connection, "0" * 24, reason="", now=world.now())
        assert refused.value.code == "work_unknown"

    @pytest.mark.parametrize("parent_done", [False, True])
    def test_children_stop_with_their_parent(self, world: World, parent_done: bool) -> None:
        parent = world.claimed()
        waiting, running = child_of(world, parent.work, "1"), child_of(world, parent.work, "2")
        with immediate(world.connection):
            world.connection.execute("UPDATE work SET session = 'x' WHERE id = ?", (waiting,))
        first = world.claim("child")
        second = world.claim("child")
        assert first is not None
        assert second is not None
        with immediate(world.connection):
            world.connection.execute(
                "UPDATE work SET status = 'READY', generation = generation + 1, owner = NULL,"
                " lease_until = NULL WHERE id = ?",
                (waiting,),
            )
        if parent_done:
            world.finish(parent)
        canceled = work.cancel(world.connection, parent.work, reason="enough", now=world.now())
        assert canceled.children == 1
        assert work.show_work(world.connection, waiting).status == "CANCELED"
        claim = first if first.work == running else second
        assert work.counts(world.connection) == {
            status: sum(item.status == status for item in work.list_work(world.connection))
            for status in ("READY", "RUNNING", "BLOCKED", "DONE", "CANCELED", "REJECTED")
        }
        with pytest.raises(StaleClaim, match=r"^delegation expired or parent canceled$"):
            world.observe(claim)
        world.time.passes(400)
        assert world.claim("child") is None
