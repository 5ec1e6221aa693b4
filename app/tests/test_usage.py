"""The usage account: booked before a call, settled after it, counted in full while nobody knows."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from endpoint_standin import StandIn, replies, standin
from hypothesis import given
from hypothesis import strategies as st
from metering import COMPONENTS, PRICES, Metered
from world import HOST, START

from standfast import authority
from standfast.agent import (
    Dispatcher,
    Limits,
    LoopResult,
    ModelFailed,
    NoArguments,
    Reply,
    Request,
    ScriptedModel,
    Status,
    ToolCall,
    Usage,
    run_loop,
    tool,
    usage,
)
from standfast.agent import messages as chat
from standfast.agent.asking import AllowanceSpent
from standfast.agent.usage import Account, Ceilings, Counted, Prices, whole_cents
from standfast.authority import StaleClaim
from standfast.clock import Clock
from standfast.errors import BadInput
from standfast.layout import Layout
from standfast.store import immediate

DAY = 86_400.0
HERE = Path(__file__)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Metered]:
    made = Metered(Layout(tmp_path / "state"), components=COMPONENTS)
    yield made
    made.connection.close()


class TestCalls:
    def test_a_call_counts_with_the_most_it_may_use_until_it_is_settled(self, world: Metered) -> None:
        world.prices = PRICES
        claim = world.claimed()
        call = world.book(claim)
        assert world.rows() == [("booked", 1000, 0, 500, 300_000)]
        assert (world.today.calls, world.today.unknown_calls, world.today.tokens) == (1, 1, 1500)
        assert world.settle(call, Usage(200, 100, 50))
        assert world.rows() == [("answered", 200, 100, 50, 31_000)]
        assert world.today == Counted(1, 0, 200, 100, 50, 31_000)
        assert world.today.cents == 1, "a cost is never shown as less than it is"
        assert usage.of_work(world.connection, claim.work) == world.today
        assert usage.by_epoch(world.connection, 5) == [(world.epoch(), world.today)]
        assert usage.by_work(world.connection, 5) == [(claim.work, world.today)]

    @pytest.mark.parametrize(
        ("spent", "outcome", "counts"),
        [
            ("nothing sent", "not sent", (0, 0, 0)),
            ("nothing", "refused", (1, 0, 0)),
            ("unknown", "unclear", (1, 1, 1500)),
        ],
    )
    def test_a_call_that_failed(
        self, world: Metered, spent: str, outcome: str, counts: tuple[int, int, int]
    ) -> None:
        claim = world.claimed()
        assert world.failed(world.book(claim), spent)
        assert world.rows()[0][0] == outcome
        for counted in (world.today, usage.of_work(world.connection, claim.work)):
            assert (counted.calls, counted.unknown_calls, counted.tokens) == counts

    def test_a_call_is_settled_once(self, world: Metered) -> None:
        call = world.book(world.claimed())
        assert world.settle(call, Usage(1, 0, 1))
        before = world.dump()
        assert not world.settle(call, Usage(9, 0, 9))
        assert not world.failed(call, "unknown")
        assert not world.settle("0" * 24, Usage(9, 0, 9))
        assert world.dump() == before

    def test_what_was_spent_is_settled_for_a_claim_that_ended_meanwhile_and_nothing_else(
        self, world: Metered
    ) -> None:
        claim = world.claimed()
        call, other = world.book(claim), world.book(claim)
        authority.replace(world.connection, world.layout, "test", world.now(), HOST)
        before = world.dump()
        with pytest.raises(StaleClaim):
            world.book(claim)
        assert world.dump() == before
        assert world.settle(call, Usage(7, 0, 3))
        changed = {str(row[0]) for row in set(world.dump()) ^ set(before)}
        assert changed == {"usage_calls", "usage_days"}
        assert world.connection.execute(
            "SELECT outcome, input_tokens FROM usage_calls WHERE id = ?", (other,)
        ).fetchone() == ("booked", 1000)

    @pytest.mark.parametrize(
        "statement",
        [
            "DELETE FROM usage_calls",
            "UPDATE usage_calls SET day = '2000-01-01'",
            "UPDATE usage_calls SET work = id",
            "UPDATE usage_calls SET input_tokens = 0",
        ],
    )
    def test_the_store_itself_keeps_what_was_settled(self, world: Metered, statement: str) -> None:
        world.settle(world.book(world.claimed()), Usage(1, 0, 1))
        with (
            pytest.raises(Exception, match=r"history|never changes|settled once"),
            immediate(world.connection),
        ):
            world.connection.execute(statement)


class TestCeilings:
    @pytest.mark.parametrize(
        ("ceilings", "room", "told"),
        [
            (Ceilings(daily_calls=2), 2, "2 model calls"),
            (Ceilings(daily_tokens=3000), 2, "3000 tokens"),
            (Ceilings(daily_tokens=2999), 1, "2999 tokens"),
            (Ceilings(daily_cents=1), 3, "1 cents"),
            (Ceilings(daily_calls=0), 0, "0 model calls"),
            (Ceilings(), 10, ""),
        ],
    )
    def test_a_day_s_ceiling_holds_before_the_call(
        self, world: Metered, ceilings: Ceilings, room: int, told: str
    ) -> None:
        world.ceilings, world.prices = ceilings, PRICES
        claim = world.claimed()
        for _ in range(room):
            world.book(claim)
        if not told:
            return
        for times in (1, 2):
            with pytest.raises(AllowanceSpent, match=rf"the ceiling of {told} for 2023-11-14 \(UTC\)"):
                world.book(claim)
            (stop,) = usage.stops_of(world.connection, "2023-11-14")
            assert stop.times == times
        assert len(world.rows()) == room

    def test_what_was_booked_and_not_used_is_free_again(self, world: Metered) -> None:
        world.ceilings = Ceilings(daily_tokens=1600)
        claim = world.claimed()
        world.settle(world.book(claim), Usage(60, 0, 40))
        world.book(claim)
        with pytest.raises(AllowanceSpent):
            world.book(claim)

    def test_a_request_s_own_limit_counts_its_own_calls_only(self, world: Metered) -> None:
        world.ceilings, world.prices = Ceilings(work_cents=1), PRICES
        claim, other = world.claimed(), world.claimed()
        for _ in range(3):
            world.book(claim)
        with pytest.raises(AllowanceSpent, match="this request's limit of 1 cents"):
            world.book(claim)
        world.book(other)
        assert usage.stops_of(world.connection, "2023-11-14") == [], "no ceiling of the day stopped it"

    def test_the_next_day_has_its_own(self, world: Metered) -> None:
        world.ceilings = Ceilings(daily_calls=1)
        world.book(world.claimed())
        world.time.passes(DAY)
        world.book(world.claimed())
        with pytest.raises(AllowanceSpent, match="2023-11-15"):
            world.book(world.claimed())
        assert [(day, used.calls) for day, used in usage.by_day(world.connection, 5)] == [
            ("2023-11-15", 1),
            ("2023-11-14", 1),
        ]

    def test_a_clock_that_goes_back_opens_no_earlier_day(self, world: Metered) -> None:
        world.ceilings = Ceilings(daily_calls=1)
        world.time.passes(DAY)
        world.book(world.claimed())
        world.time.passes(-DAY)
        world.clock = world.time.clock()  # a new process
        with pytest.raises(AllowanceSpent, match="2023-11-15"):
            world.book(world.claimed())


class TestLosses:
    def end_era(self, world: Metered) -> None:
        authority.replace(world.connection, world.layout, "test", world.now(), HOST)
        authority.resume(world.connection, world.marker, "test", world.now())

    def state(self, world: Metered, **figures: Any) -> bool:
        with immediate(world.connection):
            return usage.state_loss(
                world.connection, **{"calls": None, "cents": None, "now": world.now()} | figures
            ).changed

    @pytest.mark.parametrize(
        "ceilings", [Ceilings(daily_calls=9), Ceilings(daily_tokens=9000), Ceilings(daily_cents=9)]
    )
    def test_what_an_era_s_end_lost_is_unknown_and_leaves_no_room(
        self, world: Metered, ceilings: Ceilings
    ) -> None:
        world.ceilings, world.prices = ceilings, PRICES
        world.book(world.claimed())
        self.end_era(world)
        with pytest.raises(AllowanceSpent, match="nobody has stated how many"):
            world.book(world.claimed())
        assert [stop.ceiling for stop in usage.stops_of(world.connection, "2023-11-14")] == ["loss"]
        world.time.passes(DAY)
        world.book(world.claimed())

    def test_without_a_ceiling_nothing_is_refused(self, world: Metered) -> None:
        self.end_era(world)
        world.book(world.claimed())

    def test_a_stated_loss_counts(self, world: Metered) -> None:
        world.ceilings, world.prices = Ceilings(daily_calls=5, daily_cents=100), PRICES
        self.end_era(world)
        assert self.state(world, calls=3, cents=40)
        world.book(world.claimed())
        assert (world.today.calls, world.today.cents, world.today.tokens) == (4, 41, 1500)
        world.book(world.claimed())
        with pytest.raises(AllowanceSpent, match="ceiling of 5 model calls"):
            world.book(world.claimed())

    def test_a_figure_that_was_not_stated_stays_unknown(self, world: Metered) -> None:
        world.ceilings, world.prices = Ceilings(daily_calls=5, daily_cents=100), PRICES
        self.end_era(world)
        self.state(world, calls=3)
        with pytest.raises(AllowanceSpent, match="how many cents"):
            world.book(world.claimed())
        self.state(world, cents=4)
        world.book(world.claimed())

    def test_no_calls_used_nothing(self, world: Metered) -> None:
        world.ceilings, world.prices = Ceilings(daily_calls=5, daily_tokens=9000, daily_cents=9), PRICES
        self.end_era(world)
        self.state(world, calls=0)
        world.book(world.claimed())
        with pytest.raises(BadInput, match="no calls"):
            self.state(world, calls=0, cents=1)

    def test_a_statement_is_made_once_and_two_losses_of_a_day_add_up(self, world: Metered) -> None:
        assert not self.state(world, calls=1, cents=1)
        self.end_era(world)
        assert self.state(world, calls=3, cents=40, tokens=7)
        before = world.dump()
        assert not self.state(world, calls=9, cents=90, tokens=9)
        assert world.dump() == before
        self.end_era(world)
        self.end_era(world)
        assert self.state(world, calls=2, cents=10, tokens=1)
        assert (world.today.calls, world.today.cents, world.today.tokens) == (5, 50, 8)

    def test_a_loss_counts_on_the_present_day_also_when_a_clock_was_once_ahead(self, world: Metered) -> None:
        world.ceilings = Ceilings(daily_calls=9)
        authority.replace(world.connection, world.layout, "a clock ahead", world.now() + DAY, HOST)
        self.state(world, calls=0)
        self.end_era(world)
        with pytest.raises(AllowanceSpent, match="nobody has stated how many"):
            world.book(world.claimed())
        assert self.state(world, calls=2)
        world.book(world.claimed())

    def test_looking_first_changes_nothing(self, world: Metered) -> None:
        self.end_era(world)
        before = world.dump()
        stated = usage.state_loss(world.connection, calls=1, cents=1, now=world.now(), check=True)
        assert (stated.changed, stated.day) == (True, "2023-11-14")
        assert world.dump() == before
        with pytest.raises(RuntimeError):
            usage.state_loss(world.connection, calls=1, cents=1, now=world.now())

    @pytest.mark.parametrize("figures", [{"calls": -1}, {"cents": 10**13}, {"tokens": -1}])
    def test_a_figure_out_of_bounds_is_refused(self, world: Metered, figures: dict[str, int]) -> None:
        self.end_era(world)
        with pytest.raises(BadInput):
            self.state(world, **figures)

    def test_it_says_since_when_the_account_knows_nothing(self, world: Metered) -> None:
        self.end_era(world)
        call = world.book(world.claimed())
        world.time.passes(5)
        world.settle(call, Usage(1, 0, 1))
        world.time.passes(5)
        self.end_era(world)
        first, second = usage.losses_of(world.connection, "2023-11-14")
        assert (first.since, second.since, second.marked_at) == (None, START + 5, START + 10)


class TestLoop:
    def run(self, world: Metered, *turns: Any, **limits: Any) -> LoopResult:
        self.model = ScriptedModel(turns)
        self.claim = world.claimed()
        account = Account(
            connection=world.connection,
            claim=self.claim,
            source=self.model.source,
            prices=world.prices,
            ceilings=world.ceilings,
            clock=world.clock,
            marker=world.marker,
        )
        return run_loop(
            self.model,
            Dispatcher([tool("look", "Look.", NoArguments, lambda _arguments, _call: 42)]),
            [chat.system("s" * 300), chat.user("u")],
            limits=Limits(**limits),
            meter=account,
            wait=lambda _seconds: None,
        )

    def look(self, identity: str, used: Usage | None) -> Reply:
        return Reply(calls=(ToolCall(identity, "look", "{}"),), usage=used)

    def test_every_call_is_booked_with_an_estimate_and_settled_with_what_it_used(
        self, world: Metered
    ) -> None:
        def seen(request: Request) -> Reply:
            size = chat.total_size([*request.messages, *request.tools])
            assert world.rows()[-1] == ("booked", -(-size // 3), 0, 77, 0)
            return self.look("a", Usage(10, 2, 3))

        result = self.run(world, seen, Reply("done", usage=Usage(20, 0, 4)), call_output_tokens=77)
        assert result.status == Status.COMPLETED
        assert world.rows() == [("answered", 10, 2, 3, 0), ("answered", 20, 0, 4, 0)]

    @pytest.mark.parametrize(
        "ceilings", [Ceilings(daily_calls=1), Ceilings(daily_cents=1), Ceilings(work_cents=1)]
    )
    def test_the_estimated_cost_limit_ends_the_turn_before_the_call(
        self, world: Metered, ceilings: Ceilings
    ) -> None:
        world.ceilings, world.prices = ceilings, Prices(1000, 1000, 400)
        used = Usage(100, 0, 50)
        result = self.run(world, self.look("a", used), Reply("never asked"), call_output_tokens=1800)
        assert result.status == Status.COST_LIMIT
        assert result.text == ""
        assert "limit of 1" in result.reason or "ceiling of 1" in result.reason
        assert len(self.model.requests) == 1

    def test_a_retry_is_a_call_too(self, world: Metered) -> None:
        world.ceilings = Ceilings(daily_calls=2)

        def fail(_request: Request) -> Reply:
            raise ModelFailed("busy", again=True)

        result = self.run(world, fail, fail, Reply("never asked"))
        assert result.status == Status.COST_LIMIT
        assert [row[0] for row in world.rows()] == ["unclear", "unclear"]

    @pytest.mark.parametrize("used", [None, Usage(-1, 0, 0)])
    def test_an_invalid_usage_leaves_the_call_counted_in_full(
        self, world: Metered, used: Usage | None
    ) -> None:
        result = self.run(world, Reply("done", usage=used), call_output_tokens=77)
        assert result.status == Status.INVALID_USAGE
        assert world.rows()[0][0] == "unclear"
        assert world.today.output_tokens == 77

    def test_a_worker_that_lost_its_authority_makes_no_call(self, world: Metered) -> None:
        def lose(_request: Request) -> Reply:
            authority.pause(world.connection, "test", world.now())
            return self.look("a", Usage(1, 0, 1))

        result = self.run(world, lose, Reply("never asked"))
        assert result.status == Status.AUTHORITY_LOST
        assert result.reason == "runtime paused or replaced by restore"
        assert world.rows() == [("answered", 1, 0, 1, 0)], "what was spent is on record"


def worker(world: Metered, one: StandIn, number: int, daily_calls: int) -> subprocess.Popen[str]:
    app = HERE.parents[1]
    return subprocess.Popen(
        [
            sys.executable,
            str(HERE.with_name("metering_child.py")),
            str(world.layout.state),
            f"worker-{number}",
            str(daily_calls),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **one.environment, "PYTHONPATH": f"{app}:{app / 'tests'}", "PYTHONWARNINGS": ""},
    )


@pytest.fixture
def present(tmp_path: Path) -> Iterator[Metered]:
    """A world at the present time, for real processes beside this one."""
    made = Metered(Layout(tmp_path / "state"), components=COMPONENTS)
    made.clock = Clock()
    yield made
    made.connection.close()


def test_eight_processes_with_three_calls_left_send_exactly_three(present: Metered) -> None:
    """Real processes, one store, a real HTTP server that counts what arrives."""
    for number in range(8):
        present.admit(f"o{number}", f"s{number}")
    with standin(replies("done")) as one:
        workers = [worker(present, one, number, daily_calls=3) for number in range(8)]
        for process in workers:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in workers:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        ended = sorted(process.communicate(timeout=60)[0].strip() for process in workers)
        assert len(one.requests) == 3
    assert ended == ["COMPLETED"] * 3 + ["COST_LIMIT"] * 5
    assert [row[0] for row in present.rows()] == ["answered"] * 3
    assert present.today.calls == 3


@pytest.mark.parametrize(("point", "sent"), [("usage.book.committed", 0), ("usage.settle.before_commit", 1)])
def test_a_process_that_dies_around_its_call_leaves_it_counted(
    present: Metered, point: str, sent: int
) -> None:
    present.admit("o1", "s1")
    present.admit("o2", "s2")
    with standin(replies("done")) as one:
        died = worker(present, one, 1, daily_calls=1)
        died.communicate(f"{point}\n", timeout=60)
        assert died.returncode == -signal.SIGKILL
        out, _ = worker(present, one, 2, daily_calls=1).communicate("go\n", timeout=60)
        assert out.split() == ["ready", "COST_LIMIT"]
        assert len(one.requests) == sent
    assert [row[0] for row in present.rows()] == ["booked"]


@given(
    st.integers(0, 10**7),
    st.integers(0, 10**7),
    st.integers(0, 10**7),
    st.tuples(*[st.integers(0, 10**5)] * 3),
)
def test_a_cost_is_exact_and_shown_rounded_up(read: int, cached: int, written: int, prices: Any) -> None:
    used = Usage(read + cached, cached, written)
    cost = Prices(*prices).cost(used)
    assert cost == read * prices[0] + cached * prices[1] + written * prices[2]
    assert whole_cents(cost) * 1_000_000 >= cost > (whole_cents(cost) - 1) * 1_000_000


def test_a_store_of_an_earlier_release_is_brought_forward(tmp_path: Path) -> None:
    """The usage component comes to a store that did not have it, and finds nothing lost."""
    from world import COMPONENTS as EARLIER  # noqa: PLC0415
    from world import World  # noqa: PLC0415

    earlier = World(Layout(tmp_path / "state"), components=EARLIER)
    earlier.connection.close()
    world = Metered(Layout(tmp_path / "state"), components=COMPONENTS, ceilings=Ceilings(daily_calls=1))
    world.book(world.claimed())
    assert [row[0] for row in world.rows()] == ["booked"]
    world.connection.close()
