"""Switches from one release to another: good ones, bad ones, and what becomes of the bad ones."""

import fcntl
import json
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from serving import PATIENCE
from support import eventually
from switching import CRASHING, IDLE, NEWER, STEALING, Host, ended, make, migrating, tree_digest

from standfast.authority import CONTRACT
from standfast.errors import Refused
from standfast.operations.backup.manifest import read_manifest
from standfast.operations.schema import understood
from standfast.operations.upgrade.fallback import why_not

FULL = os.environ.get("STANDFAST_FULL") == "1"
in_full = pytest.mark.skipif(not FULL, reason="the full tier does it")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Host:
    host = Host(tmp_path_factory.mktemp("template"))
    old = host.install("old")
    host.install("new", migrating(), version="0.2.0")
    host.install("patch", version="0.1.1")
    host.install("crashes", CRASHING, version="0.1.2", reviewed_fallbacks=(old,))
    host.install("idle", IDLE, version="0.1.3", reviewed_fallbacks=(old,))
    host.install("steals", STEALING, version="0.1.4", reviewed_fallbacks=(old,))
    host.install("unreadable", migrating(), CRASHING, version="0.2.1")
    host.install("unreviewed", CRASHING, version="0.1.5")
    host.install("corrupts", migrating(' "UPDATE stock_events SET delta = delta + 1",'), version="0.2.2")
    host.install("half", migrating(' "UPDATE absent SET x = 1",'), version="0.2.3")
    host.install("floors", CRASHING, version="0.1.6", reviewed_fallbacks=(old,), rollback_floor="0.1.1")
    host.install("contract", version="0.1.7", reviewed_fallbacks=(old,), authority_contract=CONTRACT + 1)
    return host


@pytest.fixture
def host(tmp_path: Path, template: Host) -> Iterator[Host]:
    with ended(make(tmp_path / "srv", template)) as made:
        made.run("old")
        eventually(made.idle, PATIENCE)
        yield made


def schema(host: Host) -> dict[str, int]:
    return dict(host.instance.rows("SELECT component, version FROM meta"))


def done(host: Host) -> list[Any]:
    return host.instance.rows(
        "SELECT session LIKE 'canary-%', status, generation,"
        " (SELECT count(*) FROM reports WHERE work = work.id) FROM work ORDER BY seq"
    )


def test_the_target_works_and_every_difference_is_explained(host: Host) -> None:
    before, pid = host.cli("old", "facts"), host.pid()
    ran = host.switch("new", "old")
    told = ran.result
    assert (ran.code, told["outcome"], told["changed"]) == (0, "upgraded", True)
    assert host.running() == host.releases["new"] == told["canary"]["run"]["release"]
    assert host.pid() == told["main_pid"] == told["canary"]["run"]["pid"] != pid
    assert told["migrated"] == {"shop": [1, 2]}
    assert told["facts_before"]["digest"] == before["digest"]
    assert told["facts_after"]["work"] == {"DONE": 2}
    assert told["facts_after"]["stock"] == before["stock"]
    assert told["explained"] == [
        "work DONE: +1",
        "reports sent: +1",
        f"work {told['canary']['work']} (canary): DONE",
    ]
    [(last, first)] = host.instance.rows(
        "SELECT min(finished_at), max(finished_at) FROM work WHERE status = 'DONE'"
    )
    asked = host.journal()["stop_asked_at"]
    assert last < asked < first
    assert told["silence_seconds"] == round(first - asked, 3), "the old one could work until then"
    releases = read_manifest(Path(told["backup"])).releases
    assert releases is not None
    assert (releases.before, releases.after) == (host.releases["old"], host.releases["new"])
    assert read_manifest(Path(told["backup"])).schema_versions == understood()
    unit = host.manager / "home/lucy-agent.service"
    assert host.unit == host.cli("new", "unit")["text"]
    assert stat.S_IMODE(unit.stat().st_mode) == 0o644
    assert stat.S_IMODE((host.layout.state / "upgrade.json").stat().st_mode) == 0o600
    assert host.journal()["result"] == told
    steps = [phase["name"] for phase in told["phases"]]
    assert steps == ["facts", "stop", "backup", "migrate", "unit", "start", "canary", "compare", "done"]


def test_after_a_clock_that_was_set_back_the_silence_is_not_known(host: Host) -> None:
    """And what a receipt could not hold is not told."""
    host.instance.rows("UPDATE work SET finished_at = finished_at + 86400")
    ran = host.switch("patch", "old")
    assert (ran.code, ran.result["outcome"], ran.result["silence_seconds"]) == (0, "upgraded", None)


def test_the_same_again_changes_nothing_and_says_what_was(host: Host) -> None:
    first = host.switch("new", "old").result
    pid, calls, backups = host.pid(), len(host.calls()), sorted(host.layout.backups.iterdir())
    again = host.switch("new", "old")
    assert again.code == 0
    assert again.result == first | {"changed": False}
    assert (host.pid(), sorted(host.layout.backups.iterdir())) == (pid, backups)
    assert set(host.calls()[calls:]) == {"show"}


def test_a_check_says_what_it_would_do_and_touches_nothing(host: Host) -> None:
    pid, before = host.pid(), tree_digest(host.layout.state)
    told = host.switch("new", "old", operation="check")
    assert (told.code, told.result["changed"], told.result["check"]) == (0, True, True)
    assert told.result["migrated"] == {"shop": [1, 2]}
    assert host.pid() == pid
    assert tree_digest(host.layout.state) == before
    assert not host.layout.backups.exists()
    assert set(host.calls()[-2:]) <= {"start", "show"}


@in_full
def test_a_release_of_the_same_schema_migrates_nothing(host: Host) -> None:
    told = host.switch("patch", "old").result
    assert (told["outcome"], told["migrated"]) == ("upgraded", {})
    assert host.running() == host.releases["patch"]


@pytest.mark.parametrize("name", ["crashes", "idle"])
def test_a_reviewed_fallback_takes_over_from_a_release_that_does_not_work(host: Host, name: str) -> None:
    ran = host.switch(name, "old")
    told = ran.result
    assert (ran.code, told["outcome"]) == (1, "rolled_back")
    assert told["step"] == {"crashes": "start", "idle": "canary"}[name]
    assert host.running() == host.releases["old"] == told["canary"]["run"]["release"]
    assert host.unit == host.cli("old", "unit")["text"]
    assert told["facts_after"]["stock"] == told["facts_before"]["stock"]
    assert told["ways_on"]
    assert host.journal()["outcome"] == "rolled_back"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("unreviewed", "nobody has reviewed it"),
        pytest.param("unreadable", "the store's shop is at 2, and it understands 1", marks=in_full),
        pytest.param("floors", "under the rollback floor 0.1.1", marks=in_full),
    ],
)
def test_where_going_back_is_not_safe_the_service_stays_stopped(host: Host, name: str, why: str) -> None:
    ran = host.switch(name, "old")
    told = ran.result
    assert (ran.code, told["outcome"], told["step"]) == (1, "stopped", "start")
    assert why in told["reason"]
    assert host.running() is None
    assert f"/releases/{host.releases['old']}/" in host.unit, "what a restore starts is what `current` names"
    assert told["ways_on"][0].startswith("fix forward")
    assert f"restore {told['backup']}" in told["ways_on"][-1]
    host.reboot()
    assert host.running() is None


def test_what_was_left_stopped_starts_with_the_host_again_once_a_release_works(host: Host) -> None:
    assert host.switch("unreviewed", "old").result["outcome"] == "stopped"
    assert host.switch("new", "old").result["outcome"] == "upgraded"
    host.reboot()
    assert host.running() == host.releases["new"]


def test_of_a_stop_only_what_could_not_be_done_is_said_to_be_undone(host: Host) -> None:
    (host.manager / "stays enabled").write_text("yes")
    ran = host.switch("unreviewed", "old")
    assert ran.result["outcome"] == "stopped"
    assert "it starts with the host still: `systemctl --user disable` failed" in ran.result["reason"]
    assert "could not be shown" not in ran.result["reason"]
    assert f"/releases/{host.releases['old']}/" in host.unit, "the rest was done"
    assert host.running() is None


@pytest.mark.parametrize(
    ("name", "schema", "why"),
    [
        ("crashes", understood(), []),
        ("unreviewed", understood(), ["nobody has reviewed it as a fallback of the target"]),
        ("crashes", NEWER, ["the store's shop is at 2, and it understands 1"]),
        ("floors", understood(), ["its version 0.1.0 is under the rollback floor 0.1.1 of "]),
        ("contract", understood(), [f"its authority contract is {CONTRACT}, not {CONTRACT + 1}"]),
    ],
)
def test_each_reason_against_going_back_by_itself(
    template: Host, name: str, schema: dict[str, int], why: list[str]
) -> None:
    found = why_not(
        template.layout, target=template.releases[name], old=template.releases["old"], schema=schema
    )
    assert len(found) == len(why)
    assert all(one.startswith(said) for one, said in zip(found, why, strict=True))


def test_after_a_stop_a_corrected_release_takes_over(host: Host) -> None:
    assert host.switch("unreadable", "old").result["outcome"] == "stopped"
    ran = host.switch("new", "old")
    assert (ran.code, ran.result["outcome"], ran.result["migrated"]) == (0, "upgraded", {})
    host.reboot()
    assert host.running() == host.releases["new"]


@pytest.mark.parametrize(("name", "why"), [("corrupts", "changes business facts"), ("half", "no such table")])
def test_a_migration_that_fails_is_undone_and_the_old_release_starts_again(
    host: Host, name: str, why: str
) -> None:
    before = host.cli("old", "facts")
    ran = host.switch(name, "old")
    told = ran.result
    assert (ran.code, told["outcome"], told["step"]) == (1, "resumed", "migrate")
    assert why in told["reason"]
    assert schema(host) == understood()
    assert host.running() == host.releases["old"]
    assert host.cli("old", "facts")["stock"] == before["stock"]
    assert told["migrated"] == {}


def test_facts_that_differ_without_an_explanation_stop_everything(host: Host) -> None:
    """Although a reviewed fallback is there."""
    ran = host.switch("steals", "old")
    told = ran.result
    assert (ran.code, told["outcome"], told["step"]) == (1, "stopped", "compare")
    assert "stock chocolate: -1, of which rows written since explain +0" in told["reason"]
    assert host.running() is None


def test_a_service_that_only_looks_stopped_is_noticed(host: Host) -> None:
    (host.manager / "lies").write_text("yes")
    try:
        ran = host.switch("new", "old")
        assert (ran.code, ran.result["step"]) == (1, "stop")
        assert "another process acts for this state directory" in ran.result["reason"]
        assert ran.result["backup"] is None
        assert schema(host) == understood()
    finally:
        (host.manager / "lies").unlink()


def test_work_that_is_accepted_meanwhile_is_finished_once(host: Host) -> None:
    """An operator adds work all the time, until the store belongs to the newer release."""
    accepted: list[str | None] = []
    stop = threading.Event()

    def add() -> None:
        with suppress(Refused):  # `store_newer`: his command is the older release's
            while not stop.wait(0.02):
                accepted.append(host.instance.add().work)

    operator = threading.Thread(target=add)
    operator.start()
    try:
        ran = host.switch("new", "old")
    finally:
        stop.set()
        operator.join()
    assert (ran.code, ran.result["outcome"]) == (0, "upgraded")
    eventually(lambda: not host.instance.rows("SELECT 1 FROM work WHERE status <> 'DONE'"), PATIENCE)
    assert len(host.instance.rows("SELECT 1 FROM work")) == len(accepted) + 2
    assert {row[2:] for row in done(host)} <= {(1, 1), (2, 1)}
    assert len(host.instance.rows("SELECT DISTINCT work FROM reports")) == len(accepted) + 2


@pytest.mark.parametrize(
    ("name", "at", "outcome"),
    [("HUP", "upgrade.backup", "upgraded"), ("TERM", "upgrade.backup.done", "resumed")],
)
def test_a_lost_connection_ends_nothing_and_a_request_to_end_goes_the_safe_way(
    host: Host, name: str, at: str, outcome: str
) -> None:
    ran = host.switch("new", "old", at=at, signal_=name)
    assert ran.result["outcome"] == outcome
    assert host.running() == host.releases["new" if outcome == "upgraded" else "old"]


def test_two_switches_are_not_at_work_together(tmp_path: Path, template: Host) -> None:
    host = make(tmp_path / "srv", template)
    with (host.layout.state / "upgrade.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # one that is shared is in the way, too: ours is asked for alone
        ran = host.switch("new", "old")
    assert (ran.code, ran.result["refused"]) == (3, "upgrade_at_work")


def test_another_target_is_refused_while_a_switch_is_unfinished(host: Host) -> None:
    assert host.switch("new", "old", at="upgrade.backup").killed
    ran = host.switch("patch", "old")
    assert (ran.code, ran.result["refused"]) == (3, "upgrade_unfinished")
    assert host.journal()["to"] == host.releases["new"]
    assert host.switch("new", "old").result["outcome"] == "upgraded"


def test_what_speaks_against_it_is_refused_before_anything_is_touched(host: Host) -> None:
    pid = host.pid()
    unit = host.manager / "home/lucy-agent.service"
    text = unit.read_text()
    unit.write_text(text.replace(host.releases["old"], "another"))
    assert host.switch("new", "old").result["refused"] == "unit_foreign"
    unit.unlink()
    assert host.switch("new", "old").result["refused"] == "unit_absent"
    unit.write_text(text)
    assert host.switch("new", "new").result["refused"] == "same_release"
    with (host.layout.state / "agent.lock").open("r+") as lock:
        host.systemctl("stop", "lucy-agent.service")
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert host.switch("new", "old").result["refused"] == "writer_held"
    host.run("old")
    pid = host.pid()
    host.releases = host.releases | {"gone": "0.1.0-cccccccc-cccccccc"}
    assert host.switch("new", "gone").result["refused"] == "release_absent"
    (host.layout.state / "upgrade.json").write_text("{")
    assert host.switch("new", "old").result["refused"] == "journal_unreadable"
    (host.layout.state / "upgrade.json").unlink()
    with host.instance.store() as connection:
        connection.execute("UPDATE operations SET paused = 1, reason = 'a test'")
    assert host.switch("new", "old").result["refused"] == "paused"
    assert host.pid() == pid
    assert not host.layout.backups.exists()
    assert host.cli("old", "upgrade", "status") == {}


def test_the_journal_is_on_disk_before_its_step_begins(host: Host) -> None:
    assert host.switch("new", "old", at="upgrade.stop").killed
    assert host.journal()["step"] == "stop"
    assert host.running() == host.releases["old"]
    assert json.dumps(host.journal()).count("STANDFAST_") == 0
