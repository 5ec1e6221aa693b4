"""The tables of channels: what came in, what was answered, refused deliveries, and how the channel stands."""

import sqlite3

from standfast.store import Component

# One row for each update that counted: its effect, its reply and this row are one transaction.
_UPDATES = """
CREATE TABLE channel_updates (
    seq         INTEGER PRIMARY KEY,
    source      TEXT NOT NULL,
    update_id   INTEGER NOT NULL,
    sender      INTEGER NOT NULL,
    operator    TEXT,
    chat        INTEGER NOT NULL,
    kind        TEXT NOT NULL CHECK (kind IN ('decision', 'look', 'question', 'stranger')),
    command     TEXT NOT NULL,
    outcome     TEXT NOT NULL,
    work        TEXT REFERENCES work (id),
    reply       TEXT,
    delivery    TEXT CHECK (delivery IN ('pending', 'sending', 'sent', 'unknown', 'refused')),
    note        TEXT NOT NULL DEFAULT '',
    received_at REAL NOT NULL,
    UNIQUE (source, update_id),
    CHECK ((reply IS NULL) = (delivery IS NULL)),
    CHECK (operator IS NOT NULL OR (work IS NULL AND reply IS NULL))
) STRICT
"""

# IS NOT NULL is what SQLite can prove of a comparison; it would not look at an index of named values.
_REPLIES_INDEX = "CREATE INDEX channel_replies ON channel_updates (delivery, seq) WHERE delivery IS NOT NULL"

# The present window of each sender and kind; all strangers together are sender 0.
_INTAKE = """
CREATE TABLE channel_intake (
    sender INTEGER NOT NULL,
    kind   TEXT NOT NULL,
    window INTEGER NOT NULL,
    taken  INTEGER NOT NULL,
    PRIMARY KEY (sender, kind)
) STRICT, WITHOUT ROWID
"""

# Reports that the channel refused for certain. No next time: held, until an operator or a new start says so.
_REFUSALS = """
CREATE TABLE channel_refusals (
    report  TEXT PRIMARY KEY REFERENCES reports (id),
    refused INTEGER NOT NULL,
    next_at REAL
) STRICT, WITHOUT ROWID
"""

_STANDING = """
CREATE TABLE channel_standing (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    kind    TEXT NOT NULL,
    problem TEXT NOT NULL,
    since   REAL NOT NULL
) STRICT
"""


def _what_waited_becomes_unknown(connection: sqlite3.Connection) -> None:
    """What the old era had to say may have been said since this state was written: it may be a copy.

    An answer of the old era is not given in the new one. A report that waited for another channel than the
    outbox may have left already, and there it would arrive twice.
    """
    connection.execute(
        "UPDATE reports SET delivery = 'unknown', note = 'waited when the era ended; may have left since'"
        " WHERE delivery <> 'sent' AND delivery = 'pending'"
        " AND (SELECT kind FROM channel_standing) <> 'outbox'"
    )
    connection.execute("DELETE FROM channel_refusals")
    connection.execute(
        "UPDATE channel_updates SET delivery = 'unknown', note = 'not settled when the era ended'"
        " WHERE delivery IN ('pending', 'sending')"
    )


COMPONENT = Component(
    name="channel",
    migrations=(
        (
            _UPDATES,
            _REPLIES_INDEX,
            "CREATE INDEX channel_work ON channel_updates (work) WHERE work IS NOT NULL",
            _INTAKE,
            _REFUSALS,
            _STANDING,
        ),
    ),
    on_epoch_end=_what_waited_becomes_unknown,
)
"""Comes after the work component: a question is work."""
