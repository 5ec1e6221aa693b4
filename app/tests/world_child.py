"""Processes for tests of the core: each command is one process that works, waits or dies."""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from support import Instance
from world import COMPONENTS, HOST, START

from standfast import authority, work
from standfast.clock import Clock
from standfast.errors import StoreBusy
from standfast.layout import Layout
from standfast.store import Component, Store, immediate, open_store, triggers


def opened(layout: Layout) -> Store:
    return open_store(layout.database, COMPONENTS)


def new(state: str) -> None:
    """Open a store that may not exist yet, and initialise it."""
    layout = Layout(Path(state))
    connection = open_store(layout.database, COMPONENTS, create=True)
    print(authority.initialise(connection, layout, time.time(), HOST))


def hold(state: str, seconds: str) -> None:
    """Hold the write lock for a while, saying when it is held."""
    with immediate(opened(Layout(Path(state)))):
        print("held", flush=True)
        time.sleep(float(seconds))


def drain(state: str, owner: str) -> None:
    """Claim and finish until nothing is left; print each claim."""
    layout = Layout(Path(state))
    connection, clock = opened(layout), Clock()

    def claim() -> authority.Claim | None:
        return authority.claim_next(connection, owner=owner, now=clock.now(), marker=layout.marker)

    def finish(held: authority.Claim) -> work.Finished:
        return work.finish(connection, held, "DONE", report="done", clock=clock, marker=layout.marker)

    while held := patiently(claim):
        patiently(partial(finish, held))
        print(held.work, held.generation)


def patiently[T](action: Callable[[], T]) -> T:
    """SQLite's lock is not fair: one of eight restless writers may meet the typed error; it tries again."""
    while True:
        with suppress(StoreBusy):
            return action()


def fire(state: str, begin: str, end: str) -> None:
    """Be a scheduler: fire whatever is due at every second from begin to end."""
    connection = opened(Layout(Path(state)))
    for second in range(int(begin), int(end)):
        for fired in work.fire_due(connection, now=float(second)):
            print(fired.schedule, fired.slot, fired.work)


def spawn(state: str) -> None:
    """Claim one parent after the other; delegate for each until it is refused; print how many children."""
    layout = Layout(Path(state))
    connection, clock = opened(layout), Clock()
    policy = work.DelegationPolicy(children=10**9)
    while claim := authority.claim_next(connection, owner="parent", now=clock.now(), marker=layout.marker):
        spawned = 0
        with suppress(authority.StaleClaim):
            while True:
                with suppress(StoreBusy):
                    work.delegate(
                        connection,
                        claim,
                        subject=f"s{spawned}",
                        prompt="look",
                        seconds=600,
                        clock=clock,
                        marker=layout.marker,
                        policy=policy,
                    )
                    spawned += 1
                time.sleep(
                    0.001
                )  # SQLite's lock is not fair: without it the other process hardly gets a turn
        print(spawned)


def cancel(state: str, rounds: str) -> None:
    """Cancel so many parents, each soon after it was claimed; print each."""
    connection, clock = opened(Layout(Path(state))), Clock()
    query = "SELECT id FROM work WHERE status = 'RUNNING' AND parent IS NULL"
    for number in range(int(rounds)):
        while (row := connection.execute(query).fetchone()) is None:
            time.sleep(0.0005)
        time.sleep(number % 7 * 0.003)
        canceled = partial(work.cancel, connection, row[0], reason="enough", now=clock.now())
        print(row[0], patiently(canceled).children)


def die_delegating(state: str, point: str) -> None:
    """Delegate, let the deadline pass and close; die by SIGKILL at the named point."""
    layout = Layout(Path(state))
    connection, clock = opened(layout), Clock()

    def kill(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    triggers.arm(kill)
    claim = authority.claim_next(connection, owner="parent", now=clock.now(), marker=layout.marker)
    assert claim is not None
    work.delegate(
        connection,
        claim,
        subject="vanilla",
        prompt="look",
        seconds=600,
        clock=clock,
        marker=layout.marker,
    )
    work.close_children(connection, now=clock.now() + 600)


def die(state: str, point: str) -> None:
    """Live through a whole day's work, and die by SIGKILL at the named point."""
    layout = Layout(Path(state))
    connection, clock = opened(layout), Clock()

    def kill(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    triggers.arm(kill)
    work.fire_due(connection, now=START + 3600)
    work.admit(connection, origin="o", session="s", prompt="look", now=clock.now())
    while claim := authority.claim_next(connection, owner="worker", now=clock.now(), marker=layout.marker):
        work.observe(connection, claim, "seen", clock=clock, marker=layout.marker)
        work.finish(connection, claim, "DONE", report="all is well", clock=clock, marker=layout.marker)
    work.deliver_pending(connection, work.Outbox(layout.outbox), clock=clock)
    authority.replace(connection, layout, "the era ends", clock.now(), HOST)


def die_serving(state: str, point: str) -> None:
    """Be the service until there is nothing to do, and die by SIGKILL at the named point."""

    def kill(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    triggers.arm(kill)
    Instance(Layout(Path(state))).settle()


def die_new(state: str, point: str) -> None:
    """Die at the named point of making a store."""

    def kill(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    triggers.arm(kill)
    new(state)


def die_migrating(state: str, statement: str) -> None:
    """Die after the given statement of a migration to version 2."""
    remaining = [int(statement)]

    def kill(reached: str) -> None:
        if reached == "migrate.statement":
            remaining[0] -= 1
            if remaining[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    triggers.arm(kill)
    open_store(Layout(Path(state)).database, next_version())


def next_version() -> tuple[Component, ...]:
    """The components with one more migration, as a later release would have."""
    steps = (
        "ALTER TABLE reports ADD COLUMN later TEXT",
        "CREATE TABLE later (id INTEGER PRIMARY KEY) STRICT",
        "INSERT INTO later VALUES (1)",
    )
    last = COMPONENTS[-1]
    return (*COMPONENTS[:-1], Component(last.name, (*last.migrations, steps), last.on_epoch_end))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
