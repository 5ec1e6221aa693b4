"""The target's migrations, tried on a copy of the live store.

The copy lies below `backups/`, where the space and the privacy are those of a backup; it is gone afterwards,
and what a killed preflight left of it is removed by the next.
"""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from standfast.durable import create_empty
from standfast.errors import Refused, StandfastError, no_space
from standfast.layout import Layout
from standfast.operations import schema
from standfast.operations.backup import folders, meaning, snapshot
from standfast.operations.backup.folders import FILE_MODE
from standfast.operations.backup.limits import Guard, Limits, cancelable, refuse_little_space
from standfast.operations.preflight.result import Rehearsal
from standfast.operations.preflight.seen import StoreFacts, read_store
from standfast.operations.upgrade import facts
from standfast.operations.upgrade.facts import Facts
from standfast.store import Store, look_at, open_store, triggers

SCRATCH = "preflight"
"""Below the instance's backups."""
_BOOKKEEPING = frozenset({"meta"})
"""Tables whose rows a migration may change in number: a new component is a row of its own."""


def rehearse(layout: Layout, now: float, limits: Limits | None = None) -> tuple[Rehearsal, StoreFacts | None]:
    """Try the migrations; also what the target reads in the store that they make, None when they fail.

    Raises Refused: `canceled`, `backups_*`, `backup_no_space`, `backup_deadline`, `backup_wal`,
    `rehearsal_running`, and as `store.look_at`.
    """
    limits = limits or Limits()
    home = folders.backups_folder(layout)
    refuse_little_space(home, 2 * look_at(layout.database, snapshot.size_of_copy) + limits.floor)
    with folders.scratch(home, SCRATCH) as folder:
        copy = folder / layout.database.name
        began = time.monotonic()
        _copy(layout, copy, limits)
        triggers.reach("preflight.copied")
        return _migrated(layout, copy, time.monotonic() - began, now)


def _copy(layout: Layout, copy: Path, limits: Limits) -> None:
    with cancelable() as canceled:
        guard = Guard(limits, live=layout.database, target=copy.parent, canceled=canceled)

        def into(source: Store) -> None:
            copy.unlink(missing_ok=True)  # of a look that counted for nothing
            create_empty(copy, FILE_MODE)
            snapshot.copy_database(source, copy, guard)

        look_at(layout.database, into)
        guard.check()  # also of what was asked during the last step


def _migrated(layout: Layout, copy: Path, copied: float, now: float) -> tuple[Rehearsal, StoreFacts | None]:
    with snapshot.sealed(copy) as untouched:
        before, rows = facts.read(untouched, now).facts, meaning.rows(untouched)
    tried = Rehearsal(
        ok=False,
        bytes=copy.stat().st_size,
        copy_seconds=round(copied, 3),
        seconds=0.0,
        rows=sum(rows.values()),
        facts_before=before.digest,
        facts_after=None,
        problems=[],
    )
    began = time.monotonic()
    try:
        store = open_store(copy, schema.COMPONENTS)  # opening it brings it forward, all of it or nothing
    except (StandfastError, sqlite3.Error) as error:
        if no_space(error):
            raise  # no word against the migrations
        why = [line for line in ([error.observed] if isinstance(error, Refused) else []) if line]
        told = f"the migrations failed and were undone: {error}" + "".join(f" ({line})" for line in why)
        return tried.model_copy(update={"seconds": _since(began), "problems": [told]}), None
    with closing(store):
        seconds = _since(began)
        triggers.reach("preflight.migrated")
        after = facts.read(store, now).facts
        problems = changed(before, rows, after, store)
        found = {"ok": not problems, "seconds": seconds, "facts_after": after.digest, "problems": problems}
        return tried.model_copy(update=found), read_store(store, layout, now)


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)


def changed(before: Facts, rows: dict[str, int], after: Facts, store: sqlite3.Connection) -> list[str]:
    """What a migration may not do and did: a business fact, a number of rows, a reference, a damaged page."""
    now = meaning.rows(store)
    counts = [
        f"{table}: {count} rows before, {now.get(table, 'no table')} after"
        for table, count in rows.items()
        if table not in _BOOKKEEPING and now.get(table) != count
    ]
    return [
        *facts.differences(before, after),
        *counts,
        *snapshot.dangling(store),
        *snapshot.damage(store),
    ]
