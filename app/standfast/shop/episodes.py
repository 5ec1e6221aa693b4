"""Low-stock episodes: one piece of work for each fall below the reorder point, however often it is looked at.

An episode opens when a product is low and closes when it is not; both follow from the stock alone, so a
service that was away sees what is true now.
"""

import sqlite3
from dataclasses import dataclass

from standfast.shop import prompts
from standfast.shop.config import ShopConfig
from standfast.shop.stock import Position, positions
from standfast.store import immediate, new_id
from standfast.work import Request, admit_within


@dataclass(frozen=True, slots=True)
class Change:
    """An episode that opened or closed."""

    sku: str
    episode: str
    work: str
    """The work that the episode started."""
    opened: bool
    """False: it closed."""


def watch(connection: sqlite3.Connection, config: ShopConfig, *, now: float) -> list[Change]:
    """Open and close episodes so that they agree with the stock; each opening and its work are one commit."""
    if not _differing(connection, config):
        return []
    with immediate(connection, "episodes"):
        changes = []
        for sku, position in _differing(connection, config).items():
            changes.append(
                _close(connection, sku, now) if position is None else _open(connection, position, now)
            )
        return changes


def _differing(connection: sqlite3.Connection, config: ShopConfig) -> dict[str, Position | None]:
    """What is low without an open episode (its position), and what has one without being low (None)."""
    low = {position.sku: position for position in positions(connection, config) if position.needed > 0}
    opened = {row[0] for row in connection.execute("SELECT sku FROM episodes WHERE closed_at IS NULL")}
    differing: dict[str, Position | None] = {
        sku: position for sku, position in low.items() if sku not in opened
    }
    differing.update(dict.fromkeys(sorted(opened - low.keys())))
    return differing


def _open(connection: sqlite3.Connection, position: Position, now: float) -> Change:
    episode = new_id(now)
    request = Request(
        origin=f"low-stock:{position.sku}:{episode}",
        session=f"low-stock:{position.sku}",
        prompt=prompts.low_stock(position.name),
        subject=position.sku,
    )
    work = admit_within(connection, request, now=now, limits=None).work
    connection.execute(
        "INSERT INTO episodes (id, sku, work, opened_at) VALUES (?, ?, ?, ?)",
        (episode, position.sku, work, now),
    )
    return Change(position.sku, episode, work, opened=True)


def _close(connection: sqlite3.Connection, sku: str, now: float) -> Change:
    row = connection.execute(
        "UPDATE episodes SET closed_at = ? WHERE sku = ? AND closed_at IS NULL RETURNING id, work",
        (now, sku),
    ).fetchone()
    return Change(sku, row[0], row[1], opened=False)
