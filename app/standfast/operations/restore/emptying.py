"""Taking the old state out first, so that the image is written once.

Copied over an old state, every page is written twice: into a log or a journal, so that a kill leaves the one
or the other, and into the file. Into a file that holds nothing it is written once. So the live store is first
replaced, in one commit, by a store of two pages that says what was to come and which backup holds the state
before. Every command refuses such a store, those of older releases too; only a restore goes on from it.
"""

import sqlite3
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path

from standfast.durable import create_empty
from standfast.store.migrations import EMPTIED_ID

_TABLE = "CREATE TABLE emptied (source TEXT NOT NULL, safety TEXT NOT NULL, epoch TEXT NOT NULL) STRICT"


@dataclass(frozen=True, slots=True)
class Emptied:
    """What an emptied store remembers."""

    source: str
    """The backup that was to be restored."""
    safety: str
    """The backup of the state that was taken out: the folder."""
    epoch: str
    """The era of that state."""


def make(folder: Path, told: Emptied, page_size: int) -> Path:
    """An emptied store in a private folder, to be copied into the live file."""
    path = folder / "emptied.sqlite"
    path.unlink(missing_ok=True)
    create_empty(path, 0o600)
    with closing(sqlite3.connect(path, autocommit=True)) as connection:
        connection.execute(f"PRAGMA page_size = {int(page_size)}")
        connection.execute(f"PRAGMA application_id = {EMPTIED_ID}")
        connection.execute(_TABLE)
        connection.execute("INSERT INTO emptied VALUES (?, ?, ?)", astuple(told))
    return path


def read(connection: sqlite3.Connection) -> Emptied:
    """What an emptied store says."""
    return Emptied(*connection.execute("SELECT source, safety, epoch FROM emptied").fetchone())
