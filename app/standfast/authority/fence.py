"""The fence: the check that refuses a stale claim, inside the transaction of every write made for it.

It says no more than it must, and it cannot recall a request that was already sent: that is what operation
ids and reconciliation are for.
"""

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NewType

from standfast.authority import marker as markers
from standfast.clock import Clock
from standfast.errors import Refused
from standfast.store import Transaction

MARKER_UNAVAILABLE = "authority marker is unavailable"
PAUSED_OR_REPLACED = "runtime paused or replaced by restore"
SUPERSEDED = "worker claim expired or superseded"
DELEGATION_ENDED = "delegation expired or parent canceled"

# A row only if nothing is paused and all of the claim's identity is that of a row whose lease has not ended;
# only when there is none is it asked why. The parameters are the claim's fields in their order, then now.
_CURRENT = """
SELECT operations.epoch, own.parent, own.deadline
  FROM operations, work AS own
 WHERE operations.id = 1 AND operations.paused = 0
   AND own.id = ? AND own.owner = ? AND own.generation = ? AND own.epoch = ? AND own.role = ?
   AND own.session = ? AND own.subject = ? AND own.prompt = ? AND own.status = 'RUNNING'
   AND own.lease_until > ?
"""
_CONTROL = "SELECT epoch FROM operations WHERE id = 1 AND paused = 0"


class StaleClaim(Refused):
    """The claim may no longer write; ``str(error)`` is one of the four sentences. Nothing was written."""

    def __init__(self, sentence: str) -> None:
        super().__init__(
            "stale_claim",
            sentence,
            remedy="nothing was written for this claim; the work is claimed again under current authority",
        )


class Claim(NamedTuple):
    """One worker's hold on one work item; the lease is in the row. A tuple: one is made for every job."""

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
    prompt: str
    """The request itself."""

    def __repr__(self) -> str:
        """Without the prompt: what Lucy asks has no place in a log."""
        told = (f"{name}={getattr(self, name)!r}" for name in self._fields if name != "prompt")
        return f"Claim({', '.join(told)})"


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
    current = connection.execute(_CURRENT, (*claim, now)).fetchone()
    control = current or connection.execute(_CONTROL).fetchone()
    if control is None or not found == control[0] == claim.epoch:
        raise StaleClaim(PAUSED_OR_REPLACED)
    if current is None:
        raise StaleClaim(SUPERSEDED)
    _, parent, deadline = current
    if parent is not None and (deadline <= now or _is_canceled(connection, parent)):
        raise StaleClaim(DELEGATION_ENDED)


def _is_canceled(connection: sqlite3.Connection, work: str) -> bool:
    found = connection.execute("SELECT status = 'CANCELED' FROM work WHERE id = ?", (work,)).fetchone()
    return bool(found[0])


FencedNow = NewType("FencedNow", float)
"""When a fenced transaction began, epoch seconds. A function that takes one writes inside its caller's fence:
only ``fenced`` makes it."""


class fenced(Transaction):  # noqa: N801 - used as a `with` word
    """The one way to write for a claim: a write transaction that begins with the fence; yields now.

    The time is read after the write lock was won, so that waiting for it cannot hide an expired lease. Raises
    StaleClaim or StoreBusy with nothing written.
    """

    __slots__ = ("_claim", "_clock", "_marker")

    def __init__(
        self,
        connection: sqlite3.Connection,
        claim: Claim,
        clock: Clock,
        marker: Path,
        boundary: str = "fenced",
    ) -> None:
        self._connection = connection
        self._boundary = boundary
        self._claim = claim
        self._clock = clock
        self._marker = marker

    def __enter__(self) -> FencedNow:
        self.begin()
        try:
            now = self._clock.now()
            assert_current(self._connection, self._claim, now, self._marker)
        except BaseException as refused:
            self.__exit__(type(refused))
            raise
        return FencedNow(now)
