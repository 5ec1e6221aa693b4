"""Intake: bounded, once per origin, within limits, never silently dropped."""

import sqlite3
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import World

from standfast import authority, work
from standfast.errors import BadInput, Refused
from standfast.work import Limits, Request


def admit(world: World, **fields: object) -> work.Admission:
    given = {"origin": "o", "session": "s", "prompt": "p", "now": world.now(), **fields}
    return work.admit(world.connection, **given)  # type: ignore[arg-type]


def test_the_same_origin_with_the_same_content_is_the_same_work(world: World) -> None:
    first = admit(world)
    world.time.passes(60)
    again = admit(world)
    assert (first.created, again.created) == (True, False)
    assert (again.work, again.status) == (first.work, "READY")
    claim = world.claim()
    assert claim is not None
    world.finish(claim)
    assert admit(world).status == "DONE"
    assert work.counts(world.connection)["DONE"] == 1


@pytest.mark.parametrize("other", [{"prompt": "q"}, {"session": "t"}, {"subject": "x"}, {"role": "clerk"}])
def test_the_same_origin_with_other_content_is_refused(world: World, other: dict[str, str]) -> None:
    admit(world)
    before = world.dump()
    with pytest.raises(Refused) as refused:
        admit(world, **other)
    assert refused.value.code == "origin_conflict"
    assert world.dump() == before


@pytest.mark.parametrize(
    ("field", "longest", "longer"),
    [
        ("origin", "x" * 250, "x" * 251),
        ("session", "x" * 200, "x" * 201),
        ("subject", "x" * 250, "x" * 251),
        ("prompt", "x" * 16384, "x" * 16385),
        ("prompt", "é" * 8192, "é" * 8193),
        ("role", "r" * 32, "r" * 33),
    ],
)
def test_bounds(world: World, field: str, longest: str, longer: str) -> None:
    assert admit(world, **{field: longest}).created
    before = world.dump()
    with pytest.raises(BadInput, match=f"^{field}: "):
        admit(world, **{"origin": "other", field: longer})
    assert world.dump() == before


@pytest.mark.parametrize("field", ["origin", "session", "prompt"])
@pytest.mark.parametrize("text", ["", "a\0b", "a\ud800b"])
def test_text_that_cannot_be_kept_is_refused_by_name(world: World, field: str, text: str) -> None:
    with pytest.raises(BadInput, match=f"^{field}: "):
        admit(world, **{field: text})
    assert world.connection.execute("SELECT count(*) FROM work").fetchone() == (0,)


@pytest.mark.parametrize(
    "now",
    [datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC), float("nan"), float("inf"), "now", True],  # noqa: DTZ001
)
def test_only_epoch_seconds_are_a_time(world: World, now: object) -> None:
    with pytest.raises(BadInput, match="now"):
        admit(world, now=now)


def test_the_admission_time_is_recorded(world: World) -> None:
    item = work.show_work(world.connection, admit(world).work)
    assert (item.admitted_at, item.status, item.generation) == (world.now(), "READY", 0)


def test_past_the_pending_limit_work_is_rejected_with_a_reason(world: World) -> None:
    limits = Limits(daily=100, pending=2)
    results = [admit(world, origin=str(n), limits=limits) for n in range(3)]
    assert [result.status for result in results] == ["READY", "READY", "REJECTED"]
    assert results[2].reason == "pending limit: the session has 2 items waiting"
    assert work.show_work(world.connection, results[2].work).reason == results[2].reason
    assert admit(world, origin="x", session="other", limits=limits).status == "READY"
    claim = world.claim()
    assert claim is not None
    assert admit(world, origin="y", limits=limits).status == "REJECTED"
    work.finish(world.connection, claim, "BLOCKED", clock=world.clock, marker=world.marker)
    assert admit(world, origin="z", limits=limits).status == "READY"  # what failed keeps nobody waiting
    assert admit(world, origin="2", limits=limits).status == "REJECTED"  # the same request, the same answer


def test_past_the_daily_limit_work_is_rejected_until_tomorrow(world: World) -> None:
    limits = Limits(daily=2, pending=100)
    results = [admit(world, origin=str(n), limits=limits) for n in range(3)]
    assert [result.status for result in results] == ["READY", "READY", "REJECTED"]
    assert "daily limit" in results[2].reason
    assert admit(world, origin="0", limits=limits).status == "READY"
    world.time.passes(86400)
    assert admit(world, origin="3", limits=limits).status == "READY"


def test_rejected_work_is_never_claimed_and_does_not_count(world: World) -> None:
    limits = Limits(daily=1)
    admit(world, limits=limits)
    for number in range(3):
        admit(world, origin=str(number), limits=limits)
    assert world.claim() is not None
    assert world.claim() is None
    assert work.counts(world.connection) == {
        "READY": 0, "RUNNING": 1, "BLOCKED": 0, "DONE": 0, "CANCELED": 0, "REJECTED": 3,
    }  # fmt: skip


def test_intake_goes_on_while_paused_and_waits(world: World) -> None:
    authority.pause(world.connection, "stock take", world.now())
    assert admit(world).status == "READY"
    assert world.claim() is None
    authority.resume(world.connection, world.marker, "go on", world.now())
    assert world.claim() is not None


@given(st.text(max_size=300), st.text(max_size=300))
def test_every_request_is_within_its_bounds_or_refused(origin: str, prompt: str) -> None:
    try:
        request = Request(origin=origin, session="s", prompt=prompt)
    except BadInput:
        assert not origin or not prompt or len(origin) > 250 or "\0" in origin + prompt
        return
    assert 0 < len(request.origin) <= 250
    assert 0 < len(request.prompt.encode()) <= 16384


class TestReading:
    def test_counts_follow_every_transition(self, world: World) -> None:
        for number in range(4):
            world.admit(str(number), str(number))
        claims = [world.claim() for _ in range(3)]
        for claim, status in zip(claims, ("DONE", "BLOCKED", "CANCELED"), strict=True):
            assert claim is not None
            work.finish(
                world.connection,
                claim,
                status,  # type: ignore[arg-type]
                report="over",
                clock=world.clock,
                marker=world.marker,
            )
        counted = dict(
            world.connection.execute("SELECT status, count(*) FROM work GROUP BY status").fetchall()
        )
        assert {status: items for status, items in work.counts(world.connection).items() if items} == counted
        assert counted == {"READY": 1, "DONE": 1, "BLOCKED": 1, "CANCELED": 1}
        for status in ("READY", "DONE", "BLOCKED", "CANCELED"):
            assert [item.status for item in work.list_work(world.connection, status=status)] == [status]
        assert len(work.list_work(world.connection)) == 4
        assert work.list_work(world.connection, status="RUNNING") == []

    def test_work_is_numbered_without_gaps_so_that_counting_is_right(self, world: World) -> None:
        world.admit("1", "1")
        insert = (
            "INSERT INTO work (seq, id, role, session, subject, prompt, status, admitted_at)"
            " VALUES (?, hex(randomblob(12)), 'agent', 's', '', 'p', 'REJECTED', 1)"
        )
        for statement, values in (
            (insert, (3,)),
            (insert, (0,)),
            ("UPDATE work SET seq = 2", ()),
            ("DELETE FROM work", ()),
        ):
            with pytest.raises(sqlite3.IntegrityError, match=r"without gaps|not deleted"):
                world.connection.execute(statement, values)
        world.connection.execute(insert, (2,))
        assert {status: n for status, n in work.counts(world.connection).items() if n} == {
            "READY": 1,
            "REJECTED": 1,
        }

    def test_what_is_canceled_after_its_end_is_counted_once(self, world: World) -> None:
        world.admit("1", "1")
        world.finish(world.claimed())
        assert work.latest_done(world.connection) is not None
        world.connection.execute("UPDATE work SET status = 'CANCELED' WHERE status = 'DONE'")
        world.connection.execute("UPDATE work SET status = 'CANCELED' WHERE status = 'CANCELED'")
        counted = {status: n for status, n in work.counts(world.connection).items() if n}
        assert counted == {"READY": 1, "CANCELED": 1}
        assert work.latest_done(world.connection) is None

    def test_ages_and_the_latest_done(self, world: World) -> None:
        assert work.ages(world.connection, world.now()) == work.Ages(None, None)
        assert work.latest_done(world.connection) is None
        world.admit("1", "1")
        world.time.passes(10)
        claim = world.claim()
        assert claim is not None
        world.admit("2", "2")
        world.time.passes(5)
        assert work.ages(world.connection, world.now()) == work.Ages(ready=5, running=5)
        world.finish(claim)
        assert work.latest_done(world.connection) == work.Latest(claim.work, world.now())

    def test_unknown_names_are_refused(self, world: World) -> None:
        with pytest.raises(BadInput, match="status"):
            work.list_work(world.connection, status="ready")
        for look in (work.show_work, work.show_report, work.show_run):
            with pytest.raises(Refused, match="there is no"):
                look(world.connection, "0" * 24)
