"""Whether the present era awaits its recovery, and what was restored or recovered in it."""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from standfast.authority import Operations, operations, refuse_other_marker
from standfast.errors import Refused


@dataclass(frozen=True, slots=True)
class Restored:
    """A restore, as the restored store itself remembers it."""

    epoch: str
    """The era that it began."""
    source: str
    source_sha256: str
    snapshot_epoch: str
    """The era in which the backup was taken."""
    safety: str | None
    """The backup of the state that it replaced; None when that state was lost."""
    restored_at: float
    """Epoch seconds."""


def awaiting(connection: sqlite3.Connection, marker: Path) -> Operations:
    """The control row of an era that awaits its recovery.

    Raises Refused: ``not_paused``, ``not_awaiting_recovery`` (paused, but no era ended, or this one was
    recovered before), ``marker_disagrees``.
    """
    control = operations(connection)
    if not control.paused:
        raise Refused(
            "not_paused",
            "operations are not paused: there is nothing to recover",
            observed=f"epoch {control.epoch}, active: {control.reason}",
            remedy="an account is inspected and recovered only after a restore, an adoption or amnesia",
        )
    if not is_awaiting(connection, control.epoch):
        raise Refused(
            "not_awaiting_recovery",
            "operations are paused, but no era ended: no recovery ends this pause",
            observed=f"epoch {control.epoch}, paused: {control.reason}",
            remedy="a restore was cut short: restore again from the same backup",
        )
    refuse_other_marker(connection, marker)
    return control


def is_awaiting(connection: sqlite3.Connection, epoch: str) -> bool:
    """Whether the era began with an end of another and was not recovered yet."""
    query = (
        "SELECT 1 FROM eras WHERE epoch = ? AND NOT EXISTS"
        " (SELECT 1 FROM recoveries WHERE recoveries.epoch = eras.epoch)"
    )
    return connection.execute(query, (epoch,)).fetchone() is not None


def restored(connection: sqlite3.Connection, epoch: str) -> Restored | None:
    """The restore that began the era, or None."""
    row = connection.execute(
        "SELECT epoch, source, source_sha256, snapshot_epoch, safety, restored_at FROM restores"
        " WHERE epoch = ?",
        (epoch,),
    ).fetchone()
    return None if row is None else Restored(*row)


def record_restore(connection: sqlite3.Connection, made: Restored) -> None:
    """Inside the transaction that makes the restored image."""
    connection.execute(
        "INSERT INTO restores VALUES (?, ?, ?, ?, ?, ?)",
        (made.epoch, made.source, made.source_sha256, made.snapshot_epoch, made.safety, made.restored_at),
    )
    detail = {"source": made.source, "sha256": made.source_sha256, "safety": made.safety}
    record_event(connection, "operations.restored", made.epoch, detail, made.restored_at)


def record_event(
    connection: sqlite3.Connection, name: str, epoch: str, detail: Mapping[str, Any], now: float
) -> None:
    """Inside the caller's transaction: say that the era was restored or recovered."""
    connection.execute(
        "INSERT INTO operation_events (name, epoch, detail, at) VALUES (?, ?, ?, ?)",
        (name, epoch, json.dumps(detail, ensure_ascii=False, sort_keys=True), now),
    )
