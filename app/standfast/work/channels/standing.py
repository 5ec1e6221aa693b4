"""How the channel stands: which one it is, and what has been wrong with it since when."""

import sqlite3
from dataclasses import dataclass

from standfast.store import immediate

_PROBLEM_LENGTH = 300


@dataclass(frozen=True, slots=True)
class Standing:
    """The channel as the service last saw it."""

    kind: str
    problem: str
    """Empty while it answers."""
    since: float
    """Since when, epoch seconds."""
    held: int
    """Reports that the channel refused so often that they are not tried again by themselves."""


def standing(connection: sqlite3.Connection) -> Standing:
    """The standing; the outbox's, without a problem, before the service said anything."""
    row = connection.execute("SELECT kind, problem, since FROM channel_standing").fetchone()
    held = connection.execute("SELECT count(*) FROM channel_refusals WHERE next_at IS NULL").fetchone()[0]
    kind, problem, since = row or ("outbox", "", 0.0)
    return Standing(kind, problem, since, held)


def say(connection: sqlite3.Connection, kind: str, problem: str, now: float) -> bool:
    """Record a change of the standing; False, with nothing written, when it is as recorded."""
    problem = problem[:_PROBLEM_LENGTH]
    present = standing(connection)
    if (present.kind, present.problem) == (kind, problem):
        return False
    # One problem that is told in other words goes on since it began.
    goes_on = present.kind == kind and bool(present.problem) == bool(problem)
    since = present.since if goes_on else now
    with immediate(connection, "channel_standing"):
        connection.execute(
            "INSERT INTO channel_standing VALUES (1, ?, ?, ?) ON CONFLICT DO UPDATE"
            " SET kind = excluded.kind, problem = excluded.problem, since = excluded.since",
            (kind, problem, since),
        )
    return True


def clear(connection: sqlite3.Connection) -> None:
    """Let every held report be tried again: at a start of the service, whose settings may have changed."""
    if connection.execute("SELECT 1 FROM channel_refusals LIMIT 1").fetchone():
        with immediate(connection, "channel_clear"):
            connection.execute("DELETE FROM channel_refusals")
