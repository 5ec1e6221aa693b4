"""The record of a turn, message by message: what happened, under which generation."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from standfast.authority import Claim, FencedNow, fenced
from standfast.clock import Clock
from standfast.errors import BadInput

MESSAGE_BYTES = 256 * 1024
"""Longest message, in bytes of UTF-8."""


@dataclass(frozen=True)
class TranscriptRow:
    """One message of one turn."""

    generation: int
    """The claim that wrote it."""
    message: str
    """The message as it was observed."""
    written_at: float
    """When it was written, epoch seconds."""


def observe(connection: sqlite3.Connection, claim: Claim, message: str, *, clock: Clock, marker: Path) -> int:
    """Append one message to the claim's transcript; returns its number.

    Raises StaleClaim, BadInput, StoreBusy, with nothing written.
    """
    size = len(message.encode())
    if size > MESSAGE_BYTES:
        raise BadInput(f"message: {size} bytes of UTF-8 is over the bound of {MESSAGE_BYTES}")
    with fenced(connection, claim, clock, marker, "observe") as now:
        return append(connection, claim, message, now)


def append(connection: sqlite3.Connection, claim: Claim, message: str, now: FencedNow) -> int:
    """``observe`` inside the caller's fenced transaction, for a message that is one with another write."""
    cursor = connection.execute(
        "INSERT INTO transcript (work, generation, message, written_at) VALUES (?, ?, ?, ?)",
        (claim.work, claim.generation, message, now),
    )
    assert cursor.lastrowid is not None  # an insert has one
    return cursor.lastrowid


def transcript(connection: sqlite3.Connection, work: str) -> list[TranscriptRow]:
    """The whole transcript of one work item, oldest first, over all its generations."""
    rows = connection.execute(
        "SELECT generation, message, written_at FROM transcript WHERE work = ? ORDER BY seq", (work,)
    )
    return [TranscriptRow(*row) for row in rows]
