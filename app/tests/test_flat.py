"""Claims, the fence and health cost the same whatever lies in the archive: counted in steps, not seconds."""

from collections.abc import Callable

import pytest
from world import World

from standfast import authority, work
from standfast.store import immediate

_ARCHIVE = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
INSERT INTO work (id, role, session, subject, prompt, status, generation, admitted_at, finished_at)
SELECT printf('%024x', i), 'agent', 's' || (i % 1000), '', 'p', 'DONE', 1, i, i FROM n
"""


def archive(world: World, rows: int) -> None:
    with immediate(world.connection):
        world.connection.execute(_ARCHIVE, (rows,))
    world.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def steps(world: World, action: Callable[[World], object]) -> int:
    """Virtual machine steps of SQLite, in tens."""
    taken = 0

    def count() -> int:
        nonlocal taken
        taken += 1
        return 0

    world.connection.set_progress_handler(count, 10)
    action(world)
    world.connection.set_progress_handler(None, 10)
    return taken


def fence(world: World) -> None:
    claim = world.claimed()
    authority.assert_current(world.connection, claim, world.now(), world.marker)


def turn(world: World) -> None:
    claim = world.claimed()
    world.observe(claim)
    world.finish(claim, "report")


ACTIONS: dict[str, Callable[[World], object]] = {
    "a claim when there is none": lambda world: world.claim(),
    "counts": lambda world: work.counts(world.connection),
    "ages": lambda world: work.ages(world.connection, world.now()),
    "latest done": lambda world: work.latest_done(world.connection),
    "uncertain reports": lambda world: work.uncertain_reports(world.connection),
    "newest work": lambda world: work.list_work(world.connection, limit=5),
    "running work": lambda world: work.list_work(world.connection, status="RUNNING"),
    "rejected work": lambda world: work.list_work(world.connection, status="REJECTED"),
    "own work at start-up": lambda world: authority.claim_own(
        world.connection, owner="worker", now=world.now(), marker=world.marker
    ),
    "delivery with nothing pending": lambda world: work.deliver_pending(
        world.connection, work.Outbox(world.layout.outbox), clock=world.clock
    ),
    "admit": lambda world: world.admit(str(world.time.boot), str(world.time.boot)),
    "end of an era": lambda world: authority.replace(
        world.connection, world.layout, "x", world.now(), "a" * 64
    ),
}


@pytest.mark.parametrize("rows", [20_000, pytest.param(1_000_000, marks=pytest.mark.full)])
def test_an_archive_costs_nothing(world: World, rows: int) -> None:
    for _ in range(6):
        turn(world)
    for action in ACTIONS.values():  # warm: statements compiled, first rows made
        action(world)
    authority.resume(world.connection, world.marker, "go on", world.now())
    world.time.passes(1)
    small = {name: steps(world, action) for name, action in ACTIONS.items()}
    authority.resume(world.connection, world.marker, "go on", world.now())
    archive(world, rows)
    world.time.passes(1)
    large = {name: steps(world, action) for name, action in ACTIONS.items()}
    assert {name: large[name] - small[name] for name in ACTIONS if large[name] > small[name] * 1.2 + 10} == {}


def test_a_whole_turn_costs_the_same(world: World) -> None:
    turn(world)

    def one() -> int:
        identity = world.connection.execute("SELECT count(*) FROM work").fetchone()[0]
        world.admit(f"t{identity}", f"t{identity}")

        def rest(world: World) -> None:
            claim = world.claim()
            assert claim is not None
            world.observe(claim)
            world.finish(claim, "report")

        return steps(world, rest)

    small = one()
    archive(world, 20_000)
    assert one() <= small * 1.2 + 5
