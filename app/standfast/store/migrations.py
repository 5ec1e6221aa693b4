"""Schema versions: one number per component, raised by forward migrations only.

Every pending migration of every component runs statement by statement inside one transaction, together
with the new version numbers: all of it happens, or none of it.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from standfast.errors import Refused
from standfast.store import triggers

APPLICATION_ID = 0x53464153
"""``SFAS`` in the database header: this file is a Standfast store."""

_META = """
CREATE TABLE meta (
    component TEXT PRIMARY KEY,
    version   INTEGER NOT NULL CHECK (version > 0)
) STRICT, WITHOUT ROWID
"""


def _nothing(_connection: sqlite3.Connection) -> None:
    """A component that holds nothing which the end of an era concerns."""


@dataclass(frozen=True)
class Component:
    """One package's share of the store.

    ``migrations[n]`` holds the statements that lead from version n to n + 1. ``on_epoch_end`` is called by
    ``authority.replace`` inside its transaction, after the new epoch is written and work is READY again.
    """

    name: str
    migrations: tuple[tuple[str, ...], ...]
    on_epoch_end: Callable[[sqlite3.Connection], None] = _nothing

    @property
    def version(self) -> int:
        """The schema version that this code understands."""
        return len(self.migrations)


def reworded_check(table: str, column: str, values: Sequence[str]) -> tuple[str, ...]:
    """The steps of a migration that say ``CHECK (column IN (values))`` with OR; it admits what it did before.

    For a list SQLite builds a table in memory whenever it checks; comparing takes a tenth of the time. The
    text of a constraint is no part of any row, so writing the schema is the documented way to change it.
    """
    before = f"{column} IN ({', '.join(f"''{value}''" for value in values)})"
    after = " OR ".join(f"{column} = ''{value}''" for value in values)
    change = f"sql = replace(sql, '{before}', '{after}') WHERE type = 'table' AND name = '{table}'"
    return (
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_schema SET {change}",  # noqa: S608 - nothing of it is input
        "PRAGMA writable_schema = RESET",
    )


def schema_versions(connection: sqlite3.Connection) -> dict[str, int]:
    """The version of every component in the store; empty for a new file."""
    if not connection.execute(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'meta'"
    ).fetchone():
        return {}
    return dict(connection.execute("SELECT component, version FROM meta ORDER BY component").fetchall())


def refuse_foreign(connection: sqlite3.Connection, *, create: bool) -> None:
    """Raise Refused ``store_foreign`` or ``store_absent`` unless this is our store, or empty."""
    # The tables first: another process may be filling a new file, and commits them together with the id.
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application == APPLICATION_ID:
        return
    if application or tables:
        raise Refused(
            "store_foreign",
            "the file is another application's database",
            observed=f"application_id {application:#x}, {tables} schema entries",
            remedy="name the right --state; the file was left alone",
        )
    if not create:
        raise Refused(
            "store_absent",
            "the store is empty",
            observed="a database without tables",
            remedy="run `standfast init` as the service user",
        )


def refuse_newer(connection: sqlite3.Connection, components: Sequence[Component]) -> None:
    """Raise Refused ``store_newer`` when a component is newer than this code, or unknown to it."""
    understood = {component.name: component.version for component in components}
    newer = [
        f"{name} {version} (this release understands {understood.get(name, 'none')})"
        for name, version in schema_versions(connection).items()
        if version > understood.get(name, 0)
    ]
    if newer:
        raise Refused(
            "store_newer",
            "the store was written by a newer release",
            observed=newer,
            remedy="install the release that wrote it, or a later one; the store was left alone",
        )


def pending(connection: sqlite3.Connection, components: Sequence[Component]) -> bool:
    """Whether any component's migrations are still to be run."""
    present = schema_versions(connection)
    return any(present.get(component.name, 0) < component.version for component in components)


def apply_migrations(connection: sqlite3.Connection, components: Sequence[Component]) -> None:
    """Run what is pending, inside the caller's transaction."""
    present = schema_versions(connection)
    if not present:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        _run(connection, _META)
    for component in components:
        for steps in component.migrations[present.get(component.name, 0) :]:
            for statement in steps:
                _run(connection, statement)
        connection.execute(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET version = excluded.version",
            (component.name, component.version),
        )
    broken = connection.execute("PRAGMA foreign_key_check").fetchone()
    if broken is not None:
        raise Refused(
            "store_damaged",
            "the store holds a reference to a row that is not there",
            observed=f"table {broken[0]}, row {broken[1]}, refers to {broken[2]}",
            remedy="restore a backup, or keep the present release; the store was left alone",
        )


def end_epoch(connection: sqlite3.Connection, components: Sequence[Component]) -> None:
    """Let every component do what it does at the end of an era, inside the caller's transaction.

    Raises Refused ``component_missing`` when the store holds a component that the caller did not bring: its
    authority would outlive the era.
    """
    missing = schema_versions(connection).keys() - {component.name for component in components}
    if missing:
        raise Refused(
            "component_missing",
            "an era can only be ended by code that knows every component of the store",
            observed=sorted(missing),
            remedy="use the installed release's own command",
        )
    for component in components:
        component.on_epoch_end(connection)


def _run(connection: sqlite3.Connection, statement: str) -> None:
    connection.execute(statement)
    triggers.reach("migrate.statement")
