"""The generations of the scenario, each with a migration, and its host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from switches import at_work, generations

if TYPE_CHECKING:
    from pathlib import Path

    from target import Controller, Host


@pytest.fixture(scope="session")
def archives() -> dict[str, Path]:
    return generations("v1", "v2", "v3")


@pytest.fixture(scope="session")
def host(agent: Host, controller: Controller) -> Host:
    return at_work(agent, controller)
