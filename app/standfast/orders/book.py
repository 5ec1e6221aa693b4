"""Reading orders: single ones, lists, and the sums that people and positions need."""

import sqlite3
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from sys import intern

from standfast.errors import BadInput, Refused
from standfast.orders.intent import Intent, money

STATUSES = ("DRAFT", "APPROVED", "SENDING", "UNKNOWN", "CONFIRMED", "DELIVERED", "REJECTED", "REVOKED")
OPEN = ("DRAFT", "APPROVED", "SENDING", "UNKNOWN")
"""Not yet settled: the work that asked waits for these."""
_TOLD = {
    "DRAFT": "it was not sent",
    "CONFIRMED": "the supplier accepted it",
    "DELIVERED": "it was delivered",
    "REJECTED": "the supplier refused it",
    "REVOKED": "it was revoked and not sent",
}


@dataclass(frozen=True, slots=True)
class Order:
    """One order as it stands. Times are epoch seconds."""

    id: str
    """Also the operation id that the supplier knows."""
    work: str | None
    """The work that asked for it; None for one that only the supplier remembered."""
    generation: int
    epoch: str
    target: str
    sku: str
    quantity: int
    unit_cost_cents: int
    currency: str
    digest: str
    status: str
    note: str
    """Why it stands as it does; may be empty."""
    reserved_cents: int
    spent_cents: int
    spent_day: str | None
    attempts: int
    """How often it was sent."""
    first_sent_at: float | None
    last_sent_at: float | None
    key_window: float | None
    """The supplier's key window when it was first sent, in seconds."""
    lookups: int
    """How often the supplier was asked about it without a conclusive answer."""
    looked_at: float | None
    next_look: float | None
    receipt_id: str | None
    receipt: str | None
    """The supplier receipt that was accepted, as JSON."""
    refused_receipt: str | None
    """A supplier receipt that does not match, as JSON; it must be looked into by a person."""
    proposed_at: float
    changed_at: float

    @property
    def intent(self) -> Intent:
        """What it says."""
        return Intent(
            target=self.target,
            sku=self.sku,
            quantity=self.quantity,
            unit_cost_cents=self.unit_cost_cents,
            currency=self.currency,
        )

    @property
    def total_cents(self) -> int:
        """What it costs."""
        return self.quantity * self.unit_cost_cents


@dataclass(frozen=True, slots=True)
class Brief:
    """Of an order, what a comparison with the supplier's receipts needs: every order is held at once."""

    id: str
    status: str
    target: str
    sku: str
    currency: str
    quantity: int
    unit_cost_cents: int
    digest: str
    receipt_id: str | None
    sent: int
    """Not 0: it was sent at least once, or a receipt of it is kept."""

    @property
    def total_cents(self) -> int:
        """What it costs."""
        return self.quantity * self.unit_cost_cents


@dataclass(frozen=True, slots=True)
class Approval:
    """One approval of one order's exact bytes."""

    id: str
    order_id: str
    digest: str
    operator: str
    automatic: bool
    """By the policy's allowance, without an operator."""
    approved_at: float
    until: float
    used_at: float | None
    revoked: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One status that an order came to."""

    status: str
    note: str
    at: float


@dataclass(frozen=True, slots=True)
class Spending:
    """Today's money, in cents."""

    day: str
    """The UTC day."""
    ceiling_cents: int
    """The ceiling under which money was last reserved."""
    reserved_cents: int
    """Held by orders that were approved or sent and are not settled."""
    spent_cents: int
    """Accepted by the supplier on this day."""


_COLUMNS = ", ".join(field.name for field in fields(Order))
_SELECT = f"SELECT {_COLUMNS} FROM orders"  # noqa: S608 - the columns are this file's own


def utc_day(now: float) -> str:
    """The UTC day of a time, ``2026-03-01``."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def show_order(connection: sqlite3.Connection, order: str) -> Order:
    """One order; raises Refused ``order_unknown``."""
    found = find_order(connection, order)
    if found is None:
        raise Refused("order_unknown", f"there is no order {order}", remedy="see `standfast order list`")
    return found


def find_order(connection: sqlite3.Connection, order: str) -> Order | None:
    """One order, or None."""
    found = _orders(connection, "WHERE id = ?", order)
    return found[0] if found else None


def list_orders(connection: sqlite3.Connection, *, status: str | None = None, limit: int = 50) -> list[Order]:
    """The newest first, of one status when given (BadInput when there is no such status)."""
    if status is None:
        return _orders(connection, "ORDER BY seq DESC LIMIT ?", limit)
    if status not in STATUSES:
        raise BadInput(f"status: {status!r} is not one of {', '.join(STATUSES)}")
    return _orders(connection, "WHERE status = ? ORDER BY seq DESC LIMIT ?", status, limit)


def open_orders(connection: sqlite3.Connection) -> list[Order]:
    """Everything that is not settled, oldest first."""
    return _orders(connection, f"WHERE status IN {OPEN} ORDER BY seq")


def told(order: Order) -> str:
    """What a settled order came to, or a draft that stays one, as one line of a report."""
    what = f"{order.quantity} of {order.sku} for {money(order.total_cents, order.currency)}"
    return f"- {what} from {order.target}: {_TOLD[order.status]} ({order.note})"


def all_orders(connection: sqlite3.Connection) -> dict[str, Brief]:
    """Every order there is, by its id, oldest first."""
    rows = connection.execute(
        "SELECT id, status, target, sku, currency, quantity, unit_cost_cents, digest, receipt_id,"
        " attempts > 0 OR receipt IS NOT NULL FROM orders ORDER BY seq"
    )
    return {
        order: Brief(order, intern(status), intern(target), intern(sku), intern(currency), *others)
        for order, status, target, sku, currency, *others in rows
    }


def orders_of(connection: sqlite3.Connection, work: str) -> list[Order]:
    """The orders that one work item asked for, oldest first."""
    return _orders(connection, "WHERE work = ? ORDER BY seq", work)


def with_digest(connection: sqlite3.Connection, digest: str) -> list[Order]:
    """Every order that says exactly this, oldest first."""
    return _orders(connection, "WHERE digest = ? ORDER BY seq", digest)


def approvals_of(connection: sqlite3.Connection, order: str) -> list[Approval]:
    """Every approval of one order, oldest first."""
    rows = connection.execute(
        "SELECT id, order_id, digest, operator, automatic, approved_at, until, used_at, revoked"
        " FROM approvals WHERE order_id = ? ORDER BY seq",
        (order,),
    )
    return [
        Approval(
            id=row[0],
            order_id=row[1],
            digest=row[2],
            operator=row[3],
            automatic=bool(row[4]),
            approved_at=row[5],
            until=row[6],
            used_at=row[7],
            revoked=bool(row[8]),
        )
        for row in rows
    ]


def live_approval(connection: sqlite3.Connection, order: Order, now: float) -> Approval | None:
    """The approval under which the order may be sent, or sent again, at ``now``."""
    return next(
        (
            one
            for one in approvals_of(connection, order.id)
            if not one.revoked and one.digest == order.digest and one.until > now
        ),
        None,
    )


def history_of(connection: sqlite3.Connection, order: str) -> list[Step]:
    """Every status that one order came to, oldest first."""
    rows = connection.execute(
        "SELECT status, note, at FROM order_history WHERE order_id = ? ORDER BY seq", (order,)
    )
    return [Step(*row) for row in rows]


def spending(connection: sqlite3.Connection, now: float) -> Spending:
    """Today's money. Today is never before the last day on which money was booked."""
    row = connection.execute("SELECT day, ceiling_cents FROM spending WHERE id = 1").fetchone()
    today = utc_day(now)
    day, ceiling = (max(row[0], today), row[1]) if row else (today, 0)
    reserved = connection.execute(
        "SELECT coalesce(sum(reserved_cents), 0) FROM orders WHERE reserved_cents > 0"
    ).fetchone()[0]
    spent = connection.execute(
        "SELECT coalesce(sum(spent_cents), 0) FROM orders WHERE spent_day = ?", (day,)
    ).fetchone()[0]
    return Spending(day=day, ceiling_cents=ceiling, reserved_cents=reserved, spent_cents=spent)


def on_order(connection: sqlite3.Connection) -> dict[str, int]:
    """Units per sku that the supplier confirmed and that were not delivered yet."""
    return dict(
        connection.execute(
            "SELECT sku, sum(quantity) FROM orders WHERE status = 'CONFIRMED' GROUP BY sku"
        ).fetchall()
    )


def counts(connection: sqlite3.Connection) -> dict[str, int]:
    """How many open orders there are of every open status."""
    found = dict(
        connection.execute(
            f"SELECT status, count(*) FROM orders WHERE status IN {OPEN} GROUP BY status"  # noqa: S608 - constants
        ).fetchall()
    )
    return {status: found.get(status, 0) for status in OPEN}


def unapproved(connection: sqlite3.Connection, waiting_since: float) -> tuple[int, int]:
    """Drafts whose approval ended unsent, and others that have waited since before a time."""
    row = connection.execute(
        "SELECT coalesce(sum(lapsed), 0), coalesce(sum(NOT lapsed AND changed_at < ?), 0) FROM ("
        "SELECT changed_at, EXISTS (SELECT 1 FROM approvals WHERE order_id = orders.id) AS lapsed"
        " FROM orders WHERE status = 'DRAFT')",
        (waiting_since,),
    ).fetchone()
    return int(row[0]), int(row[1])


def stuck_orders(connection: sqlite3.Connection, sent_before: float) -> int:
    """UNKNOWN orders, and SENDING ones that were sent before a time: the younger are on their way."""
    row = connection.execute(
        "SELECT count(*) FROM orders WHERE status IN ('SENDING', 'UNKNOWN')"
        " AND (status = 'UNKNOWN' OR last_sent_at < ?)",
        (sent_before,),
    ).fetchone()
    return int(row[0])


def _orders(connection: sqlite3.Connection, condition: str, *values: object) -> list[Order]:
    return [Order(*row) for row in connection.execute(f"{_SELECT} {condition}", values)]
