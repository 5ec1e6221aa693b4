"""A switch that is typed by hand leaves one receipt, whatever it came to; a playbook keeps its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import PATIENCE
from support import eventually
from switching import CRASHING, Host, ended, make, migrating

from standfast.receipts import chain
from standfast.receipts.model import Receipt


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Host:
    host = Host(tmp_path_factory.mktemp("template"))
    host.install("old")
    host.install("patch", version="0.1.1")
    host.install("unreadable", migrating(), CRASHING, version="0.2.1")
    return host


@pytest.fixture
def host(tmp_path: Path, template: Host) -> Iterator[Host]:
    with ended(make(tmp_path / "srv", template)) as made:
        made.layout.receipts.mkdir(0o700)
        made.cli("old", "env", "write", stdin=b"{}")
        made.run("old")
        eventually(made.idle, PATIENCE)
        yield made


def receipts(host: Host) -> list[Receipt]:
    assert chain.verify(host.layout.receipts).verified
    return [Receipt.model_validate(entry.content) for entry in chain.entries(host.layout.receipts)]


def test_each_that_changed_the_host_leaves_one(host: Host, tmp_path: Path) -> None:
    old, patch = host.releases["old"], host.releases["patch"]
    assert host.typed("patch", "--check", "upgrade", "switch", "--from", old).result["receipt"] is None
    up = host.typed("patch", "upgrade", "switch", "--from", old)
    assert up.code == 0, up.error
    assert host.typed("patch", "upgrade", "switch", "--from", old).result["changed"] is False
    assert host.typed("patch", "rollback", "--to", "gone").code == 3
    back = host.typed("patch", "rollback", "--to", old)
    shop = tmp_path / "shop.toml"
    shop.write_text(host.layout.shop.read_text().replace("reorder_point = 0", "reorder_point = 1", 1))
    configured = host.typed("old", "upgrade", "configure", "--shop", str(shop))
    found = receipts(host)
    assert [(one.operation, one.verdict, one.release_before, one.release_after) for one in found] == [
        ("upgrade", "done", old, patch),
        ("rollback", "done", patch, old),
        ("configure", "done", old, old),
    ]
    for one, ran in zip(found, (up, back, configured), strict=True):
        assert Path(ran.result["receipt"]).is_file()
        assert one.switch is not None
        assert one.canary is not None
        assert one.switch.outcome == ran.result["outcome"]
        assert one.switch.facts_after == ran.result["facts_after"]["digest"]
        assert one.canary.work == ran.result["canary"]["work"]
        assert [step.name for step in one.switch.steps] == [step["name"] for step in ran.result["phases"]]


def test_one_that_failed_says_what_stands_and_which_ways_lead_on(host: Host) -> None:
    ran = host.typed("unreadable", "upgrade", "switch", "--from", host.releases["old"])
    assert (ran.code, ran.result["outcome"]) == (1, "stopped")
    [one] = receipts(host)
    assert (one.verdict, one.stopped_at, one.release_after) == ("failed", "start", None)
    assert one.switch is not None
    assert one.switch.ways_on == ran.result["ways_on"]
    assert one.switch.backup == ran.result["backup"]


def test_what_was_given_up_is_on_record(host: Host) -> None:
    assert host.switch("patch", "old", at="upgrade.facts").killed
    words = ("upgrade", "abandon", "--operator", "lucy", "--reason", "a test")
    assert host.typed("old", *words).result["changed"]
    [one] = receipts(host)
    assert (one.operation, one.verdict) == ("upgrade-abandon", "done")
    assert "given up by lucy: a test" in one.checks[0].observed


def test_a_playbook_keeps_its_own(host: Host) -> None:
    ran = host.typed("patch", "upgrade", "switch", "--no-receipt", "--from", host.releases["old"])
    assert (ran.code, ran.result["receipt"]) == (0, None)
    assert host.typed("patch", "rollback", "--no-receipt", "--to", host.releases["old"]).code == 0
    assert receipts(host) == []


def test_without_a_place_for_it_nothing_is_begun(host: Host) -> None:
    pid = host.pid()
    host.layout.receipts.rmdir()
    ran = host.typed("patch", "upgrade", "switch", "--from", host.releases["old"])
    assert (ran.code, ran.result["refused"]["code"]) == (3, "no_receipts")
    assert (host.pid(), (host.layout.state / "upgrade.json").exists()) == (pid, False)
