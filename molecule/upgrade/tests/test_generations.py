"""One host through its releases and back, while an operator goes on adding work.

The tests go on from each other.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from archives import manifest_of
from evidence import good, listing, properties, receipts, running
from traffic import finished_once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from runbook import Executor
    from target import Controller, Host, Play
    from traffic import Operator

UNIT = "/home/lucy/.config/systemd/user/lucy-agent.service"
# What the service itself writes while it works.
ALIVE = ("/srv/lucy/state/agent.sqlite*", "/srv/lucy/state/outbox", "/srv/lucy/state/status*")

# Of an upgrade to a release that is not on the host yet.
ORDER = (
    "host : Host | The deploy lock is ours",
    "release : Build | It is proven and sealed",
    "upgrade : Preflight | The release has looked at the state",
    "upgrade : Switch | The service was brought to the release",
    "release : Current | Names the installed release",
    "receipt : Receipt | Is chained on the host",
    "host : Host | The deploy lock is free",
)


def words(play: Play) -> str:
    return " ".join(play.output.split())


def last(host: Host) -> dict[str, Any]:
    return list(receipts(host).values())[-1]


def still(host: Host) -> set[str]:
    """What a look or a refusal must leave as it was: the process, its unit, releases, receipts."""
    files = listing(host, "/srv/lucy/releases", "/srv/lucy/receipts", "/home/lucy", "/var/lib/standfast")
    link = host.run(["readlink", "/srv/lucy/current"]).stdout
    return files | {str(running(host)), link, host.run(["sha256sum", UNIT]).stdout}


def facts(host: Host) -> dict[str, Any]:
    """Without what goes on while the operator adds work."""
    found = host.cli("facts")
    return {name: found[name] for name in ("epoch", "orders", "spent_cents", "reserved_cents", "stock")}


def switched(host: Host, play: Play, before: str, after: str, operation: str = "upgrade") -> dict[str, Any]:
    """The run ended well: the release runs, unit and `current` are its own, and the receipt says it."""
    good(play)
    state = running(host)
    assert host.run(["readlink", "/srv/lucy/current"]).stdout.strip() == f"releases/{after}"
    assert f"/releases/{after}/" in host.run(["cat", f"/proc/{state.main_pid}/cmdline"]).stdout
    assert f"/releases/{after}/" in properties(host, "ExecStart")["ExecStart"]
    receipt = last(host)
    assert (receipt["operation"], receipt["verdict"]) == (operation, "done")
    assert (receipt["release_before"], receipt["release_after"]) == (before, after)
    assert receipt["canary"]["run"] == {
        "id": receipt["canary"]["run"]["id"],
        "release": after,
        "pid": state.main_pid,
    }
    told = receipt["switch"]
    assert 0 < told["silence_seconds"] < receipt["seconds"]
    assert len(told["facts_before"]) == len(told["facts_after"]) == 64
    assert any(line.startswith("work DONE: +") for line in told["explained"])
    return dict(receipt)


def test_a_look_at_a_release_that_is_not_there_yet_touches_nothing(
    controller: Controller, host: Host, archives: Mapping[str, Path]
) -> None:
    """--check --diff says what it can know, and that the release's own look is still to come."""
    before = still(host)
    play = controller.playbook("upgrade", check=True, extra_vars={"release_archive": str(archives["patch"])})
    assert play.rc == 0, play.output[-3000:]
    said = words(play)
    assert "PREFLIGHT " in said
    assert "the release is not on this host yet" in said
    assert still(host) == before


def test_preflight_stages_the_release_by_the_page_and_leaves_the_service_alone(
    controller: Controller, host: Host, archives: Mapping[str, Path], releases: Mapping[str, str]
) -> None:
    before, unit, state = len(receipts(host)), host.run(["sha256sum", UNIT]).stdout, running(host)
    kept = listing(host, "/srv/lucy/state", "/srv/lucy/receipts", "/srv/lucy/backups", without=ALIVE)
    play = controller.playbook("preflight", extra_vars={"release_archive": str(archives["patch"])})
    good(play)
    said = words(play)
    assert f"{releases['v1']} -> {releases['patch']}" in said
    assert f"{releases['patch']} was staged" in said
    assert running(host) == state
    assert host.run(["sha256sum", UNIT]).stdout == unit
    assert listing(host, "/srv/lucy/state", "/srv/lucy/receipts", "/srv/lucy/backups", without=ALIVE) == kept
    assert host.run(["readlink", "/srv/lucy/current"]).stdout.strip() == f"releases/{releases['v1']}"
    assert len(receipts(host)) == before


def test_a_dry_run_shows_the_plan_and_touches_nothing(
    controller: Controller, host: Host, archives: Mapping[str, Path], releases: Mapping[str, str]
) -> None:
    before = still(host)
    play = controller.playbook("upgrade", check=True, extra_vars={"release_archive": str(archives["patch"])})
    assert play.rc == 0, play.output[-3000:]
    assert play.changed > 0
    said = words(play)
    assert f"{releases['v1']} -> {releases['patch']}: stop, backup, migrate, unit, start, canary" in said
    assert "the release is not on this host yet" not in said
    assert "PREFLIGHT " in said
    for row in ("pass target_proven", "pass disk", "pass schema", "pass not_paused"):
        assert row in said
    assert still(host) == before


@pytest.mark.usefixtures("operator")
def test_an_upgrade_by_the_page_under_traffic(
    controller: Controller,
    host: Host,
    archives: Mapping[str, Path],
    runbook: Callable[[str, Host], Executor],
    releases: Mapping[str, str],
) -> None:
    (controller.folder / "new-release.txt").write_text(f"{archives['patch']}\n")
    before = facts(host)
    ran = runbook("upgrade", host).run("Preconditions", "Diagnosis", "Rollback point", "Act", "Verify")
    assert len(ran) > 4
    receipt = last(host)
    assert (receipt["operation"], receipt["verdict"]) == ("upgrade", "done")
    assert receipt["release_after"] == releases["patch"]
    assert receipt["switch"]["migrated"] == {}
    backup = json.loads(host.run(["cat", f"{receipt['switch']['backup']}/manifest.json"]).stdout)
    assert {releases["v1"], releases["patch"]} <= set(str(backup).replace("'", " ").split())
    assert facts(host) == before


def test_the_same_release_again_changes_nothing(
    controller: Controller, host: Host, archives: Mapping[str, Path]
) -> None:
    before = still(host)
    play = controller.playbook("upgrade", "--diff", extra_vars={"release_archive": str(archives["patch"])})
    good(play, changed=0)
    assert "nothing to do" in words(play)
    assert still(host) == before


def test_back_to_the_previous_release_by_the_page(
    controller: Controller,
    host: Host,
    runbook: Callable[[str, Host], Executor],
    releases: Mapping[str, str],
) -> None:
    """Code only: epoch, orders, spending and stock are what they were; the work that came since is there."""
    before = facts(host)
    runbook("rollback", host).run("Preconditions", "Diagnosis", "Rollback point", "Act", "Verify")
    receipt = last(host)
    assert (receipt["operation"], receipt["verdict"]) == ("rollback", "done")
    assert (receipt["release_before"], receipt["release_after"]) == (releases["patch"], releases["v1"])
    assert receipt["switch"]["outcome"] == "rolled_back"
    assert receipt["switch"]["backup"] is None
    assert facts(host) == before


def test_the_rollback_again_does_not_go_on(controller: Controller, host: Host) -> None:
    """Nor forth again, after a run in between that was refused."""
    refused(controller, host, {"rollback_to": "9.9.9-00000000-00000000"}, "9.9.9-00000000-00000000")
    before = still(host)
    play = controller.playbook("rollback", "--diff")
    good(play, changed=0)
    assert "the last rollback went to it" in words(play)
    assert still(host) == before


def test_an_upgrade_to_a_repair_sets_a_floor(
    controller: Controller, host: Host, archives: Mapping[str, Path], releases: Mapping[str, str]
) -> None:
    play = controller.playbook("upgrade", extra_vars={"release_archive": str(archives["repair"])})
    switched(host, play, releases["v1"], releases["repair"])


def refused(controller: Controller, host: Host, variables: Mapping[str, Any], *said: str) -> None:
    """Refused with these words; only the receipt of it is new."""
    before, count = still(host), len(receipts(host))
    play = controller.playbook("rollback", extra_vars=variables)
    assert play.rc != 0
    told = words(play)
    assert "Refused: " in told
    assert [word for word in said if word not in told] == [], told[-3000:]
    changed = {line for line in still(host) ^ before if not line.startswith("/srv/lucy/receipts")}
    assert changed == set()
    assert len(receipts(host)) == count + 1
    assert last(host)["verdict"] == "refused"


def test_nobody_goes_below_the_floor_without_a_word(
    controller: Controller, host: Host, releases: Mapping[str, str]
) -> None:
    refused(controller, host, {"rollback_to": releases["v1"]}, "floor")
    before = still(host)
    half = {"rollback_to": releases["v1"], "rollback_below_floor": "0.1.1"}
    play = controller.playbook("rollback", extra_vars=half)
    assert play.rc != 0
    assert "only one of rollback_below_floor and rollback_reason is given" in words(play)
    assert still(host) == before


def test_who_names_the_floor_and_a_reason_may_and_both_are_on_record(
    controller: Controller, host: Host, archives: Mapping[str, Path], releases: Mapping[str, str]
) -> None:
    floor = manifest_of(archives["repair"]).rollback_floor
    named = {
        "rollback_to": releases["v1"],
        "rollback_below_floor": str(floor),
        "rollback_reason": "the repair breaks the till",
    }
    play = controller.playbook("rollback", extra_vars=named)
    receipt = switched(host, play, releases["repair"], releases["v1"], "rollback")
    assert "code only. No database is restored" in words(play)
    assert "the repair breaks the till" in receipt["switch"]["below_floor"]


def test_v2_brings_its_migration(
    controller: Controller, host: Host, archives: Mapping[str, Path], releases: Mapping[str, str]
) -> None:
    play = controller.playbook("upgrade", extra_vars={"release_archive": str(archives["v2"])})
    receipt = switched(host, play, releases["v1"], releases["v2"])
    assert receipt["switch"]["migrated"]
    order = [play.tasks.index(task) for task in ORDER]
    assert order == sorted(order)


def test_v3_fills_a_column_of_all_work(
    controller: Controller, host: Host, archives: Mapping[str, Path], releases: Mapping[str, str]
) -> None:
    play = controller.playbook("upgrade", extra_vars={"release_archive": str(archives["v3"])})
    receipt = switched(host, play, releases["v2"], releases["v3"])
    assert receipt["switch"]["migrated"]


def test_what_may_not_be_gone_back_to_is_listed_with_its_reason_and_refused(
    controller: Controller, host: Host, releases: Mapping[str, str]
) -> None:
    listed = {one["id"]: one for one in host.cli("release", "list")["releases"]}
    assert listed[releases["v3"]]["current"] is True
    assert listed[releases["v2"]]["may_roll_back"] is False
    assert listed[releases["v2"]]["understands_store"] is False
    assert listed[releases["v2"]]["verdict"] == "good"
    refused(controller, host, {}, "may not be gone back to", "it understands")
    refused(controller, host, {"rollback_to": "9.9.9-00000000-00000000"}, "9.9.9-00000000-00000000")


def test_a_new_configuration_goes_through_the_same_gate(
    controller: Controller, host: Host, releases: Mapping[str, str]
) -> None:
    """One that is no configuration touches nothing; a good one costs one start; again it costs nothing."""
    shop = controller.folder / "shop.toml"
    present = host.run(["cat", "/srv/lucy/state/shop.toml"]).stdout
    points = re.findall(r"^reorder_point = (\d+)$", present, re.MULTILINE)
    named = {"state_shop_file": str(shop)}

    shop.write_text(present.replace(f"reorder_point = {points[0]}", 'reorder_point = "eight"', 1))
    before = still(host)
    play = controller.playbook("configure", extra_vars=named)
    assert play.rc != 0
    assert "Refused: " in words(play)
    assert {line for line in still(host) ^ before if not line.startswith("/srv/lucy/receipts")} == set()
    assert last(host)["verdict"] == "refused"

    shop.write_text(
        present.replace(f"reorder_point = {points[0]}", f"reorder_point = {int(points[0]) + 1}", 1)
    )
    pid = running(host).main_pid
    good(controller.playbook("configure", extra_vars=named))
    assert running(host).main_pid != pid
    assert host.run(["cat", "/srv/lucy/state/shop.toml"]).stdout == shop.read_text()
    receipt = last(host)
    assert (receipt["operation"], receipt["verdict"]) == ("configure", "done")
    assert receipt["switch"]["outcome"] == "configured"
    assert receipt["release_after"] == releases["v3"]

    before = still(host)
    good(controller.playbook("configure", "--diff", extra_vars=named), changed=0)
    assert still(host) == before


def test_nothing_was_lost_and_nothing_doubled(host: Host, operator: Operator) -> None:
    """Over six switches of the code, with an operator who never stopped."""
    works = operator.end()
    assert len(works) > 20
    finished_once(host, works)
    kept = host.cli("receipt", "verify")
    assert kept["verified"] is True
    done = [one["operation"] for one in receipts(host).values() if one["verdict"] == "done"]
    moves = ["upgrade", "rollback", "upgrade", "rollback", "upgrade", "upgrade"]
    assert [one for one in done if one != "configure"] == ["install", *moves]
