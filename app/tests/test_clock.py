"""Time never goes back within a process, and no clock step lengthens a lease."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import START, Time, World

from standfast.authority import StaleClaim
from standfast.clock import Clock, rfc3339


def test_the_real_clock_follows_the_wall() -> None:
    clock = Clock()
    assert abs(clock.now() - clock.wall()) < 1


def test_a_step_back_is_not_seen() -> None:
    time = Time()
    clock = time.clock()
    before = clock.now()
    time.passes(10)
    time.wall -= 3600
    assert clock.now() == before + 10
    assert clock.wall() == START + 10 - 3600


def test_a_step_forward_is_seen_and_stays() -> None:
    time = Time()
    clock = time.clock()
    time.wall += 3600
    assert clock.now() == START + 3600
    time.wall -= 3600
    assert clock.now() == START + 3600


def test_a_pause_between_its_looks_at_two_clocks_does_not_move_it_ahead() -> None:
    time = Time()
    pauses = iter([0, 0, 0, 5])  # before each look; the first two are those of its making

    def after_a_pause(look: Callable[[], float]) -> Callable[[], float]:
        def looking() -> float:
            time.passes(next(pauses, 0))
            return look()

        return looking

    clock = Clock(wall=after_a_pause(lambda: time.wall), boot=after_a_pause(lambda: time.boot))
    assert clock.now() == START + 5
    time.passes(1)
    assert clock.now() == START + 6


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e4)), max_size=30))
def test_time_never_goes_back_and_runs_at_least_as_fast_as_the_host(steps: list[tuple[float, float]]) -> None:
    time = Time()
    clock = time.clock()
    last = clock.now()
    for step, elapsed in steps:
        time.wall += step
        time.passes(elapsed)
        now = clock.now()
        assert now >= last + elapsed - 1e-3
        last = now


@pytest.mark.parametrize("step", [-3600.0, -1.0, 0.0, 3600.0])
def test_no_clock_step_lengthens_a_lease(world: World, step: float) -> None:
    claim = world.claimed(lease=60)
    world.time.wall += step
    world.time.passes(60)
    with pytest.raises(StaleClaim, match="worker claim expired or superseded"):
        world.observe(claim)


def test_a_lease_from_before_a_step_back_does_not_outlive_the_longest_lease(world: World) -> None:
    """Another process, started after the step, sees a lease that ends in an hour: it may take the work."""
    claim = world.claimed(lease=300)
    later = Time(wall=world.time.wall - 3600, boot=world.time.boot).clock()
    world.clock = later
    again = world.claim("other")
    assert again is not None
    assert (again.work, again.generation) == (claim.work, claim.generation + 1)


def test_times_as_text() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00.000Z"
    assert re.fullmatch(r"2023-11-14T22:13:20\.250Z", rfc3339(START + 0.25))
