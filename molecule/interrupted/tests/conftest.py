"""Hosts on which v2 is staged beside v1, and a hand that stops an upgrade at a step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from archives import manifest_of
from evidence import good, receipts, running
from freezing import Freezer
from target import wait_until
from traffic import finished_once

if TYPE_CHECKING:
    from target import Controller, Host


@pytest.fixture(scope="session")
def archive() -> Path:
    return Path(os.environ["STANDFAST_GENERATIONS"]) / "v2.tar"


@pytest.fixture(scope="session")
def release(archive: Path) -> str:
    return manifest_of(archive).release_id


@pytest.fixture(scope="session")
def staged(controller: Controller, hosts: dict[str, Host], archive: Path) -> dict[str, Host]:
    """All hosts at once: v1 works, v2 is there."""
    for host in hosts.values():
        works(host)
    stage(controller, archive, list(hosts))
    return hosts


def works(host: Host) -> None:
    wait_until(lambda: running(host), 60, "the installed service runs")


def stage(controller: Controller, archive: Path, names: list[str]) -> None:
    controller.write_inventory("all", {name: {} for name in names}, {"release_archive": str(archive)})
    good(controller.playbook("preflight", inventory="all", extra_vars={"standfast_serial": "100%"}))


def adds(host: Host, count: int, session: str) -> list[str]:
    """What of so many requests was accepted: while the switch holds the store they may be refused."""
    accepted = []
    for number in range(count):
        words = [
            "lucy-agent",
            "--json",
            "work",
            "add",
            "How is the stock?",
            "--session",
            f"{session}-{number}",
        ]
        done = host.run(words, check=False)
        if done.rc == 0:
            accepted.append(str(json.loads(done.stdout)["work"]))
    return accepted


def upgraded_once(host: Host, release: str, accepted: list[str], epoch: str) -> dict[str, Any]:
    """The release works and is the current one, nothing was lost or done twice; the one receipt of it."""
    state = running(host)
    assert f"/releases/{release}/" in host.run(["cat", f"/proc/{state.main_pid}/cmdline"]).stdout
    assert host.run(["readlink", "/srv/lucy/current"]).stdout.strip() == f"releases/{release}"
    finished_once(host, accepted)
    assert host.cli("facts")["epoch"] == epoch
    upgrades = [one for one in receipts(host).values() if one["operation"] == "upgrade"]
    assert [one["verdict"] for one in upgrades].count("done") == 1
    assert (upgrades[-1]["verdict"], upgrades[-1]["release_after"]) == ("done", release)
    assert host.cli("receipt", "verify")["verified"] is True
    return upgrades[-1]


@pytest.fixture(scope="session")
def freeze(controller: Controller) -> Freezer:
    return Freezer(controller, "upgrade")
