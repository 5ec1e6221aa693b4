"""Fixtures shared by the tests of the core."""

import signal
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

# Begun in the background of a shell this process ignores Ctrl-C, and so would all that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A fresh initialised instance."""
    made = World(Layout(tmp_path / "state"))
    yield made
    made.close()
    triggers.disarm()
