"""What an operator has seen: a conclusive supplier receipt, or the goods themselves."""

import sqlite3
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from standfast.errors import Refused
from standfast.orders.book import Order, show_order
from standfast.orders.era import current_epoch
from standfast.orders.policy import Policy
from standfast.orders.sending import differences, record_receipt
from standfast.store import immediate

if TYPE_CHECKING:  # as in ``client``
    from standfast.supplier.wire import SupplierReceipt

type IntoStock = Callable[[sqlite3.Connection, Order, float], None]
"""Writes an order's units into the stock, inside the caller's transaction."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What an operator's statement came to."""

    order: Order
    changed: bool
    """False when the same was recorded before."""


def resolve(
    connection: sqlite3.Connection,
    order: str,
    receipt: "SupplierReceipt",
    *,
    operator: str,
    policy: Policy,
    now: float,
    marker: Path,
    check: bool = False,
) -> Recorded:
    """Confirm an UNKNOWN order by a supplier receipt that the operator brings.

    Only a receipt that matches the exact intent is conclusive; that nothing is found never is. Raises
    Refused: ``operator_unknown``, ``paused``, ``marker_disagrees``, ``order_unknown``, ``not_uncertain``,
    ``receipt_differs``, ``account_other_epoch``.
    """
    with nullcontext() if check else immediate(connection, "resolve"):
        policy.refuse_unless_operator(operator)
        epoch = current_epoch(connection, marker)
        found = show_order(connection, order)
        if found.receipt_id == receipt.receipt_id and not differences(connection, found, receipt):
            return Recorded(found, changed=False)
        if found.status != "UNKNOWN":
            raise Refused(
                "not_uncertain",
                "only an UNKNOWN order can be resolved",
                observed=f"order {order} is {found.status}",
                remedy=f"see `standfast order show {order}`",
            )
        if found.epoch != epoch:
            raise Refused(
                "account_other_epoch",
                "the order belongs to an earlier era",
                observed=f"order {found.epoch}, store {epoch}",
                remedy="the recovery of the account settles it",
            )
        wrong = differences(connection, found, receipt)
        if wrong:
            raise Refused(
                "receipt_differs",
                "the receipt is not about exactly this order",
                observed=list(wrong),
                remedy="bring the supplier's own receipt of this operation id, unchanged",
            )
        if not check:
            record_receipt(connection, found, receipt, now)
            connection.execute(
                "UPDATE orders SET note = ? WHERE id = ?",
                (f"resolved by {operator}: receipt {receipt.receipt_id}", order),
            )
        return Recorded(show_order(connection, order), changed=True)


def deliver(
    connection: sqlite3.Connection,
    order: str,
    *,
    operator: str,
    policy: Policy,
    into_stock: IntoStock,
    now: float,
    check: bool = False,
) -> Recorded:
    """Record, once, that a confirmed order's goods are here; stock and status are one transaction.

    Allowed while paused: it is a fact about the shop. Raises Refused ``operator_unknown``, ``order_unknown``,
    ``not_confirmed``, and what ``into_stock`` raises.
    """
    with nullcontext() if check else immediate(connection, "deliver_order"):
        policy.refuse_unless_operator(operator)
        found = show_order(connection, order)
        if found.status == "DELIVERED":
            return Recorded(found, changed=False)
        if found.status != "CONFIRMED":
            raise Refused(
                "not_confirmed",
                "only what the supplier confirmed can be delivered",
                observed=f"order {order} is {found.status}",
                remedy="count the goods with `standfast stock adjust`, and see `standfast order show`",
            )
        if not check:
            into_stock(connection, found, now)
            connection.execute(
                "UPDATE orders SET status = 'DELIVERED', note = ?, changed_at = ? WHERE id = ?",
                (f"delivery recorded by {operator}", now, order),
            )
        return Recorded(show_order(connection, order), changed=True)
