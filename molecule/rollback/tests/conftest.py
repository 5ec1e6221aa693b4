"""The releases of the scenario: all of one schema, the last with a floor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from archives import consistent, manifest_of
from switches import at_work, generations

if TYPE_CHECKING:
    from pathlib import Path

    from target import Controller, Host


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`repair`: as patch, but nobody may go below it."""
    found = generations("v1", "patch")
    floor = manifest_of(found["patch"]).version
    made = tmp_path_factory.mktemp("archives") / "repair.tar"
    return {**found, "repair": consistent(found["patch"], made, rollback_floor=floor)}


@pytest.fixture(scope="session")
def host(agent: Host, controller: Controller) -> Host:
    return at_work(agent, controller)
