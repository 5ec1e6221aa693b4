"""The shop's share of the store."""

from standfast.store import Component

COMPONENT = Component(
    name="shop",
    migrations=(
        (
            """
            CREATE TABLE stock_events (
                id     TEXT PRIMARY KEY,
                sku    TEXT NOT NULL,
                delta  INTEGER NOT NULL,
                reason TEXT NOT NULL,
                at     REAL NOT NULL
            ) STRICT, WITHOUT ROWID
            """,
            "CREATE INDEX stock_events_by_sku ON stock_events (sku, delta)",
            """
            CREATE TABLE episodes (
                id        TEXT PRIMARY KEY,
                sku       TEXT NOT NULL,
                work      TEXT NOT NULL REFERENCES work (id),
                opened_at REAL NOT NULL,
                closed_at REAL
            ) STRICT, WITHOUT ROWID
            """,
            "CREATE UNIQUE INDEX episodes_open ON episodes (sku) WHERE closed_at IS NULL",
            """
            CREATE TABLE skills (
                name    TEXT NOT NULL,
                version INTEGER NOT NULL CHECK (version > 0),
                text    TEXT NOT NULL,
                set_at  REAL NOT NULL,
                PRIMARY KEY (name, version)
            ) STRICT, WITHOUT ROWID
            """,
        ),
    ),
)
"""Comes after the work component: an episode refers to the work that it started."""
