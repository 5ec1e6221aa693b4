"""The fence: the check that refuses a stale claim, inside the transaction of every write made for it.

It says no more than it must, and it cannot recall a request that was already sent: that is what operation
ids and reconciliation are for.
"""

import sqlite3
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NewType

from standfast.authority import marker as markers
from standfast.clock import Clock
from standfast.errors import Refused
from standfast.store import immediate

MARKER_UNAVAILABLE = "authority marker is unavailable"
PAUSED_OR_REPLACED = "runtime paused or replaced by restore"
SUPERSEDED = "worker claim expired or superseded"
DELEGATION_ENDED = "delegation expired or parent canceled"

# The control row, and beside it the claim's row if all of its identity matches and its lease has not ended.
_CURRENT = """
SELECT operations.epoch, operations.paused, own.id, own.parent, own.deadline, above.status
  FROM operations
  LEFT JOIN work AS own
    ON own.id = ? AND own.owner = ? AND own.generation = ? AND own.role = ? AND own.session = ?
   AND own.subject = ? AND own.prompt = ? AND own.status = 'RUNNING' AND own.lease_until > ?
  LEFT JOIN work AS above ON above.id = own.parent
 WHERE operations.id = 1
"""


class StaleClaim(Refused):
    """The claim may no longer write; ``str(error)`` is one of the four sentences. Nothing was written."""

    def __init__(self, sentence: str) -> None:
        super().__init__(
            "stale_claim",
            sentence,
            remedy="nothing was written for this claim; the work is claimed again under current authority",
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """One worker's hold on one work item; the lease is in the row."""

    work: str
    """The work item's id."""
    owner: str
    """The label of the worker."""
    generation: int
    """Successive claims of one work item have rising generations."""
    epoch: str
    """The era in which it was claimed."""
    role: str
    """What the worker may do."""
    session: str
    """The conversation or schedule that the work belongs to."""
    subject: str
    """What the work is about."""
    prompt: str = field(repr=False)
    """The request itself."""


def admits(current: Mapping[str, Any], claim: Mapping[str, Any], now: float) -> bool:
    """The rule at the heart of the fence, as a pure function.

    ``current`` has paused, epoch, generation, work, worker; ``claim`` has epoch, generation, work, worker and
    lease_until (the row's lease, epoch seconds). ``now`` in epoch seconds. True only if not paused, all four
    identities match and the lease ends strictly later than now.
    """
    same = all(current[name] == claim[name] for name in ("epoch", "generation", "work", "worker"))
    return not current["paused"] and same and bool(claim["lease_until"] > now)


def assert_current(connection: sqlite3.Connection, claim: Claim, now: float, marker: Path) -> None:
    """Raise StaleClaim unless ``claim`` may write at ``now``.

    In order: the marker can be read; not paused, and marker, database and claim name one epoch; the whole
    identity of the claim is that of a RUNNING row whose lease ends strictly later than now; delegated work
    has its deadline strictly ahead and a parent that is not canceled.
    """
    found = markers.read_epoch(marker)
    if found is None:
        raise StaleClaim(MARKER_UNAVAILABLE)
    row = connection.execute(
        _CURRENT,
        (
            claim.work,
            claim.owner,
            claim.generation,
            claim.role,
            claim.session,
            claim.subject,
            claim.prompt,
            now,
        ),
    ).fetchone()
    if row is None:
        raise StaleClaim(PAUSED_OR_REPLACED)
    epoch, paused, work, parent, deadline, parent_status = row
    if paused or not found == epoch == claim.epoch:
        raise StaleClaim(PAUSED_OR_REPLACED)
    if work is None:
        raise StaleClaim(SUPERSEDED)
    if parent is not None and (deadline <= now or parent_status == "CANCELED"):
        raise StaleClaim(DELEGATION_ENDED)


FencedNow = NewType("FencedNow", float)
"""When a fenced transaction began, epoch seconds. A function that takes one writes inside its caller's fence:
only ``fenced`` makes it."""


def fenced(
    connection: sqlite3.Connection, claim: Claim, clock: Clock, marker: Path, boundary: str = "fenced"
) -> AbstractContextManager[FencedNow]:
    """The one way to write for a claim: a write transaction that begins with the fence; yields now.

    The time is read after the write lock was won, so that waiting for it cannot hide an expired lease. Raises
    StaleClaim or StoreBusy with nothing written.
    """
    return _Fenced(connection, claim, clock, marker, boundary)


class _Fenced:
    """A class rather than a generator: it is entered for every write, and costs a third of the time."""

    __slots__ = ("_claim", "_clock", "_connection", "_marker", "_transaction")

    def __init__(
        self, connection: sqlite3.Connection, claim: Claim, clock: Clock, marker: Path, boundary: str
    ) -> None:
        self._connection = connection
        self._claim = claim
        self._clock = clock
        self._marker = marker
        self._transaction = immediate(connection, boundary)

    def __enter__(self) -> FencedNow:
        self._transaction.__enter__()
        try:
            now = self._clock.now()
            assert_current(self._connection, self._claim, now, self._marker)
        except BaseException as refused:
            self._transaction.__exit__(type(refused), refused, refused.__traceback__)
            raise
        return FencedNow(now)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._transaction.__exit__(kind, raised, traceback)
