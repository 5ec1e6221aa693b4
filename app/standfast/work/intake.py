"""How work comes in: bounded, once per origin, within the limits of its session, never silently dropped.

Intake goes on while operations are paused; what comes in waits.
"""

import hashlib
import json
import math
import re
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime

from standfast.errors import BadInput, Refused
from standfast.store import immediate, new_id

ORIGIN_LENGTH = 250
"""Longest origin key, in characters."""
SESSION_LENGTH = 200
"""Longest session name, in characters."""
SUBJECT_LENGTH = 250
"""Longest subject, in characters."""
PROMPT_BYTES = 16 * 1024
"""Longest prompt, in bytes of UTF-8."""

_ROLE = re.compile(r"[a-z][a-z0-9-]{0,31}")


RESERVED_ORIGINS = ("schedule:", "low-stock:", "delegation:", "canary:", "telegram:")
"""Beginnings of the origins that this package makes itself; see ``refuse_reserved``."""


@dataclass(frozen=True)
class Limits:
    """What one session may ask for."""

    daily: int = 500
    """Work items admitted per UTC day."""
    pending: int = 100
    """Work items READY or RUNNING at one time. BLOCKED ones keep nobody else waiting."""


@dataclass(frozen=True)
class Request:
    """One bounded request; raises BadInput, naming the field, when a bound is broken."""

    origin: str
    """The sender's own key for the request: the same key is the same request."""
    session: str
    """The conversation, schedule or episode it belongs to; one item of a session runs at a time."""
    prompt: str
    """What is asked."""
    subject: str = ""
    """What it is about."""
    role: str = "agent"
    """What the worker may do."""

    def __post_init__(self) -> None:
        """Check every bound, so that no unchecked request exists."""
        _bounded("origin", self.origin, ORIGIN_LENGTH)
        _bounded("session", self.session, SESSION_LENGTH)
        _bounded("subject", self.subject, SUBJECT_LENGTH, empty=True)
        _bounded("prompt", self.prompt, PROMPT_BYTES)
        size = len(self.prompt.encode())
        if size > PROMPT_BYTES:
            raise BadInput(f"prompt: {size} bytes of UTF-8 is over the bound of {PROMPT_BYTES}")
        if not _ROLE.fullmatch(self.role):
            raise BadInput(f"role: {self.role!r} is not of the form {_ROLE.pattern}")

    def digest(self) -> str:
        """What tells another request under the same origin from a repetition."""
        content = json.dumps([self.role, self.session, self.subject, self.prompt])
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True)
class Admission:
    """What became of a request."""

    work: str
    """The work item's id."""
    status: str
    """Its status now: READY, or REJECTED at a limit, or whatever an earlier admission has come to."""
    reason: str
    """Why it was rejected; empty otherwise."""
    created: bool
    """False when the same request was admitted before."""


def refuse_reserved(origin: str) -> None:
    """Raise BadInput for an operator's own key that the service may come to need for a request of its own."""
    if origin.startswith(RESERVED_ORIGINS):
        raise BadInput(
            f"origin: the beginnings {' '.join(RESERVED_ORIGINS)} are reserved; choose another key"
        )


def admit(
    connection: sqlite3.Connection,
    *,
    origin: str,
    session: str,
    prompt: str,
    now: float,
    subject: str = "",
    role: str = "agent",
    limits: Limits | None = None,
) -> Admission:
    """Admit one request at ``now`` (epoch seconds).

    The same origin with the same content returns the same work. Raises BadInput for a broken bound and
    Refused ``origin_conflict`` when the origin was used for other content. Past a limit (``Limits()`` unless
    given) the work item is stored as REJECTED, with the reason.
    """
    request = Request(origin=origin, session=session, prompt=prompt, subject=subject, role=role)
    with immediate(connection, "admit"):
        return admit_within(connection, request, now=now, limits=limits or Limits())


def admit_within(
    connection: sqlite3.Connection, request: Request, *, now: float, limits: Limits | None
) -> Admission:
    """``admit`` inside the caller's write transaction; without limits when they are None.

    For work that must be one with another row: a schedule's slot, a low-stock episode.
    """
    if isinstance(now, bool) or not isinstance(now, int | float) or not math.isfinite(now):
        raise BadInput(f"now: {now!r} is not a time in epoch seconds")
    earlier = _earlier(connection, request)
    if earlier is not None:
        return earlier
    reason = _limit_reached(connection, request.session, limits, now) if limits else ""
    status = "REJECTED" if reason else "READY"
    work = new_id(now)
    connection.execute(
        "INSERT INTO work (id, role, session, subject, prompt, status, reason, admitted_at, finished_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            work,
            request.role,
            request.session,
            request.subject,
            request.prompt,
            status,
            reason,
            now,
            now if reason else None,
        ),
    )
    connection.execute("INSERT INTO origins VALUES (?, ?, ?)", (request.origin, work, request.digest()))
    if limits and not reason:
        connection.execute(
            "INSERT INTO intake_days VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET admitted = admitted + 1",
            (request.session, _day(now)),
        )
    return Admission(work=work, status=status, reason=reason, created=True)


def refuse_rejected(admission: Admission) -> None:
    """Raise Refused ``intake_limit`` for what was rejected, here or before: nobody will work on it."""
    if admission.status == "REJECTED":
        raise Refused(
            "intake_limit",
            admission.reason,
            observed=f"on record as work {admission.work}, REJECTED" if admission.work else "",
            remedy="ask again as new work once there is room; `[intake]` in shop.toml has the limits",
        )


def foresee(connection: sqlite3.Connection, request: Request, *, now: float, limits: Limits) -> Admission:
    """What ``admit`` would answer at ``now``; nothing is written, and new work has no id yet."""
    earlier = _earlier(connection, request)
    if earlier is not None:
        return earlier
    reason = _limit_reached(connection, request.session, limits, now)
    return Admission(work="", status="REJECTED" if reason else "READY", reason=reason, created=True)


def _earlier(connection: sqlite3.Connection, request: Request) -> Admission | None:
    row = connection.execute(
        "SELECT work.id, work.status, work.reason, origins.digest"
        " FROM origins JOIN work ON work.id = origins.work WHERE origin = ?",
        (request.origin,),
    ).fetchone()
    if row is None:
        return None
    if row[3] != request.digest():
        raise Refused(
            "origin_conflict",
            "this origin was used for other content",
            observed=f"origin {request.origin!r} is work {row[0]} ({row[1]})",
            remedy="repeat the first content unchanged, or use a new origin",
        )
    return Admission(work=row[0], status=row[1], reason=row[2], created=False)


def _limit_reached(connection: sqlite3.Connection, session: str, limits: Limits, now: float) -> str:
    pending = connection.execute(
        "SELECT count(*) FROM (SELECT 1 FROM work INDEXED BY work_open"
        " WHERE session = ? AND (status = 'READY' OR status = 'RUNNING') LIMIT ?)",
        (session, limits.pending),
    ).fetchone()[0]
    if pending >= limits.pending:
        return f"pending limit: the session has {limits.pending} items waiting"
    today = connection.execute(
        "SELECT admitted FROM intake_days WHERE session = ? AND day = ?", (session, _day(now))
    ).fetchone()
    if today is not None and today[0] >= limits.daily:
        return f"daily limit: the session had {limits.daily} items admitted on {_day(now)} (UTC)"
    return ""


def _bounded(name: str, text: str, length: int, *, empty: bool = False) -> None:
    if not text and not empty:
        raise BadInput(f"{name}: must not be empty")
    if len(text) > length:
        raise BadInput(f"{name}: {len(text)} characters is over the bound of {length}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{name}: holds half of a surrogate pair at character {error.start}") from error
    if "\0" in text:
        raise BadInput(f"{name}: holds a NUL character")


def _day(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).date().isoformat()
