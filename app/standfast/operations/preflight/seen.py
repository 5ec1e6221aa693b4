"""What a check may look at, and what it answers."""

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from standfast import orders
from standfast.authority import Operations, operations
from standfast.layout import Layout
from standfast.operations import health
from standfast.operations.health import Health
from standfast.operations.preflight.result import Outcome
from standfast.operations.recovery.eras import is_awaiting
from standfast.operations.verdicts import Record
from standfast.release.installed import Seal
from standfast.release.manifest import Manifest
from standfast.work import WorkItem, list_work

LISTED = 10
"""Rows that are named; the rest is counted."""

type Configured = Callable[[Layout, Mapping[str, str], float | None], object]
"""Reads shop.toml and the environment as the service does; ConfigurationInvalid names the field."""


@dataclass(frozen=True)
class Found:
    """What a check answers."""

    outcome: Outcome
    observed: str
    remedy: str = ""


def passes(observed: str) -> Found:
    """Nothing is to be done."""
    return Found("pass", observed)


def attention(observed: str, remedy: str) -> Found:
    """A person should know; it is no reason to stop."""
    return Found("attention", observed, remedy)


def refuses(observed: str, remedy: str) -> Found:
    """The upgrade must not begin."""
    return Found("refuse", observed, remedy)


@dataclass(frozen=True)
class Places:
    """Where the host keeps what a check looks at."""

    mounts: Path = Path("/proc/self/mountinfo")
    lingering: Path = Path("/var/lib/systemd/linger")
    journal: Path = Path("/var/log/journal")
    running: Path = Path("/run")
    administrator: int = 0
    """The user that owns the root folder and the releases."""


@dataclass(frozen=True)
class Request:
    """What an operator, or a playbook, asks."""

    folder: Path | None = None
    """The folder of the target; None: of the release that runs this."""
    record: Path | None = None
    """Root's record of the instance; None: where hostcheck keeps it."""
    online: bool = True
    """Whether the service is expected to work meanwhile."""
    run_id: str = ""
    """The run that may hold the deploy lock."""


@dataclass(frozen=True)
class StoreFacts:
    """What is known of the store at one moment, as this release's code reads it."""

    control: Operations
    health: Health
    awaits_recovery: bool
    running: list[WorkItem]
    uncertain_orders: list[str]
    uncertain_reports: list[str]
    latest: float
    """The latest time that the business wrote down, in epoch seconds."""


@dataclass(frozen=True)
class Seen:
    """Everything that is not looked up by the check itself."""

    layout: Layout
    request: Request
    configured: Configured
    now: float
    """Epoch seconds."""
    folder: Path
    """Of the target."""
    manifest: Manifest | None
    """Of the target; None when it cannot be read."""
    seal: Seal | None
    """Of the target."""
    current: Manifest | None
    """Of the current release; None when there is none or it cannot be read."""
    record: Record | None
    schema: Mapping[str, int]
    """Of the live store; empty when it cannot be looked at."""
    places: Places = field(default_factory=Places)


def read_store(connection: sqlite3.Connection, layout: Layout, now: float) -> StoreFacts:
    """The facts as one transaction sees them. The store must have the schema of this code."""
    connection.execute("BEGIN")
    try:
        control = operations(connection)
        return StoreFacts(
            control=control,
            health=health.examine(connection, layout, now),
            awaits_recovery=is_awaiting(connection, control.epoch),
            running=list_work(connection, status="RUNNING", limit=LISTED),
            uncertain_orders=[
                f"{order.id} {order.status}, {order.quantity} {order.sku}"
                for order in orders.open_orders(connection)
                if order.status in {"SENDING", "UNKNOWN"}
            ],
            uncertain_reports=_uncertain_reports(connection),
            latest=_latest(connection),
        )
    finally:
        connection.execute("ROLLBACK")


def _uncertain_reports(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute(
        "SELECT id, delivery FROM reports INDEXED BY reports_open WHERE delivery <> 'sent' ORDER BY seq"
    )
    return [f"{report} {delivery}" for report, delivery in rows if delivery != "pending"]


def _latest(connection: sqlite3.Connection) -> float:
    row = connection.execute(
        "SELECT max(coalesce((SELECT max(started_at) FROM runs), 0),"
        " coalesce((SELECT admitted_at FROM work ORDER BY seq DESC LIMIT 1), 0),"
        " coalesce((SELECT max(at) FROM stock_events), 0),"
        " coalesce((SELECT changed_at FROM operations), 0))"
    ).fetchone()
    return float(row[0])


def listed(rows: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = f"; and {len(rows) - LISTED} more" if len(rows) > LISTED else ""
    return "; ".join(rows[:LISTED]) + more
