"""Sending and settling: SENDING is committed before the request leaves, and only proof settles an order.

The fence and these checks cannot recall a request that has left; the operation id and reconciliation are for
that. An outcome that proves nothing leaves the order UNKNOWN, with its reservation kept.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from standfast.authority import Claim, StaleClaim
from standfast.clock import Clock
from standfast.errors import Refused
from standfast.orders.book import Brief, Order, live_approval, show_order, utc_day
from standfast.orders.client import Accepted, Declined, Outcome, Supplier, Unclear, as_json
from standfast.orders.era import acting, current_epoch
from standfast.store import immediate, triggers

if TYPE_CHECKING:  # as in ``client``
    from standfast.supplier.wire import OrderRequest, SupplierReceipt

SENDING_SECONDS = 120.0
"""An order SENDING for longer has lost its sender: every answer arrives, or is given up, well before."""
FIRST_LOOK = 30.0
LONGEST_LOOK = 3600.0
"""Seconds between two looks at an UNKNOWN order: the first, doubled up to the longest."""

ANSWER_MARGIN = 60.0
"""Seconds for which a request may still be on its way to the supplier after it was let go."""

_NOTE_LENGTH = 300


@dataclass(frozen=True, slots=True)
class Attempt:
    """One transmission that may now leave."""

    order: Order
    number: int
    """1 for the first."""
    request: "OrderRequest"


def send(
    connection: sqlite3.Connection,
    order: str,
    supplier: Supplier,
    *,
    claim: Claim | None,
    clock: Clock,
    marker: Path,
) -> Order:
    """Send one approved order, and settle it by the supplier's answer.

    For the claim of the work that asked for it, or without one for an operator. Expiry and revocation are
    judged in the transaction that commits SENDING. Raises StaleClaim, and Refused: ``paused``,
    ``marker_disagrees``, ``order_unknown``, ``not_yours``, ``not_approved``, ``approval_ended``,
    ``account_other_epoch``; then nothing was sent. StaleClaim also when the claim ended while the supplier
    answered: what was answered is recorded all the same, unless the era ended with it or is paused; then the
    order stays SENDING and is reconciled.
    """
    attempt = begin(connection, order, supplier, claim=claim, clock=clock, marker=marker)
    triggers.reach("send.leaves")
    outcome = transmit(supplier, attempt)
    triggers.reach("send.answered")
    try:
        return settle(connection, attempt, outcome, claim=claim, clock=clock, marker=marker)
    except StaleClaim:
        # Nothing more is written for the claim. What the supplier did is no deed of the claim's: it is a fact
        # that a lookup would find, too, and a refusal in hand is more than a lookup could find.
        with suppress(Refused):
            settle(connection, attempt, outcome, claim=None, clock=clock, marker=marker)
        raise


def begin(
    connection: sqlite3.Connection,
    order: str,
    supplier: Supplier,
    *,
    claim: Claim | None,
    clock: Clock,
    marker: Path,
) -> Attempt:
    """Commit SENDING for an approved order; see ``send``."""
    with acting(connection, claim, clock, marker, "send") as now:
        found = sendable(connection, order, supplier.epoch, now=now, marker=marker)
        if claim is not None and found.work != claim.work:
            raise Refused("not_yours", "the order belongs to other work", observed=f"work {found.work}")
        connection.execute(
            "UPDATE approvals SET used_at = ? WHERE order_id = ? AND revoked = 0 AND used_at IS NULL",
            (now, order),
        )
        return leave(connection, found, supplier, now)


def sendable(connection: sqlite3.Connection, order: str, epoch: str, *, now: float, marker: Path) -> Order:
    """The order, when it may be sent for the first time at ``now``; see ``send``. Writes nothing."""
    found = show_order(connection, order)
    if current_epoch(connection, marker) != epoch or found.epoch != epoch:
        raise Refused(
            "account_other_epoch",
            "the order, the supplier's client and the store are not of one epoch",
            observed=f"order {found.epoch}, client {epoch}",
            remedy="nothing was sent; see `standfast health`",
        )
    if found.status != "APPROVED":
        raise Refused(
            "not_approved",
            "only an approved order is sent",
            observed=f"order {order} is {found.status}",
            remedy=f"see `standfast order show {order}`",
        )
    approval = live_approval(connection, found, now)
    if approval is None or approval.used_at is not None:
        raise Refused(
            "approval_ended",
            "the approval has ended or was used",
            observed=found.note,
            remedy=f"approve it again: `standfast order show {order}`",
        )
    return found


def leave(connection: sqlite3.Connection, order: Order, supplier: Supplier, now: float) -> Attempt:
    """Inside the caller's transaction: the order becomes SENDING, one more attempt."""
    from standfast.supplier.wire import OrderRequest  # noqa: PLC0415

    connection.execute(
        "UPDATE orders SET status = 'SENDING', attempts = attempts + 1, last_sent_at = ?, changed_at = ?,"
        " first_sent_at = coalesce(first_sent_at, ?), key_window = min(coalesce(key_window, ?), ?),"
        " note = ? WHERE id = ?",
        (
            now,
            now,
            now,
            supplier.key_window,
            supplier.key_window,
            "sent again under the same operation id" if order.attempts else "on its way",
            order.id,
        ),
    )
    sent = show_order(connection, order.id)
    request = OrderRequest(
        operation_id=sent.id,
        epoch=sent.epoch,
        target=sent.target,
        sku=sent.sku,
        quantity=sent.quantity,
        unit_cost_cents=sent.unit_cost_cents,
        currency=sent.currency,
        digest=sent.digest,
    )
    return Attempt(sent, sent.attempts, request)


def transmit(supplier: Supplier, attempt: Attempt) -> Outcome:
    """Let the request leave. Whatever goes wrong is an outcome that proves nothing."""
    try:
        return supplier.account.submit(attempt.request)
    except Exception as error:  # noqa: BLE001 - the request may have left; only the type is told, no secret
        return Unclear(f"the client failed: {type(error).__name__}")


def settle(
    connection: sqlite3.Connection,
    attempt: Attempt,
    outcome: Outcome,
    *,
    claim: Claim | None,
    clock: Clock,
    marker: Path,
) -> Order:
    """Record what one transmission came to.

    A matching receipt: CONFIRMED and spent. A refusal for ever, or of the only transmission: REJECTED and
    released. Everything else: UNKNOWN, reservation kept. An answer that arrives late changes nothing that is
    settled, and only proof changes what a later transmission has in hand.
    """
    with acting(connection, claim, clock, marker, "settle") as now:
        order = show_order(connection, attempt.order.id)
        if order.status not in {"SENDING", "UNKNOWN"} or order.epoch != current_epoch(connection, marker):
            return order
        if isinstance(outcome, Accepted):
            record_receipt(connection, order, outcome.receipt, now)
        elif isinstance(outcome, Declined) and (outcome.final or attempt.number == order.attempts == 1):
            connection.execute(
                "UPDATE orders SET status = 'REJECTED', reserved_cents = 0, note = ?, changed_at = ?,"
                " next_look = NULL WHERE id = ?",
                (f"the supplier refused: {outcome.reason}"[:_NOTE_LENGTH], now, order.id),
            )
        elif order.status == "SENDING" and attempt.number == order.attempts:
            becomes_unknown(connection, order, outcome.reason, now)
        return show_order(connection, order.id)


def record_receipt(
    connection: sqlite3.Connection, order: Order, receipt: "SupplierReceipt", now: float
) -> bool:
    """Inside the caller's transaction: CONFIRMED by a matching receipt; another one is kept and shown."""
    wrong = differences(connection, order, receipt)
    if wrong:
        note = f"a supplier receipt does not match: {', '.join(wrong)}"
        if order.status == "SENDING":
            becomes_unknown(connection, order, note, now)
        connection.execute(
            "UPDATE orders SET note = ?, refused_receipt = ? WHERE id = ?",
            (note[:_NOTE_LENGTH], as_json(receipt), order.id),
        )
        return False
    connection.execute(
        "INSERT INTO spending VALUES (1, ?, 0) ON CONFLICT DO UPDATE SET day = max(day, excluded.day)",
        (utc_day(now),),
    )
    day = str(connection.execute("SELECT day FROM spending").fetchone()[0])
    note = f"accepted by the supplier: receipt {receipt.receipt_id}"
    confirm(connection, order.id, receipt, day=day, note=note, now=now)
    return True


def confirm(
    connection: sqlite3.Connection,
    order: str,
    receipt: "SupplierReceipt",
    *,
    day: str,
    note: str,
    now: float,
) -> None:
    """Inside the caller's transaction: CONFIRMED by a receipt that was compared, spent on the UTC ``day``."""
    connection.execute(
        "UPDATE orders SET status = 'CONFIRMED', reserved_cents = 0,"
        " spent_cents = quantity * unit_cost_cents, spent_day = ?,"
        " receipt_id = ?, receipt = ?, next_look = NULL, note = ?, changed_at = ? WHERE id = ?",
        (day, receipt.receipt_id, as_json(receipt), note[:_NOTE_LENGTH], now, order),
    )


def differences(connection: sqlite3.Connection, order: Order, receipt: "SupplierReceipt") -> Sequence[str]:
    """What in the receipt is not exactly what was ordered. Its epoch may be an earlier one: see ``wire``."""
    counted = connection.execute(
        "SELECT id FROM orders WHERE receipt_id = ? AND id <> ?", (receipt.receipt_id, order.id)
    ).fetchone()
    return differences_from(order, receipt, None if counted is None else str(counted[0]))


def differences_from(order: Order | Brief, receipt: "SupplierReceipt", counted: str | None) -> Sequence[str]:
    """``differences``, when the order for which the receipt was counted (or None) is known already."""
    expected = {
        "operation_id": order.id,
        "target": order.target,
        "sku": order.sku,
        "quantity": order.quantity,
        "unit_cost_cents": order.unit_cost_cents,
        "total_cents": order.total_cents,
        "currency": order.currency,
        "digest": order.digest,
    }
    wrong = [
        f"{name} {getattr(receipt, name)}"
        for name, value in expected.items()
        if getattr(receipt, name) != value
    ]
    if counted not in {None, order.id}:
        wrong.append(f"receipt_id {receipt.receipt_id} was counted for order {counted}")
    if not receipt.receipt_id:
        wrong.append("receipt_id empty")
    return wrong


def becomes_unknown(connection: sqlite3.Connection, order: Order, reason: str, now: float) -> None:
    """Inside the caller's transaction: nobody can say what became of a SENDING order."""
    connection.execute(
        "UPDATE orders SET status = 'UNKNOWN', note = ?, changed_at = ?, next_look = ? WHERE id = ?",
        (reason[:_NOTE_LENGTH], now, now + FIRST_LOOK, order.id),
    )


def asked_about_at(order: Order) -> float | None:
    """When the service asks the supplier what became of it, if no answer settles it before, epoch seconds.

    None when it will not be asked about: it is certain, or a person must look into its receipt.
    """
    if order.status == "SENDING" and order.last_sent_at is not None:
        return order.last_sent_at + SENDING_SECONDS
    if order.status == "UNKNOWN" and order.refused_receipt is None:
        return order.next_look
    return None


def give_up_waiting(connection: sqlite3.Connection, *, clock: Clock, marker: Path) -> list[Order]:
    """SENDING orders whose sender is gone become UNKNOWN, to be looked up at once; nothing while paused.

    Being too early is harmless: the outcome is then found by the operation id, and the late answer counts.
    """
    now = clock.now()
    lost = (
        "SELECT id FROM orders WHERE status = 'SENDING' AND epoch = (SELECT epoch FROM operations)"
        " AND (last_sent_at <= ? OR last_sent_at > ?)"  # later than now: the clock was set back
    )
    bounds = (now - SENDING_SECONDS, now)
    if connection.execute(lost, bounds).fetchone() is None:
        return []
    with immediate(connection, "give_up"):
        current_epoch(connection, marker)
        rows = connection.execute(lost, bounds).fetchall()
        for (order,) in rows:
            becomes_unknown(connection, show_order(connection, order), "the sender is gone", now)
            connection.execute("UPDATE orders SET next_look = ? WHERE id = ?", (now, order))
        return [show_order(connection, row[0]) for row in rows]
