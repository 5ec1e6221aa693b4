"""Low stock: one piece of work for each fall below the point, in one commit with it."""

from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support import Instance

from standfast.shop.config import load, parse, sample
from standfast.shop.episodes import watch
from standfast.shop.stock import StockEvent, adjust
from standfast.store import Store, immediate, triggers


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance.make(tmp_path, low=True)


def look(instance: Instance, store: Store) -> list[tuple[str, bool]]:
    changes = watch(store, load(instance.layout.shop), now=instance.clock.now())
    return [(change.sku, change.opened) for change in changes]


def move(instance: Instance, store: Store, sku: str, delta: int) -> None:
    event = StockEvent(f"e{instance.clock.now()}{sku}{delta}", sku, delta, "test")
    assert adjust(store, load(instance.layout.shop), event, now=instance.clock.now())


def low_work(instance: Instance) -> list[str]:
    return [row[0] for row in instance.rows("SELECT subject FROM work WHERE session LIKE 'low-stock:%'")]


def test_a_low_product_starts_one_piece_of_work_however_often_it_is_looked_at(instance: Instance) -> None:
    with instance.store() as store:
        assert look(instance, store) == [("vanilla", True), ("strawberry", True)]
        for _ in range(5):
            assert look(instance, store) == []
    assert low_work(instance) == ["vanilla", "strawberry"]


def test_falling_further_is_the_same_fall(instance: Instance) -> None:
    with instance.store() as store:
        look(instance, store)
        move(instance, store, "vanilla", -1)
        assert look(instance, store) == []


def test_each_fall_is_an_episode_of_its_own(instance: Instance) -> None:
    with instance.store() as store:
        look(instance, store)
        for _ in range(2):
            move(instance, store, "vanilla", 6)
            assert look(instance, store) == [("vanilla", False)]
            assert look(instance, store) == []
            instance.clock.pass_time(60)
            move(instance, store, "vanilla", -6)
            assert look(instance, store) == [("vanilla", True)]
    assert low_work(instance).count("vanilla") == 3
    opened = instance.rows("SELECT count(*) FROM episodes WHERE sku = 'vanilla' AND closed_at IS NULL")
    assert opened == [(1,)]


def test_the_point_itself_is_enough(instance: Instance) -> None:
    with instance.store() as store:
        move(instance, store, "vanilla", 6)
        assert look(instance, store) == [("strawberry", True)]


def test_a_product_that_left_the_catalogue_has_no_episode(instance: Instance) -> None:
    with instance.store() as store:
        look(instance, store)
        gone = parse(
            sample()
            .replace('sku = "vanilla"', 'sku = "mint"')
            .replace("reorder_point = 8", "reorder_point = 0")
        )
        changes = watch(store, gone, now=instance.clock.now())
        assert [(change.sku, change.opened) for change in changes] == [("vanilla", False)]


def test_an_episode_and_its_work_are_one_commit(instance: Instance) -> None:
    class Died(BaseException):
        pass

    def die(point: str) -> None:
        if point == "episodes.before_commit":
            raise Died

    with instance.store() as store:
        triggers.arm(die)
        try:
            with pytest.raises(Died):
                look(instance, store)
        finally:
            triggers.disarm()
        assert low_work(instance) == []
        assert instance.rows("SELECT * FROM episodes") == []
        assert look(instance, store) == [("vanilla", True), ("strawberry", True)]


def test_a_watcher_that_was_overtaken_opens_nothing_again(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    with instance.store() as slow, instance.store() as fast:

        def overtaken(connection: Store, boundary: str) -> AbstractContextManager[None]:
            monkeypatch.undo()
            assert look(instance, fast) == [("vanilla", True), ("strawberry", True)]
            return immediate(connection, boundary)

        monkeypatch.setattr("standfast.shop.episodes.immediate", overtaken)
        assert look(instance, slow) == []
    assert len(low_work(instance)) == 2
