"""Fixtures shared by the tests of the core."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from world import World

from standfast.layout import Layout
from standfast.store import triggers


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A fresh initialised instance."""
    made = World(Layout(tmp_path / "state"))
    yield made
    made.connection.close()
    triggers.disarm()
