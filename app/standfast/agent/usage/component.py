"""The tables of the usage account: every booked call, the sums of each day and era, and what is not known.

A call is booked with the most that it may use, and counts so until it is settled: a call whose end nobody saw
counts in full. The sums follow the calls by triggers, so they cannot come apart.
"""

import sqlite3

from standfast.store import Component

_CALLS = """
CREATE TABLE usage_calls (
    seq             INTEGER PRIMARY KEY,
    id              TEXT NOT NULL UNIQUE,
    work            TEXT NOT NULL REFERENCES work (id),
    generation      INTEGER NOT NULL,
    epoch           TEXT NOT NULL,
    day             TEXT NOT NULL,
    source          TEXT NOT NULL,
    outcome         TEXT NOT NULL CHECK (outcome IN ('booked', 'answered', 'refused', 'not sent', 'unclear')),
    input_tokens    INTEGER NOT NULL CHECK (input_tokens >= 0),
    cached_tokens   INTEGER NOT NULL CHECK (cached_tokens BETWEEN 0 AND input_tokens),
    output_tokens   INTEGER NOT NULL CHECK (output_tokens >= 0),
    cost_microcents INTEGER NOT NULL CHECK (cost_microcents >= 0),
    booked_at       REAL NOT NULL,
    settled_at      REAL,
    CHECK ((outcome = 'booked') = (settled_at IS NULL)),
    CHECK (outcome NOT IN ('refused', 'not sent')
           OR input_tokens + output_tokens + cost_microcents = 0)
) STRICT
"""

_DAYS = """
CREATE TABLE usage_days (
    day             TEXT NOT NULL,
    epoch           TEXT NOT NULL,
    calls           INTEGER NOT NULL,
    unknown_calls   INTEGER NOT NULL,
    input_tokens    INTEGER NOT NULL,
    cached_tokens   INTEGER NOT NULL,
    output_tokens   INTEGER NOT NULL,
    cost_microcents INTEGER NOT NULL,
    PRIMARY KEY (day, epoch)
) STRICT, WITHOUT ROWID
"""

# What the end of an era may have lost: a restored account knows nothing of what came after its snapshot.
# A figure that nobody stated is unknown, not zero.
_LOSSES = """
CREATE TABLE usage_losses (
    seq        INTEGER PRIMARY KEY,
    day        TEXT NOT NULL,
    since      REAL,
    marked_at  REAL NOT NULL,
    calls      INTEGER CHECK (calls >= 0),
    tokens     INTEGER CHECK (tokens >= 0),
    cents      INTEGER CHECK (cents >= 0),
    stated_at  REAL,
    CHECK (stated_at IS NOT NULL OR (calls IS NULL AND tokens IS NULL AND cents IS NULL))
) STRICT
"""

_STOPS = """
CREATE TABLE usage_stops (
    day      TEXT NOT NULL,
    ceiling  TEXT NOT NULL,
    times    INTEGER NOT NULL,
    first_at REAL NOT NULL,
    last_at  REAL NOT NULL,
    PRIMARY KEY (day, ceiling)
) STRICT, WITHOUT ROWID
"""

# What the service works with, so that other commands need neither its environment nor its files.
_SETUP = """
CREATE TABLE usage_setup (
    id           INTEGER PRIMARY KEY CHECK (id = 1),
    source       TEXT NOT NULL,
    daily_calls  INTEGER,
    daily_tokens INTEGER,
    daily_cents  INTEGER,
    work_cents   INTEGER,
    priced       INTEGER NOT NULL CHECK (priced IN (0, 1)),
    set_at       REAL NOT NULL
) STRICT
"""

_TRIGGERS = (
    """
    CREATE TRIGGER usage_calls_not_deleted BEFORE DELETE ON usage_calls
    BEGIN SELECT RAISE(ABORT, 'calls are history and are not deleted'); END
    """,
    """
    CREATE TRIGGER usage_calls_identity
    BEFORE UPDATE OF id, work, generation, epoch, day, source, booked_at ON usage_calls
    BEGIN SELECT RAISE(ABORT, 'which call it was never changes'); END
    """,
    """
    CREATE TRIGGER usage_calls_settled BEFORE UPDATE ON usage_calls WHEN OLD.outcome <> 'booked'
    BEGIN SELECT RAISE(ABORT, 'a call is settled once'); END
    """,
    """
    CREATE TRIGGER usage_calls_booked AFTER INSERT ON usage_calls
    BEGIN
        INSERT INTO usage_days VALUES (NEW.day, NEW.epoch, 1, 1, NEW.input_tokens, NEW.cached_tokens,
                                       NEW.output_tokens, NEW.cost_microcents)
        ON CONFLICT DO UPDATE SET calls = calls + 1, unknown_calls = unknown_calls + 1,
            input_tokens = input_tokens + NEW.input_tokens, cached_tokens = cached_tokens + NEW.cached_tokens,
            output_tokens = output_tokens + NEW.output_tokens,
            cost_microcents = cost_microcents + NEW.cost_microcents;
    END
    """,
    """
    CREATE TRIGGER usage_calls_counted AFTER UPDATE ON usage_calls
    BEGIN
        UPDATE usage_days SET
            calls = calls - (NEW.outcome = 'not sent'),
            unknown_calls = unknown_calls - (NEW.outcome <> 'unclear'),
            input_tokens = input_tokens + NEW.input_tokens - OLD.input_tokens,
            cached_tokens = cached_tokens + NEW.cached_tokens - OLD.cached_tokens,
            output_tokens = output_tokens + NEW.output_tokens - OLD.output_tokens,
            cost_microcents = cost_microcents + NEW.cost_microcents - OLD.cost_microcents
         WHERE day = NEW.day AND epoch = NEW.epoch;
    END
    """,
)


def _authority_ends(connection: sqlite3.Connection) -> None:
    """Mark that the account may miss calls: those after the snapshot that a restore has put back.

    Booked calls stay booked: what they used is not known, and they count in full.
    """
    connection.execute(
        "INSERT INTO usage_losses (day, since, marked_at)"
        " SELECT max(date(changed_at, 'unixepoch'), coalesce((SELECT max(day) FROM usage_days), ''),"
        "   coalesce((SELECT max(day) FROM usage_losses), '')),"  # the present day, as a booking sees it
        " (SELECT max(coalesce(settled_at, booked_at)) FROM usage_calls"
        "   WHERE seq = (SELECT max(seq) FROM usage_calls)), changed_at FROM operations WHERE id = 1"
    )


COMPONENT = Component(
    name="usage",
    migrations=(
        (
            _CALLS,
            "CREATE INDEX usage_calls_work ON usage_calls (work)",
            _DAYS,
            _LOSSES,
            "CREATE INDEX usage_losses_day ON usage_losses (day)",
            _STOPS,
            _SETUP,
            *_TRIGGERS,
        ),
    ),
    on_epoch_end=_authority_ends,
)
"""Comes after the work component: a call was made for work."""
