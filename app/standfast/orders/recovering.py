"""Recovery: the orders are made to say what the fenced account accepted, each once, and nothing else.

The account no longer takes orders of any earlier epoch, so its receipts are the whole truth about what was
bought. They say nothing about what arrived: that is the operator's to say.
"""

import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from standfast.errors import Refused
from standfast.orders.book import Brief, all_orders, utc_day
from standfast.orders.client import as_json
from standfast.orders.intent import LARGEST_QUANTITY, SMALLEST_QUANTITY, Intent
from standfast.orders.sending import confirm, differences_from

if TYPE_CHECKING:  # as in ``client``
    from standfast.supplier.wire import SupplierReceipt

IMPORTED_BY = "recovery"
"""Who stands in the revoked approval of an order that only the supplier remembered."""

type What = Literal["import", "confirm", "deliver", "revoke", "keep"]

_TOLD = 10
_OPERATION = re.compile(r"[0-9a-f]{8,64}")
_LONGEST_NAME = 200
_UNCERTAIN = ("SENDING", "UNKNOWN")


@dataclass(frozen=True, slots=True)
class OrderEffect:
    """What a recovery does to one order."""

    operation: str
    what: What
    before: str
    """Its status; ``unknown here`` for one that is imported."""
    after: str
    sku: str
    quantity: int
    cents: int
    """What it has spent afterwards."""
    receipt: "SupplierReceipt | None"
    """None for one that the account never accepted."""


def refuse_invalid(receipts: Iterable["SupplierReceipt"]) -> None:
    """Raise Refused ``receipts_invalid`` unless each is about one whole purchase, and each about its own."""
    digests: dict[Intent, str] = {}
    plain: set[str] = set()
    by_receipt: dict[str, str] = {}
    operations: set[str] = set()
    wrong = []
    for receipt in receipts:
        problem = _invalid(receipt, digests, plain)
        if not problem and (earlier := by_receipt.get(receipt.receipt_id)):
            problem = f"has the receipt id of operation {earlier}"
        if not problem and receipt.operation_id in operations:
            problem = "is there twice"
        by_receipt[receipt.receipt_id] = receipt.operation_id
        operations.add(receipt.operation_id)
        if problem:
            wrong.append(f"operation {receipt.operation_id[:64]} {problem}")
    if wrong:
        raise Refused(
            "receipts_invalid",
            "the supplier holds receipts that are about no purchase that could have been approved",
            observed=wrong[:_TOLD],
            remedy="settle it with the supplier first; nothing here was changed",
        )


def _invalid(receipt: "SupplierReceipt", digests: dict[Intent, str], plain: set[str]) -> str:
    """What is wrong with one receipt.

    The digest of each purchase is computed once, and each name looked at once, for many are alike.
    """
    intent = Intent(receipt.target, receipt.sku, receipt.quantity, receipt.unit_cost_cents, receipt.currency)
    if not _OPERATION.fullmatch(receipt.operation_id):
        return "is no operation id"
    names = {receipt.receipt_id, receipt.epoch, receipt.target, receipt.sku, receipt.currency}
    if not all(map(_is_plain, names - plain)):
        return "bears a name that is empty, too long or not plain"
    plain |= names
    if not SMALLEST_QUANTITY <= receipt.quantity <= LARGEST_QUANTITY or receipt.unit_cost_cents < 0:
        return f"is for {receipt.quantity} at {receipt.unit_cost_cents} cents"
    if receipt.total_cents != intent.total_cents:
        return f"says {receipt.total_cents} cents in all, not {intent.total_cents}"
    digest = digests.get(intent)
    if digest is None:
        digest = digests[intent] = intent.digest
    if receipt.digest != digest:
        return "bears a digest that is not that of its own bytes"
    return ""


def _is_plain(name: str) -> bool:
    return name.isascii() and name.isprintable() and 0 < len(name) <= _LONGEST_NAME


def foresee_orders(
    connection: sqlite3.Connection,
    receipts: Sequence["SupplierReceipt"],
    received: Mapping[str, bool],
) -> list[OrderEffect]:
    """What recording these receipts comes to; writes nothing.

    ``received`` says of every operation whether its goods arrived. Raises Refused: ``receipts_differ`` (an
    operation is known here with other bytes), ``account_forgot`` (a receipt was counted here that the account
    does not hold), ``delivery_recorded`` (a delivery that the records hold is denied).
    """
    local = all_orders(connection)
    refuse_differing(local, receipts)
    refuse_forgotten(local, receipts)
    denied = [
        receipt.operation_id
        for receipt in receipts
        if not received[receipt.operation_id] and _status(local, receipt) == "DELIVERED"
    ]
    if denied:
        raise Refused(
            "delivery_recorded",
            "the records say that these were delivered, and a delivery is not taken back",
            observed=denied[:_TOLD],
            remedy="say that they were received; what is there now is what the counts are for",
        )
    accepted = {receipt.operation_id for receipt in receipts}
    effects = [
        _accepted(local.get(one.operation_id), one, received=received[one.operation_id]) for one in receipts
    ]
    return effects + [
        OrderEffect(one.id, "revoke", one.status, "REVOKED", one.sku, one.quantity, 0, None)
        for one in local.values()
        if one.status in _UNCERTAIN and one.id not in accepted
    ]


def refuse_differing(local: Mapping[str, Brief], receipts: Iterable["SupplierReceipt"]) -> None:
    """Raise Refused ``receipts_differ`` when a receipt is not exactly what was ordered here."""
    counted = {order.receipt_id: order.id for order in local.values() if order.receipt_id is not None}
    wrong = []
    for receipt in receipts:
        order = local.get(receipt.operation_id)
        differing: list[str] = []
        if order is not None:
            differing += differences_from(order, receipt, counted.get(receipt.receipt_id))
            if order.receipt_id not in {None, receipt.receipt_id}:
                differing.append(f"receipt_id {receipt.receipt_id}, counted {order.receipt_id}")
        elif receipt.receipt_id in counted:
            differing.append(f"receipt_id {receipt.receipt_id} was counted for another order")
        if differing:
            wrong.append(f"operation {receipt.operation_id}: {', '.join(differing)}")
    if wrong:
        raise Refused(
            "receipts_differ",
            "the supplier's receipts are not about exactly what was ordered here",
            observed=wrong[:_TOLD],
            remedy="settle it with the supplier first; nothing here was changed",
        )


def refuse_forgotten(local: Mapping[str, Brief], receipts: Iterable["SupplierReceipt"]) -> None:
    """Raise Refused ``account_forgot`` when the account lacks a receipt that was counted here."""
    held = {receipt.receipt_id for receipt in receipts}
    lacking = [
        f"order {order.id}: receipt {order.receipt_id}"
        for order in local.values()
        if order.receipt_id is not None and order.receipt_id not in held
    ]
    if lacking:
        raise Refused(
            "account_forgot",
            "the account does not hold receipts that were counted here: it is another account, or lost some",
            observed=lacking[:_TOLD],
            remedy="see that the supplier's address and token are those of the account of these orders",
        )


def _status(local: Mapping[str, Brief], receipt: "SupplierReceipt") -> str:
    order = local.get(receipt.operation_id)
    return "unknown here" if order is None else order.status


def _accepted(order: Brief | None, receipt: "SupplierReceipt", *, received: bool) -> OrderEffect:
    after = "DELIVERED" if received else "CONFIRMED"
    before = "unknown here" if order is None else order.status
    what: What = "import" if order is None else "keep" if before == after else "confirm"
    if what == "confirm" and received:
        what = "deliver"
    return OrderEffect(
        receipt.operation_id,
        what,
        before,
        after,
        receipt.sku,
        receipt.quantity,
        receipt.total_cents,
        receipt,
    )


def apply_effects(
    connection: sqlite3.Connection, effects: Iterable[OrderEffect], *, operator: str, now: float
) -> None:
    """Inside the recovery's transaction: do what was foreseen in it.

    Money is counted on the UTC day on which the supplier accepted, so that no day's ceiling is charged twice
    or with another's; where the receipt's time cannot be read, or lies ahead, on the present one.
    """
    connection.execute(
        "INSERT INTO spending VALUES (1, ?, 0) ON CONFLICT DO UPDATE SET day = max(day, excluded.day)",
        (utc_day(now),),
    )
    today = str(connection.execute("SELECT day FROM spending").fetchone()[0])
    for effect in effects:
        if effect.what == "revoke":
            _revoke(connection, effect.operation, now)
            continue
        assert effect.receipt is not None
        if effect.what == "import":
            _import(connection, effect, effect.receipt, today, now)
        elif effect.what != "keep":
            if effect.before != "CONFIRMED":
                day = _day(effect.receipt, today)
                note = f"accepted by the supplier, found by recovery: receipt {effect.receipt.receipt_id}"
                confirm(connection, effect.operation, effect.receipt, day=day, note=note, now=now)
            if effect.what == "deliver":
                _deliver(connection, effect.operation, operator, now)


def _import(
    connection: sqlite3.Connection, effect: OrderEffect, receipt: "SupplierReceipt", today: str, now: float
) -> None:
    """Of no work, and with an approval that was revoked from the start: nobody may send it, or send it again.

    Who approved it at the time is not known any more.
    """
    connection.execute(
        "INSERT INTO orders (id, work, generation, epoch, target, sku, quantity, unit_cost_cents, currency,"
        " digest, status, note, spent_cents, spent_day, receipt_id, receipt, proposed_at, changed_at)"
        " VALUES (?, NULL, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            receipt.operation_id,
            receipt.epoch,
            receipt.target,
            receipt.sku,
            receipt.quantity,
            receipt.unit_cost_cents,
            receipt.currency,
            receipt.digest,
            effect.after,
            f"imported by recovery: only the supplier remembered it, receipt {receipt.receipt_id}",
            receipt.total_cents,
            _day(receipt, today),
            receipt.receipt_id,
            as_json(receipt),
            now,
            now,
        ),
    )
    connection.execute(
        "INSERT INTO approvals (id, order_id, digest, operator, automatic, day, cents, approved_at, until,"
        " revoked) VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?, 1)",
        (
            f"recovery:{receipt.operation_id}",
            receipt.operation_id,
            receipt.digest,
            IMPORTED_BY,
            today,
            receipt.total_cents,
            now,
            now + 1,
        ),
    )


def _deliver(connection: sqlite3.Connection, order: str, operator: str, now: float) -> None:
    """The units are part of what was counted, so no stock event of the order's own."""
    connection.execute(
        "UPDATE orders SET status = 'DELIVERED', note = ?, changed_at = ? WHERE id = ?",
        (f"received, says {operator} in the recovery", now, order),
    )


def _revoke(connection: sqlite3.Connection, order: str, now: float) -> None:
    connection.execute(
        "UPDATE orders SET status = 'REVOKED', reserved_cents = 0, next_look = NULL, changed_at = ?,"
        " note = 'the account never accepted it, and takes nothing of its epoch any more' WHERE id = ?",
        (now, order),
    )


def _day(receipt: "SupplierReceipt", today: str) -> str:
    try:
        accepted = datetime.fromisoformat(receipt.accepted_at)
        if accepted.tzinfo is None:
            return today
        return min(utc_day(accepted.timestamp()), today)
    except (ValueError, OverflowError, OSError):
        return today
