"""A switch that its own command cannot bring to an end any more is given up where that is safe only."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import PATIENCE
from support import eventually
from switching import Host, ended, make, migrating, tree_digest

from standfast.cli import main as cli
from standfast.errors import BadInput
from standfast.layout import Layout
from standfast.operations.upgrade import journal
from standfast.operations.upgrade.abandoning import Word, is_the_way

FULL = os.environ.get("STANDFAST_FULL") == "1"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Host:
    host = Host(tmp_path_factory.mktemp("template"))
    host.install("old")
    host.install("new", migrating(), version="0.2.0")
    host.install("patch", version="0.1.1")
    host.install("mended", migrating(), version="0.2.1")
    return host


@pytest.fixture
def host(tmp_path: Path, template: Host) -> Iterator[Host]:
    """Its releases are its own, so that one can be removed."""
    with ended(make(tmp_path / "srv")) as made:
        made.releases = dict(template.releases)
        shutil.copytree(template.layout.releases, made.layout.releases, symlinks=True)
        made.run("old")
        eventually(made.idle, PATIENCE)
        yield made


def cut_short(host: Host, to: str, at: str) -> None:
    """The switch to a release died, and the release is gone."""
    assert host.switch(to, "old", at=at).killed
    shutil.rmtree(host.layout.releases / host.releases[to])


def evidence(host: Host) -> list[Path]:
    return sorted(host.layout.state.glob("upgrade.abandoned-*"))


@pytest.mark.parametrize("at", ["upgrade.facts", *(["upgrade.stop", "upgrade.backup"] if FULL else [])])
def test_a_release_that_still_serves_serves_on_and_another_may_come(host: Host, at: str) -> None:
    cut_short(host, "new", at)
    host.reboot()
    pid, left = host.pid(), host.journal()
    refused = host.switch("patch", "old")
    assert (refused.code, refused.result["refused"]) == (3, "upgrade_unfinished")
    told = host.switch("old", "old", operation="abandon").result
    assert (told["changed"], told["release"]) == (True, host.releases["old"])
    assert (told["operator"], told["step"], told["put_back"]) == ("lucy", left["step"], [])
    assert (host.pid(), host.journal()["outcome"]) == (pid, "abandoned")
    assert [json.loads(path.read_bytes()) for path in evidence(host)] == [left]
    assert not (host.layout.state / "upgrade.reserve").exists()
    again = host.switch("old", "old", operation="abandon").result
    assert (again["changed"], len(evidence(host))) == (False, 1)
    assert host.switch("patch", "old").result["outcome"] == "upgraded"


def test_where_nobody_serves_the_unit_of_before_is_put_back(host: Host) -> None:
    cut_short(host, "patch", "upgrade.unit.done")
    assert host.releases["patch"] in host.unit
    before = tree_digest(host.layout.state)
    foreseen = host.switch("old", "old", operation="check-abandon").result
    assert (foreseen["changed"], foreseen["check"]) == (True, True)
    assert foreseen["put_back"] == [f"the unit of {host.releases['old']}"]
    assert tree_digest(host.layout.state) == before
    assert host.releases["patch"] in host.unit
    told = host.switch("old", "old", operation="abandon").result
    assert told == foreseen | {"check": False, "evidence": told["evidence"]}
    assert (told["release"], told["facts"], told["migrated"]) == (None, "are equal", {})
    assert f"/releases/{host.releases['old']}/" in host.unit
    host.reboot()
    assert host.running() == host.releases["old"]


def test_a_store_that_the_old_release_cannot_read_is_for_a_mended_one(host: Host) -> None:
    cut_short(host, "new", "migrate.committed")
    before = tree_digest(host.layout.state)
    refused = host.switch("old", "old", operation="abandon")
    assert (refused.code, refused.result["refused"]) == (3, "store_newer")
    assert "fix forward" in refused.result["remedy"]
    assert host.journal()["backup"] in refused.result["remedy"]
    assert tree_digest(host.layout.state) == before
    assert host.switch("mended", "old").result["refused"] == "upgrade_unfinished"
    told = host.switch("mended", "old", operation="abandon").result
    assert (told["changed"], told["migrated"], told["facts"]) == (True, {"shop": [1, 2]}, "are equal")
    assert told["ways_on"][0].startswith("fix forward")
    assert host.running() is None
    ran = host.switch("mended", "old")
    assert (ran.code, ran.result["outcome"]) == (0, "upgraded"), ran.error
    assert host.running() == host.releases["mended"]


def test_what_is_not_safe_is_refused_and_changes_nothing(host: Host) -> None:
    assert host.switch("patch", "old", at="upgrade.start.done").killed
    before = host.journal()
    refused = host.switch("old", "old", operation="abandon")
    assert (refused.code, refused.result["refused"]) == (3, "target_serves")
    assert host.running() == host.releases["patch"]
    host.systemctl("stop", "lucy-agent.service")
    with host.instance.store() as store:
        store.execute("UPDATE stock_events SET delta = delta + 1")
    refused = host.switch("old", "old", operation="abandon")
    assert (refused.code, refused.result["refused"]) == (3, "facts_differ")
    assert "which rows written since explain +0" in str(refused.result["observed"])
    assert host.journal() == before
    assert evidence(host) == []


def test_a_configuration_that_was_cut_short_is_put_back(host: Host, tmp_path: Path) -> None:
    host.cli("old", "env", "write", stdin=b"{}")
    before = host.layout.environment.read_bytes()
    assert host.configure(pairs={"STANDFAST_LOG": "debug"}, at="upgrade.unit.done").killed
    told = host.switch("patch", "old", operation="abandon").result
    assert told["put_back"] == ["the configuration"]
    assert host.layout.environment.read_bytes() == before
    assert not list(host.layout.state.glob("upgrade.kept*"))


def test_the_status_says_when_it_is_the_way(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    def told() -> str:
        assert cli.main(["--state", str(host.layout.state), "upgrade", "status"]) == 0
        return capsys.readouterr().out

    assert host.switch("patch", "old", at="upgrade.facts").killed
    assert f"repeat the upgrade to {host.releases['patch']}" in told()
    shutil.rmtree(host.layout.releases / host.releases["patch"])
    assert "is gone: `standfast upgrade abandon`" in told()
    host.switch("old", "old", operation="abandon")
    last = journal.read(Layout(host.layout.state))
    assert last is not None
    assert not is_the_way(host.layout, last)
    assert "way on" not in told()


@pytest.mark.parametrize(
    ("operator", "reason"), [("", "why"), ("lucy", " "), ("lucy", "a\nb"), ("x" * 65, "why")]
)
def test_who_and_why_are_one_line_each(operator: str, reason: str) -> None:
    with pytest.raises(BadInput):
        Word.of(operator, reason)
