"""Delivering reports: pending, sending, then sent; unknown when nobody can say whether it arrived.

``sending`` is committed before anything leaves. A channel that gives one effect per report id may be asked
again after a crash; any other leaves the report unknown, for an operator to settle.
"""

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from standfast.authority import operations
from standfast.clock import Clock, rfc3339
from standfast.durable import sync_folder, write_file
from standfast.store import immediate, triggers
from standfast.work.reports import Report

_BATCH = 20
_NOTE_LENGTH = 300


class Channel(Protocol):
    """A way out for reports."""

    @property
    def idempotent(self) -> bool:
        """Whether delivering one report twice has one effect."""

    def deliver(self, report: Report) -> None:
        """Deliver, or raise OSError."""


@dataclass(frozen=True)
class Outbox:
    """One text file per report, named by its id: delivering again writes the same bytes."""

    folder: Path
    idempotent: bool = True

    def deliver(self, report: Report) -> None:
        """Write the report's file durably, mode 0600."""
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self.folder.parent)
        heading = (
            f"Report: {report.id}\nWork: {report.work}\nGeneration: {report.generation}\n"
            f"Written: {rfc3339(report.created_at)}\n\n"
        )
        write_file(self.folder / f"{report.id}.txt", (heading + report.body.rstrip("\n") + "\n").encode())


def deliver_pending(connection: sqlite3.Connection, channel: Channel, *, clock: Clock) -> int:
    """Deliver up to a batch of pending reports, oldest first; returns how many were sent.

    Nothing while paused. A failed attempt on an idempotent channel goes back to pending with a note, for a
    later pass; on any other channel the report becomes unknown.
    """
    sent = 0
    for report in _begin(connection):
        sent += _attempt(connection, channel, report, clock)
    return sent


def resume_deliveries(connection: sqlite3.Connection, channel: Channel) -> int:
    """At start-up, under the writer lock: settle what a dead process left sending; returns how many.

    Back to pending where the channel is idempotent, unknown elsewhere. Nothing while paused.
    """
    outcome = "pending" if channel.idempotent else "unknown"
    with immediate(connection, "resume_deliveries"):
        if operations(connection).paused:
            return 0
        return connection.execute(
            "UPDATE reports SET delivery = ?, note = 'the service stopped while sending'"
            " WHERE delivery <> 'sent' AND delivery = 'sending'",
            (outcome,),
        ).rowcount


def _begin(connection: sqlite3.Connection) -> list[Report]:
    """Take pending reports into ``sending``, so that no two deliverers take the same one."""
    waiting = connection.execute(
        "SELECT 1 FROM reports INDEXED BY reports_open"
        " WHERE delivery <> 'sent' AND delivery = 'pending' LIMIT 1"
    ).fetchone()
    if waiting is None:
        return []
    with immediate(connection, "deliver"):
        if operations(connection).paused:
            return []
        rows = connection.execute(
            "UPDATE reports SET delivery = 'sending', note = '' WHERE seq IN"
            " (SELECT seq FROM reports INDEXED BY reports_open"
            "   WHERE delivery <> 'sent' AND delivery = 'pending' ORDER BY seq LIMIT ?)"
            " RETURNING id, work, generation, body, delivery, note, created_at, delivered_at",
            (_BATCH,),
        ).fetchall()
    return sorted((Report(*row) for row in rows), key=lambda report: report.created_at)


def _attempt(connection: sqlite3.Connection, channel: Channel, report: Report, clock: Clock) -> int:
    try:
        channel.deliver(report)
    except OSError as error:
        outcome = "pending" if channel.idempotent else "unknown"
        _settle(connection, report, outcome, None, f"{type(error).__name__}: {error}")
        return 0
    triggers.reach("deliver.left")
    _settle(connection, report, "sent", clock.now(), "")
    return 1


def _settle(
    connection: sqlite3.Connection, report: Report, outcome: str, delivered_at: float | None, note: str
) -> None:
    with immediate(connection, "delivered"):
        # Only from sending: an era that ended in the meantime has made it unknown, and that stands.
        connection.execute(
            "UPDATE reports SET delivery = ?, delivered_at = ?, note = ?"
            " WHERE id = ? AND delivery = 'sending'",
            (outcome, delivered_at, note[:_NOTE_LENGTH], report.id),
        )
