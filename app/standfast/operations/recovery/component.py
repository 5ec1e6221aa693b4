"""The tables of recovery: which eras await one, what was restored, which plans were applied, what happened.

An era that was begun by a restore, an adoption or the amnesia check awaits the recovery of the account: no
other way leads out of its pause. An era that was merely paused does not await one, so that a restore that
failed half-way can only be restored again.
"""

import sqlite3

from standfast.store import Component

_ERAS = """
CREATE TABLE eras (
    epoch    TEXT PRIMARY KEY,
    began_at REAL NOT NULL
) STRICT, WITHOUT ROWID
"""
# A store that an earlier release paused at the end of an era awaits its recovery, too.
_ERAS_FIRST = "INSERT INTO eras SELECT epoch, changed_at FROM operations WHERE paused = 1"

_RESTORES = """
CREATE TABLE restores (
    epoch          TEXT PRIMARY KEY,
    source         TEXT NOT NULL,
    source_sha256  TEXT NOT NULL,
    snapshot_epoch TEXT NOT NULL,
    safety         TEXT,
    restored_at    REAL NOT NULL
) STRICT, WITHOUT ROWID
"""

_RECOVERIES = """
CREATE TABLE recoveries (
    digest       TEXT PRIMARY KEY,
    epoch        TEXT NOT NULL UNIQUE REFERENCES eras (epoch),
    plan         TEXT NOT NULL,
    operator     TEXT NOT NULL,
    recovered_at REAL NOT NULL,
    result       TEXT NOT NULL
) STRICT
"""

_EVENTS = """
CREATE TABLE operation_events (
    seq    INTEGER PRIMARY KEY,
    name   TEXT NOT NULL CHECK (name IN ('operations.restored', 'operations.recovered')),
    epoch  TEXT NOT NULL,
    detail TEXT NOT NULL,
    at     REAL NOT NULL
) STRICT
"""

_KEPT = tuple(
    f"CREATE TRIGGER {table}_{verb.lower()} BEFORE {verb} ON {table}"
    f" BEGIN SELECT RAISE(ABORT, '{table} are history'); END"
    for table in ("eras", "restores", "recoveries", "operation_events")
    for verb in ("UPDATE", "DELETE")
)


def _awaits_recovery(connection: sqlite3.Connection) -> None:
    """The new era is one that only a recovery lets go on."""
    connection.execute("INSERT INTO eras SELECT epoch, changed_at FROM operations WHERE id = 1")


COMPONENT = Component(
    name="recovery",
    migrations=((_ERAS, _ERAS_FIRST, _RESTORES, _RECOVERIES, _EVENTS, *_KEPT),),
    on_epoch_end=_awaits_recovery,
)
"""Comes after the authority component: its eras are those of the control row."""
