"""Runs: each start of the service, so that finished work can say which process and release finished it."""

import sqlite3
from dataclasses import dataclass

from standfast.errors import Refused
from standfast.store import immediate, new_id


@dataclass(frozen=True)
class Run:
    """One start of the service."""

    id: str
    """24 hex digits."""
    release: str
    """The release id, or ``source``."""
    pid: int
    """The main process."""
    invocation: str
    """systemd's INVOCATION_ID; empty outside systemd."""
    started_at: float
    """Epoch seconds."""


def start_run(connection: sqlite3.Connection, *, release: str, pid: int, invocation: str, now: float) -> str:
    """Record a start of the service; returns the run's id."""
    run = new_id(now)
    with immediate(connection, "start_run"):
        connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?)", (run, release, pid, invocation, now))
    return run


def keep_run(connection: sqlite3.Connection, run: Run) -> None:
    """Record a run that goes on in a store that does not know it: one that was restored beside it."""
    with immediate(connection, "keep_run"):
        connection.execute(
            "INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?)",
            (run.id, run.release, run.pid, run.invocation, run.started_at),
        )


def show_run(connection: sqlite3.Connection, run: str) -> Run:
    """One run; raises Refused ``run_unknown``."""
    row = connection.execute(
        "SELECT id, release, pid, invocation, started_at FROM runs WHERE id = ?", (run,)
    ).fetchone()
    if row is None:
        raise Refused("run_unknown", f"there is no run {run}")
    return Run(*row)


def latest_run(connection: sqlite3.Connection) -> Run | None:
    """The run that was started last, or None before the first; ids begin with their time."""
    row = connection.execute(
        "SELECT id, release, pid, invocation, started_at FROM runs ORDER BY id DESC LIMIT 1"
    ).fetchone()
    return None if row is None else Run(*row)
