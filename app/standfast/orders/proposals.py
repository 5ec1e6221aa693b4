"""Proposals: a worker may ask for a purchase; only an operator, or the policy, lets it happen."""

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from standfast.authority import Claim, fenced
from standfast.clock import Clock
from standfast.errors import BadInput, Refused
from standfast.orders.approvals import approve_by_allowance
from standfast.orders.book import Order, find_order, show_order
from standfast.orders.intent import LARGEST_QUANTITY, SMALLEST_QUANTITY, Intent, order_id
from standfast.orders.policy import Policy
from standfast.work.delegation import RESEARCH
from standfast.work.transcripts import append

RECORD = "order"
"""The role of a proposal's transcript row; it is no part of the conversation with the model."""
SUPERSEDED = "superseded by a later proposal of the same work"


@dataclass(frozen=True, slots=True)
class Proposed:
    """What a proposal came to."""

    order: Order
    created: bool
    """False when this very order was proposed before."""
    superseded: tuple[str, ...]
    """The drafts of the same product that it replaced."""


def propose(
    connection: sqlite3.Connection,
    claim: Claim,
    *,
    sku: str,
    quantity: int,
    unit_cost_cents: int,
    policy: Policy,
    clock: Clock,
    marker: Path,
    call: str | None = None,
) -> Proposed:
    """Record one draft for the claim's work, with the transcript row that says the gate allowed it.

    ``unit_cost_cents`` is the catalogue's. A draft of the same product in the same work with other bytes is
    superseded. Within the policy's allowance the order is approved in the same transaction.

    Raises StaleClaim; BadInput for a quantity outside 1..1000 or a cost below 1; Refused ``no_purchasing``
    (delegated work) and ``purchase_exists`` (the work's purchase of this product has had an effect, or these
    very bytes were revoked: another one needs new work). Nothing is written then.
    """
    intent = Intent(policy.target, sku, quantity, unit_cost_cents, policy.currency)
    _check(intent)
    with fenced(connection, claim, clock, marker, "propose") as now:
        _refuse_delegated(connection, claim)
        identity = order_id(claim.work, intent.digest)
        earlier = find_order(connection, identity)
        if earlier is not None and earlier.status != "REVOKED":
            return Proposed(earlier, created=False, superseded=())
        _refuse_second(connection, claim, sku, earlier)
        superseded = _supersede(connection, claim, sku, now)
        _write(connection, claim, identity, intent, now, revive=earlier is not None)
        row = {"role": RECORD, "order": identity, "digest": intent.digest, "gate": "allowed"}
        append(connection, claim, json.dumps(row if call is None else row | {"tool_call_id": call}), now)
        approve_by_allowance(connection, show_order(connection, identity), policy=policy, now=now)
        return Proposed(show_order(connection, identity), created=True, superseded=superseded)


def _check(intent: Intent) -> None:
    for name, value in (("quantity", intent.quantity), ("unit_cost_cents", intent.unit_cost_cents)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadInput(f"{name}: {value!r} is not a whole number")
    if not SMALLEST_QUANTITY <= intent.quantity <= LARGEST_QUANTITY:
        raise BadInput(
            f"quantity: {intent.quantity} is not between {SMALLEST_QUANTITY} and {LARGEST_QUANTITY}"
        )
    if intent.unit_cost_cents < 1:
        raise BadInput(f"unit_cost_cents: {intent.unit_cost_cents} is not a price")


def _refuse_delegated(connection: sqlite3.Connection, claim: Claim) -> None:
    parent = connection.execute("SELECT parent FROM work WHERE id = ?", (claim.work,)).fetchone()[0]
    if claim.role == RESEARCH or parent is not None:
        raise Refused(
            "no_purchasing",
            "delegated work has no purchasing authority",
            observed=f"work {claim.work} of role {claim.role}",
            remedy="let the parent propose it",
        )


def _refuse_second(connection: sqlite3.Connection, claim: Claim, sku: str, same: Order | None) -> None:
    row = connection.execute(
        "SELECT id, status FROM orders WHERE work = ? AND sku = ? AND status NOT IN ('DRAFT', 'REVOKED')",
        (claim.work, sku),
    ).fetchone()
    if row is None and same is not None and same.note != SUPERSEDED:
        row = (same.id, f"REVOKED: {same.note}")
    if row is not None:
        raise Refused(
            "purchase_exists",
            "another purchase of this product needs new work",
            observed=f"order {row[0]} of {sku} is {row[1]}",
            remedy="see `standfast order show`; ask again as new work",
        )


def _supersede(connection: sqlite3.Connection, claim: Claim, sku: str, now: float) -> tuple[str, ...]:
    rows = connection.execute(
        "UPDATE orders SET status = 'REVOKED', note = ?, changed_at = ?"
        " WHERE work = ? AND sku = ? AND status = 'DRAFT' RETURNING id",
        (SUPERSEDED, now, claim.work, sku),
    ).fetchall()
    return tuple(row[0] for row in rows)


def _write(
    connection: sqlite3.Connection, claim: Claim, identity: str, intent: Intent, now: float, *, revive: bool
) -> None:
    if revive:
        connection.execute(
            "UPDATE orders SET status = 'DRAFT', note = 'proposed again', generation = ?, epoch = ?,"
            " changed_at = ? WHERE id = ?",
            (claim.generation, claim.epoch, now, identity),
        )
        return
    connection.execute(
        "INSERT INTO orders (id, work, generation, epoch, target, sku, quantity, unit_cost_cents, currency,"
        " digest, status, proposed_at, changed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'DRAFT', ?, ?)",
        (
            identity,
            claim.work,
            claim.generation,
            claim.epoch,
            intent.target,
            intent.sku,
            intent.quantity,
            intent.unit_cost_cents,
            intent.currency,
            intent.digest,
            now,
            now,
        ),
    )
