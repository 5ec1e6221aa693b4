"""Stock events have an identity of their own, and positions follow from them."""

import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import COMPONENTS

from standfast.errors import BadInput, Refused
from standfast.shop.config import parse, sample
from standfast.shop.stock import StockEvent, adjust, insert, opening_events, positions
from standfast.store import immediate, open_store

CONFIG = parse(sample())
NOW = 1_700_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = open_store(tmp_path / "agent.sqlite", COMPONENTS, create=True)
    with immediate(connection):
        for event in opening_events(connection, CONFIG):
            insert(connection, event, now=NOW)
    yield connection
    connection.close()


def standing(store: sqlite3.Connection) -> dict[str, tuple[int, int, int, int]]:
    return {p.sku: (p.on_hand, p.on_order, p.reorder_point, p.needed) for p in positions(store, CONFIG)}


def rows(store: sqlite3.Connection) -> list[tuple[object, ...]]:
    return store.execute("SELECT * FROM stock_events ORDER BY id").fetchall()


def test_the_opening_stock_of_the_sample(store: sqlite3.Connection) -> None:
    assert standing(store) == {
        "vanilla": (2, 0, 8, 6),
        "strawberry": (1, 0, 5, 4),
        "chocolate": (9, 0, 6, 0),
    }


def test_opening_stock_counts_once_even_after_an_edit(store: sqlite3.Connection) -> None:
    edited = parse(sample().replace("opening_stock = 2", "opening_stock = 50"))
    assert opening_events(store, edited) == []


def test_a_new_product_gets_its_opening_event(store: sqlite3.Connection) -> None:
    grown = parse(
        sample()
        + '[[product]]\nsku = "mint"\nname = "Mint"\n'
        + "opening_stock = 0\nreorder_point = 1\nunit_cost_cents = 9\n"
    )
    assert [event.id for event in opening_events(store, grown)] == ["opening:mint"]


def test_an_event_changes_the_position_once(store: sqlite3.Connection) -> None:
    event = StockEvent("delivery-1", "vanilla", 6, "delivery")
    assert adjust(store, CONFIG, event, now=NOW)
    assert not adjust(store, CONFIG, event, now=NOW + 99)
    assert standing(store)["vanilla"] == (8, 0, 8, 0)


@pytest.mark.parametrize(
    "other",
    [
        StockEvent("delivery-1", "vanilla", 7, "delivery"),
        StockEvent("delivery-1", "chocolate", 6, "delivery"),
        StockEvent("delivery-1", "vanilla", 6, "a delivery"),
    ],
)
def test_the_same_id_with_other_content_is_refused(store: sqlite3.Connection, other: StockEvent) -> None:
    adjust(store, CONFIG, StockEvent("delivery-1", "vanilla", 6, "delivery"), now=NOW)
    before = rows(store)
    with pytest.raises(Refused) as caught:
        adjust(store, CONFIG, other, now=NOW)
    assert caught.value.code == "event_differs"
    assert "vanilla +6, 'delivery'" in caught.value.observed
    assert rows(store) == before


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (StockEvent("e", "pistachio", 1, "x"), "sku_unknown"),
        (StockEvent("e", "vanilla", -3, "x"), "stock_out_of_range"),
        (StockEvent("e", "vanilla", 999_999, "x"), "stock_out_of_range"),
    ],
)
def test_an_impossible_change_is_refused(store: sqlite3.Connection, event: StockEvent, code: str) -> None:
    before = rows(store)
    with pytest.raises(Refused) as caught:
        adjust(store, CONFIG, event, now=NOW)
    assert caught.value.code == code
    assert rows(store) == before


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (StockEvent("", "vanilla", 1, "x"), "event id"),
        (StockEvent("a b", "vanilla", 1, "x"), "event id"),
        (StockEvent("opening:vanilla", "vanilla", 1, "x"), "event id"),
        (StockEvent("e", "vanilla", 0, "x"), "delta"),
        (StockEvent("e", "vanilla", 10**7, "x"), "delta"),
        (StockEvent("e", "vanilla", 1, " "), "reason"),
        (StockEvent("e", "vanilla", 1, "a\nb"), "reason"),
        (StockEvent("e", "vanilla", 1, "x" * 201), "reason"),
    ],
)
def test_a_malformed_event_is_bad_input(store: sqlite3.Connection, event: StockEvent, field: str) -> None:
    with pytest.raises(BadInput, match=field):
        adjust(store, CONFIG, event, now=NOW)


def test_check_says_so_and_writes_nothing(store: sqlite3.Connection) -> None:
    before = rows(store)
    event = StockEvent("e", "vanilla", 1, "x")
    assert adjust(store, CONFIG, event, now=NOW, check=True)
    with pytest.raises(Refused):
        adjust(store, CONFIG, StockEvent("e", "vanilla", -9, "x"), now=NOW, check=True)
    assert rows(store) == before
    adjust(store, CONFIG, event, now=NOW)
    assert not adjust(store, CONFIG, event, now=NOW, check=True)


@settings(max_examples=25)
@given(st.integers(0, 100), st.integers(0, 100))
def test_needed_is_what_is_missing_to_the_point(on_hand: int, point: int) -> None:
    config = parse(
        sample()
        .replace("opening_stock = 2", f"opening_stock = {on_hand}")
        .replace("reorder_point = 8", f"reorder_point = {point}")
    )
    with tempfile.TemporaryDirectory() as folder:
        connection = open_store(Path(folder) / "agent.sqlite", COMPONENTS, create=True)
        with immediate(connection):
            for event in opening_events(connection, config):
                insert(connection, event, now=NOW)
        vanilla = positions(connection, config)[0]
        connection.close()
    assert vanilla.needed == max(0, point - on_hand)
