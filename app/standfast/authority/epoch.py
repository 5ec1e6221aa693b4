"""The control row: which era it is, whether it is paused, and the one place where an era ends."""

import secrets
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from standfast.authority import marker as markers
from standfast.authority.marker import Marker, host_identity
from standfast.errors import Refused
from standfast.layout import Layout
from standfast.store import Store, end_epoch, immediate, triggers

_REASON_LENGTH = 500


@dataclass(frozen=True)
class Operations:
    """The control row."""

    epoch: str
    """The present era: 32 hex digits, never used twice."""
    paused: bool
    """While True nothing is claimed, fired, sent or delivered."""
    reason: str
    """Why the row last changed."""
    changed_at: float
    """When the row last changed, epoch seconds."""


def operations(connection: sqlite3.Connection) -> Operations:
    """The control row; raises Refused ``not_initialised`` when the store has none."""
    row = connection.execute(
        "SELECT epoch, paused, reason, changed_at FROM operations WHERE id = 1"
    ).fetchone()
    if row is None:
        raise Refused(
            "not_initialised",
            "the store has no authority yet",
            remedy="run `standfast init` as the service user",
        )
    return Operations(epoch=row[0], paused=bool(row[1]), reason=row[2], changed_at=row[3])


def agrees(connection: sqlite3.Connection, marker: Path) -> bool:
    """Whether the marker file names the database's epoch; False too when it cannot be read."""
    return markers.read_epoch(marker) == operations(connection).epoch


def initialise(connection: sqlite3.Connection, layout: Layout, now: float, host: str | None = None) -> bool:
    """Begin the first era, not paused; False, with nothing changed, when one has begun.

    The marker is written before the row is committed: a kill in between leaves no row, and the next
    ``initialise`` writes a new marker. A marker that went missing later is never replaced here: that takes
    ``replace``.
    """
    host = host or host_identity()
    with immediate(connection, "initialise"):
        if connection.execute("SELECT 1 FROM operations").fetchone():
            return False
        epoch = new_epoch()
        markers.write(layout.marker, Marker(epoch=epoch, host=host))
        triggers.reach("initialise.marker_written")
        connection.execute("INSERT INTO operations VALUES (1, ?, 0, 'initialised', ?)", (epoch, now))
    return True


def pause(connection: sqlite3.Connection, reason: str, now: float) -> bool:
    """Stop all authority of this era, running claims too; False when already paused."""
    with immediate(connection, "pause"):
        return _set_paused(connection, paused=True, reason=reason, now=now)


def resume(connection: sqlite3.Connection, marker: Path, reason: str, now: float) -> bool:
    """Let the era go on; False when it is not paused.

    Raises Refused ``marker_disagrees`` when the marker does not name the database's epoch.
    """
    with immediate(connection, "pause"):
        return resume_within(connection, marker, reason, now)


def resume_within(connection: sqlite3.Connection, marker: Path, reason: str, now: float) -> bool:
    """``resume`` inside the caller's transaction, for a resumption that is one with other writes."""
    refuse_other_marker(connection, marker)
    return _set_paused(connection, paused=False, reason=reason, now=now)


def refuse_other_marker(connection: sqlite3.Connection, marker: Path) -> None:
    """Raise Refused ``marker_disagrees`` unless the marker names the database's epoch."""
    if not agrees(connection, marker):
        found = markers.read_epoch(marker) or "unavailable"
        raise Refused(
            "marker_disagrees",
            "the marker does not name the database's epoch",
            observed=f"store {operations(connection).epoch}, {marker}: {found}",
            remedy="it was lost, the end of an era was cut short, or this is a copy: `standfast adopt` first",
        )


def replace(connection: Store, layout: Layout, reason: str, now: float, host: str | None = None) -> str:
    """End the era of the live store and write its new marker; returns the new epoch.

    Only after ``end_era`` is committed is the marker written. A kill in between leaves the new, paused epoch
    in the database and the old one in the marker: the fence refuses every claim, nothing can be claimed or
    resumed, and calling ``replace`` again completes it under one more epoch. (The other order could leave a
    database that says "not paused, old epoch" with only the marker against it.)
    """
    host = host or host_identity()
    epoch = new_epoch()
    with immediate(connection, "replace"):
        end_era(connection, epoch, reason, now)
    markers.write(layout.marker, Marker(epoch=epoch, host=host))
    triggers.reach("replace.marker_written")
    return epoch


def end_era(connection: Store, epoch: str, reason: str, now: float) -> None:
    """Inside the caller's transaction: the one place where an era ends, in a live store or a staged image.

    The control row gets the new epoch and is paused; RUNNING work goes back to READY with generation + 1, no
    owner and no lease, marked as interrupted under the new epoch; then every component's ``on_epoch_end``
    runs. ``epoch`` comes from ``new_epoch``; the marker is the caller's business, after the commit.
    """
    operations(connection)  # an uninitialised store has no era to end
    connection.execute(
        "UPDATE operations SET epoch = ?, paused = 1, reason = ?, changed_at = ? WHERE id = 1",
        (epoch, reason[:_REASON_LENGTH], now),
    )
    connection.execute(
        "UPDATE work SET status = 'READY', generation = generation + 1, owner = NULL, epoch = NULL,"
        " claimed_at = NULL, lease_until = NULL, interrupted_epoch = ? WHERE status = 'RUNNING'",
        (epoch,),
    )
    end_epoch(connection, connection.components)


def new_epoch() -> str:
    """The name of an era that never was: 32 random hex digits."""
    return secrets.token_hex(16)


def _set_paused(connection: sqlite3.Connection, *, paused: bool, reason: str, now: float) -> bool:
    """Inside the caller's transaction."""
    if operations(connection).paused == paused:
        return False
    connection.execute(
        "UPDATE operations SET paused = ?, reason = ?, changed_at = ? WHERE id = 1",
        (int(paused), reason[:_REASON_LENGTH], now),
    )
    return True
