"""Rollback of code: to a kept release that may take the store over, and to no other."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import PATIENCE
from support import eventually
from switching import CRASHING, UNIT, Host, ended, make, migrating

from standfast.errors import BadInput
from standfast.operations.upgrade.rolling_back import Force

FULL = os.environ.get("STANDFAST_FULL") == "1"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Host:
    host = Host(tmp_path_factory.mktemp("template"))
    host.install("old")
    host.install("patch", version="0.1.1")
    host.install("repair", version="0.1.2", rollback_floor="0.1.1")
    host.install("newer", migrating(), version="0.2.0")
    host.install("crashes", CRASHING, version="0.1.3")
    host.install("contract", version="0.1.4", authority_contract=9)
    return host


@pytest.fixture
def host(tmp_path: Path, template: Host) -> Iterator[Host]:
    with ended(make(tmp_path / "srv", template)) as made:
        made.run("patch")
        eventually(made.idle, PATIENCE)
        yield made


def test_only_the_code_goes_back(host: Host) -> None:
    before = host.cli("patch", "facts")
    ran = host.switch("patch", "old", operation="rollback")
    told = ran.result
    assert (ran.code, told["outcome"], told["changed"]) == (0, "rolled_back", True)
    assert host.running() == host.releases["old"] == told["canary"]["run"]["release"]
    assert host.unit == host.cli("old", "unit")["text"]
    assert [phase["name"] for phase in told["phases"]] == [
        "facts", "stop", "unit", "start", "canary", "compare", "done"
    ]  # fmt: skip
    assert (told["backup"], told["migrated"], told["forced"]) == (None, {}, None)
    assert not host.layout.backups.exists()
    after = told["facts_after"]
    assert {name: after[name] for name in ("epoch", "stock", "orders", "schema")} == {
        name: before[name] for name in ("epoch", "stock", "orders", "schema")
    }
    pid = host.pid()
    again = host.switch("patch", "old", operation="rollback")
    assert (again.code, again.result["changed"], host.pid()) == (0, False, pid)


def test_the_release_that_was_left_runs_again_when_it_fails(host: Host) -> None:
    ran = host.switch("patch", "crashes", operation="rollback")
    told = ran.result
    assert (ran.code, told["outcome"], told["step"]) == (1, "resumed", "start")
    assert host.running() == host.releases["patch"] == told["canary"]["run"]["release"]


@pytest.mark.parametrize("point", ["upgrade.unit.done", *(["upgrade.canary"] if FULL else [])])
def test_one_that_was_cut_short_comes_to_its_end(host: Host, point: str) -> None:
    assert host.switch("patch", "old", operation="rollback", at=point).killed
    host.reboot()
    ran = host.switch("patch", "old", operation="rollback")
    assert (ran.code, ran.result["outcome"]) == (0, "rolled_back"), ran.error
    assert host.running() == host.releases["old"]


def test_a_release_that_may_not_take_over_is_refused(host: Host) -> None:
    pid = host.pid()
    host.releases = host.releases | {"gone": "0.1.0-cccccccc-cccccccc"}
    for to, code in (
        ("newer", "schema_older"),
        ("contract", "contract_differs"),
        ("gone", "release_absent"),
    ):
        ran = host.switch("patch", to, operation="rollback")
        assert (ran.code, ran.result["refused"]) == (3, code)
    other = host.switch("crashes", "old", operation="rollback")
    assert (other.code, other.result["refused"]) == (3, "not_current")
    assert host.pid() == pid
    assert not (host.layout.state / "upgrade.json").exists()


def test_a_release_that_was_altered_is_refused(host: Host, template: Host) -> None:
    host.layout.releases.unlink()
    shutil.copytree(template.layout.releases, host.layout.releases, symlinks=True)
    (host.layout.releases / host.releases["old"] / "venv/pyvenv.cfg").write_text("home = /elsewhere\n")
    ran = host.switch("patch", "old", operation="rollback")
    assert (ran.code, ran.result["refused"]) == (3, "release_altered")
    assert not (host.layout.state / "upgrade.json").exists()


def test_the_floor_is_passed_only_by_name_and_reason(host: Host) -> None:
    host.systemctl("stop", UNIT)
    host.run("repair")
    refused = host.switch("repair", "old", operation="rollback")
    assert (refused.code, refused.result["refused"]) == (3, "below_floor")
    assert "under the rollback floor 0.1.1" in refused.result["observed"]
    wrong = host.switch("repair", "old", operation="rollback", force=("0.1.0", "why"))
    assert (wrong.code, wrong.result["refused"]) == (3, "floor_differs")
    assert host.running() == host.releases["repair"]
    right = host.switch("repair", "old", operation="rollback", force=("0.1.1", "the repair loses orders"))
    assert right.code == 0
    assert (
        right.result["forced"] == f"below floor 0.1.1 of {host.releases['repair']}: the repair loses orders"
    )
    assert host.running() == host.releases["old"]


@pytest.mark.parametrize(("floor", "reason"), [("0.1.1", None), (None, "why"), ("0.1.1", " "), ("1", "a\nb")])
def test_half_an_override_is_malformed(floor: str | None, reason: str | None) -> None:
    with pytest.raises(BadInput):
        Force.of(floor, reason)
