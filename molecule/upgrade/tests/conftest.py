"""The releases of the scenario, by the names of their generations, and the operator who adds work."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from archives import consistent, manifest_of
from evidence import running
from target import wait_until
from traffic import Operator

if TYPE_CHECKING:
    from collections.abc import Generator

    from target import Controller, Host


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`repair`: as patch, but nobody may go below it."""
    folder = Path(os.environ["STANDFAST_GENERATIONS"])
    made = tmp_path_factory.mktemp("archives")
    found = {name: folder / f"{name}.tar" for name in ("v1", "patch", "v2", "v3")}
    floor = manifest_of(found["patch"]).version
    return {**found, "repair": consistent(found["patch"], made / "repair.tar", rollback_floor=floor)}


@pytest.fixture(scope="session")
def releases(archives: dict[str, Path]) -> dict[str, str]:
    return {name: manifest_of(path).release_id for name, path in archives.items()}


@pytest.fixture(scope="session")
def host(agent: Host, controller: Controller) -> Host:
    controller.write_inventory("yours", {"agent": {"ansible_user": "admin"}})
    wait_until(lambda: running(agent), 60, "the installed service runs")
    return agent


@pytest.fixture(scope="session")
def operator(host: Host) -> Generator[Operator]:
    """At work from the first switch on to the end."""
    one = Operator(host)
    one.begin("till")
    yield one
    one.end()
