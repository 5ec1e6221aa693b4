"""The SQLite store: one way to open it, one way to write, forward migrations per component.

Nothing but SQLite ever opens the live database file: opening and closing it by other means drops the
POSIX locks that SQLite holds in the same process. No code copies, renames or replaces it; one that cannot be
read any more is moved aside by a restore, as evidence, when no process holds it.
"""

from standfast.store.connection import (
    BUSY_SECONDS,
    Store,
    Transaction,
    immediate,
    open_image,
    open_readonly,
    open_store,
)
from standfast.store.ids import new_id
from standfast.store.looking import look_at
from standfast.store.migrations import APPLICATION_ID, Component, end_epoch, reworded_check, schema_versions

__all__ = [
    "APPLICATION_ID",
    "BUSY_SECONDS",
    "Component",
    "Store",
    "Transaction",
    "end_epoch",
    "immediate",
    "look_at",
    "new_id",
    "open_image",
    "open_readonly",
    "open_store",
    "reworded_check",
    "schema_versions",
]
