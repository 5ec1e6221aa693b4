"""A change of the configuration: one restart and a canary, or the files of before."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import PATIENCE
from support import eventually
from switching import Host, ended, make

from standfast.errors import BadInput
from standfast.operations.upgrade.configuring import Wanted

FULL = os.environ.get("STANDFAST_FULL") == "1"
SECRET = "hunter2-hunter2"
GOOD = {"STANDFAST_LOG": "debug", "SOME_TOKEN": SECRET}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Host:
    host = Host(tmp_path_factory.mktemp("template"))
    host.install("old")
    return host


@pytest.fixture
def host(tmp_path: Path, template: Host) -> Iterator[Host]:
    with ended(make(tmp_path / "srv", template)) as made:
        made.cli("old", "env", "write", stdin=b"{}")
        made.run("old")
        eventually(made.idle, PATIENCE)
        yield made


def bytes_of(host: Host) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (host.layout.environment, host.layout.shop)}


def nothing_is_left(host: Host) -> None:
    assert not list(host.layout.state.glob("upgrade.kept*"))
    assert SECRET not in json.dumps(host.journal())


def test_a_configuration_that_works_stays(host: Host, tmp_path: Path) -> None:
    pid = host.pid()
    shop = tmp_path / "shop.toml"
    shop.write_text(host.layout.shop.read_text().replace("reorder_point = 0", "reorder_point = 1", 1))
    ran = host.configure(pairs=GOOD, shop=shop)
    assert (ran.code, ran.result["outcome"], ran.result["changed"]) == (0, "configured", True), ran.error
    assert host.running() == host.releases["old"]
    assert host.pid() == ran.result["main_pid"] != pid
    assert host.calls().count("start") == 2
    assert SECRET.encode() in bytes_of(host)["agent.env"]
    assert host.layout.shop.read_bytes() == shop.read_bytes()
    assert stat.S_IMODE(host.layout.environment.stat().st_mode) == 0o600
    assert SECRET not in json.dumps(ran.result)
    nothing_is_left(host)
    again = host.configure(pairs=GOOD, shop=shop)
    assert (again.code, host.pid()) == (0, ran.result["main_pid"])
    # The run that would have told may have lost its controller.
    assert again.result == ran.result | {"changed": False, "main_pid": None}


def test_one_that_the_service_cannot_work_with_is_taken_back(host: Host, tmp_path: Path) -> None:
    """Well formed, and the service starts: but no request can be answered in one call of the model."""
    before = bytes_of(host)
    shop = tmp_path / "shop.toml"
    shop.write_text(before["shop.toml"].decode().replace("model_calls = 8", "model_calls = 1"))
    ran = host.configure(pairs=GOOD, shop=shop)
    assert (ran.code, ran.result["outcome"], ran.result["step"]) == (1, "resumed", "canary")
    assert bytes_of(host) == before
    assert host.running() == host.releases["old"] == ran.result["canary"]["run"]["release"]
    nothing_is_left(host)


@pytest.mark.parametrize("point", ["upgrade.unit.done", *(["upgrade.canary"] if FULL else [])])
def test_one_that_was_cut_short_is_put_back(host: Host, point: str) -> None:
    before = bytes_of(host)
    assert host.configure(pairs=GOOD, at=point).killed
    assert bytes_of(host) != before
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in host.layout.state.glob("upgrade.kept*"))
    host.reboot()
    ran = host.configure()
    assert (ran.code, ran.result["outcome"]) == (1, "resumed"), ran.error
    assert bytes_of(host) == before
    assert host.running() == host.releases["old"]
    nothing_is_left(host)


@pytest.mark.parametrize("given", ["a value", "half a channel", "both together"])
def test_one_that_the_service_would_not_start_with_stops_nobody(
    host: Host, tmp_path: Path, given: str
) -> None:
    """Each file by itself is well formed: only what the service makes of both is refused."""
    pid, before = host.pid(), bytes_of(host)
    shop = tmp_path / "shop.toml"
    shop.write_text(before["shop.toml"].decode().replace('kind = "outbox"', 'kind = "webhook"'))
    asked = {
        "a value": {"pairs": {"STANDFAST_LOG": "nonsense", "SOME_TOKEN": SECRET}},
        "half a channel": {"shop": shop},
        "both together": {"shop": shop, "pairs": GOOD},
    }[given]
    ran = host.configure(**asked)  # type: ignore[arg-type]
    assert (ran.code, ran.result["refused"]) == (2, "bad_input")
    said = json.dumps(ran.result)
    assert ("STANDFAST_LOG" if given == "a value" else "STANDFAST_WEBHOOK_URL") in said
    assert SECRET not in said
    assert (host.pid(), bytes_of(host)) == (pid, before)
    assert host.calls().count("stop") == 0
    assert not list(host.layout.state.glob("upgrade*.json"))
    assert not list(host.layout.state.glob("upgrade.kept*"))


def test_what_is_malformed_is_not_even_tried(host: Host, tmp_path: Path) -> None:
    pid, before = host.pid(), bytes_of(host)
    (tmp_path / "shop.toml").write_text("[shop]\nname = 1\n")
    for given in ({"shop": tmp_path / "shop.toml"}, {"pairs": b"[]"}, {"shop": tmp_path / "none"}):
        with pytest.raises(BadInput):
            Wanted.of(pairs=given.get("pairs"), shop=given.get("shop"), adopt=False)  # type: ignore[arg-type]
    assert host.configure().result["refused"] == "bad_input"
    host.layout.environment.write_text("edited=1\n")
    assert host.configure(pairs=GOOD).result["refused"] == "env_edited"
    assert host.pid() == pid
    assert host.layout.shop.read_bytes() == before["shop.toml"]
