"""How commands open an instance: as its own user, with a store whose schema this code understands."""

import os
import pwd
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from standfast.errors import Refused
from standfast.layout import Layout
from standfast.operations.schema import COMPONENTS
from standfast.store import Store, open_readonly, open_store
from standfast.store.migrations import pending, refuse_newer


@contextmanager
def reading(layout: Layout) -> Iterator[Store]:
    """The store for reading only; refused unless its schema is the one this code understands."""
    refuse_other_user(layout)
    with closing(open_readonly(layout.database)) as connection:
        _refuse_other_schema(connection)
        yield connection


@contextmanager
def writing(layout: Layout) -> Iterator[Store]:
    """The store for writing; raising its schema is the business of `init` and `serve`, not of a command."""
    with reading(layout):
        pass
    with closing(open_store(layout.database, COMPONENTS)) as connection:
        yield connection


def refuse_other_user(layout: Layout) -> None:
    """Refused ``other_user`` unless this process runs as the owner of the state directory.

    Another user's files beside the store (root's, mostly) would lock the service out of it.
    """
    try:
        owner = layout.state.stat().st_uid
    except OSError as error:
        raise Refused(
            "state_absent",
            "there is no such state directory",
            observed=f"{layout.state}: {error.strerror}",
            remedy="name the right --state, or run `standfast init` as the service user",
        ) from error
    if owner != os.geteuid():
        raise Refused(
            "other_user",
            "the state directory belongs to another user",
            observed=f"{layout.state} is of {_name(owner)}, this is {_name(os.geteuid())}",
            remedy=f"run it as {_name(owner)}; on an installed host the instance's own command does",
        )


def _refuse_other_schema(connection: sqlite3.Connection) -> None:
    refuse_newer(connection, COMPONENTS)
    if pending(connection, COMPONENTS):
        raise Refused(
            "store_older",
            "the store was written by an older release and has not been brought forward yet",
            remedy="run `standfast init`, or start the service",
        )


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
