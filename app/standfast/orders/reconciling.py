"""Finding out what became of an UNKNOWN order: by asking, never by guessing.

A lookup comes before any retransmission. That the supplier does not know the operation proves nothing, so the
same bytes may be sent again under the same operation id: only while the approval lives, only inside the
supplier's stated key window, never past it.
"""

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from standfast.clock import Clock
from standfast.errors import Refused
from standfast.orders.book import Order, live_approval, show_order
from standfast.orders.client import Absent, Accepted, Supplier, Unclear
from standfast.orders.era import acting, current_epoch
from standfast.orders.sending import (
    ANSWER_MARGIN,
    FIRST_LOOK,
    LONGEST_LOOK,
    Attempt,
    leave,
    record_receipt,
    settle,
    transmit,
)
from standfast.store import triggers

_NOTE_LENGTH = 300
_MOST_DOUBLINGS = 16

type How = Literal["settled", "found", "waiting", "sent_again", "mismatch"]


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What one look at an uncertain order came to."""

    order: Order
    how: How
    """``settled`` before; ``found`` by its receipt; ``waiting``: not known yet; ``sent_again``;
    ``mismatch``: the supplier's receipt is not what was ordered."""


def due(connection: sqlite3.Connection, now: float) -> list[str]:
    """The UNKNOWN orders of this era to look at now, the longest waiting first."""
    rows = connection.execute(
        "SELECT id FROM orders WHERE status = 'UNKNOWN' AND epoch = (SELECT epoch FROM operations)"
        " AND refused_receipt IS NULL AND (next_look <= ? OR looked_at > ?) ORDER BY next_look",
        (now, now),
    )
    return [row[0] for row in rows]


def reconcile(
    connection: sqlite3.Connection,
    order: str,
    supplier: Supplier,
    *,
    clock: Clock,
    marker: Path,
    resend: bool = True,
) -> Reconciled:
    """Ask the supplier about one UNKNOWN order; record its receipt, or send it again where that is safe.

    Raises Refused: ``paused``, ``marker_disagrees``, ``order_unknown``, ``not_uncertain``
    (SENDING under way, or never sent), ``account_other_epoch``.
    """
    found = show_order(connection, order)
    if found.status in {"CONFIRMED", "DELIVERED", "REJECTED"}:
        return Reconciled(found, "settled")
    _refuse_unless_unknown(found)
    if not current_epoch(connection, marker) == found.epoch == supplier.epoch:
        raise Refused(
            "account_other_epoch",
            "the order belongs to an earlier era",
            observed=f"order {found.epoch}, client {supplier.epoch}",
            remedy="the recovery of the account settles it",
        )
    try:
        answer = supplier.account.lookup(order)
    except Exception as error:  # noqa: BLE001 - as in transmit
        answer = Unclear(f"the client failed: {type(error).__name__}")
    triggers.reach("reconcile.answered")
    attempt: Attempt | None = None
    with acting(connection, None, clock, marker, "reconcile") as now:
        found = show_order(connection, order)
        if found.status != "UNKNOWN":
            return Reconciled(found, "settled")
        if isinstance(answer, Accepted):
            matched = record_receipt(connection, found, answer.receipt, now)
            return Reconciled(show_order(connection, order), "found" if matched else "mismatch")
        obstacle = may_send_again(connection, found, supplier, now)
        if isinstance(answer, Absent) and resend and not obstacle:
            attempt = leave(connection, found, supplier, now)
        else:
            told = answer.reason if isinstance(answer, Unclear) else "the supplier does not know it yet"
            _look_again(connection, found, f"{told}; {obstacle}" if obstacle else told, now)
            return Reconciled(show_order(connection, order), "waiting")
    triggers.reach("send.leaves")
    outcome = transmit(supplier, attempt)
    triggers.reach("send.answered")
    settled = settle(connection, attempt, outcome, claim=None, clock=clock, marker=marker)
    return Reconciled(settled, "sent_again")


def may_send_again(connection: sqlite3.Connection, order: Order, supplier: Supplier, now: float) -> str:
    """Why an UNKNOWN order must not be sent again at ``now``; empty when it may, with the same bytes."""
    assert order.first_sent_at is not None
    assert order.key_window is not None
    latest = max(order.changed_at, order.looked_at or 0.0, order.last_sent_at or 0.0)
    window = min(order.key_window, supplier.key_window)
    if now < latest:
        return "the clock was set back, so the key window cannot be judged"
    if now - order.first_sent_at + ANSWER_MARGIN >= window:
        return "the supplier's key window has passed: never sent again"
    if order.refused_receipt is not None:
        return "a supplier receipt does not match: never sent again"
    if live_approval(connection, order, now) is None:
        return "its approval has ended: never sent again"
    return ""


def _refuse_unless_unknown(order: Order) -> None:
    if order.status != "UNKNOWN":
        raise Refused(
            "not_uncertain",
            "only an UNKNOWN order is reconciled",
            observed=f"order {order.id} is {order.status}",
            remedy="an order on its way becomes UNKNOWN by itself when no answer arrives",
        )


def _look_again(connection: sqlite3.Connection, order: Order, note: str, now: float) -> None:
    pause = min(LONGEST_LOOK, FIRST_LOOK * 2 ** min(order.lookups, _MOST_DOUBLINGS))
    connection.execute(
        "UPDATE orders SET lookups = lookups + 1, looked_at = ?, next_look = ?, note = ? WHERE id = ?",
        (now, now + pause, note[:_NOTE_LENGTH], order.id),
    )
