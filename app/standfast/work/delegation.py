"""Delegation: a work item lets a child look something up, until a deadline, without purchasing authority.

A child ends with its deadline or its parent's cancellation, whichever comes first: the fence refuses its
writes from that moment on, and the service's next pass closes it. A child delegates nothing itself.
"""

import hashlib
import json
import math
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from standfast.authority import Claim, fenced
from standfast.clock import Clock
from standfast.errors import BadInput, Refused
from standfast.store import immediate
from standfast.work.intake import SUBJECT_LENGTH, Request, admit_within
from standfast.work.transcripts import append

RESEARCH = "research"
"""The role of a child."""
DELEGATION = "delegation"
"""The role of a delegation's transcript row; it is no part of the conversation with the model."""
PARENT_CANCELED = "parent canceled"
DEADLINE_PASSED = "delegation deadline passed"


@dataclass(frozen=True, slots=True)
class DelegationPolicy:
    """What one work item may delegate."""

    children: int = 4
    """Over its whole life."""
    beyond_lease: float = 600.0
    """Seconds: a child's deadline comes at most so long after the end of the parent's present lease."""


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """What a child's turn may use; the service's own limits hold too."""

    model_calls: int = 4
    tool_calls: int = 8
    seconds: float = 60.0

    def __post_init__(self) -> None:
        """Nothing below one call or above zero seconds makes sense."""
        if min(self.model_calls, self.tool_calls) < 1 or not 0 < self.seconds < math.inf:
            raise BadInput(f"limits: {self} leaves a child nothing to work with")


@dataclass(frozen=True, slots=True)
class Delegated:
    """A child as it was delegated."""

    work: str
    """The child's work id."""
    deadline: float
    """Epoch seconds; no write of the child's passes the fence from then on."""
    limits: ChildLimits
    created: bool
    """False when the parent had delegated the very same before."""


@dataclass(frozen=True, slots=True)
class ClosedChild:
    """A child that the service closed."""

    work: str
    reason: str


def delegate(
    connection: sqlite3.Connection,
    claim: Claim,
    *,
    subject: str,
    prompt: str,
    seconds: float,
    clock: Clock,
    marker: Path,
    limits: ChildLimits | None = None,
    policy: DelegationPolicy | None = None,
    call: str | None = None,
) -> Delegated:
    """Admit a child of role ``research`` for the claim's work, with the record that the gate allowed it.

    Its deadline is ``seconds`` from now, or the latest that the policy allows when that is earlier. The same
    subject and prompt again are the same child. Raises StaleClaim; BadInput for a broken bound; Refused
    ``no_delegation`` (the claim is a child's) and ``delegation_limit``. Nothing is written then.
    """
    limits, policy = limits or ChildLimits(), policy or DelegationPolicy()
    if isinstance(seconds, bool) or not 0 < seconds < math.inf:
        raise BadInput(f"seconds: {seconds!r} is not a time to work in")
    if not subject.strip() or len(subject) > SUBJECT_LENGTH:
        raise BadInput(f"subject: 1 to {SUBJECT_LENGTH} characters")
    key = hashlib.sha256(json.dumps([subject, prompt]).encode()).hexdigest()[:24]
    origin = f"{DELEGATION}:{claim.work}:{key}"
    request = Request(origin=origin, session=origin, prompt=prompt, subject=subject, role=RESEARCH)
    with fenced(connection, claim, clock, marker, "delegate") as now:
        above, lease_until = connection.execute(
            "SELECT parent, lease_until FROM work WHERE id = ?", (claim.work,)
        ).fetchone()
        _refuse_child(claim, above)
        earlier = connection.execute("SELECT work FROM origins WHERE origin = ?", (origin,)).fetchone()
        if earlier is None:
            _refuse_past_limit(connection, claim, policy)
        admission = admit_within(connection, request, now=now, limits=None)
        if admission.created:
            deadline = min(now + seconds, lease_until + policy.beyond_lease)
            _write(connection, claim, admission.work, deadline, limits)
            row = {"role": DELEGATION, "child": admission.work, "subject": subject, "gate": "allowed"}
            append(connection, claim, json.dumps(row if call is None else row | {"tool_call_id": call}), now)
        found = delegated(connection, admission.work)
        assert found is not None
        return Delegated(found.work, found.deadline, found.limits, created=admission.created)


def delegated(connection: sqlite3.Connection, work: str) -> Delegated | None:
    """How ``work`` was delegated; None when it was not."""
    row = connection.execute(
        "SELECT work.deadline, model_calls, tool_calls, seconds FROM delegations"
        " JOIN work ON work.id = delegations.work WHERE delegations.work = ?",
        (work,),
    ).fetchone()
    return None if row is None else Delegated(work, row[0], ChildLimits(*row[1:]), created=False)


def close_children(connection: sqlite3.Connection, *, now: float) -> list[ClosedChild]:
    """Cancel the open children whose deadline has come or whose parent is canceled.

    Their generation rises, so that no claim taken before can ever match again. Flat in finished work: a child
    that has ended is looked at once more and then never again.
    """
    if not _ended(connection, now):
        return []
    with immediate(connection, "close_children"):
        closed = []
        for work, reason in _ended(connection, now):
            if reason:
                connection.execute(
                    "UPDATE work SET status = 'CANCELED', generation = generation + 1, lease_until = NULL,"
                    " reason = ?, finished_at = ? WHERE id = ?",
                    (reason, now, work),
                )
                closed.append(ClosedChild(work, reason))
            connection.execute("UPDATE delegations SET open = 0 WHERE work = ?", (work,))
        return closed


def _refuse_child(claim: Claim, parent: str | None) -> None:
    if claim.role == RESEARCH or parent is not None:
        raise Refused(
            "no_delegation",
            "delegated work delegates nothing itself",
            observed=f"work {claim.work} of role {claim.role}",
            remedy="let the parent delegate it",
        )


def _refuse_past_limit(connection: sqlite3.Connection, claim: Claim, policy: DelegationPolicy) -> None:
    children = connection.execute(
        "SELECT count(*) FROM work INDEXED BY work_delegated WHERE parent = ?", (claim.work,)
    ).fetchone()[0]
    if children >= policy.children:
        raise Refused(
            "delegation_limit",
            "the work has delegated as much as it may",
            observed=f"work {claim.work} has {children} children, the limit is {policy.children}",
            remedy="go on with what the children report",
        )


def _write(
    connection: sqlite3.Connection, claim: Claim, child: str, deadline: float, limits: ChildLimits
) -> None:
    connection.execute("UPDATE work SET parent = ?, deadline = ? WHERE id = ?", (claim.work, deadline, child))
    connection.execute(
        "INSERT INTO delegations (work, generation, model_calls, tool_calls, seconds) VALUES (?, ?, ?, ?, ?)",
        (child, claim.generation, limits.model_calls, limits.tool_calls, limits.seconds),
    )


def _ended(connection: sqlite3.Connection, now: float) -> list[tuple[str, str]]:
    """The children marked open that need something done, with the reason to close one that is open still."""
    return connection.execute(
        "SELECT own.id, CASE WHEN own.status IN ('DONE', 'CANCELED', 'REJECTED') THEN ''"
        " WHEN above.status = 'CANCELED' THEN ? ELSE ? END"
        " FROM delegations INDEXED BY delegations_open"
        " JOIN work AS own ON own.id = delegations.work JOIN work AS above ON above.id = own.parent"
        " WHERE delegations.open = 1"
        " AND (own.status IN ('DONE', 'CANCELED', 'REJECTED') OR above.status = 'CANCELED'"
        "      OR own.deadline <= ?)",
        (PARENT_CANCELED, DEADLINE_PASSED, now),
    ).fetchall()
