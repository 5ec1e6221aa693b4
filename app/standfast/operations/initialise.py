"""``standfast init``: everything an instance needs before its first work, safe to repeat.

It adds what is missing and repairs nothing: when store and marker do not tell the same story, somebody has
to look first.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from pydantic import BaseModel

from standfast.authority import (
    host_identity,
    initialise,
    operations,
    refuse_other_host,
    refuse_other_marker,
)
from standfast.authority import marker as markers
from standfast.durable import create_file
from standfast.errors import Refused
from standfast.layout import Layout
from standfast.operations.configuration import shop_config
from standfast.operations.opening import refuse_other_user
from standfast.operations.schema import COMPONENTS, understood
from standfast.shop import config, skills, stock
from standfast.shop.config import ShopConfig
from standfast.shop.prompts import DEFAULT_SKILL, MORNING_BRIEF
from standfast.store import Store, immediate, open_readonly, open_store, schema_versions
from standfast.store.migrations import refuse_newer
from standfast.work import Schedule, add_schedule, list_schedules, remove_schedule

SCHEDULE = "morning-brief"
"""The schedule that belongs to ``[brief]`` in shop.toml: init makes it agree with the file."""


class Initialised(BaseModel):
    """What ``init`` did, or with ``--check`` would do."""

    changed: bool
    check: bool
    state: str
    epoch: str | None
    """The present era; null when a check found no store."""
    done: list[str]
    """One line for each thing that was (or would be) made or changed."""


def initialise_instance(layout: Layout, *, now: float, check: bool = False) -> Initialised:
    """Make the instance's state, or complete it.

    Raises BadInput for an invalid shop.toml; Refused: ``store_missing`` (a marker without a store),
    ``marker_disagrees``, ``other_host``, ``other_user``, and what opening the store refuses, all with
    nothing changed.
    """
    host = host_identity()
    if layout.state.exists():
        refuse_other_user(layout)
    shop = shop_config(layout) if layout.shop.exists() else config.parse(config.sample())
    _refuse_disagreement(layout, host)
    return _foresee(layout, shop) if check else _complete(layout, shop, now=now, host=host)


def _refuse_disagreement(layout: Layout, host: str) -> None:
    refuse_other_host(layout.marker, host)
    with _existing(layout) as connection:
        if connection is None:
            if markers.read(layout.marker) is not None:
                raise Refused(
                    "store_missing",
                    "there is an authority marker and no store beside it: a store was here before",
                    observed=f"{layout.marker} is there, {layout.database} is not, or is empty",
                    remedy="restore a backup; remove the marker only to begin a new, empty business",
                )
            return
        refuse_newer(connection, COMPONENTS)
        if _has_era(connection):
            refuse_other_marker(connection, layout.marker)


@contextmanager
def _existing(layout: Layout) -> Iterator[Store | None]:
    """The store for reading; None when there is none yet, or only what an init cut short left of it."""
    try:
        connection = open_readonly(layout.database)
    except Refused as error:
        unopened = error.__cause__ is not None  # a file that is there, and that SQLite could not open
        if error.code != "store_absent" or (unopened and layout.database.exists()):
            raise
        yield None
        return
    with closing(connection):
        yield connection


def _has_era(connection: sqlite3.Connection) -> bool:
    if "authority" not in schema_versions(connection):
        return False
    return connection.execute("SELECT 1 FROM operations").fetchone() is not None


def _foresee(layout: Layout, shop: ShopConfig) -> Initialised:
    done = [] if layout.shop.exists() else [_sample_line(layout)]
    with _existing(layout) as connection:
        if connection is None:
            done.append("store and marker: made")
            return Initialised(changed=True, check=True, state=str(layout.state), epoch=None, done=done)
        raised = _raised(schema_versions(connection))
        done += raised
        # Before the schema is raised its tables may not be there to ask; what is missing is seen afterwards.
        if not raised:
            done += [_opening_line(event) for event in stock.opening_events(connection, shop)]
            done += [] if skills.current(connection) else ["skill opening: set"]
            done += _schedule_lines(_present(connection), shop)
        era = _has_era(connection)
        done += [] if era else ["marker: made"]
        epoch = operations(connection).epoch if era else None
    return Initialised(changed=bool(done), check=True, state=str(layout.state), epoch=epoch, done=done)


def _complete(layout: Layout, shop: ShopConfig, *, now: float, host: str) -> Initialised:
    done = []
    layout.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not layout.shop.exists():
        create_file(layout.shop, config.sample().encode(), 0o600)
        done.append(_sample_line(layout))
    with _existing(layout) as existing:
        before = None if existing is None else schema_versions(existing)
    with closing(open_store(layout.database, COMPONENTS, create=True)) as connection:
        done += ["store: made"] if before is None else _raised(before)
        # The era comes last: nothing can be claimed before it begins, so no work sees half of this.
        done += _shop(connection, shop, now)
        done += _schedule(connection, shop, now)
        if initialise(connection, layout, now, host):
            done.append("marker: made")
        epoch = operations(connection).epoch
    return Initialised(changed=bool(done), check=False, state=str(layout.state), epoch=epoch, done=done)


def _raised(before: dict[str, int]) -> list[str]:
    return [
        f"schema {name}: raised from {before.get(name, 0)} to {version}"
        for name, version in understood().items()
        if before.get(name, 0) < version
    ]


def _shop(connection: Store, shop: ShopConfig, now: float) -> list[str]:
    if not stock.opening_events(connection, shop) and skills.current(connection):
        return []
    done = []
    with immediate(connection, "init"):
        for event in stock.opening_events(connection, shop):
            stock.insert(connection, event, now=now)
            done.append(_opening_line(event))
        if skills.current(connection) is None:
            skills.insert(connection, DEFAULT_SKILL, version=1, now=now)
            done.append("skill opening: set")
    return done


def _schedule(connection: Store, shop: ShopConfig, now: float) -> list[str]:
    done = _schedule_lines(_present(connection), shop)
    if done and shop.brief is None:
        remove_schedule(connection, SCHEDULE)
    elif done and shop.brief is not None:
        add_schedule(
            connection,
            name=SCHEDULE,
            prompt=MORNING_BRIEF,
            cron=shop.brief.cron,
            zone=shop.brief.zone,
            replacing=True,
            now=now,
        )
    return done


def _present(connection: sqlite3.Connection) -> Schedule | None:
    return next((one for one in list_schedules(connection) if one.name == SCHEDULE), None)


def _schedule_lines(present: Schedule | None, shop: ShopConfig) -> list[str]:
    """What it takes to make the schedule agree with the file; empty when it does."""
    if shop.brief is None:
        return [f"schedule {SCHEDULE}: removed"] if present else []
    wanted = (shop.brief.cron, shop.brief.zone, MORNING_BRIEF)
    if present is not None and (present.cron, present.zone, present.prompt) == wanted:
        return []
    return [f"schedule {SCHEDULE}: {shop.brief.cron} ({shop.brief.zone})"]


def _sample_line(layout: Layout) -> str:
    return f"{layout.shop.name}: made from the sample"


def _opening_line(event: stock.StockEvent) -> str:
    return f"opening stock of {event.sku}: {event.delta}"
