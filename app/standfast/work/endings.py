"""How work ends: by the claim that did it, or by an operator who cancels it."""

import sqlite3
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from standfast.authority import DEFAULT_LEASE, Claim, FencedNow, fenced, take_next
from standfast.clock import Clock
from standfast.errors import BadInput, Refused
from standfast.store import immediate
from standfast.work.reports import check_body, insert_report

type Ending = Literal["DONE", "BLOCKED", "CANCELED"]

_ENDINGS = ("DONE", "BLOCKED", "CANCELED")
_REASON_LENGTH = 500


class Finished(NamedTuple):
    """How a claim ended."""

    work: str
    generation: int
    status: Ending
    report: str | None
    """The id of the report written in the same transaction."""
    finished_at: float
    """Epoch seconds."""


@dataclass(frozen=True)
class Canceled:
    """What a cancellation did."""

    work: str
    changed: bool
    """False when it was canceled before."""
    status_before: str
    children: int
    """Delegated items that were canceled with it."""


def finish(
    connection: sqlite3.Connection,
    claim: Claim,
    status: Ending,
    *,
    clock: Clock,
    marker: Path,
    report: str | None = None,
    run: str | None = None,
    reason: str = "",
) -> Finished:
    """End the claim, together with its report, in one transaction.

    ``run`` is the service run that did it. Raises StaleClaim, BadInput, StoreBusy, with nothing written.
    """
    check_ending(status, report)
    with fenced(connection, claim, clock, marker, "finish") as now:
        return end_within(connection, claim, status, report=report, run=run, reason=reason, now=now)


def finish_and_claim(
    connection: sqlite3.Connection,
    claim: Claim,
    status: Ending,
    *,
    clock: Clock,
    marker: Path,
    report: str | None = None,
    run: str | None = None,
    reason: str = "",
    lease: float = DEFAULT_LEASE,
) -> tuple[Finished, Claim | None]:
    """``finish``, and the owner's next claim if there is work, in one commit instead of two.

    For a worker that does nothing else. The service looks around between two turns: what it wakes or fires
    there can be older than the next in line, and a restart meanwhile would close work that was never begun as
    interrupted.
    """
    check_ending(status, report)
    with fenced(connection, claim, clock, marker, "finish") as now:
        finished = end_within(connection, claim, status, report=report, run=run, reason=reason, now=now)
        return finished, take_next(connection, owner=claim.owner, now=now, marker=marker, lease=lease)


def cancel(
    connection: sqlite3.Connection,
    work: str,
    *,
    reason: str,
    now: float,
    only_unclaimed: bool = False,
    check: bool = False,
) -> Canceled:
    """Cancel work for an operator; its claim, if any, is refused from then on. Allowed while paused.

    Delegated children that are not running are canceled with it; a running one is refused by the fence from
    then on. DONE work can be canceled only while it has open children. It cannot recall what was already
    sent. ``only_unclaimed`` leaves alone what a worker has already claimed; ``check`` writes nothing.
    Raises Refused ``work_unknown``, ``work_finished``, ``work_claimed``.
    """
    with nullcontext() if check else immediate(connection, "cancel"):
        return cancel_within(
            connection, work, reason=reason, now=now, only_unclaimed=only_unclaimed, check=check
        )


def cancel_within(
    connection: sqlite3.Connection,
    work: str,
    *,
    reason: str,
    now: float,
    only_unclaimed: bool = False,
    check: bool = False,
) -> Canceled:
    """``cancel`` inside the caller's write transaction, for one that is one with another row."""
    row = connection.execute("SELECT status FROM work WHERE id = ?", (work,)).fetchone()
    if row is None:
        raise Refused("work_unknown", f"there is no work {work}", remedy="see `standfast work list`")
    status = str(row[0])
    if status == "CANCELED":
        return Canceled(work=work, changed=False, status_before=status, children=0)
    if only_unclaimed and status != "READY":
        raise Refused("work_claimed", "the work is not waiting any more", observed=f"{work} is {status}")
    open_children = connection.execute(
        "SELECT count(*) FROM work INDEXED BY work_delegated"
        " WHERE parent = ? AND status IN ('READY', 'RUNNING', 'BLOCKED')",
        (work,),
    ).fetchone()[0]
    if status == "REJECTED" or (status == "DONE" and not open_children):
        raise Refused(
            "work_finished",
            "the work has ended and cannot be canceled",
            observed=f"{work} is {status}",
            remedy="nothing is left to stop; undo its effects by new work",
        )
    if check:
        return Canceled(work=work, changed=True, status_before=status, children=open_children)
    children = connection.execute(
        "UPDATE work SET status = 'CANCELED', reason = ?, finished_at = ?"
        " WHERE parent = ? AND status IN ('READY', 'BLOCKED')",
        ("parent canceled", now, work),
    ).rowcount
    # The generation rises, so that no claim taken before can ever match the row again.
    connection.execute(
        "UPDATE work SET status = 'CANCELED', generation = generation + 1, lease_until = NULL,"
        " reason = ?, finished_at = ? WHERE id = ?",
        (reason[:_REASON_LENGTH], now, work),
    )
    return Canceled(work=work, changed=True, status_before=status, children=children)


def check_ending(status: str, report: str | None) -> None:
    """Raise BadInput unless a claim can end so."""
    if status not in _ENDINGS:
        raise BadInput(f"status: {status!r} is not one of {', '.join(_ENDINGS)}")
    if report is not None:
        check_body(report)
    elif status == "DONE":
        raise BadInput("report: work that is DONE says what was done")


def end_within(
    connection: sqlite3.Connection,
    claim: Claim,
    status: Ending,
    *,
    report: str | None,
    run: str | None,
    reason: str,
    now: FencedNow,
) -> Finished:
    """``finish`` inside the caller's fenced transaction, for an ending that is one with another write."""
    written = insert_report(connection, claim.work, claim.generation, report, now) if report else None
    connection.execute(
        "UPDATE OR ROLLBACK work SET status = ?, lease_until = NULL, finished_at = ?, run = ?, reason = ?"
        " WHERE id = ?",
        (status, None if status == "BLOCKED" else now, run, reason[:_REASON_LENGTH], claim.work),
    )
    return Finished(
        work=claim.work, generation=claim.generation, status=status, report=written, finished_at=now
    )
