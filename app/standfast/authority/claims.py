"""Taking, keeping and taking over claims."""

import sqlite3
from pathlib import Path

from standfast.authority import marker as markers
from standfast.authority.fence import Claim, fenced
from standfast.clock import Clock
from standfast.errors import BadInput
from standfast.store import immediate

DEFAULT_LEASE = 300.0
"""Seconds that a claim lasts unless it is renewed."""
MAX_LEASE = 900.0
"""The longest lease that can be asked for, in seconds."""

type _Found = tuple[int, str, int, str, str, str, str]

# One statement reads the pause flag and finds the oldest candidate; the next one takes it, in the same write
# transaction (UPDATE ... RETURNING costs more than both). INDEXED BY: a planner that chose a scan of a
# million finished rows would be an error, not a slow claim. A lease has passed also when it ends further
# ahead than any lease can: then the clock was set back and the holder may be long dead; should it live, the
# fence refuses it from the new generation on.
_OLDEST = """
SELECT seq, id, generation, role, session, subject, prompt FROM work
 WHERE seq = min(
    coalesce((
        SELECT seq FROM work AS passed INDEXED BY work_open
         WHERE status = 'RUNNING' AND (lease_until <= ? OR lease_until > ?)
           AND (parent IS NULL OR deadline > ? AND NOT EXISTS (
                SELECT 1 FROM work AS above WHERE above.id = passed.parent AND above.status = 'CANCELED'))
         ORDER BY seq LIMIT 1), 9223372036854775807),
    coalesce((
        SELECT seq FROM work AS ready INDEXED BY work_open
         WHERE status = 'READY'
           AND (parent IS NULL OR deadline > ? AND NOT EXISTS (
                SELECT 1 FROM work AS above WHERE above.id = ready.parent AND above.status = 'CANCELED'))
           AND NOT EXISTS (SELECT 1 FROM work AS other INDEXED BY work_open
                            WHERE other.status = 'RUNNING' AND other.session = ready.session)
         ORDER BY seq LIMIT 1), 9223372036854775807))
   AND (SELECT paused = 0 AND epoch = ? FROM operations WHERE id = 1)
"""

_OWN = """
SELECT seq, id, generation, role, session, subject, prompt FROM work INDEXED BY work_open
 WHERE status = 'RUNNING' AND owner = :owner
   AND (parent IS NULL OR (deadline > :now AND NOT EXISTS (
        SELECT 1 FROM work AS above WHERE above.id = work.parent AND above.status = 'CANCELED')))
 ORDER BY seq
"""

_TAKE = """
UPDATE OR ROLLBACK work
   SET status = 'RUNNING', owner = ?, generation = ?, epoch = ?, claimed_at = ?, lease_until = ?
 WHERE seq = ?
"""


def claim_next(
    connection: sqlite3.Connection, *, owner: str, now: float, marker: Path, lease: float = DEFAULT_LEASE
) -> Claim | None:
    """Take the oldest work that may be taken, or None.

    That is READY work of a session without a RUNNING item, or RUNNING work whose lease has passed. Nothing
    while paused (read in the same transaction) or while the marker does not name the database's epoch.
    ``lease`` in seconds, above 0 and at most MAX_LEASE (BadInput).
    """
    with immediate(connection, "claim"):
        return take_next(connection, owner=owner, now=now, marker=marker, lease=lease)


def take_next(
    connection: sqlite3.Connection, *, owner: str, now: float, marker: Path, lease: float = DEFAULT_LEASE
) -> Claim | None:
    """``claim_next`` inside the caller's write transaction."""
    _check(owner, lease)
    epoch = markers.read_epoch(marker)
    if epoch is None:
        return None
    row = connection.execute(_OLDEST, (now, now + MAX_LEASE, now, now, epoch)).fetchone()
    return None if row is None else _take(connection, row, owner=owner, epoch=epoch, now=now, lease=lease)


def claim_own(
    connection: sqlite3.Connection, *, owner: str, now: float, marker: Path, lease: float = DEFAULT_LEASE
) -> list[Claim]:
    """At start-up: take again everything that an earlier process left RUNNING under this owner label.

    Oldest first, each at generation + 1, whatever its lease. The caller must hold the writer lock: then no
    other process can be alive under the label. Empty while paused.
    """
    _check(owner, lease)
    with immediate(connection, "claim_own"):
        epoch = markers.read_epoch(marker)
        control = connection.execute("SELECT epoch FROM operations WHERE id = 1 AND paused = 0").fetchone()
        if epoch is None or control is None or epoch != control[0]:
            return []
        rows = connection.execute(_OWN, {"owner": owner, "now": now}).fetchall()
        return [_take(connection, row, owner=owner, epoch=epoch, now=now, lease=lease) for row in rows]


def renew(
    connection: sqlite3.Connection, claim: Claim, *, clock: Clock, marker: Path, lease: float = DEFAULT_LEASE
) -> float:
    """Extend the lease of a claim that is still current; returns its new end, epoch seconds.

    Never shortens a lease. Raises StaleClaim with nothing written.
    """
    _check(claim.owner, lease)
    with fenced(connection, claim, clock, marker, "renew") as now:
        row = connection.execute(
            "UPDATE work SET lease_until = max(lease_until, ?) WHERE id = ? RETURNING lease_until",
            (now + lease, claim.work),
        ).fetchone()
        return float(row[0])


def _take(
    connection: sqlite3.Connection, found: _Found, *, owner: str, epoch: str, now: float, lease: float
) -> Claim:
    """Claim the row that was found in this transaction."""
    seq, work, generation, role, session, subject, prompt = found
    connection.execute(_TAKE, (owner, generation + 1, epoch, now, now + lease, seq))
    return Claim(work, owner, generation + 1, epoch, role, session, subject, prompt)


def _check(owner: str, lease: float) -> None:
    if not owner:
        raise BadInput("owner: a claim needs the label of its worker")
    if not 0 < lease <= MAX_LEASE:
        raise BadInput(f"lease: {lease} is not above 0 and at most {MAX_LEASE:g} seconds")
