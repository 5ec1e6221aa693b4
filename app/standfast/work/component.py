"""The tables of work; the work items themselves belong to authority."""

import sqlite3

from standfast.store import Component, reworded_check

_ORIGINS = """
CREATE TABLE origins (
    origin TEXT PRIMARY KEY,
    work   TEXT NOT NULL REFERENCES work (id),
    digest TEXT NOT NULL
) STRICT, WITHOUT ROWID
"""

_INTAKE_DAYS = """
CREATE TABLE intake_days (
    session  TEXT NOT NULL,
    day      TEXT NOT NULL,
    admitted INTEGER NOT NULL,
    PRIMARY KEY (session, day)
) STRICT, WITHOUT ROWID
"""

_RUNS = """
CREATE TABLE runs (
    id         TEXT PRIMARY KEY,
    release    TEXT NOT NULL,
    pid        INTEGER NOT NULL,
    invocation TEXT NOT NULL,
    started_at REAL NOT NULL
) STRICT, WITHOUT ROWID
"""

_TRANSCRIPT = """
CREATE TABLE transcript (
    seq        INTEGER PRIMARY KEY,
    work       TEXT NOT NULL REFERENCES work (id),
    generation INTEGER NOT NULL,
    message    TEXT NOT NULL,
    written_at REAL NOT NULL
) STRICT
"""

_REPORTS = """
CREATE TABLE reports (
    seq          INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    work         TEXT NOT NULL REFERENCES work (id),
    generation   INTEGER NOT NULL,
    body         TEXT NOT NULL,
    delivery     TEXT NOT NULL CHECK (delivery IN ('pending', 'sending', 'sent', 'unknown')),
    note         TEXT NOT NULL DEFAULT '',
    created_at   REAL NOT NULL,
    delivered_at REAL
) STRICT
"""

_SCHEDULES = """
CREATE TABLE schedules (
    name       TEXT PRIMARY KEY,
    every      INTEGER,
    cron       TEXT,
    zone       TEXT,
    role       TEXT NOT NULL,
    session    TEXT NOT NULL,
    subject    TEXT NOT NULL,
    prompt     TEXT NOT NULL,
    anchor     INTEGER NOT NULL,
    next_slot  INTEGER NOT NULL,
    created_at REAL NOT NULL,
    CHECK ((every IS NULL) <> (cron IS NULL)),
    CHECK ((cron IS NULL) = (zone IS NULL))
) STRICT, WITHOUT ROWID
"""

_SLOTS = """
CREATE TABLE slots (
    schedule    TEXT NOT NULL,
    slot        INTEGER NOT NULL,
    until       INTEGER NOT NULL,
    items       INTEGER,
    outcome     TEXT NOT NULL CHECK (outcome IN ('fired', 'skipped')),
    work        TEXT REFERENCES work (id),
    recorded_at REAL NOT NULL,
    PRIMARY KEY (schedule, slot),
    CHECK ((outcome = 'fired') = (work IS NOT NULL))
) STRICT, WITHOUT ROWID
"""

# A child's limits. It is open until the service has seen that it ended, so that looking stays cheap.
_DELEGATIONS = """
CREATE TABLE delegations (
    work        TEXT PRIMARY KEY REFERENCES work (id),
    generation  INTEGER NOT NULL,
    model_calls INTEGER NOT NULL,
    tool_calls  INTEGER NOT NULL,
    seconds     REAL NOT NULL,
    open        INTEGER NOT NULL DEFAULT 1 CHECK (open IN (0, 1))
) STRICT, WITHOUT ROWID
"""

# A report's id begins with its work's, so the index of the ids finds a work item's reports too: one page less
# in every ending. Reports from before have ids of their own; a new one is never in their index.
_REPORTS_OLDER = "CREATE INDEX reports_older ON reports (work) WHERE substr(id, 1, 24) <> work"


def _deliveries_become_unknown(connection: sqlite3.Connection) -> None:
    """Whether a report in flight arrived is not known in the new era."""
    connection.execute(
        "UPDATE reports SET delivery = 'unknown', note = 'in flight when the era ended'"
        " WHERE delivery = 'sending'"
    )


COMPONENT = Component(
    name="work",
    migrations=(
        (
            _ORIGINS,
            _INTAKE_DAYS,
            _RUNS,
            _TRANSCRIPT,
            "CREATE INDEX transcript_work ON transcript (work, seq)",
            _REPORTS,
            "CREATE INDEX reports_work ON reports (work)",
            "CREATE INDEX reports_open ON reports (delivery, seq) WHERE delivery <> 'sent'",
            _SCHEDULES,
            "CREATE INDEX schedules_due ON schedules (next_slot)",
            _SLOTS,
        ),
        (
            _DELEGATIONS,
            "CREATE INDEX delegations_open ON delegations (work) WHERE open = 1",
        ),
        (
            "DROP INDEX reports_work",
            _REPORTS_OLDER,
            *reworded_check("reports", "delivery", ("pending", "sending", "sent", "unknown")),
        ),
    ),
    on_epoch_end=_deliveries_become_unknown,
)
