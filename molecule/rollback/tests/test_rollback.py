"""One host to another release and back: by the page, again, over a floor, cut short; an operator adds work.

The tests go on from each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from archives import manifest_of
from evidence import good, receipts, running
from freezing import Freezer
from switches import facts, last, refused, still, switched, words
from traffic import finished_once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from runbook import Executor
    from target import Controller, Host
    from traffic import Operator


@pytest.mark.usefixtures("operator")
def test_an_upgrade_without_a_migration(
    controller: Controller, host: Host, archives: Mapping[str, Path], releases: Mapping[str, str]
) -> None:
    before = facts(host)
    play = controller.playbook("upgrade", extra_vars={"release_archive": str(archives["patch"])})
    receipt = switched(host, play, releases["v1"], releases["patch"])
    assert receipt["switch"]["migrated"] == {}
    assert facts(host) == before


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
    """Nor forth again after a refusal in between: then it is only shown once more that the release works."""
    before = still(host)
    play = controller.playbook("rollback", "--diff")
    good(play, changed=0)
    assert "the last rollback went to it" in words(play)
    assert still(host) == before

    refused(controller, host, {"rollback_to": "9.9.9-00000000-00000000"}, "9.9.9-00000000-00000000")
    state, link = running(host), host.run(["readlink", "/srv/lucy/current"]).stdout
    play = controller.playbook("rollback")
    good(play)
    assert "the last rollback went to it" in words(play)
    assert (running(host), host.run(["readlink", "/srv/lucy/current"]).stdout) == (state, link)


def test_an_upgrade_to_a_repair_sets_a_floor(
    controller: Controller, host: Host, archives: Mapping[str, Path], releases: Mapping[str, str]
) -> None:
    play = controller.playbook("upgrade", extra_vars={"release_archive": str(archives["repair"])})
    switched(host, play, releases["v1"], releases["repair"])


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


def test_an_altered_release_is_not_gone_back_to(
    controller: Controller, host: Host, releases: Mapping[str, str]
) -> None:
    module = host.run(
        f"ls /srv/lucy/releases/{releases['patch']}/venv/lib/*/site-packages/standfast/clock.py"
    )
    path = module.stdout.strip()
    host.run(["cp", "--preserve", path, "/var/tmp/clock.py"])
    host.run(f"echo '# a word' >> {path}")
    refused(controller, host, {"rollback_to": releases["patch"]}, "clock.py")
    host.run(["cp", "--preserve", "/var/tmp/clock.py", path])


def test_one_that_is_cut_short_is_finished_by_the_same_command(
    controller: Controller, host: Host, releases: Mapping[str, str]
) -> None:
    before, named = facts(host), {"rollback_to": releases["patch"]}
    frozen = Freezer(controller, "rollback")(host, "canary", named, inventory="yours")
    assert frozen.step == "canary"  # it really died there
    frozen.go_on("KILL")
    play = frozen.play.result()
    assert play.rc != 0
    assert "run the very same command again" in words(play)
    assert frozen.journal()["outcome"] is None

    play = controller.playbook("rollback", extra_vars=named)
    receipt = switched(host, play, releases["v1"], releases["patch"], "rollback")
    assert "cut short at the step canary" in words(play)
    assert receipt["switch"]["resumed_from"] == "canary"
    assert facts(host) == before


def test_nothing_was_lost_and_nothing_doubled(host: Host, operator: Operator) -> None:
    """Over five switches of the code, with an operator who never stopped."""
    works = operator.end()
    assert len(works) > 20
    finished_once(host, works)
    assert host.cli("receipt", "verify")["verified"] is True
    done = [one["operation"] for one in receipts(host).values() if one["verdict"] == "done"]
    proof = "rollback"  # the one after a refusal
    assert done == ["install", "upgrade", "rollback", proof, "upgrade", "rollback", "rollback"]
