"""Writing for a claim, or for an operator or the service itself: both only in the era that may act."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from standfast.authority import Claim, fenced, operations
from standfast.authority import marker as markers
from standfast.clock import Clock
from standfast.errors import Refused
from standfast.store import immediate

PAUSED = "operations are paused; inspect and recover the account first"


def current_epoch(connection: sqlite3.Connection, marker: Path) -> str:
    """The era that may act now. Raises Refused ``paused`` or ``marker_disagrees``."""
    control = operations(connection)
    if control.paused:
        raise Refused(
            "paused",
            PAUSED,
            observed=f"paused: {control.reason}",
            remedy="see `standfast health`; nothing is approved or sent until operations resume",
        )
    found = markers.read_epoch(marker)
    if found != control.epoch:
        raise Refused(
            "marker_disagrees",
            "the marker does not name the database's epoch",
            observed=f"{marker}: {found or 'unavailable'}",
            remedy="see `standfast health`; nothing is approved or sent until they agree",
        )
    return control.epoch


@contextmanager
def acting(
    connection: sqlite3.Connection, claim: Claim | None, clock: Clock, marker: Path, boundary: str
) -> Iterator[float]:
    """One write transaction, begun with the fence when it is for a claim; yields now.

    Without a claim the era must be the current one and not paused.
    """
    if claim is not None:
        with fenced(connection, claim, clock, marker, boundary) as now:
            yield now
        return
    with immediate(connection, boundary):
        current_epoch(connection, marker)
        yield clock.now()
