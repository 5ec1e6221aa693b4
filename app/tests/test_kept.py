"""Which kept release may be gone back to, and what a host's list says of each."""

import json
from pathlib import Path
from typing import Any

import pytest
from releases import manifest
from support import Instance

from standfast.authority import CONTRACT
from standfast.errors import Refused
from standfast.operations.kept import Ground, floors, kept, may_go_back, understands
from standfast.operations.schema import understood
from standfast.operations.verdicts import Floor, Judged, Record, read_record
from standfast.release.manifest import Manifest

ADDED = understood() | {"work": understood()["work"] + 1}
FEWER = {name: version for name, version in understood().items() if name != "usage"}
BAD = Judged(release="x", at="2026-03-01T06:00:00Z", verdict="bad", why="never ready")
GOOD = Judged(release="x", at="2026-03-01T06:00:00Z", verdict="good")


def ground(**changes: Any) -> Ground:
    facts: dict[str, Any] = {"schema": understood(), "authority_contract": CONTRACT}
    return Ground(**(facts | changes))


def floor(version: str) -> tuple[Floor, ...]:
    return (Floor(version=version, release="r"),)


@pytest.mark.parametrize(
    ("old", "on", "last", "rules"),
    [
        (manifest(), ground(), None, []),
        (manifest(), ground(), GOOD, []),
        (manifest(), ground(schema=ADDED), None, ["schema_unknown"]),
        (manifest(), ground(schema=understood() | {"new": 1}), None, ["schema_unknown"]),
        (manifest(schema_versions=ADDED), ground(), None, ["schema_older"]),
        (manifest(), ground(schema=FEWER), None, ["schema_older"]),
        (manifest(authority_contract=CONTRACT + 1), ground(), None, ["contract_differs"]),
        (manifest(), ground(authority_contract=CONTRACT + 1), None, ["contract_differs"]),
        (manifest("0.9.1"), ground(floors=floor("0.10.0")), None, ["below_floor"]),
        (manifest("0.10.0"), ground(floors=floor("0.9.1")), None, []),
        (manifest("0.10.0"), ground(floors=floor("0.10.0")), None, []),
        (manifest("0.10.0rc1"), ground(floors=floor("0.10.0")), None, ["below_floor"]),
        (manifest("0.10.0.post1"), ground(floors=floor("0.10.0")), None, []),
        (manifest("0.2.0"), ground(floors=floor("0.1.0") + floor("0.3.0")), None, ["below_floor"]),
        (manifest(), ground(), BAD, ["condemned"]),
        (
            manifest(authority_contract=CONTRACT + 1),
            ground(schema=ADDED, floors=floor("1.0")),
            BAD,
            ["schema_unknown", "contract_differs", "below_floor", "condemned"],
        ),
    ],
)
def test_each_reason_against_going_back(old: Manifest, on: Ground, last: Judged, rules: list[str]) -> None:
    assert [one.rule for one in may_go_back(old, on, last)] == rules


def test_the_reasons_name_what_was_seen() -> None:
    old = manifest("0.9.1", authority_contract=CONTRACT + 1)
    told = [one.observed for one in may_go_back(old, ground(schema=ADDED, floors=floor("0.10.0")), BAD)]
    assert told == [
        f"the store's work is at {ADDED['work']}, and it understands {understood()['work']}",
        f"its authority contract is {CONTRACT + 1}, not {CONTRACT}",
        "its version 0.9.1 is under the rollback floor 0.10.0 of r",
        "it was seen not to work at 2026-03-01T06:00:00Z: never ready",
    ]


def test_a_release_understands_every_store_that_is_not_newer() -> None:
    assert understands(manifest(), understood())
    assert understands(manifest(), FEWER)
    assert not understands(manifest(), ADDED)
    assert not understands(manifest(), understood() | {"new": 1})


def test_the_floor_of_the_release_that_is_left_counts_before_it_was_ever_proven() -> None:
    left = manifest("0.3.0", rollback_floor="0.2.0")
    assert [one.version for one in floors(None, left)] == ["0.2.0"]
    record = Record(floor=Floor(version="0.2.5", release="r"))
    assert [one.version for one in floors(record, left)] == ["0.2.5", "0.2.0"]
    assert floors(Record()) == ()


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance.make(tmp_path)


def write_record(tmp_path: Path, record: object) -> Path:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record))
    return path


def test_the_record_is_read_where_hostcheck_writes_it(instance: Instance, tmp_path: Path) -> None:
    assert read_record(instance.layout, tmp_path / "none.json") is None
    judged = {"release": "a", "version": "1.0", "floor": "0.9", "at": "2026-03-01T06:00:00Z", "why": ""}
    history = [judged | {"verdict": "good"}, judged | {"verdict": "bad", "why": "slow"}]
    told = {"format": 1, "units": ["ab"], "history": history, "floor": {"version": "0.9", "release": "a"}}
    record = read_record(instance.layout, write_record(tmp_path, told))
    assert record is not None
    latest = record.latest("a")
    assert latest is not None
    assert (latest.verdict, latest.why) == ("bad", "slow")
    assert record.latest("b") is None


@pytest.mark.parametrize("bad", [[], {"history": [{"release": "a"}]}, {"floor": {"version": "1"}}])
def test_a_record_that_says_nothing_is_refused_not_taken_for_none(
    instance: Instance, tmp_path: Path, bad: object
) -> None:
    with pytest.raises(Refused) as refused:
        read_record(instance.layout, write_record(tmp_path, bad))
    assert refused.value.code == "record_unreadable"


def place(instance: Instance, found: Manifest, *, sealed: bool) -> Path:
    folder = instance.layout.releases / found.release_id
    (folder / "venv").mkdir(parents=True)
    (folder / "manifest.json").write_bytes(found.render())
    if sealed:
        seal = {
            "release_id": found.release_id,
            "sealed_at": f"2026-03-01T0{len(list(instance.layout.releases.iterdir()))}:00:00Z",
            "interpreter": "/usr/bin/python3",
            "python": "3.12.1",
            "sqlite": "3.40.1",
            "files": {"venv/x": "0"},
        }
        (folder / "installed.json").write_text(json.dumps(seal))
    return folder


def test_a_list_tells_what_is_known_of_each_release(instance: Instance, tmp_path: Path) -> None:
    """They are no whole releases, and the list says that too."""
    one, two, half = manifest("0.1.0"), manifest("0.2.0", schema_versions=ADDED), manifest("0.3.0")
    place(instance, one, sealed=True)
    current = place(instance, two, sealed=True)
    place(instance, half, sealed=False)
    (instance.layout.releases / "odd").mkdir()
    instance.layout.current.symlink_to(current)
    history = [{"release": one.release_id, "at": "2026-03-01T06:00:00Z", "verdict": "good"}]
    told = {"history": history, "floor": {"version": "0.2.0", "release": "r"}}
    found = kept(instance.layout, write_record(tmp_path, told))
    assert found.floor == Floor(version="0.2.0", release="r")
    assert [(each.id, each.sealed, each.current, each.verdict) for each in found.releases] == [
        (one.release_id, True, False, "good"),
        (two.release_id, True, True, "unknown"),
        (half.release_id, False, False, "unknown"),
        ("odd", False, False, "unknown"),
    ]
    first, second, third, odd = found.releases
    assert (first.understands_store, first.may_roll_back) == (True, False)
    assert first.why_not is not None
    assert "it was altered since: " in first.why_not
    assert "under the rollback floor 0.2.0 of r" in first.why_not
    assert second.why_not == "it is the current release"
    assert second.schema_versions == ADDED
    assert third.why_not == odd.why_not == "its installation was never finished"
    assert odd.schema_versions is None


def test_a_store_that_cannot_be_looked_at_is_no_reason_to_say_nothing(tmp_path: Path) -> None:
    instance = Instance.make(tmp_path)
    instance.layout.database.write_bytes(b"x" * 4096)
    place(instance, manifest(), sealed=True)
    [found] = kept(instance.layout, tmp_path / "none.json").releases
    assert (found.understands_store, found.may_roll_back) == (False, False)
    assert found.why_not is not None
    assert "the store cannot be looked at: the file is not a Standfast store" in found.why_not
