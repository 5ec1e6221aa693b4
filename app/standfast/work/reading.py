"""Reading work: for people, for health and for the canary. Every query is flat in the finished items."""

import sqlite3
from dataclasses import dataclass, fields

from standfast.errors import BadInput, Refused


@dataclass(frozen=True)
class WorkItem:
    """One work item as it stands."""

    id: str
    role: str
    session: str
    subject: str
    prompt: str
    status: str
    reason: str
    owner: str | None
    generation: int
    epoch: str | None
    claimed_at: float | None
    lease_until: float | None
    parent: str | None
    deadline: float | None
    admitted_at: float
    finished_at: float | None
    run: str | None
    interrupted_epoch: str | None


@dataclass(frozen=True)
class Ages:
    """How long the oldest open items have been waiting, in seconds; None when there is none."""

    ready: float | None
    """Since admission."""
    running: float | None
    """Since it was claimed."""


@dataclass(frozen=True)
class Latest:
    """The work that was finished last."""

    work: str
    finished_at: float


_LISTS = {
    None: "SELECT * FROM work ORDER BY seq DESC LIMIT ?",
    "READY": "SELECT * FROM work INDEXED BY work_open WHERE status = 'READY' ORDER BY seq DESC LIMIT ?",
    "RUNNING": "SELECT * FROM work INDEXED BY work_open WHERE status = 'RUNNING' ORDER BY seq DESC LIMIT ?",
    "BLOCKED": "SELECT * FROM work INDEXED BY work_open WHERE status = 'BLOCKED' ORDER BY seq DESC LIMIT ?",
    "DONE": "SELECT * FROM work WHERE status = 'DONE' ORDER BY seq DESC LIMIT ?",
    "CANCELED": "SELECT * FROM work INDEXED BY work_aside WHERE status = 'CANCELED'"
    " ORDER BY seq DESC LIMIT ?",
    "REJECTED": "SELECT * FROM work INDEXED BY work_aside WHERE status = 'REJECTED'"
    " ORDER BY seq DESC LIMIT ?",
}


_COUNTED = ("READY", "RUNNING", "BLOCKED", "CANCELED", "REJECTED", "all")
_COUNTS = """
SELECT (SELECT count(*) FROM work INDEXED BY work_open WHERE status = 'READY'),
       (SELECT count(*) FROM work INDEXED BY work_open WHERE status = 'RUNNING'),
       (SELECT count(*) FROM work INDEXED BY work_open WHERE status = 'BLOCKED'),
       (SELECT items FROM work_aside_counts WHERE status = 'CANCELED'),
       (SELECT items FROM work_aside_counts WHERE status = 'REJECTED'),
       (SELECT coalesce(max(seq), 0) FROM work)
"""

# The report of an ending is written with it, so the newest report of DONE work tells which was finished last.
_LATEST_DONE = """
SELECT work.id, work.finished_at FROM reports CROSS JOIN work ON work.id = reports.work
 WHERE work.status = 'DONE' ORDER BY reports.seq DESC LIMIT 1
"""


def show_work(connection: sqlite3.Connection, work: str) -> WorkItem:
    """One work item; raises Refused ``work_unknown``."""
    found = _items(connection, "SELECT * FROM work WHERE id = ?", work)
    if not found:
        raise Refused("work_unknown", f"there is no work {work}", remedy="see `standfast work list`")
    return found[0]


def list_work(
    connection: sqlite3.Connection, *, status: str | None = None, limit: int = 50
) -> list[WorkItem]:
    """The newest items first, of one status when given (BadInput when there is no such status)."""
    if status not in _LISTS:
        raise BadInput(f"status: {status!r} is not one of {', '.join(filter(None, _LISTS))}")
    return _items(connection, _LISTS[status], limit)


def children_of(connection: sqlite3.Connection, work: str) -> list[WorkItem]:
    """What a work item has delegated, oldest first."""
    return _items(
        connection, "SELECT * FROM work INDEXED BY work_delegated WHERE parent = ? ORDER BY seq", work
    )


def counts(connection: sqlite3.Connection) -> dict[str, int]:
    """How many items there are of every status.

    Work is numbered without gaps: what is neither open nor set aside is DONE.
    """
    row = connection.execute(_COUNTS).fetchone()
    found = dict(zip(_COUNTED, row, strict=True))
    everything = found.pop("all")
    return {**found, "DONE": everything - sum(found.values())}


def ages(connection: sqlite3.Connection, now: float) -> Ages:
    """The ages of the oldest READY and RUNNING item at ``now``."""
    ready = connection.execute(
        "SELECT admitted_at FROM work INDEXED BY work_open WHERE status = 'READY' ORDER BY seq LIMIT 1"
    ).fetchone()
    running = connection.execute(
        "SELECT min(claimed_at) FROM work INDEXED BY work_open WHERE status = 'RUNNING'"
    ).fetchone()
    return Ages(
        ready=None if ready is None else max(0.0, now - ready[0]),
        running=None if running[0] is None else max(0.0, now - running[0]),
    )


def latest_done(connection: sqlite3.Connection) -> Latest | None:
    """The work that was DONE last, or None before the first."""
    row = connection.execute(_LATEST_DONE).fetchone()
    return None if row is None else Latest(*row)


def _items(connection: sqlite3.Connection, query: str, value: str | int) -> list[WorkItem]:
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    names = [field.name for field in fields(WorkItem)]
    return [WorkItem(**{name: row[name] for name in names}) for row in cursor.execute(query, (value,))]
