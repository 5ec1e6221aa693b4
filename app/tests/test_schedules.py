"""Schedules: one work item per slot, missed slots coalesce, nothing fires while paused, and the DST edges."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import START, World, start

from standfast import authority, work
from standfast.errors import BadInput, Refused
from standfast.store import triggers
from standfast.work.cron import slots_after

HOUR = 3600
PARIS = ZoneInfo("Europe/Paris")


def add(world: World, name: str = "brief", /, **fields: object) -> work.Schedule:
    given = {"name": name, "prompt": "write the brief", "now": world.now(), **fields}
    return work.add_schedule(world.connection, **given)[0]  # type: ignore[arg-type]


def fire(world: World) -> list[work.Fired]:
    return work.fire_due(world.connection, now=world.now())


def test_an_interval_fires_once_per_slot(world: World) -> None:
    schedule = add(world, every=HOUR)
    assert schedule.next_slot == START + HOUR
    assert fire(world) == []
    world.time.passes(HOUR - 1)
    assert fire(world) == []
    world.time.passes(1)
    fired = fire(world)
    assert [(one.slot, one.skipped) for one in fired] == [(START + HOUR, 0)]
    assert fire(world) == []
    assert fired[0].work is not None
    item = work.show_work(world.connection, fired[0].work)
    assert (item.session, item.prompt, item.status) == ("schedule:brief", "write the brief", "READY")
    assert work.list_slots(world.connection, "brief")[0].work == fired[0].work


def test_a_slot_whose_origin_is_taken_is_skipped_and_the_next_one_fires(world: World) -> None:
    schedule = add(world, every=HOUR)
    other = add(world, "other", every=HOUR)
    world.admit(f"schedule:brief:{schedule.next_slot}", "elsewhere", "something else")
    world.time.passes(HOUR)
    taken, fired = sorted(fire(world), key=lambda one: one.schedule)
    assert (taken.work, fired.schedule, fired.slot) == (None, "other", other.next_slot)
    assert "used for other content" in taken.reason
    assert [slot.outcome for slot in work.list_slots(world.connection, "brief")] == ["skipped"]
    assert fire(world) == []
    world.time.passes(HOUR)
    assert [one.reason for one in fire(world)] == ["", ""]


@pytest.mark.parametrize(
    "definition", [{"every": HOUR}, {"cron": "13 * * * *", "zone": "Europe/Paris"}], ids=["interval", "cron"]
)
def test_after_a_day_of_outage_one_run_and_23_recorded_as_skipped(
    world: World, definition: dict[str, object]
) -> None:
    schedule = add(world, **definition)
    world.time.passes(24 * HOUR)
    fired = fire(world)
    assert [(one.slot, one.skipped) for one in fired] == [(schedule.next_slot + 23 * HOUR, 23)]
    slots = work.list_slots(world.connection, "brief", limit=100)
    assert Counter(slot.outcome for slot in slots) == {"fired": 1, "skipped": 23}
    assert [slot.slot for slot in slots] == [schedule.next_slot + n * HOUR for n in range(23, -1, -1)]
    assert work.counts(world.connection)["READY"] == 1
    assert work.list_schedules(world.connection)[0].next_slot == schedule.next_slot + 24 * HOUR


@pytest.mark.parametrize(
    ("definition", "counted"),
    [
        ({"every": 60}, True),
        ({"every": 1}, True),
        ({"cron": "*/15 * * * *", "zone": "Europe/Paris"}, False),
        ({"cron": "* * * * *", "zone": "UTC"}, False),
    ],
    ids=str,
)
def test_after_a_very_long_outage_a_bounded_record(
    world: World, definition: dict[str, object], counted: bool
) -> None:
    schedule = add(world, **definition)
    world.time.passes(400 * 86400)
    fired = fire(world)
    assert len(fired) == 1
    assert world.now() - 900 <= fired[0].slot <= world.now()
    ranged, last = sorted(work.list_slots(world.connection, "brief"), key=lambda slot: slot.slot)
    assert (last.outcome, last.slot) == ("fired", fired[0].slot)
    assert (ranged.outcome, ranged.slot) == ("skipped", schedule.next_slot)
    assert ranged.slot < ranged.until < fired[0].slot
    assert (fired[0].skipped is not None) == counted
    assert ranged.items == fired[0].skipped
    world.time.passes(900)
    assert fire(world)[0].skipped in {0, 14, 899}


def test_nothing_fires_while_paused_and_the_pause_coalesces(world: World) -> None:
    add(world, every=HOUR)
    authority.pause(world.connection, "stock take", world.now())
    world.time.passes(5 * HOUR)
    before = world.dump()
    assert fire(world) == []
    assert world.dump() == before
    authority.resume(world.connection, world.marker, "go on", world.now())
    assert [one.skipped for one in fire(world)] == [4]


def test_slot_and_work_are_one_transaction(world: World) -> None:
    add(world, every=HOUR)
    world.time.passes(HOUR)
    before = world.dump()

    def fail(point: str) -> None:
        if point == "fire.before_commit":
            raise OSError("pulled the plug")

    triggers.arm(fail)
    with pytest.raises(OSError, match="pulled"):
        fire(world)
    triggers.disarm()
    assert world.dump() == before
    assert len(fire(world)) == 1


def test_4_schedulers_make_one_run_per_slot(world: World) -> None:
    begin = int(START)
    for name in ("one", "two"):
        add(world, name, every=3)
    add(world, "minutely", cron="* * * * *", zone="Europe/Paris")
    schedulers = [start("fire", world.layout.state, begin, begin + 121) for _ in range(4)]
    results = [scheduler.communicate(timeout=120) for scheduler in schedulers]
    assert [scheduler.returncode for scheduler in schedulers] == [0] * 4, results
    lines = [tuple(line.split()) for out, _ in results for line in out.splitlines()]
    assert set(Counter(line[:2] for line in lines).values()) == {1}
    recorded = {
        (slot.schedule, str(slot.slot), slot.work)
        for name in ("one", "two", "minutely")
        for slot in work.list_slots(world.connection, name, limit=100)
        if slot.outcome == "fired"
    }
    assert {tuple(line) for line in lines} == recorded
    assert work.counts(world.connection)["READY"] == len(lines)


def test_a_clock_set_back_fires_no_slot_twice(world: World) -> None:
    add(world, every=HOUR)
    world.time.passes(HOUR)
    fire(world)
    world.time.wall -= HOUR
    world.clock = world.time.clock()  # the service was restarted after the step
    assert fire(world) == []
    work.remove_schedule(world.connection, "brief")
    add(world, every=HOUR, prompt="another")  # its first slot has been fired before
    world.time.passes(HOUR)
    assert fire(world) == []
    world.time.passes(HOUR)
    assert len(fire(world)) == 1


class TestDefinitions:
    @pytest.mark.parametrize(
        ("definition", "named"),
        [
            ({}, "schedule"),
            ({"every": 60, "cron": "* * * * *", "zone": "UTC"}, "schedule"),
            ({"every": 0}, "every"),
            ({"every": -5}, "every"),
            ({"every": 1.5}, "every"),
            ({"every": True}, "every"),
            ({"every": 10**9}, "every"),
            ({"every": 60, "zone": "UTC"}, "zone"),
            ({"cron": "* * * * *"}, "zone"),
            ({"cron": "* * * * *", "zone": "Paris"}, "zone"),
            ({"cron": "* * * * *", "zone": "Europe/Nowhere"}, "zone"),
            ({"cron": "* * * * *", "zone": "../../etc/localtime"}, "zone"),
            ({"cron": "* * * * *", "zone": "CET-1CEST"}, "zone"),
            ({"cron": "* * * *", "zone": "UTC"}, "cron"),
            ({"cron": "0 * * * * *", "zone": "UTC"}, "cron"),
            ({"cron": "@daily", "zone": "UTC"}, "cron"),
            ({"cron": "0 0 L * *", "zone": "UTC"}, "cron"),
            ({"cron": "0 0 LW * *", "zone": "UTC"}, "cron"),
            ({"cron": "0 0 * * 5L", "zone": "UTC"}, "cron"),
            ({"cron": "0 0 * * MON#2", "zone": "UTC"}, "cron"),
            ({"cron": "60 * * * *", "zone": "UTC"}, "cron"),
            ({"cron": "5-1 * * * *", "zone": "UTC"}, "cron"),
            ({"cron": "*/0 * * * *", "zone": "UTC"}, "cron"),
            ({"cron": "0 0 30 2 *", "zone": "UTC"}, "cron"),
            ({"cron": "", "zone": "UTC"}, "cron"),
            ({"every": 60, "prompt": ""}, "prompt"),
            ({"every": 60, "name": "Big Name"}, "name"),
        ],
        ids=str,
    )
    def test_a_malformed_one_is_refused_by_name(
        self, world: World, definition: dict[str, object], named: str
    ) -> None:
        before = world.dump()
        with pytest.raises(BadInput, match=f"^{named}: "):
            add(world, **definition)
        assert world.dump() == before

    @pytest.mark.parametrize(
        "cron", ["0 7 * * MON-FRI", "*/5 8-20 * JAN,jul *", "0 0 29 2 *", "30 6 1,15 * *"]
    )
    def test_the_usual_ones_are_allowed(self, world: World, cron: str) -> None:
        assert add(world, cron=cron, zone="America/New_York").next_slot > START

    def test_adding_twice_is_safe_and_another_definition_is_refused(self, world: World) -> None:
        first = add(world, every=HOUR)
        world.time.passes(60)
        again, created = work.add_schedule(
            world.connection, name="brief", prompt="write the brief", every=HOUR, now=world.now()
        )
        assert (again, created) == (first, False)
        with pytest.raises(Refused) as refused:
            add(world, every=60)
        assert refused.value.code == "schedule_exists"

    def test_removing_keeps_the_record(self, world: World) -> None:
        add(world, every=HOUR)
        world.time.passes(HOUR)
        fire(world)
        assert work.remove_schedule(world.connection, "brief")
        assert not work.remove_schedule(world.connection, "brief")
        assert work.list_schedules(world.connection) == []
        assert len(work.list_slots(world.connection, "brief")) == 1


def local(cron: str, begin: datetime, count: int, zone: ZoneInfo = PARIS) -> list[str]:
    slots = slots_after(cron, zone.key, int(begin.timestamp()))
    return [f"{datetime.fromtimestamp(slot, zone):%m-%d %H:%M %Z}" for slot in islice(slots, count)]


class TestDaylightSaving:
    def test_a_skipped_time_runs_right_after_the_gap(self) -> None:
        begin = datetime(2026, 3, 28, 12, tzinfo=UTC)
        assert local("30 2 * * *", begin, 3) == ["03-29 03:00 CEST", "03-30 02:30 CEST", "03-31 02:30 CEST"]

    def test_a_repeated_time_runs_once(self) -> None:
        begin = datetime(2026, 10, 24, 12, tzinfo=UTC)
        assert local("30 2 * * *", begin, 2) == ["10-25 02:30 CEST", "10-26 02:30 CET"]

    def test_every_half_hour_goes_on_through_both(self) -> None:
        for day in (datetime(2026, 3, 28, 23, 15, tzinfo=UTC), datetime(2026, 10, 24, 23, 15, tzinfo=UTC)):
            slots = list(islice(slots_after("*/30 * * * *", "Europe/Paris", int(day.timestamp())), 8))
            assert {b - a for a, b in pairwise(slots)} == {1800}

    @pytest.mark.parametrize("minutes", range(0, 180, 7))
    def test_begun_anywhere_in_the_repeated_hours_no_slot_lies_before_the_beginning(
        self, minutes: int
    ) -> None:
        begin = datetime(2026, 10, 25, 0, 0, tzinfo=UTC) + timedelta(minutes=minutes)
        for cron in ("30 2 * * *", "0 3 * * *", "45 2,3 * * *", "*/20 * * * *"):
            slot = next(slots_after(cron, "Europe/Paris", int(begin.timestamp())))
            assert slot > begin.timestamp()

    @settings(max_examples=60, deadline=None)
    @given(
        begin=st.integers(int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()), int(START) + 90_000_000),
        cron=st.sampled_from(["30 2 * * *", "0 * * * *", "15 1,2,3 * * *", "0 0 * * SUN", "*/10 2 * * *"]),
        zone=st.sampled_from(["Europe/Paris", "America/New_York", "Australia/Lord_Howe", "UTC"]),
    )
    def test_slots_rise_strictly_from_any_beginning(self, begin: int, cron: str, zone: str) -> None:
        slots = [begin, *islice(slots_after(cron, zone, begin), 12)]
        assert all(a < b for a, b in pairwise(slots))
