"""An instance in this process: a new store, or one with an archive of finished work."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from standfast import authority, work
from standfast.clock import Clock
from standfast.layout import Layout
from standfast.operations import health
from standfast.operations.initialise import initialise_instance
from standfast.operations.schema import COMPONENTS
from standfast.store import Store, immediate, open_store

if TYPE_CHECKING:
    from pathlib import Path

_ARCHIVE = (
    """
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
    INSERT INTO work (id, role, session, subject, prompt, status, owner, generation, epoch, claimed_at,
                      admitted_at, finished_at)
    SELECT printf('%024x', i), 'agent', 's' || (i % 1000), 'stock', 'Which product is low?', 'DONE',
           'bench', 1, 'e', i, i, i FROM n
    """,
    """
    INSERT INTO origins SELECT 'bench-' || id, id, hex(seq) FROM work WHERE status = 'DONE'
    """,
    """
    INSERT INTO reports (id, work, generation, body, delivery, created_at, delivered_at)
    SELECT id, id, 1, 'Vanilla is two tubs under its point.', 'sent', admitted_at, admitted_at
      FROM work WHERE status = 'DONE'
    """,
)


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
            with immediate(connection):
                for statement in _ARCHIVE:
                    connection.execute(statement, (archive,) if "?" in statement else ())
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
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
