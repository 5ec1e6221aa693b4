"""A past for a store: a million items of finished work in seconds, each with origin and delivered report.

Only the standard library, so that a host's own Python can read it from standard input:

    python3 -I - DATABASE ITEMS [BYTES [FIRST]] < script/lib/history.py     (the service stopped; its user)

BYTES: the length of each report's text, which decides how large the store becomes. FIRST: their first number,
for a store that has such a past already.
"""

from __future__ import annotations

import sqlite3
import sys

BODY = "Vanilla is two tubs under its point."
_PART = 50_000
"""Items of one transaction: its write-ahead log stays small."""

_STATEMENTS = (
    """
    WITH RECURSIVE n(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i < :last)
    INSERT INTO work (id, role, session, subject, prompt, status, owner, generation, epoch, claimed_at,
                      admitted_at, finished_at)
    SELECT printf('%024x', i), 'agent', 's' || (i % 1000), 'stock', 'Which product is low?', 'DONE',
           'history', 1, 'e', i, i, i FROM n
    """,
    """
    WITH RECURSIVE n(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i < :last)
    INSERT INTO origins SELECT 'history-' || i, printf('%024x', i), hex(i) FROM n
    """,
    """
    WITH RECURSIVE n(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i < :last)
    INSERT INTO reports (id, work, generation, body, delivery, created_at, delivered_at)
    SELECT printf('%024x', i), printf('%024x', i), 1, :body, 'sent', i, i FROM n
    """,
)


def fill(connection: sqlite3.Connection, items: int, body: str = BODY, first: int = 1) -> None:
    """Add so many finished items, numbered from `first`, to a store in autocommit mode."""
    end = first + items
    for number in range(first, end, _PART):
        values = {"first": number, "last": min(end, number + _PART) - 1, "body": body}
        connection.execute("BEGIN IMMEDIATE")
        for statement in _STATEMENTS:
            connection.execute(statement, values)
        connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def main(database: str, items: str, size: str = str(len(BODY)), first: str = "1") -> None:
    """Fill the store of that path."""
    body = (BODY * (int(size) // len(BODY) + 1))[: int(size)]
    connection = sqlite3.connect(f"file:{database}?mode=rw", uri=True, isolation_level=None, timeout=30)
    connection.execute("PRAGMA synchronous = FULL")
    fill(connection, int(items), body, int(first))
    connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
