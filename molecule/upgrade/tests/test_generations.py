"""One host through its generations, while an operator goes on adding work.

The tests go on from each other.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from evidence import database, database_at_rest, good, listing, receipts, running
from switches import UNIT, facts, last, refused, still, switched, words
from traffic import finished_once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from runbook import Executor
    from target import Controller, Host
    from traffic import Operator

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


def test_a_look_at_a_release_that_is_not_there_yet_touches_nothing(
    controller: Controller, host: Host, archives: Mapping[str, Path]
) -> None:
    """--check --diff says what it can know, and that the release's own look is still to come."""
    before = still(host)
    play = controller.playbook("upgrade", check=True, extra_vars={"release_archive": str(archives["v2"])})
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
    store = database_at_rest(host)
    play = controller.playbook("preflight", extra_vars={"release_archive": str(archives["v2"])})
    good(play)
    said = words(play)
    assert f"{releases['v1']} -> {releases['v2']}" in said
    assert f"{releases['v2']} was staged" in said
    assert running(host) == state
    assert database(host) == store
    assert host.run(["sha256sum", UNIT]).stdout == unit
    assert listing(host, "/srv/lucy/state", "/srv/lucy/receipts", "/srv/lucy/backups", without=ALIVE) == kept
    assert host.run(["readlink", "/srv/lucy/current"]).stdout.strip() == f"releases/{releases['v1']}"
    assert len(receipts(host)) == before


def test_a_dry_run_shows_the_plan_and_touches_nothing(
    controller: Controller, host: Host, archives: Mapping[str, Path], releases: Mapping[str, str]
) -> None:
    before = still(host)
    play = controller.playbook("upgrade", check=True, extra_vars={"release_archive": str(archives["v2"])})
    assert play.rc == 0, play.output[-3000:]
    assert play.changed > 0
    said = words(play)
    assert f"{releases['v1']} -> {releases['v2']}: stop, backup, migrate, unit, start, canary" in said
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
    (controller.folder / "new-release.txt").write_text(f"{archives['v2']}\n")
    before = facts(host)
    ran = runbook("upgrade", host).run("Preconditions", "Diagnosis", "Rollback point", "Act", "Verify")
    assert len(ran) > 4
    receipt = last(host)
    assert (receipt["operation"], receipt["verdict"]) == ("upgrade", "done")
    assert receipt["release_after"] == releases["v2"]
    assert receipt["switch"]["migrated"]
    backup = json.loads(host.run(["cat", f"{receipt['switch']['backup']}/manifest.json"]).stdout)
    assert {releases["v1"], releases["v2"]} <= set(str(backup).replace("'", " ").split())
    assert facts(host) == before


def test_the_same_release_again_changes_nothing(
    controller: Controller, host: Host, archives: Mapping[str, Path]
) -> None:
    before = still(host)
    play = controller.playbook("upgrade", "--diff", extra_vars={"release_archive": str(archives["v2"])})
    good(play, changed=0)
    assert "nothing to do" in words(play)
    assert still(host) == before


def test_v3_fills_a_column_of_all_work(
    controller: Controller, host: Host, archives: Mapping[str, Path], releases: Mapping[str, str]
) -> None:
    play = controller.playbook("upgrade", extra_vars={"release_archive": str(archives["v3"])})
    receipt = switched(host, play, releases["v2"], releases["v3"])
    assert receipt["switch"]["migrated"]
    order = [play.tasks.index(task) for task in ORDER]
    assert order == sorted(order)


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


def test_nothing_was_lost_and_nothing_doubled(host: Host, operator: Operator) -> None:
    """Over two migrations, with an operator who never stopped."""
    works = operator.end()
    assert len(works) > 20
    finished_once(host, works)
    kept = host.cli("receipt", "verify")
    assert kept["verified"] is True
    done = [one["operation"] for one in receipts(host).values() if one["verdict"] == "done"]
    assert done == ["install", "upgrade", "upgrade"]


def test_a_new_configuration_goes_through_the_same_gate(
    controller: Controller, host: Host, releases: Mapping[str, str]
) -> None:
    """What is none touches nothing, what does not work is taken back, a good one costs one start, once."""
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

    # No request can be answered in one call of the model.
    shop.write_text(present.replace("model_calls = 8", "model_calls = 1", 1))
    play = controller.playbook("configure", extra_vars=named)
    assert play.rc != 0
    assert "The new configuration was not taken over" in words(play)
    assert host.run(["cat", "/srv/lucy/state/shop.toml"]).stdout == present
    assert (last(host)["verdict"], last(host)["switch"]["outcome"]) == ("failed", "resumed")
    assert last(host)["canary"]["run"]["release"] == releases["v3"]

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
