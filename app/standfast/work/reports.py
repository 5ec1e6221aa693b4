"""Reports: what a turn has to say, written with its ending and delivered afterwards."""

import math
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from standfast.authority import Claim, fenced
from standfast.clock import Clock
from standfast.errors import BadInput, Refused

BODY_BYTES = 64 * 1024
"""Longest report, in bytes of UTF-8."""


@dataclass(frozen=True)
class Report:
    """One report and where its delivery stands."""

    id: str
    """32 hex digits, the first 24 its work item's; 24 of its own for one from an early release."""
    work: str
    """The work item it is about."""
    generation: int
    """The claim that wrote it."""
    body: str
    """What Lucy reads."""
    delivery: str
    """``pending``, ``sending``, ``sent`` or ``unknown``."""
    note: str
    """Why the delivery is not simply done; empty otherwise."""
    created_at: float
    """Epoch seconds."""
    delivered_at: float | None
    """Epoch seconds; None until sent."""


# Ids are hex digits: everything that begins with a work item's id lies between it and it with a "g".
_OF_WORK = """
SELECT id, work, generation, body, delivery, note, created_at, delivered_at FROM reports
 WHERE seq IN (SELECT seq FROM reports WHERE id >= :work AND id < :work || 'g'
               UNION ALL
               SELECT seq FROM reports INDEXED BY reports_older
                WHERE work = :work AND substr(id, 1, 24) <> work)
 ORDER BY seq DESC LIMIT :limit
"""


def create_report(
    connection: sqlite3.Connection, claim: Claim, body: str, *, clock: Clock, marker: Path
) -> str:
    """Write a report in the middle of a turn; returns its id. Raises StaleClaim, BadInput, StoreBusy."""
    check_body(body)
    with fenced(connection, claim, clock, marker, "report") as now:
        return insert_report(connection, claim.work, claim.generation, body, now)


def insert_report(connection: sqlite3.Connection, work: str, generation: int, body: str, now: float) -> str:
    """Insert a pending report inside the caller's transaction, fenced if a claim writes it; its id."""
    report = work + os.urandom(4).hex()
    connection.execute(
        "INSERT INTO reports (id, work, generation, body, delivery, created_at)"
        " VALUES (?, ?, ?, ?, 'pending', ?)",
        (report, work, generation, body, now),
    )
    return report


def check_body(body: str) -> None:
    """Raise BadInput unless ``body`` can be a report."""
    if not body.strip():
        raise BadInput("report: must not be empty")
    size = len(body.encode())
    if size > BODY_BYTES:
        raise BadInput(f"report: {size} bytes of UTF-8 is over the bound of {BODY_BYTES}")


def list_reports(connection: sqlite3.Connection, *, work: str | None = None, limit: int = 50) -> list[Report]:
    """The newest reports first; of one work item when ``work`` is given."""
    if work is None:
        rows = connection.execute(
            "SELECT id, work, generation, body, delivery, note, created_at, delivered_at FROM reports"
            " ORDER BY seq DESC LIMIT ?",
            (limit,),
        )
    else:
        rows = connection.execute(_OF_WORK, {"work": work, "limit": limit})
    return [Report(*row) for row in rows]


def show_report(connection: sqlite3.Connection, report: str) -> Report:
    """One report; raises Refused ``report_unknown``."""
    row = connection.execute(
        "SELECT id, work, generation, body, delivery, note, created_at, delivered_at FROM reports"
        " WHERE id = ?",
        (report,),
    ).fetchone()
    if row is None:
        raise Refused("report_unknown", f"there is no report {report}", remedy="see `standfast report list`")
    return Report(*row)


def uncertain_reports(connection: sqlite3.Connection, written_before: float = math.inf) -> int:
    """How many reports are sending or unknown: nobody can say that they arrived.

    Of those sending, only the ones written before a time (epoch seconds) count: a younger one is on its way.
    """
    row = connection.execute(
        "SELECT count(*) FROM reports INDEXED BY reports_open"
        " WHERE delivery <> 'sent' AND delivery IN ('sending', 'unknown')"
        " AND (delivery = 'unknown' OR created_at < ?)",
        (written_before,),
    ).fetchone()
    return int(row[0])
