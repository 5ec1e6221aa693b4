"""How an instance is: one read-only look at its store, marker, service and backups.

Everything of the store is read in one transaction, so the numbers belong together. Nothing is written, no
file is made, and no lock is taken that the service could meet.
"""

import os
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from pydantic import BaseModel

from standfast import orders, work
from standfast.authority import agrees, operations
from standfast.clock import rfc3339
from standfast.errors import Refused
from standfast.layout import Layout, running_release
from standfast.operations import usage
from standfast.operations.attention import Attention, Seen, attention
from standfast.operations.backup.standing import LastBackup, LastRehearsal, standing
from standfast.operations.opening import refuse_other_user
from standfast.operations.schema import understood
from standfast.operations.usage import UsageToday
from standfast.store import open_readonly, schema_versions
from standfast.work import channels

STATUSES = ("READY", "RUNNING", "BLOCKED", "DONE", "CANCELED", "REJECTED")


class ServiceRun(BaseModel):
    """One start of the service."""

    id: str
    release: str
    pid: int
    started_at: str
    alive: bool | None
    """Whether that process still runs on this host; null for a run that is not the latest."""


class LastFinished(BaseModel):
    """The work that was DONE last."""

    work: str
    finished_at: str
    age_seconds: float
    run: ServiceRun | None
    """The run that finished it."""


class Spending(BaseModel):
    """Today's money, in cents."""

    day: str
    """The UTC day."""
    ceiling_cents: int
    """The ceiling under which money was last reserved; 0 before the first approval."""
    reserved_cents: int
    spent_cents: int


class Channel(BaseModel):
    """The way that reports go, as the service last saw it."""

    kind: str
    """`outbox`, `telegram` or `webhook`."""
    problem: str | None
    """What is wrong with it now."""
    since: str | None
    """Since when it has been well, or not."""
    held_reports: int
    """Refused so often that they are not tried again by themselves."""


class Sqlite(BaseModel):
    """The SQLite library of this Python."""

    version: str
    note: str | None


class Health(BaseModel):
    """How the instance is. `ok` is false, and the exit code 4, when `attention` holds anything."""

    ok: bool
    attention: list[Attention]
    notes: list[str]
    state: str
    release: str
    """The release that looked; `service.release` is the one that runs."""
    schema_versions: dict[str, int]
    """What the store holds, by component."""
    understood_versions: dict[str, int]
    """What this release understands."""
    paused: bool
    reason: str
    """Why authority last changed."""
    epoch: str
    marker_agrees: bool
    work: dict[str, int]
    """Items by status."""
    oldest_ready_seconds: float | None
    oldest_running_seconds: float | None
    uncertain_orders: int
    """SENDING and UNKNOWN."""
    uncertain_reports: int
    """Sending and unknown."""
    channel: Channel | None
    """null: the store is older than this release's channels."""
    pending_approvals: int
    """Drafts that wait for an operator."""
    spending: Spending
    usage: UsageToday | None
    """Which model answers, and what its calls used today; null before the store is brought forward to it."""
    last_finished: LastFinished | None
    last_backup: LastBackup | None
    last_rehearsal: LastRehearsal | None
    service: ServiceRun | None
    """The start of the service that came last."""
    sqlite: Sqlite


def look(layout: Layout, now: float) -> Health:
    """The health of the instance at `now` (epoch seconds).

    Raises Refused: `state_absent`, `other_user`, `store_absent`, `store_foreign`, `not_initialised`,
    `schema_differs`.
    """
    refuse_other_user(layout)  # even reading makes a -shm file, and another user's would lock the service out
    with closing(open_readonly(layout.database)) as connection:
        connection.execute("BEGIN")  # one snapshot for all that is said
        return _look(connection, layout, now)


def _look(connection: sqlite3.Connection, layout: Layout, now: float) -> Health:
    present = schema_versions(connection)
    try:
        return examine(connection, layout, now)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR or present == understood():
            raise
    raise Refused(
        "schema_differs",
        "this release cannot read the store's schema",
        observed=f"store {present}, this release {understood()}",
        remedy="use the release that the service runs, or start it once to bring the store forward",
    )


def examine(connection: sqlite3.Connection, layout: Layout, now: float) -> Health:
    """The health that a store of this code's schema tells of; the caller has begun a transaction."""
    control = operations(connection)
    waiting, counted = work.ages(connection, now), work.counts(connection)
    open_orders = orders.counts(connection)
    backups = standing(layout, now)
    health = Health(
        ok=True,
        attention=[],
        notes=[],
        state=str(layout.state),
        release=running_release(),
        schema_versions=schema_versions(connection),
        understood_versions=understood(),
        paused=control.paused,
        reason=control.reason,
        epoch=control.epoch,
        marker_agrees=agrees(connection, layout.marker),
        work={status: counted[status] for status in STATUSES},
        oldest_ready_seconds=waiting.ready,
        oldest_running_seconds=waiting.running,
        uncertain_orders=open_orders["SENDING"] + open_orders["UNKNOWN"],
        uncertain_reports=work.uncertain_reports(connection),
        channel=_channel(connection),
        pending_approvals=open_orders["DRAFT"],
        spending=_spending(orders.spending(connection, now)),
        usage=usage.today(connection, now) if "usage" in schema_versions(connection) else None,
        last_finished=_last_finished(connection, now),
        last_backup=backups.last_backup,
        last_rehearsal=backups.rehearsal,
        service=_service(work.latest_run(connection), layout),
        sqlite=sqlite_facts(sqlite3.sqlite_version_info),
    )
    asked = attention(Seen(health, control, layout, connection, now, backups))
    return health.model_copy(update={"ok": not asked, "attention": asked, "notes": _notes(health)})


def _channel(connection: sqlite3.Connection) -> Channel | None:
    if "channel" not in schema_versions(connection):
        return None
    found = channels.standing(connection)
    return Channel(
        kind=found.kind,
        problem=found.problem or None,
        since=rfc3339(found.since) if found.since else None,
        held_reports=found.held,
    )


def _spending(found: orders.Spending) -> Spending:
    return Spending(
        day=found.day,
        ceiling_cents=found.ceiling_cents,
        reserved_cents=found.reserved_cents,
        spent_cents=found.spent_cents,
    )


def _last_finished(connection: sqlite3.Connection, now: float) -> LastFinished | None:
    latest = work.latest_done(connection)
    if latest is None:
        return None
    run = work.show_work(connection, latest.work).run
    return LastFinished(
        work=latest.work,
        finished_at=rfc3339(latest.finished_at),
        age_seconds=_age(latest.finished_at, now),
        run=None if run is None else _run(work.show_run(connection, run)),
    )


def _run(run: work.Run, *, alive: bool | None = None) -> ServiceRun:
    return ServiceRun(
        id=run.id, release=run.release, pid=run.pid, started_at=rfc3339(run.started_at), alive=alive
    )


def _service(latest: work.Run | None, layout: Layout) -> ServiceRun | None:
    return None if latest is None else _run(latest, alive=_serves(latest.pid, layout))


def _serves(pid: int, layout: Layout) -> bool:
    # A pid is used again, also by another instance's service, so the command line counts too: it stays
    # readable beside a sandboxed service. The start time does not: the clock may have been set since.
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    if b"serve" not in words or not any(word.rpartition(b"/")[2] == b"standfast" for word in words):
        return False
    return _state_in(words) in {None, os.path.realpath(layout.state)}


def _state_in(words: list[bytes]) -> str | None:
    """The state directory that a command line names; None when its environment or the default does."""
    for word, following in pairwise(words):
        if word == b"--state":
            return os.path.realpath(os.fsdecode(following))
        if word.startswith(b"--state="):
            return os.path.realpath(os.fsdecode(word.removeprefix(b"--state=")))
    return None


def _age(then: float, now: float) -> float:
    return round(max(0.0, now - then), 3)


def sqlite_facts(version: tuple[int, int, int]) -> Sqlite:
    """The version, with a note when it lies in the range of the WAL-reset defect.

    Reported for 3.7.0 to 3.51.2; fixed in 3.51.3 and in the back-ports 3.44.6 and 3.50.7. It takes several
    processes that write and checkpoint at one moment; one service per store makes that rare.
    """
    fixed = version >= (3, 51, 3) or any(
        version[:2] == branch[:2] and version >= branch for branch in ((3, 44, 6), (3, 50, 7))
    )
    text = ".".join(map(str, version))
    if version < (3, 7, 0) or fixed:
        return Sqlite(version=text, note=None)
    return Sqlite(version=text, note="has the WAL-reset defect (fixed in 3.44.6, 3.50.7 and 3.51.3)")


def _notes(health: Health) -> list[str]:
    older = [
        f"{name} {health.schema_versions.get(name, 0)} -> {version}"
        for name, version in health.understood_versions.items()
        if health.schema_versions.get(name, 0) < version
    ]
    notes = [f"SQLite {health.sqlite.version} {health.sqlite.note}"] if health.sqlite.note else []
    if older:
        notes.append(f"the next start of the service brings the store forward: {', '.join(older)}")
    if health.last_backup is None:
        notes.append("there is no backup yet")
    return notes
