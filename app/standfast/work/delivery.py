"""Delivering reports: pending, sending, then sent; unknown when nobody can say whether it arrived.

``sending`` is committed before anything leaves, one report at a time. A channel that gives one effect per
report id may be asked again after a crash; any other leaves the report unknown, for an operator to settle.
What was certainly not accepted is pending again; what the channel refuses is tried a bounded number of times.
"""

import sqlite3
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from standfast.authority import operations
from standfast.clock import Clock, rfc3339
from standfast.durable import sync_folder, write_file
from standfast.errors import Refused
from standfast.store import immediate, triggers
from standfast.work.reports import Report, show_report

_BATCH = 20
_NOTE_LENGTH = 300
REFUSALS = 6
"""So often one report is refused before it is held."""
FIRST_RETRY = 30.0
LONGEST_RETRY = 3600.0
"""Seconds before a refused report is tried again: doubled up to the longest."""


class NotSent(OSError):
    """Nothing was accepted, for certain: no connection, or told to come later."""

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        """Seconds that the channel asked for."""


class Declined(NotSent):
    """The channel refused this report: the same again will most likely be refused too."""


class Channel(Protocol):
    """A way out for reports."""

    @property
    def idempotent(self) -> bool:
        """Whether delivering one report twice has one effect."""

    def deliver(self, report: Report) -> None:
        """Deliver, or raise NotSent, Declined, or any other OSError when it may have been accepted."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to deliver one report."""

    report: str
    delivery: str
    """``sent``, ``pending`` or ``unknown``."""
    error: OSError | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """What an operator's word made of a report."""

    report: Report
    changed: bool


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


def deliver_pending(
    connection: sqlite3.Connection,
    channel: Channel,
    *,
    clock: Clock,
    most: int = _BATCH,
    attempted: Callable[[Attempt], None] = lambda _attempt: None,
) -> int:
    """Deliver up to ``most`` pending reports, oldest first; returns how many were sent.

    Nothing while paused. Ends at the first that was not sent; ``attempted`` hears of each.
    """
    sent = 0
    while sent < most and (report := _begin(connection, clock.now())):
        attempt = _attempt(connection, channel, report, clock)
        attempted(attempt)
        if attempt.delivery != "sent":
            break
        sent += 1
    return sent


def resolve_delivery(
    connection: sqlite3.Connection,
    report: str,
    *,
    arrived: bool,
    twice: bool,
    check: bool = False,
) -> Resolved:
    """Settle by an operator's word: it arrived, or it is to be sent again.

    Sending an ``unknown`` one again needs ``twice``: that the operator takes it to arrive twice, or that the
    channel gives one effect per report. A pending one, held after refusals, is tried again. Allowed while
    paused. Raises Refused ``report_unknown``, ``report_sending``, ``report_settled``, ``may_arrive_twice``.
    """
    with nullcontext() if check else immediate(connection, "resolve_delivery"):
        found = show_report(connection, report)
        _refuse_unresolvable(found, arrived=arrived, twice=twice)
        wanted = "sent" if arrived else "pending"
        refused = connection.execute("SELECT 1 FROM channel_refusals WHERE report = ?", (report,)).fetchone()
        changed = found.delivery != wanted or refused is not None
        if changed and not check:
            note = "an operator said that it arrived" if arrived else "an operator let it be sent again"
            connection.execute(
                "UPDATE reports SET delivery = ?, note = ? WHERE id = ?", (wanted, note, report)
            )
            connection.execute("DELETE FROM channel_refusals WHERE report = ?", (report,))
        return Resolved(show_report(connection, report), changed=changed)


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


def _begin(connection: sqlite3.Connection, now: float) -> Report | None:
    """Take the oldest report that is due into ``sending``, so that no two deliverers take the same one."""
    due = (
        "SELECT seq FROM reports INDEXED BY reports_open WHERE delivery <> 'sent' AND delivery = 'pending'"
        " AND NOT EXISTS (SELECT 1 FROM channel_refusals"
        "   WHERE report = reports.id AND (next_at IS NULL OR next_at > ?)) ORDER BY seq LIMIT 1"
    )
    if connection.execute(due, (now,)).fetchone() is None:
        return None
    with immediate(connection, "deliver"):
        if operations(connection).paused:
            return None
        row = connection.execute(
            f"UPDATE reports SET delivery = 'sending', note = '' WHERE seq = ({due})"  # noqa: S608 - no input
            " RETURNING id, work, generation, body, delivery, note, created_at, delivered_at",
            (now,),
        ).fetchone()
    return None if row is None else Report(*row)


def _attempt(connection: sqlite3.Connection, channel: Channel, report: Report, clock: Clock) -> Attempt:
    try:
        channel.deliver(report)
    except NotSent as error:
        refused_at = clock.now() if isinstance(error, Declined) else None
        _settle(connection, report, "pending", None, str(error), refused_at=refused_at)
        return Attempt(report.id, "pending", error)
    except OSError as error:
        outcome = "pending" if channel.idempotent else "unknown"
        _settle(connection, report, outcome, None, f"{type(error).__name__}: {error}")
        return Attempt(report.id, outcome, error)
    triggers.reach("deliver.left")
    _settle(connection, report, "sent", clock.now(), "")
    return Attempt(report.id, "sent")


def _settle(
    connection: sqlite3.Connection,
    report: Report,
    outcome: str,
    delivered_at: float | None,
    note: str,
    *,
    refused_at: float | None = None,
) -> None:
    with immediate(connection, "delivered"):
        # Only from sending: an era that ended in the meantime has made it unknown, and that stands.
        settled = connection.execute(
            "UPDATE reports SET delivery = ?, delivered_at = ?, note = ?"
            " WHERE id = ? AND delivery = 'sending'",
            (outcome, delivered_at, note[:_NOTE_LENGTH], report.id),
        ).rowcount
        if settled and refused_at is not None:
            _count_refusal(connection, report.id, refused_at)
        elif settled and outcome == "sent":
            connection.execute("DELETE FROM channel_refusals WHERE report = ?", (report.id,))


def _count_refusal(connection: sqlite3.Connection, report: str, now: float) -> None:
    refused = connection.execute(
        "INSERT INTO channel_refusals VALUES (?, 1, NULL)"
        " ON CONFLICT DO UPDATE SET refused = refused + 1 RETURNING refused",
        (report,),
    ).fetchone()[0]
    pause = min(LONGEST_RETRY, FIRST_RETRY * 2.0 ** (refused - 1))
    connection.execute(
        "UPDATE channel_refusals SET next_at = ? WHERE report = ?",
        (None if refused >= REFUSALS else now + pause, report),
    )


def _refuse_unresolvable(report: Report, *, arrived: bool, twice: bool) -> None:
    if report.delivery == "sending":
        raise Refused(
            "report_sending",
            "the report is being sent",
            observed=f"report {report.id}",
            remedy="wait a minute; what a dead process left sending is settled when the service starts",
        )
    if report.delivery == "sent" and not arrived:
        raise Refused(
            "report_settled",
            "the report was sent",
            observed=f"report {report.id}, {report.note or 'accepted by the channel'}",
            remedy=f"read it again with `standfast report show {report.id}`",
        )
    if report.delivery == "unknown" and not arrived and not twice:
        raise Refused(
            "may_arrive_twice",
            "the report may have arrived; sent again, it may arrive twice",
            observed=f"report {report.id}: {report.note}",
            remedy="look whether it is there: then --sent; else --resend --may-arrive-twice",
        )
