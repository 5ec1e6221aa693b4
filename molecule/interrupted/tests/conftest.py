"""Hosts on which v2 is staged beside v1, and a hand that stops an upgrade at a step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from archives import manifest_of
from evidence import good, running
from freezing import Freezer
from target import wait_until

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


@pytest.fixture(scope="session")
def freeze(controller: Controller) -> Freezer:
    return Freezer(controller, "upgrade")
