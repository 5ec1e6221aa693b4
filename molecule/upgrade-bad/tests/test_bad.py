"""What a bad release comes to: the run fails, says why and what to do, and the business is as it was before.

One that was refused has not stopped anything. One that failed before its process was started leaves the old
process's release running. One that failed later goes back by itself where a review allows that; otherwise the
service stays stopped, and nothing is restored.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from conftest import Tried, each, generation, release, said_of, side_by_side
from evidence import canary, database, good, properties, receipts, running, service
from rows import only_canaries_came, rows
from runbook import BlockFailed
from target import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from runbook import Executor
    from target import Controller, Host

UNTOUCHED = ("corrupts", "missing-wheel", "broken-wheel")
RESUMED = ("corrupts-live", "half-migration-live")
ROLLED_BACK = ("crashes", "never-ready", "idle")
STOPPED = ("corrupts-running", "unreadable")
# Of each kind one, which a good release takes over afterwards.
TAKEN_OVER = ("broken-wheel", "never-ready", "half-migration-live", "unreadable")
STEP = {
    "crashes": "start",
    "never-ready": "start",
    "idle": "canary",
    "corrupts-live": "migrate",
    "corrupts-running": "compare",
    "half-migration-live": "migrate",
    "unreadable": "start",
}
WHY = {
    "crashes": "start",
    "never-ready": "start",
    "idle": "did not finish the canary within",
    "corrupts": "before, {'CANCELED'",
    "corrupts-live": "changes business facts",
    "corrupts-running": "business facts differ without an explanation: work CANCELED",
    "unreadable": "start",
    "missing-wheel": "wheel_missing (pydantic-core",
    "broken-wheel": "pydantic-core",
    "half-migration-live": "shelves.shelf",
}


def v1(tried: dict[str, Tried]) -> str:
    """The release that every host had."""
    [only] = {one.before.releases[-1] for one in tried.values()}
    return only


def switch_of(one: Tried) -> dict[str, Any]:
    """What the one receipt of the attempt tells of the switch."""
    [receipt] = one.receipts
    told: dict[str, Any] = receipt["switch"]
    return told


def test_every_kind_is_here(tried: dict[str, Tried]) -> None:
    assert set(tried) == {*UNTOUCHED, *RESUMED, *ROLLED_BACK, *STOPPED} == set(WHY)


@pytest.mark.parametrize("name", sorted(WHY))
def test_the_run_fails_and_says_why(tried: dict[str, Tried], name: str) -> None:
    one = tried[name]
    assert one.failed
    assert WHY[name] in one.said
    assert "Traceback" not in one.said


@pytest.mark.parametrize("name", [name for name in sorted(WHY) if name != "missing-wheel"])
def test_its_receipt_says_it(tried: dict[str, Tried], name: str) -> None:
    [receipt] = tried[name].receipts
    assert receipt["operation"] == "upgrade"
    assert receipt["verdict"] == ("refused" if name == "corrupts" else "failed")
    assert WHY[name] in " ".join(receipt["reason"].split())
    assert receipt["release_before"] == v1(tried)
    tried[name].host.cli("receipt", "verify")


@pytest.mark.parametrize("name", UNTOUCHED)
def test_one_that_is_refused_or_cannot_be_staged_stops_nothing(tried: dict[str, Tried], name: str) -> None:
    one = tried[name]
    assert one.after == one.before
    assert database(one.host) == one.store
    assert running(one.host) == one.unit
    assert one.host.cli("upgrade", "status") == {}


@pytest.mark.parametrize("name", RESUMED)
def test_before_it_was_started_the_old_release_starts_again(tried: dict[str, Tried], name: str) -> None:
    one = tried[name]
    told = switch_of(one)
    assert (told["outcome"], told["step"]) == ("resumed", STEP[name])
    assert told["migrated"] == {}
    assert "runs again; nothing was migrated" in one.said
    assert one.after.schema == one.before.schema
    came_back(one, v1(tried))


@pytest.mark.parametrize("name", ROLLED_BACK)
def test_where_a_review_allows_it_the_code_goes_back_by_itself(tried: dict[str, Tried], name: str) -> None:
    one = tried[name]
    told = switch_of(one)
    assert (told["outcome"], told["step"]) == ("rolled_back", STEP[name])
    assert f"The code was rolled back to {v1(tried)}, which finished new work; no database was restored" in (
        one.said
    )
    came_back(one, v1(tried))


def came_back(one: Tried, old: str) -> None:
    """The old release runs, as a new process, and has shown it by work of its own; nothing else is new."""
    state = running(one.host)
    assert state.main_pid != one.unit.main_pid
    assert one.after.runs[-1][1:] == [old, state.main_pid]
    came = only_canaries_came(one.before, one.after)
    assert came[-1][2] == "DONE"
    assert came[-1][5] == one.after.runs[-1][0]
    [receipt] = one.receipts
    assert (receipt["canary"]["work"], receipt["canary"]["run"]["release"]) == (came[-1][0], old)
    assert properties(one.host, "UnitFileState")["UnitFileState"] == "enabled"
    closed(one)


def closed(one: Tried) -> None:
    """The journal of the switch has come to its end, and says which."""
    journal = one.host.cli("upgrade", "status")
    assert (journal["step"], journal["outcome"]) == ("done", switch_of(one)["outcome"])


@pytest.mark.parametrize("name", STOPPED)
def test_where_it_is_not_safe_the_service_stays_stopped(tried: dict[str, Tried], name: str) -> None:
    one = tried[name]
    told = switch_of(one)
    assert (told["outcome"], told["step"]) == ("stopped", STEP[name])
    state = service(one.host)
    assert (state.active, state.main_pid) in {("inactive", 0), ("failed", 0)}
    assert properties(one.host, "UnitFileState")["UnitFileState"] != "enabled"
    assert "The service STAYS STOPPED and nothing was restored" in one.said
    assert v1(tried) not in one.after.releases[len(one.before.releases) :]
    [receipt] = one.receipts
    assert receipt["canary"] is None
    closed(one)


@pytest.mark.parametrize("name", STOPPED)
def test_the_lawful_ways_on_are_named_and_what_each_costs(tried: dict[str, Tried], name: str) -> None:
    one = tried[name]
    ways = " ".join(switch_of(one)["ways_on"])
    for words in ("fix forward", "runbooks/restore.md", "is lost from the books", switch_of(one)["backup"]):
        assert words in ways
        assert words in one.said


def test_the_backup_of_before_the_migration_is_there_and_names_both_releases(tried: dict[str, Tried]) -> None:
    one = tried["unreadable"]
    folder = switch_of(one)["backup"]
    one.host.cli("backup", "verify", folder.rpartition("/")[2])
    manifest = json.loads(one.host.run(["cat", f"{folder}/manifest.json"]).stdout)
    assert manifest["releases"] == {"before": v1(tried), "after": one.bad}


def test_a_store_that_the_old_release_cannot_read_lost_nothing(tried: dict[str, Tried]) -> None:
    one = tried["unreadable"]
    assert one.after.schema != one.before.schema
    came = only_canaries_came(one.before, one.after)
    assert [status for _, _, status, *_ in came] == ["CANCELED"]  # its own, which nobody took


def test_facts_that_changed_under_a_running_release_are_left_as_evidence(tried: dict[str, Tried]) -> None:
    """Going back by itself would bury them: what was DONE is CANCELED, and stays so for a person."""
    one = tried["corrupts-running"]
    assert {status for *_, status, _, _, _ in one.before.work} == {"DONE"}
    assert [row[2] for row in one.after.work[: len(one.before.work)]] == ["CANCELED"] * len(one.before.work)


@pytest.mark.parametrize("name", [*ROLLED_BACK, *RESUMED, *STOPPED])
def test_a_release_that_did_not_work_is_on_record(tried: dict[str, Tried], name: str) -> None:
    listed = {one["id"]: one for one in tried[name].host.cli("release", "list")["releases"]}
    assert listed[tried[name].bad]["verdict"] == "bad"
    assert listed[v1(tried)]["verdict"] == "good"
    assert listed[v1(tried)]["current"]


@pytest.fixture(scope="module")
def cut_short(tried: dict[str, Tried]) -> Tried:
    """A switch typed by hand, killed while its release starts and is never READY; and that one is gone."""
    one = tried["never-ready"]
    command = f"/srv/lucy/releases/{one.bad}/venv/bin/python -I -m standfast --state /srv/lucy/state"
    switch = f"{command} upgrade switch --no-receipt --from {v1(tried)} >/dev/null 2>&1 </dev/null"
    pid = "/tmp/switch.pid"
    one.host.as_user("lucy", ["setsid", "--fork", "bash", "-c", f"echo $$ > {pid}; exec {switch}"])
    wait_until(lambda: service(one.host).active == "activating", 60, "the bad release starts")
    one.host.run(f"kill -KILL $(cat {pid}) && rm -r /srv/lucy/releases/{one.bad}")
    return one


def test_what_nobody_can_finish_is_given_up_by_the_page(
    tried: dict[str, Tried],
    cut_short: Tried,
    controller: Controller,
    runbook: Callable[[str, Host], Executor],
) -> None:
    """Not while what is given up tries to start; then the release of before works on, and nothing is lost.

    A release that might give it up instead is put on the host all the same.
    """
    controller.write_inventory(
        "staged", {cut_short.host.name: {}}, {"release_archive": str(generation("v2"))}
    )
    play = controller.playbook("preflight", inventory="staged")
    said = said_of(play, cut_short.host.name)
    assert "was cut short at the step start" in said
    assert "where that release is gone: runbooks/upgrade-stopped-half-way.md" in said
    assert release("v2") in cut_short.host.run("ls /srv/lucy/releases").stdout

    host, page = cut_short.host, runbook("upgrade-stopped-half-way", cut_short.host)
    page.run("Diagnosis")
    with pytest.raises(BlockFailed, match="neither at rest nor at work"):
        page.run("Act: give it up")
    assert host.cli("upgrade", "status")["outcome"] is None
    host.run("lucy-agent systemctl stop lucy-agent")  # as the page says of that refusal
    page.run("Act: give it up", "Verify that it was given up")
    assert service(host).main_pid == 0
    receipt = receipts(host)[max(receipts(host))]
    assert (receipt["operation"], receipt["verdict"]) == ("upgrade-abandon", "done")
    evidence = json.loads(host.run("cat /srv/lucy/state/upgrade.abandoned-*.json").stdout)
    assert (evidence["step"], evidence["outcome"], evidence["to"]) == ("start", None, cut_short.bad)

    host.run("lucy-agent systemctl start lucy-agent")
    state = running(host)
    assert canary(host, state.main_pid)["run"]["release"] == v1(tried)
    assert properties(host, "UnitFileState")["UnitFileState"] == "enabled"
    assert {status for _, _, status, *_ in only_canaries_came(cut_short.after, rows(host))} == {"DONE"}
    host.cli("receipt", "verify")


@pytest.fixture(scope="module")
def then(tried: dict[str, Tried], hosts: dict[str, Host], controller: Controller) -> dict[str, str]:
    """Afterwards v2, a good one, on a host of each kind; what that run said, by host."""
    good_one = {name: {"release_archive": str(generation("v2"))} for name in TAKEN_OVER}
    play = side_by_side(controller, good_one)
    good(play)
    return dict.fromkeys(TAKEN_OVER, play.output)


@pytest.mark.parametrize("name", TAKEN_OVER)
def test_a_good_release_afterwards_is_taken_over(
    tried: dict[str, Tried], then: dict[str, str], name: str
) -> None:
    """Also from a stopped service, on a store that the failed one brought forward: that is to fix forward."""
    assert name in then
    one = tried[name]
    state = running(one.host)
    found = rows(one.host)
    assert found.runs[-1][1:] == [release("v2"), state.main_pid]
    only_canaries_came(one.before, found)
    proof = canary(one.host, state.main_pid)
    assert proof["run"]["release"] == release("v2")
    health = one.host.run(["/usr/local/bin/lucy-agent", "--json", "health"], check=False).stdout
    assert '"served_versions"' in health
    assert properties(one.host, "UnitFileState")["UnitFileState"] == "enabled"
    newest = max(receipts(one.host).items())[1]
    assert (newest["verdict"], newest["release_after"]) == ("done", release("v2"))


def test_the_other_way_on_is_the_backup_of_before(tried: dict[str, Tried], controller: Controller) -> None:
    """The release before serves it again, paused, and what was corrupted stays as the safety backup."""
    one = tried["corrupts-running"]
    backup = switch_of(one)["backup"].rpartition("/")[2]
    controller.write_inventory("restored", {one.host.name: {}})
    good(controller.playbook("restore", inventory="restored", extra_vars={"restore_from": backup}))
    state, found = running(one.host), rows(one.host)
    assert found.runs[-1][1:] == [v1(tried), state.main_pid]
    assert found.work[: len(one.before.work)] == one.before.work
    [[epoch, paused, _]] = found.operations
    assert (epoch == one.before.operations[0][0], paused) == (False, 1)
    assert properties(one.host, "UnitFileState")["UnitFileState"] == "enabled"
    assert receipts(one.host)[max(receipts(one.host))]["operation"] == "restore"


def test_nothing_is_left_behind(
    tried: dict[str, Tried], then: dict[str, str], hosts: dict[str, Host]
) -> None:
    """No lock, no half-made release and no archive of any run."""
    assert then
    left = each(
        hosts,
        lambda host: (
            host.run(
                "ls /run/standfast/deploy.lock /srv/lucy/releases/.* -d 2>/dev/null | grep -v '/[.]*$'",
                check=False,
            ).stdout
        ),
    )
    assert set(left.values()) == {""}
    assert set(each(hosts, half_made).values()) == {""}


def half_made(host: Host) -> str:
    """Release folders without a seal."""
    return host.run("for r in /srv/lucy/releases/*/; do [ -e $r/installed.json ] || echo $r; done").stdout
