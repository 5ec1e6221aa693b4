"""Every host has a small day of its own and gets the bad release that it is named after, all in one run."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from archives import manifest_of
from evidence import database_at_rest, finished, now, receipts, running
from rows import Rows, rows
from target import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from evidence import UnitState
    from target import Controller, Host, Play

# A host of ten, on a machine that does something else as well: what is good must be faster than this.
TIMEOUTS = {"upgrade_start_timeout": 30, "upgrade_canary_timeout": 30}


@dataclass
class Tried:
    """One host before a bad release and after it."""

    host: Host
    bad: str
    """The id of the release that was tried."""
    since: str
    """The host's time before."""
    unit: UnitState
    before: Rows
    after: Rows
    said: str
    """What the run said of this host when it failed."""
    failed: bool
    store: str
    """A digest of the store's bytes before."""
    receipts: list[dict[str, Any]] = field(default_factory=list)
    """What it left."""


def generation(name: str) -> Path:
    return Path(os.environ["STANDFAST_GENERATIONS"]) / f"{name}.tar"


def release(name: str) -> str:
    return manifest_of(generation(name)).release_id


def said_of(play: Play, host: str) -> str:
    """Everything that a run said of one host's failures, in one line, without YAML's doubled quotes."""
    blocks = re.findall(
        rf"^(?:fatal|failed): \[{host}\].*?(?=^\S)", play.output + "\nEND", re.MULTILINE | re.DOTALL
    )
    return " ".join(" ".join(blocks).split()).replace("''", "'")


def each[T](hosts: dict[str, Host], action: Callable[[Host], T]) -> dict[str, T]:
    """Do something on all hosts side by side."""
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(hosts, pool.map(action, hosts.values()), strict=True))


def live_a_little(host: Host) -> tuple[UnitState, str]:
    """Stock that was counted, and finished work with its delivered report."""
    wait_until(lambda: running(host), 60, "the installed service runs")
    for sku, delta in (("vanilla", 9), ("strawberry", 7), ("chocolate", 8)):
        words = ("stock", "adjust", sku, str(delta), "--reason", "counted", "--event-id", f"count-{sku}")
        host.cli(*words)
    host.cli("work", "add", "How is the stock?", "--session", "day", "--origin", "day:1")
    wait_until(lambda: finished(host, "day"), 60, "work is finished")
    wait_until(
        lambda: {delivery for *_, delivery, _ in rows(host).reports} == {"sent"}, 30, "its report is sent"
    )
    return running(host), now(host)


def side_by_side(controller: Controller, hosts: dict[str, dict[str, Any]]) -> Play:
    """An upgrade of all these hosts in one batch, so that one that fails keeps no other one waiting."""
    controller.write_inventory("bad", hosts, TIMEOUTS)
    serial = {
        "standfast_serial": "100%"
    }  # a keyword of the play: an inventory's variable comes too late for it
    forks = ("--forks", str(len(hosts)))
    play = controller.playbook("upgrade", *forks, inventory="bad", extra_vars=serial)
    (controller.folder / f"play-{len(hosts)}.log").write_text(play.output)
    return play


@pytest.fixture(scope="session")
def tried(hosts: dict[str, Host], controller: Controller) -> dict[str, Tried]:
    """All bad releases, in one run; what was there before and what is there now."""
    lived = each(hosts, live_a_little)
    before = each(hosts, rows)
    stores = each(hosts, database_at_rest)
    old = each(hosts, lambda host: set(receipts(host)))
    archives = {name: {"release_archive": str(generation(name))} for name in hosts}
    play = side_by_side(controller, archives)
    assert play.rc != 0, play.output[-3000:]
    assert set(play.hosts) == set(hosts), play.output[-3000:]
    after = each(hosts, rows)
    kept = each(hosts, receipts)
    return {
        name: Tried(
            host,
            release(name),
            lived[name][1],
            lived[name][0],
            before[name],
            after[name],
            said_of(play, name),
            bool(play.hosts[name]["failed"]),
            stores[name],
            [told for file, told in kept[name].items() if file not in old[name]],
        )
        for name, host in hosts.items()
    }
