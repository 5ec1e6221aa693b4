"""What a snapshot says in numbers: rows by table, and the business totals that a person knows by heart."""

import sqlite3

from standfast.operations.backup.manifest import Totals


def rows(connection: sqlite3.Connection) -> dict[str, int]:
    """How many rows every table has."""
    names = [name for name in tables(connection) if not name.startswith("sqlite_")]
    return {name: _number(connection, f"SELECT count(*) FROM {_quoted(name)}") for name in names}  # noqa: S608 - quoted


def totals(connection: sqlite3.Connection) -> Totals:
    """Orders by status, units on hand by sku, and money. A table that an older schema lacks counts nothing.

    These columns are part of every schema since version 1; an older store is backed up before it is migrated.
    """
    present = set(tables(connection))
    orders, stock = "orders" in present, "stock_events" in present
    return Totals(
        orders=_pairs(connection, "SELECT status, count(*) FROM orders GROUP BY 1") if orders else {},
        stock=_pairs(connection, "SELECT sku, sum(delta) FROM stock_events GROUP BY 1") if stock else {},
        spent_cents=_number(connection, "SELECT coalesce(sum(spent_cents), 0) FROM orders") if orders else 0,
        reserved_cents=(
            _number(connection, "SELECT coalesce(sum(reserved_cents), 0) FROM orders") if orders else 0
        ),
    )


def tables(connection: sqlite3.Connection) -> list[str]:
    """The names of the tables that there are, sorted."""
    found = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
    return [str(name) for (name,) in found]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _pairs(connection: sqlite3.Connection, query: str) -> dict[str, int]:
    return {str(name): int(number) for name, number in connection.execute(query + " ORDER BY 1")}


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])
