"""A small real instance for tests of the core: real files, real SQLite, time that a test can set."""

import os
import sqlite3
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from standfast import authority, work
from standfast.authority import Claim
from standfast.authority import marker as markers
from standfast.clock import Clock
from standfast.layout import Layout
from standfast.store import Component, Store, immediate, open_store
from standfast.work import channels

COMPONENTS = (authority.COMPONENT, work.COMPONENT, channels.COMPONENT)
HOST = "a" * 64
START = 1_700_000_000.0
CHILD = Path(__file__).with_name("world_child.py")


@dataclass
class Time:
    """The two clocks of a host, under the test's control."""

    wall: float = START
    boot: float = 1000.0

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.boot += seconds

    def clock(self) -> Clock:
        return Clock(wall=lambda: self.wall, boot=lambda: self.boot)


@dataclass
class World:
    """One initialised state directory and a connection to it."""

    layout: Layout
    time: Time = field(default_factory=Time)
    components: tuple[Component, ...] = COMPONENTS
    opened: ExitStack = field(default_factory=ExitStack)
    """What a test opened beside the store; closed with it."""

    def __post_init__(self) -> None:
        self.layout.state.mkdir(mode=0o700, exist_ok=True)
        self.connection: Store = open_store(self.layout.database, self.components, create=True)
        self.clock = self.time.clock()
        self.marker = self.layout.marker
        authority.initialise(self.connection, self.layout, self.now(), HOST)

    def close(self) -> None:
        self.connection.close()
        self.opened.close()

    def now(self) -> float:
        return self.clock.now()

    def admit(self, origin: str = "o", session: str = "s", prompt: str = "look", **more: str) -> str:
        now = self.now()
        request = work.Request(origin=origin, session=session, prompt=prompt, **more)
        with immediate(self.connection):
            return work.admit_within(self.connection, request, now=now, limits=work.Limits()).work

    def claim(self, owner: str = "worker", lease: float = 300.0) -> Claim | None:
        now = self.now()
        return authority.claim_next(self.connection, owner=owner, now=now, marker=self.marker, lease=lease)

    def claimed(self, owner: str = "worker", lease: float = 300.0) -> Claim:
        """A fresh claim on fresh work of its own session."""
        count = self.connection.execute("SELECT count(*) FROM work").fetchone()[0]
        self.admit(f"claimed-{count}", f"claimed-{count}")
        claim = self.claim(owner, lease)
        assert claim is not None
        return claim

    def observe(self, claim: Claim, message: str = "seen") -> int:
        return work.observe(self.connection, claim, message, clock=self.clock, marker=self.marker)

    def finish(self, claim: Claim, report: str = "done") -> work.Finished:
        return work.finish(
            self.connection, claim, "DONE", report=report, clock=self.clock, marker=self.marker
        )

    def epoch(self) -> str:
        return authority.operations(self.connection).epoch

    def mark(self, epoch: str) -> None:
        markers.write(self.marker, markers.Marker(epoch, HOST))

    def dump(self) -> list[tuple[object, ...]]:
        return dump(self.connection)


def dump(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    """Every row of every table."""
    names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
    return [
        (name, *row)
        for (name,) in names
        for row in connection.execute(f'SELECT * FROM "{name}" ORDER BY 1, 2').fetchall()
    ]


def child(*arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run one command of world_child.py in a real process."""
    with start(*arguments) as process:
        out, err = process.communicate(timeout=60)
    assert not check or process.returncode == 0, err
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start(*arguments: object) -> subprocess.Popen[str]:
    """Begin one command of world_child.py in a real process."""
    app = Path(__file__).parents[1]
    return subprocess.Popen(
        [sys.executable, str(CHILD), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{app}:{app / 'tests'}", "PYTHONWARNINGS": ""},
    )
