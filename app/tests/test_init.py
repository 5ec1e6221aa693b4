"""`standfast init`: complete, repeatable, and never a repair."""

from pathlib import Path

import pytest
from support import Instance

from standfast.authority import marker as markers
from standfast.authority import pause, replace
from standfast.authority.marker import Marker
from standfast.errors import BadInput, Refused
from standfast.layout import Layout
from standfast.operations.initialise import initialise_instance
from standfast.shop.config import sample
from standfast.store import triggers

NOW = 1_700_000_000.0


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm") and path.stat().st_size
    }


def test_a_new_instance_gets_everything(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "state")
    result = initialise_instance(layout, now=NOW)
    assert result.changed
    assert layout.state.stat().st_mode & 0o777 == 0o700
    for path in (layout.shop, layout.database, layout.marker):
        assert path.stat().st_mode & 0o777 == 0o600, path
    assert layout.shop.read_text() == sample()
    found = markers.read(layout.marker)
    assert found is not None
    assert found.epoch == result.epoch
    instance = Instance(layout)
    assert instance.rows("SELECT sku, delta FROM stock_events ORDER BY id") == [
        ("chocolate", 9),
        ("strawberry", 1),
        ("vanilla", 2),
    ]
    assert instance.rows("SELECT name, cron, zone FROM schedules") == [("morning-brief", "30 6 * * *", "UTC")]
    assert instance.rows("SELECT name, version FROM skills") == [("opening", 1)]
    assert instance.rows("SELECT paused FROM operations") == [(0,)]


def test_again_changes_nothing(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "state")
    initialise_instance(layout, now=NOW)
    before = snapshot(layout.state)
    result = initialise_instance(layout, now=NOW + 1)
    assert not result.changed
    assert result.done == []
    assert snapshot(layout.state) == before


def test_check_says_what_would_be_done_and_does_nothing(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "state")
    assert initialise_instance(layout, now=NOW, check=True).changed
    assert not layout.state.exists()
    initialise_instance(layout, now=NOW)
    assert not initialise_instance(layout, now=NOW, check=True).changed
    layout.shop.write_text(sample().replace('cron = "30 6 * * *"', 'cron = "0 7 * * *"'))
    before = snapshot(layout.state)
    foreseen = initialise_instance(layout, now=NOW, check=True)
    assert foreseen.done == ["schedule morning-brief: 0 7 * * * (UTC)"]
    assert snapshot(layout.state) == before
    assert initialise_instance(layout, now=NOW).done == foreseen.done


def test_the_operator_s_shop_toml_is_used_and_kept(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "state")
    layout.state.mkdir()
    text = sample().replace("opening_stock = 2", "opening_stock = 77")
    layout.shop.write_text(text)
    initialise_instance(layout, now=NOW)
    assert layout.shop.read_text() == text
    assert Instance(layout).rows("SELECT delta FROM stock_events WHERE sku = 'vanilla'") == [(77,)]


def test_a_death_while_the_brief_moves_leaves_the_old_time_or_the_new_one(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "state")
    initialise_instance(layout, now=NOW)
    layout.shop.write_text(sample().replace('"30 6 * * *"', '"0 7 * * *"'))

    def die(name: str) -> None:
        if name == "add_schedule.before_commit":
            raise KeyboardInterrupt

    triggers.arm(die)
    try:
        with pytest.raises(KeyboardInterrupt):
            initialise_instance(layout, now=NOW + 1)
    finally:
        triggers.disarm()
    assert Instance(layout).rows("SELECT cron FROM schedules") == [("30 6 * * *",)]
    initialise_instance(layout, now=NOW + 2)
    assert Instance(layout).rows("SELECT cron FROM schedules") == [("0 7 * * *",)]


def test_a_new_product_is_added_and_the_brief_follows_the_file(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "state")
    initialise_instance(layout, now=NOW)
    mint = (
        '[[product]]\nsku = "mint"\nname = "Mint"\n'
        "opening_stock = 4\nreorder_point = 1\nunit_cost_cents = 9\n"
    )
    brief = '[brief]\ncron = "30 6 * * *"\nzone = "UTC"\n'
    edited = sample().replace(brief, "").replace("opening_stock = 2", "opening_stock = 50")
    layout.shop.write_text(edited + mint)
    result = initialise_instance(layout, now=NOW)
    assert result.done == ["opening stock of mint: 4", "schedule morning-brief: removed"]
    assert Instance(layout).rows("SELECT delta FROM stock_events WHERE sku = 'vanilla'") == [(2,)]
    assert Instance(layout).rows("SELECT * FROM schedules") == []


def test_an_invalid_shop_toml_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "state")
    layout.state.mkdir()
    layout.shop.write_text(sample().replace("reorder_point = 8", "reorder_point = -8"))
    before = snapshot(layout.state)
    with pytest.raises(BadInput, match=r"product\.0\.reorder_point"):
        initialise_instance(layout, now=NOW)
    assert snapshot(layout.state) == before


def refused(layout: Layout) -> str:
    before = snapshot(layout.state)
    codes = set()
    for check in (True, False):
        with pytest.raises(Refused) as caught:
            initialise_instance(layout, now=NOW, check=check)
        codes.add(caught.value.code)
    assert snapshot(layout.state) == before
    return codes.pop() if len(codes) == 1 else str(codes)


def test_a_missing_marker_is_not_replaced(tmp_path: Path) -> None:
    instance = Instance.make(tmp_path)
    instance.layout.marker.unlink()
    assert refused(instance.layout) == "marker_disagrees"


def test_a_marker_of_another_epoch_is_not_repaired(tmp_path: Path) -> None:
    instance = Instance.make(tmp_path)
    found = markers.read(instance.layout.marker)
    assert found is not None
    markers.write(instance.layout.marker, Marker("f" * 32, found.host))
    assert refused(instance.layout) == "marker_disagrees"


def test_a_marker_of_another_host_is_not_adopted(tmp_path: Path) -> None:
    instance = Instance.make(tmp_path)
    found = markers.read(instance.layout.marker)
    assert found is not None
    markers.write(instance.layout.marker, Marker(found.epoch, "0" * 64))
    assert refused(instance.layout) == "other_host"


def test_a_lost_store_is_not_made_anew_beside_its_marker(tmp_path: Path) -> None:
    instance = Instance.make(tmp_path)
    for path in instance.layout.state.glob("agent.sqlite*"):
        path.unlink()
    assert refused(instance.layout) == "store_missing"


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    instance = Instance.make(tmp_path)
    with instance.store() as connection:
        connection.execute("UPDATE meta SET version = 99 WHERE component = 'shop'")
    assert refused(instance.layout) == "store_newer"


def test_a_paused_or_restored_instance_stays_as_it_is(tmp_path: Path) -> None:
    instance = Instance.make(tmp_path)
    with instance.store() as connection:
        pause(connection, "drill", NOW)
        epoch = replace(connection, instance.layout, "drill", NOW)
    result = initialise_instance(instance.layout, now=NOW)
    assert (result.changed, result.epoch) == (False, epoch)
    assert instance.rows("SELECT paused FROM operations") == [(1,)]


class Died(BaseException):
    """Stands for the death of the process at a commit boundary."""


def test_killed_at_every_commit_boundary_it_is_completed_by_running_again(tmp_path: Path) -> None:
    reached: list[str] = []
    point = 0
    while True:
        layout = Layout(tmp_path / f"state-{point}")
        count = 0

        def die(name: str, at: int = point) -> None:
            nonlocal count
            reached.append(name)
            count += 1
            if count > at:
                raise Died(name)

        triggers.arm(die)
        try:
            initialise_instance(layout, now=NOW)
            break
        except Died:
            pass
        finally:
            triggers.disarm()
        initialise_instance(layout, now=NOW)
        assert not initialise_instance(layout, now=NOW).changed
        instance = Instance(layout)
        assert instance.rows("SELECT count(*), sum(delta) FROM stock_events") == [(3, 12)]
        assert instance.rows("SELECT count(*) FROM skills") == [(1,)]
        assert instance.rows("SELECT count(*) FROM schedules") == [(1,)]
        point += 1
    assert {"init.committed", "initialise.marker_written", "add_schedule.before_commit"} <= set(reached)
