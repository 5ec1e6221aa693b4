"""Work that waits for its orders is BLOCKED, and wakes when there is something to do for it, not before."""

import sqlite3
from pathlib import Path

from standfast.authority import Claim, fenced
from standfast.clock import Clock
from standfast.orders.book import OPEN, Order, orders_of
from standfast.orders.era import current_epoch
from standfast.store import immediate
from standfast.work.endings import check_ending, end_within

FIRST_WAIT = 30.0
LONGEST_WAIT = 1800.0
"""Seconds before work whose order could not be sent is taken up again: doubled up to the longest."""

_MOST_DOUBLINGS = 16

# Something to do: an order to send, an approval that ended unsent to tell of, or none open any more, so that
# the work can end.
_DUE = f"""
SELECT order_waits.work FROM order_waits JOIN work ON work.id = order_waits.work
 WHERE work.status = 'BLOCKED' AND (next_at <= :now OR next_at > :now + :longest)
   AND (tell = 1 OR EXISTS (SELECT 1 FROM orders WHERE orders.work = work.id AND orders.status = 'APPROVED')
        OR NOT EXISTS (SELECT 1 FROM orders WHERE orders.work = work.id AND orders.status IN {OPEN}))
"""  # noqa: S608 - constants


def has_open_orders(connection: sqlite3.Connection, work: str) -> bool:
    """Whether the work has orders that are not settled."""
    query = f"SELECT 1 FROM orders WHERE work = ? AND status IN {OPEN}"  # noqa: S608 - constants
    return connection.execute(query, (work,)).fetchone() is not None


def waits(connection: sqlite3.Connection, work: str) -> bool:
    """Whether the work has said all it had to say and only follows its orders now."""
    return connection.execute("SELECT 1 FROM order_waits WHERE work = ?", (work,)).fetchone() is not None


def to_tell(connection: sqlite3.Connection, work: str) -> list[Order]:
    """The work's drafts whose approval ended unsent, when that was not told yet."""
    rows = connection.execute(
        "SELECT id FROM orders JOIN order_waits USING (work) WHERE work = ? AND tell = 1 AND status = 'DRAFT'"
        " AND EXISTS (SELECT 1 FROM approvals WHERE order_id = orders.id)",
        (work,),
    ).fetchall()
    lapsed = {row[0] for row in rows}
    return [one for one in orders_of(connection, work) if one.id in lapsed]


def left_blocked(connection: sqlite3.Connection, claimed_before: float) -> int:
    """How many BLOCKED work items, claimed last before a time (epoch seconds), wait for no order."""
    row = connection.execute(
        "SELECT count(*) FROM work INDEXED BY work_open WHERE status = 'BLOCKED' AND claimed_at < ?"
        " AND id NOT IN (SELECT work FROM order_waits)",
        (claimed_before,),
    ).fetchone()
    return int(row[0])


def wait(
    connection: sqlite3.Connection,
    claim: Claim,
    *,
    clock: Clock,
    marker: Path,
    back_off: bool = False,
    told: bool = False,
    report: str | None = None,
    run: str | None = None,
    reason: str = "",
) -> None:
    """End the claim as BLOCKED, with its report: its work waits for its orders from now on. One transaction.

    ``back_off``: something could not be done now, so that it is tried later, and later each time. ``told``:
    what ``to_tell`` gave is in the report. Raises StaleClaim and BadInput, with nothing written.
    """
    check_ending("BLOCKED", report)
    with fenced(connection, claim, clock, marker, "wait") as now:
        row = connection.execute("SELECT looks FROM order_waits WHERE work = ?", (claim.work,)).fetchone()
        looks = (row[0] if row else 0) + 1 if back_off else 0
        pause = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(looks - 1, _MOST_DOUBLINGS)) if back_off else 0.0
        connection.execute(
            "INSERT INTO order_waits (work, looks, next_at) VALUES (?, ?, ?) ON CONFLICT DO UPDATE"
            " SET looks = excluded.looks, next_at = excluded.next_at, tell = iif(?, 0, tell)",
            (claim.work, looks, now + pause, told),
        )
        end_within(connection, claim, "BLOCKED", report=report, run=run, reason=reason, now=now)


def finish_waiting(
    connection: sqlite3.Connection,
    claim: Claim,
    *,
    clock: Clock,
    marker: Path,
    report: str,
    run: str | None = None,
) -> None:
    """End the claim as DONE, with its report: its orders are settled. One transaction.

    Raises StaleClaim and BadInput, with nothing written.
    """
    check_ending("DONE", report)
    with fenced(connection, claim, clock, marker, "finish") as now:
        connection.execute("DELETE FROM order_waits WHERE work = ?", (claim.work,))
        end_within(connection, claim, "DONE", report=report, run=run, reason="", now=now)


def wake(connection: sqlite3.Connection, *, now: float, marker: Path) -> list[str]:
    """Make BLOCKED work READY when one of its orders can be sent or all are settled. Nothing while paused."""
    values = {"now": now, "longest": LONGEST_WAIT}
    if connection.execute(_DUE, values).fetchone() is None:
        return []
    with immediate(connection, "wake"):
        current_epoch(connection, marker)
        due = [row[0] for row in connection.execute(_DUE, values).fetchall()]
        connection.executemany(
            "UPDATE work SET status = 'READY', reason = '' WHERE id = ?", [(work,) for work in due]
        )
        return due
