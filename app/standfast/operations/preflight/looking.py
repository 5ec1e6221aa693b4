"""All the checks, in the order in which they are told."""

import sqlite3
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from standfast.errors import Refused, StandfastError, no_space
from standfast.layout import Layout
from standfast.operations.opening import refuse_other_user
from standfast.operations.preflight import files, host, release, store
from standfast.operations.preflight.rehearsing import rehearse
from standfast.operations.preflight.result import Check, Preflight, Rehearsal, worst
from standfast.operations.preflight.seen import (
    Configured,
    Found,
    Places,
    Request,
    Seen,
    StoreFacts,
    read_store,
)
from standfast.operations.schema import understood
from standfast.operations.verdicts import read_record
from standfast.release.installed import InstalledRelease, installed_at
from standfast.store import look_at, schema_versions

type Plain = Callable[[Seen], Found]
type OfStore = Callable[[Seen, StoreFacts], Found]

BEFORE: tuple[Plain, ...] = (
    release.target_proven,
    release.python,
    release.sqlite,
    release.authority_contract,
    release.rollback_floor,
    host.unfinished,
    host.deploy_lock,
    host.file_system,
    host.disk,
    host.backups_folder,
    host.lingering,
    host.user_manager,
    host.manager_stop,
    host.journal,
    files.identity,
    files.ownership,
    files.unit,
    files.environment_file,
    files.shop,
    files.settings,
)
"""What needs no look into the store."""
OF_STORE: tuple[OfStore, ...] = (
    store.marker,
    store.not_paused,
    store.recovery,
    store.service,
    store.running_work,
    store.uncertain_orders,
    store.uncertain_reports,
    store.rehearsed_backup,
    store.clock,
    store.health,
)
"""A new check is a function in its module, and a line in one of these."""


def preflight(
    layout: Layout, request: Request, configured: Configured, places: Places | None = None
) -> Preflight:
    """What an upgrade to the release that runs this would meet. Nothing of the state directory changes.

    Raises Refused: `state_absent`, `other_user`, `release_elsewhere`, `record_unreadable`, `canceled`.
    """
    refuse_other_user(layout)
    seen, problem = _seen(layout, request, configured, places or Places())
    checks = [_checked(check.__name__, lambda check=check: check(seen)) for check in BEFORE]  # type: ignore[misc]
    tried, facts = None, None
    if problem is not None:
        checks.append(problem)
    else:
        checks.append(_checked("schema", lambda: store.schema(seen)))
        tried, facts, more = _look(seen)
        checks += more
    if facts is not None:
        known = facts
        checks += [_checked(check.__name__, lambda check=check: check(seen, known)) for check in OF_STORE]  # type: ignore[misc]
    outcome = worst(checks)
    return Preflight(
        ok=outcome == "pass",
        outcome=outcome,
        target=seen.folder.name,
        current=layout.current.resolve().name if layout.current.is_symlink() else None,
        checks=checks,
        migrations=store.migrations(seen),
        rehearsal=tried,
    )


def _seen(
    layout: Layout, request: Request, configured: Configured, places: Places
) -> tuple[Seen, Check | None]:
    own = running_folder()
    folder = request.folder or own
    if folder.resolve() != own.resolve():
        raise Refused(
            "release_elsewhere",
            "a release looks with its own code",
            observed=f"this is {own}, asked about {folder}",
            remedy=f"run {folder}/venv/bin/python -I -m standfast preflight",
        )
    target, current = installed_at(folder), _installed(layout)
    schema: Mapping[str, int] = {}
    problem = None
    try:
        schema = look_at(layout.database, schema_versions)
    except (StandfastError, sqlite3.Error, OSError) as error:
        problem = _refused("store", error)
    seen = Seen(
        layout=layout,
        request=request,
        configured=configured,
        now=time.time(),
        folder=folder,
        manifest=target.manifest,
        seal=target.seal,
        current=current.manifest if current else None,
        record=read_record(layout, request.record),
        schema=schema,
        places=places,
    )
    return seen, problem


def running_folder() -> Path:
    """The folder of the release that runs this; outside a release, the one that would be."""
    return Path(sys.prefix).resolve().parent


def _installed(layout: Layout) -> InstalledRelease | None:
    """What the link `current` leads to."""
    return installed_at(layout.current.resolve()) if layout.current.is_symlink() else None


def _look(seen: Seen) -> tuple[Rehearsal | None, StoreFacts | None, list[Check]]:
    """What is in the store, in the one that the migrations would make where any are needed."""
    layout, now = seen.layout, seen.now
    try:
        if store.migrations(seen):
            tried, facts = rehearse(layout, now)
            return tried, facts, [_check("migration", store.migration(tried))]
        if dict(seen.schema) != understood():
            return None, None, []
        facts = look_at(layout.database, lambda connection: read_store(connection, layout, now))
    except (StandfastError, sqlite3.Error, OSError) as error:
        if isinstance(error, Refused) and error.code == "canceled":
            raise
        return None, None, [_refused("migration" if store.migrations(seen) else "store", error)]
    return None, facts, [_check("migration", store.migration(None))]


def _checked(name: str, look: Callable[[], Found]) -> Check:
    """One row; what cannot be looked at is refused, because nobody knows."""
    try:
        return _check(name, look())
    except (StandfastError, OSError) as error:
        return _refused(name, error)


def _check(name: str, found: Found) -> Check:
    return Check(name=name, outcome=found.outcome, observed=found.observed, remedy=found.remedy)


def _refused(name: str, error: Exception) -> Check:
    told, remedy = str(error) or type(error).__name__, "see why it cannot be looked at, and look again"
    if no_space(error):
        told = f"there is no room on the disk: {told}"
        remedy = "make room (runbooks/service-down.md, `Act: disk full`), and look again"
    elif isinstance(error, Refused):
        told, remedy = ": ".join(line for line in (error.reason, error.seen) if line), error.remedy
    return Check(name=name, outcome="refuse", observed=told, remedy=remedy)
