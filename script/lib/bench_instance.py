"""An instance in this process: a new store, or one with an archive of finished work."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import history

from standfast import authority, work
from standfast.clock import Clock
from standfast.layout import Layout
from standfast.operations import health
from standfast.operations.initialise import initialise_instance
from standfast.operations.schema import COMPONENTS
from standfast.store import Store, immediate, open_store

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Instance:
    """A state directory and a connection to its store."""

    layout: Layout
    connection: Store
    clock: Clock

    @classmethod
    def make(cls, folder: Path, archive: int) -> Instance:
        """One in ``folder``, with so many finished work items, each with its origin and a sent report."""
        layout, clock = Layout(folder / "state"), Clock()
        layout.root.mkdir(parents=True)
        initialise_instance(layout, now=clock.now())
        connection = open_store(layout.database, COMPONENTS)
        if archive:
            history.fill(connection, archive)
        return cls(layout, connection, clock)

    def admit(self, count: int) -> None:
        """So many requests, each of a session of its own."""
        with immediate(self.connection):
            for _ in range(count):
                origin = f"bench-{time.monotonic_ns()}"
                request = work.Request(origin=origin, session=origin, prompt="Which product is low?")
                work.admit_within(self.connection, request, now=self.clock.now(), limits=None)

    def claim(self) -> authority.Claim:
        """The next claim."""
        claim = authority.claim_next(
            self.connection, owner="bench", now=self.clock.now(), marker=self.layout.marker
        )
        assert claim is not None
        return claim

    def finish(self, claim: authority.Claim) -> None:
        """End it with a report."""
        work.finish(
            self.connection, claim, "DONE", clock=self.clock, marker=self.layout.marker, report="Done."
        )

    def claims(self, count: int) -> float:
        """Seconds of one claim, commit included; what is claimed is finished outside the time."""
        self.admit(count)
        taken = 0.0
        for _ in range(count):
            began = time.perf_counter()
            claim = self.claim()
            taken += time.perf_counter() - began
            self.finish(claim)
        return taken / count

    def look(self, count: int) -> float:
        """Seconds of one look at the health, inside this process."""
        began = time.perf_counter()
        for _ in range(count):
            health.look(self.layout, self.clock.now())
        return (time.perf_counter() - began) / count
