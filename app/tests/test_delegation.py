"""Delegation: a child with a deadline, limits and no purchasing authority, that never outlives its parent."""

import json
import signal
import time
from pathlib import Path

import pytest
from buying import Buying
from support import Counting, Instance, until_idle
from world import Time, World, child, start

from standfast import authority, orders, work
from standfast.agent import Reply, Request, ScriptedModel, ToolCall
from standfast.authority import Claim, StaleClaim
from standfast.cli import main as cli
from standfast.errors import BadInput, Refused
from standfast.layout import Layout
from standfast.shop.config import parse, sample
from standfast.shop.tools import ShopTools, conversation
from standfast.work import ChildLimits, Delegated, DelegationPolicy

ENDED = r"^delegation expired or parent canceled$"


def delegate(
    world: World,
    claim: Claim,
    subject: str = "vanilla",
    *,
    seconds: float = 200.0,
    limits: ChildLimits | None = None,
    policy: DelegationPolicy | None = None,
) -> Delegated:
    return work.delegate(
        world.connection,
        claim,
        subject=subject,
        prompt="How much is there?",
        seconds=seconds,
        clock=world.clock,
        marker=world.marker,
        limits=limits,
        policy=policy,
    )


def close(world: World) -> list[str]:
    return [one.reason for one in work.close_children(world.connection, now=world.now())]


def both(world: World) -> tuple[Claim, Claim]:
    """A parent and its child, both claimed."""
    parent = world.claimed()
    spawned = delegate(world, parent)
    claim = world.claim("helper")
    assert claim is not None
    assert claim.work == spawned.work
    return parent, claim


class TestDelegate:
    def test_a_child_has_a_role_a_subject_a_deadline_and_limits(self, world: World) -> None:
        parent = world.claimed()
        limits = ChildLimits(model_calls=2, tool_calls=3, seconds=10.0)
        spawned = delegate(world, parent, limits=limits)
        item = work.show_work(world.connection, spawned.work)
        assert (item.role, item.subject, item.prompt) == ("research", "vanilla", "How much is there?")
        assert (item.parent, item.deadline, item.status) == (parent.work, world.now() + 200, "READY")
        assert item.session not in {parent.session, ""}
        found = work.delegated(world.connection, spawned.work)
        assert found is not None
        assert (found.limits, found.deadline) == (limits, spawned.deadline)
        assert work.delegated(world.connection, parent.work) is None
        assert work.children_of(world.connection, parent.work) == [item]
        [row] = work.transcript(world.connection, parent.work)
        assert json.loads(row.message) == {
            "role": "delegation",
            "child": spawned.work,
            "subject": "vanilla",
            "gate": "allowed",
        }

    @pytest.mark.parametrize(
        ("lease", "asked", "granted"), [(300, 899, 899), (300, 901, 900), (60, 900, 660)]
    )
    def test_the_deadline_is_never_later_than_the_policy_allows(
        self, world: World, lease: float, asked: float, granted: float
    ) -> None:
        spawned = delegate(world, world.claimed(lease=lease), seconds=asked)
        assert spawned.deadline == world.now() + granted

    def test_the_same_again_is_the_same_child(self, world: World) -> None:
        parent = world.claimed()
        first = delegate(world, parent)
        before = world.dump()
        world.time.passes(10)
        again = delegate(world, parent)
        assert (again.work, again.deadline, again.created) == (first.work, first.deadline, False)
        assert world.dump() == before

    def test_a_work_item_delegates_only_so_often(self, world: World) -> None:
        parent = world.claimed()
        for number in range(4):
            delegate(world, parent, f"s{number}")
        before = world.dump()
        with pytest.raises(Refused) as refused:
            delegate(world, parent, "s4")
        assert refused.value.code == "delegation_limit"
        assert world.dump() == before
        assert not delegate(world, parent, "s0").created

    def test_a_child_delegates_nothing(self, world: World) -> None:
        _, claim = both(world)
        before = world.dump()
        with pytest.raises(Refused) as refused:
            delegate(world, claim, "deeper")
        assert refused.value.code == "no_delegation"
        assert world.dump() == before

    @pytest.mark.parametrize("bad", [{"seconds": 0}, {"seconds": float("inf")}, {"subject": " "}])
    def test_malformed_delegations_write_nothing(self, world: World, bad: dict[str, float]) -> None:
        parent = world.claimed()
        before = world.dump()
        with pytest.raises(BadInput):
            delegate(world, parent, **bad)  # type: ignore[arg-type]
        assert world.dump() == before

    @pytest.mark.parametrize("bad", [{"model_calls": 0}, {"tool_calls": 0}, {"seconds": 0.0}])
    def test_limits_that_leave_nothing_are_refused(self, bad: dict[str, int]) -> None:
        with pytest.raises(BadInput):
            ChildLimits(**bad)

    def test_a_stale_parent_delegates_nothing(self, world: World) -> None:
        parent = world.claimed()
        work.cancel(world.connection, parent.work, reason="test", now=world.now())
        before = world.dump()
        with pytest.raises(StaleClaim):
            delegate(world, parent)
        assert world.dump() == before


class TestEnd:
    @pytest.mark.parametrize("parent_done", [False, True])
    @pytest.mark.parametrize("running", [False, True])
    def test_canceling_the_parent_stops_the_child(
        self, world: World, parent_done: bool, running: bool
    ) -> None:
        parent = world.claimed()
        spawned = delegate(world, parent)
        claim = world.claim("helper") if running else None
        if claim:
            world.observe(claim)
        if parent_done:
            world.finish(parent)
        work.cancel(world.connection, parent.work, reason="enough", now=world.now())
        if claim:
            with pytest.raises(StaleClaim, match=ENDED):
                world.observe(claim)
        assert close(world) == (["parent canceled"] if running else [])
        item = work.show_work(world.connection, spawned.work)
        assert (item.status, item.reason, item.finished_at) == ("CANCELED", "parent canceled", world.now())
        assert item.generation == (2 if running else 0)
        world.time.passes(1000)
        assert world.claim("helper") is None

    @pytest.mark.parametrize("status", ["READY", "RUNNING", "BLOCKED"])
    def test_the_deadline_closes_it(self, world: World, status: str) -> None:
        parent = world.claimed()
        spawned = delegate(world, parent)
        claim = world.claim("helper") if status != "READY" else None
        if status == "BLOCKED":
            assert claim is not None
            work.finish(world.connection, claim, "BLOCKED", clock=world.clock, marker=world.marker)
        world.time.passes(199.9)
        assert close(world) == []
        world.time.passes(0.1)
        if status == "RUNNING":
            assert claim is not None
            with pytest.raises(StaleClaim, match=ENDED):
                world.observe(claim)
        assert close(world) == ["delegation deadline passed"]
        assert work.show_work(world.connection, spawned.work).status == "CANCELED"
        world.observe(parent)
        assert close(world) == []

    def test_a_child_that_ended_in_time_is_left_alone(self, world: World) -> None:
        parent, claim = both(world)
        world.finish(claim, "two")
        world.time.passes(250)
        assert close(world) == []
        assert work.show_work(world.connection, claim.work).status == "DONE"
        assert world.connection.execute("SELECT open FROM delegations").fetchall() == [(0,)]
        world.finish(parent)
        with pytest.raises(Refused, match="cannot be canceled"):
            work.cancel(world.connection, parent.work, reason="", now=world.now())

    def test_an_old_claim_on_a_closed_child_never_matches_again(self, world: World) -> None:
        _, claim = both(world)
        world.time.passes(200)
        close(world)
        with pytest.raises(StaleClaim, match="superseded"):
            world.observe(claim)

    def test_generations_rise_over_every_transition(self, world: World) -> None:
        parent = world.claimed(lease=900)
        spawned = delegate(world, parent, seconds=1500)
        seen = [0]
        for _ in range(2):
            claim = world.claim("helper", lease=10)
            assert claim is not None
            seen.append(claim.generation)
            world.time.passes(10)
        authority.replace(world.connection, world.layout, "test", world.now())
        authority.resume(world.connection, world.marker, "test", world.now())
        seen.append(work.show_work(world.connection, spawned.work).generation)
        work.cancel(world.connection, parent.work, reason="", now=world.now())
        assert seen == sorted(set(seen))
        assert work.show_work(world.connection, spawned.work).status == "CANCELED"

    def test_looking_costs_nothing_for_children_that_ended(self, world: World) -> None:
        for number in range(30):
            parent = world.claimed()
            delegate(world, parent, f"s{number}")
            claim = world.claim("helper")
            assert claim is not None
            world.finish(claim)
            world.finish(parent)
            world.time.passes(1000)
            close(world)
        steps = 0

        def step() -> int:
            nonlocal steps
            steps += 1
            return 0

        world.connection.set_progress_handler(step, 1)
        assert close(world) == []
        world.connection.set_progress_handler(None, 0)
        assert 0 < steps < 100


def test_a_child_has_no_purchasing_authority(tmp_path: Path) -> None:
    buying = Buying(tmp_path)
    parent = buying.claimed()
    spawned = work.delegate(
        buying.connection,
        parent,
        subject="vanilla",
        prompt="look",
        seconds=200,
        clock=buying.clock,
        marker=buying.marker,
    )
    claim = authority.claim_next(buying.connection, owner="helper", now=buying.now(), marker=buying.marker)
    assert claim is not None
    assert claim.work == spawned.work
    with pytest.raises(Refused) as refused:
        buying.propose(claim)
    assert refused.value.code == "no_purchasing"
    assert orders.list_orders(buying.connection) == []
    buying.propose(parent)
    buying.close()


def delegating(subject: str = "vanilla", **more: object) -> Reply:
    given = {"subject": subject, "prompt": "How much of it is there?", **more}
    return Reply(calls=(ToolCall("d1", "delegate", json.dumps(given)),))


class TestService:
    def test_a_model_delegates_and_the_child_reports_by_itself(self, tmp_path: Path) -> None:
        instance = Instance.make(tmp_path)
        parent = instance.add().work
        offered: list[set[object]] = []

        def answer(request: Request) -> Reply:
            offered.append({tool["name"] for tool in request.tools})
            return Reply(text="There are two.")

        asked = ScriptedModel([delegating(), Reply(text="A helper looks."), answer])
        assert instance.settle(asked) == 2
        [(spawned, role, status)] = instance.rows(
            "SELECT id, role, status FROM work WHERE parent = ?", parent
        )
        assert (role, status) == ("research", "DONE")
        assert instance.reports(spawned) == ["There are two."]
        assert offered == [{"list_stock", "work_status", "record_finding"}]
        with instance.store() as store:
            told = json.loads(str(conversation(store, parent)[3]["content"]))
        assert told["ok"]
        assert told["result"]["work"] == spawned

    @pytest.mark.parametrize("tool", ["delegate", "propose_order"])
    def test_what_a_child_asks_for_beyond_its_subset_is_not_allowed(self, world: World, tool: str) -> None:
        _, claim = both(world)
        tools = ShopTools(
            world.connection, claim, parse(sample()), world.clock, world.marker, purchasing=True
        )
        arguments = '{"sku": "vanilla", "quantity": 1, "subject": "x", "prompt": "y"}'
        outcome = tools.dispatcher().dispatch(ToolCall("c", tool, arguments))
        assert (outcome.ok, outcome.result) == (False, "not_allowed")

    @pytest.mark.parametrize(
        "bad", [{"subject": ""}, {"seconds": 59}, {"seconds": 901}, {"role": "agent"}, {"deadline": 1}]
    )
    def test_its_arguments_are_bounded(self, tmp_path: Path, bad: dict[str, object]) -> None:
        instance = Instance.make(tmp_path)
        instance.add()
        model = ScriptedModel([delegating(**{"subject": "vanilla", **bad}), Reply(text="done")])  # type: ignore[arg-type]
        instance.settle(model)
        assert "invalid_arguments" in str(model.requests[1].messages[-1])
        assert instance.rows("SELECT count(*) FROM work") == [(1,)]

    def test_a_call_cut_off_before_its_answer_delegates_once(self, tmp_path: Path) -> None:
        instance = Instance.make(tmp_path)
        instance.add()
        claim = instance.claim()
        with instance.store() as store:
            tools = ShopTools(store, claim, parse(sample()), instance.clock, instance.layout.marker)
            for _ in range(2):
                assert tools.dispatcher().dispatch(delegating().calls[0]).ok
        assert instance.rows("SELECT count(*) FROM work WHERE parent IS NOT NULL") == [(1,)]

    def test_a_childs_own_limits_hold(self, tmp_path: Path) -> None:
        instance = Instance.make(tmp_path)
        parent = instance.add().work
        looks = [Reply(calls=(ToolCall(f"l{n}", "list_stock", "{}"),)) for n in range(9)]
        instance.settle(ScriptedModel([delegating(), Reply(text="A helper looks."), *looks]))
        [(status, reason)] = instance.rows("SELECT status, reason FROM work WHERE parent = ?", parent)
        assert status == "BLOCKED"
        assert "more than 4 model calls" in reason

    def test_a_child_whose_parent_is_canceled_in_its_turn_is_closed_without_a_report(
        self, tmp_path: Path
    ) -> None:
        instance = Instance.make(tmp_path)
        parent = instance.add().work

        def cancel(_request: Request) -> Reply:
            with instance.store() as store:
                work.cancel(store, parent, reason="enough", now=instance.clock.now())
            return Reply(text="Too late.")

        model = ScriptedModel([delegating(), Reply(text="A helper looks."), cancel])
        with instance.service(model) as service:
            until_idle(service)
            until_idle(service)  # the pass that meets the refusal waits; the next one closes
        [(spawned, status, reason)] = instance.rows(
            "SELECT id, status, reason FROM work WHERE parent = ?", parent
        )
        assert (status, reason) == ("CANCELED", "parent canceled")
        assert instance.reports(spawned) == []

    def test_an_overdue_child_that_nobody_claimed_is_closed(self, tmp_path: Path) -> None:
        instance = Instance.make(tmp_path)
        instance.add()
        claim = instance.claim()
        with instance.store() as store:
            tools = ShopTools(store, claim, parse(sample()), instance.clock, instance.layout.marker)
            assert tools.dispatcher().dispatch(delegating().calls[0]).ok
        instance.clock.pass_time(600)
        model = Counting()
        with instance.service(model) as service:
            until_idle(service)
        assert instance.rows("SELECT status, reason FROM work WHERE parent IS NOT NULL") == [
            ("CANCELED", "delegation deadline passed")
        ]

    def test_work_show_names_parent_and_children(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        instance = Instance.make(tmp_path)
        parent = instance.add().work
        instance.settle(ScriptedModel([delegating(), Reply(text="A helper looks."), Reply(text="Two.")]))
        show = ["--json", "--state", str(instance.layout.state), "work", "show"]
        assert cli.main([*show, parent]) == 0
        shown = json.loads(capsys.readouterr().out)
        [found] = shown["children"]
        assert (found["parent"], found["role"], found["status"]) == (parent, "research", "DONE")
        assert found["deadline"].endswith("Z")
        assert cli.main([*show[1:], parent]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert ["child", found["id"], "DONE"] in lines


@pytest.mark.parametrize(
    ("point", "children", "closed"),
    [
        ("delegate.before_commit", [], []),
        ("delegate.committed", ["READY"], ["delegation deadline passed"]),
        ("close_children.before_commit", ["READY"], ["delegation deadline passed"]),
        ("close_children.committed", ["CANCELED"], []),
    ],
)
def test_killed_at_a_commit_it_is_all_there_or_nothing_is(
    tmp_path: Path, point: str, children: list[str], closed: list[str]
) -> None:
    world = World(Layout(tmp_path / "state"), Time(wall=time.time()))
    parent = world.admit()
    killed = child("die_delegating", world.layout.state, point, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    found = work.children_of(world.connection, parent)
    assert [one.status for one in found] == children
    records = [json.loads(row.message) for row in work.transcript(world.connection, parent)]
    assert [record["child"] for record in records] == [one.id for one in found]
    world.time.passes(700)
    assert close(world) == closed
    assert {one.status for one in work.children_of(world.connection, parent)} <= {"CANCELED"}
    claim = world.claim("other")
    assert claim is not None
    assert (claim.work, claim.generation) == (parent, 2)
    world.connection.close()


def test_cancel_racing_a_spawn_leaves_no_child_behind(world: World) -> None:
    """Two processes, many rounds: one delegates without a pause, the other cancels the parent under it."""
    rounds = 60
    for number in range(rounds):
        world.admit(f"parent-{number}", f"parent-{number}")
    with start("spawn", world.layout.state) as spawner:
        canceled = child("cancel", world.layout.state, rounds)
        out, err = spawner.communicate(timeout=60)
        assert spawner.returncode == 0, err
    spawned = [int(line) for line in out.split()]
    assert len(spawned) == len(canceled.stdout.splitlines()) == rounds
    assert sum(count > 0 for count in spawned) > rounds // 4, "the race never happened"
    found = world.connection.execute(
        "SELECT status, reason, count(*) FROM work WHERE parent IS NOT NULL GROUP BY status, reason"
    ).fetchall()
    assert found == [("CANCELED", "parent canceled", sum(spawned))]
    assert close(world) == []
    assert world.claim() is None
