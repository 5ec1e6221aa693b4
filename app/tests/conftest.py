"""Fixtures shared by the tests of the core."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from world import World

from standfast.layout import Layout
from standfast.store import triggers

# A loaded machine must not turn a property into a timed test.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A fresh initialised instance."""
    made = World(Layout(tmp_path / "state"))
    yield made
    made.close()
    triggers.disarm()
