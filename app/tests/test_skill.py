"""The opening skill: one text in force, a history, and bounds."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import COMPONENTS

from standfast.errors import BadInput
from standfast.shop import skills
from standfast.store import open_store

NOW = 1_700_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = open_store(tmp_path / "agent.sqlite", COMPONENTS, create=True)
    yield connection
    connection.close()


def test_a_replacement_is_the_next_version_and_the_old_one_is_kept(store: sqlite3.Connection) -> None:
    assert skills.current(store) is None
    assert skills.replace(store, "Opening: one\n", now=NOW)
    assert skills.replace(store, "Opening: two\n", now=NOW + 1)
    assert not skills.replace(store, "Opening: two\n", now=NOW + 2)
    current = skills.current(store)
    assert current is not None
    assert (current.version, current.text, current.set_at) == (2, "Opening: two\n", NOW + 1)
    assert [(s.version, s.text) for s in skills.history(store)] == [
        (2, "Opening: two\n"),
        (1, "Opening: one\n"),
    ]


def test_going_back_is_a_new_version(store: sqlite3.Connection) -> None:
    for text in ("a", "b", "a"):
        assert skills.replace(store, text, now=NOW)
    assert [s.text for s in skills.history(store)] == ["a", "b", "a"]


def test_check_says_so_and_writes_nothing(store: sqlite3.Connection) -> None:
    assert skills.replace(store, "a", now=NOW, check=True)
    assert skills.history(store) == []
    skills.replace(store, "a", now=NOW)
    assert not skills.replace(store, "a", now=NOW, check=True)


@pytest.mark.parametrize("text", ["", " \n", "x" * 8193, "a\0b", "a\x1b[2J", "\ud800"])
def test_a_text_outside_its_bounds_is_bad_input(store: sqlite3.Connection, text: str) -> None:
    with pytest.raises(BadInput, match="skill"):
        skills.replace(store, text, now=NOW)
    assert skills.history(store) == []
