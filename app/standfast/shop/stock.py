"""Stock: events with their own identity, and the position of each product that follows from them."""

import re
import sqlite3
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from standfast import orders
from standfast.errors import BadInput, Refused
from standfast.shop.config import MAX_STOCK, ShopConfig
from standfast.store import immediate

_EVENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,99}")
MAX_REASON = 200


class Position(BaseModel):
    """How one product stands, in units."""

    model_config = ConfigDict(frozen=True)

    sku: str
    name: str
    on_hand: int
    on_order: int
    """Confirmed by the supplier and not yet delivered."""
    reorder_point: int
    needed: int
    """``max(0, reorder_point - on_hand - on_order)``; above 0 the product is low."""
    unit_cost_cents: int


@dataclass(frozen=True, slots=True)
class StockEvent:
    """One change of stock. Its identity is the id; its content is sku, delta and reason."""

    id: str
    sku: str
    delta: int
    """Units: positive came in, negative went out."""
    reason: str


def positions(connection: sqlite3.Connection, config: ShopConfig) -> list[Position]:
    """Every product of the catalogue, in its order."""
    present, on_order = on_hand(connection), orders.on_order(connection)
    return [
        Position(
            sku=product.sku,
            name=product.name,
            on_hand=present.get(product.sku, 0),
            on_order=on_order.get(product.sku, 0),
            reorder_point=product.reorder_point,
            needed=max(
                0,
                product.reorder_point - present.get(product.sku, 0) - on_order.get(product.sku, 0),
            ),
            unit_cost_cents=product.unit_cost_cents,
        )
        for product in config.product
    ]


def on_hand(connection: sqlite3.Connection) -> dict[str, int]:
    """Units by sku, of every product that ever had a stock event."""
    return dict(connection.execute("SELECT sku, sum(delta) FROM stock_events GROUP BY sku").fetchall())


def adjust(
    connection: sqlite3.Connection, config: ShopConfig, event: StockEvent, *, now: float, check: bool = False
) -> bool:
    """Record one stock event; False when this very event was recorded before.

    Raises BadInput for a malformed event, and Refused: ``sku_unknown``, ``event_differs`` (the id was used
    for another change) or ``stock_out_of_range``. With ``check`` nothing is written.
    """
    _validate(event)
    if config.find(event.sku) is None:
        raise Refused(
            "sku_unknown",
            f"the catalogue has no product {event.sku!r}",
            observed=f"products: {', '.join(product.sku for product in config.product)}",
            remedy="use a sku of shop.toml, or add the product there first",
        )
    if check:
        return _is_new(connection, event)
    with immediate(connection, "stock"):
        new = _is_new(connection, event)
        if new:
            insert(connection, event, now=now)
    return new


def insert(connection: sqlite3.Connection, event: StockEvent, *, now: float) -> None:
    """Write one new event inside the caller's transaction."""
    connection.execute(
        "INSERT INTO stock_events (id, sku, delta, reason, at) VALUES (?, ?, ?, ?, ?)",
        (event.id, event.sku, event.delta, event.reason, now),
    )


def receive(connection: sqlite3.Connection, order: orders.Order, now: float) -> None:
    """Put a delivered order's units into the stock, inside the caller's transaction.

    The event's identity is the order's own, so that no delivery counts twice. Raises Refused as ``adjust``.
    """
    event = StockEvent(f"delivery:{order.id}", order.sku, order.quantity, "delivery of an order")
    if _is_new(connection, event):
        insert(connection, event, now=now)


def opening_events(connection: sqlite3.Connection, config: ShopConfig) -> list[StockEvent]:
    """The opening events of products that have none yet. A later edit of opening_stock changes nothing."""
    present = {row[0] for row in connection.execute("SELECT id FROM stock_events WHERE id LIKE 'opening:%'")}
    return [
        StockEvent(f"opening:{product.sku}", product.sku, product.opening_stock, "opening stock")
        for product in config.product
        if f"opening:{product.sku}" not in present
    ]


def _validate(event: StockEvent) -> None:
    if not _EVENT_ID.fullmatch(event.id):
        raise BadInput("event id: 1 to 100 of letters, digits and : . _ -, beginning with a letter or digit")
    for prefix, owner in (("opening:", "init"), ("delivery:", "order deliver"), ("recovery:", "recover")):
        if event.id.startswith(prefix):
            raise BadInput(f"event id: the prefix {prefix} belongs to `standfast {owner}`")
    if not event.delta or abs(event.delta) > MAX_STOCK:
        raise BadInput(f"delta: a whole number other than 0, within {MAX_STOCK} either way")
    if not event.reason.strip() or not event.reason.isprintable() or len(event.reason) > MAX_REASON:
        raise BadInput(f"reason: one line of 1 to {MAX_REASON} printable characters")


def _is_new(connection: sqlite3.Connection, event: StockEvent) -> bool:
    """Whether the event is still to be written; Refused when it must not be."""
    row = connection.execute(
        "SELECT sku, delta, reason FROM stock_events WHERE id = ?", (event.id,)
    ).fetchone()
    if row is not None:
        if tuple(row) == (event.sku, event.delta, event.reason):
            return False
        raise Refused(
            "event_differs",
            f"the event id {event.id} was used for another change",
            observed=f"recorded: {row[0]} {row[1]:+d}, {row[2]!r}",
            remedy="repeat the recorded change exactly, or give this one an id of its own",
        )
    on_hand = connection.execute(
        "SELECT coalesce(sum(delta), 0) FROM stock_events WHERE sku = ?", (event.sku,)
    ).fetchone()[0]
    if not 0 <= on_hand + event.delta <= MAX_STOCK:
        raise Refused(
            "stock_out_of_range",
            f"{event.sku} cannot have {on_hand + event.delta} on hand",
            observed=f"{on_hand} on hand, change {event.delta:+d}",
            remedy="count again; `standfast stock` shows what is recorded",
        )
    return True
