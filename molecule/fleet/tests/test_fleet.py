"""Five hosts roll as one fleet: a bad canary, a host that refuses, one that is lost at work, and the rest.

The tests go on from each other, in their order. Each run must print one header and one table, keep one fleet
receipt, and leave the processes alone of all hosts that it does not name as done.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from archives import manifest_of
from evidence import canary, receipts, running
from hosts import wait_booted
from sandbox import podman
from target import wait_until
from traffic import finished_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from runbook import Executor
    from target import Controller, Host, Play

NAMES = ["one", "two", "three", "four", "five"]
UNIT = "/home/lucy/.config/systemd/user/lucy-agent.service"
SOAK = 3


@pytest.fixture(scope="module")
def target(controller: Controller, hosts: dict[str, Host]) -> Callable[[str], str]:
    """Make the inventory name a generation; returns its release id."""

    def named(generation: str) -> str:
        archive = Path(os.environ["STANDFAST_GENERATIONS"]) / f"{generation}.tar"
        copy = controller.folder / "dist" / f"standfast-{generation}.tar"
        shutil.copy2(archive, copy)
        variables = {"release_archive": f"dist/{copy.name}", "standfast_soak": SOAK}
        controller.write_inventory("yours", {name: {} for name in NAMES}, variables)
        return manifest_of(archive).release_id

    for host in hosts.values():
        wait_until(lambda host=host: running(host), 60, f"{host.name} runs")  # type: ignore[misc]
    return named


@pytest.fixture(scope="module")
def accepted() -> dict[str, list[str]]:
    """The work that each host has taken from its operator so far."""
    return {name: [] for name in NAMES}


def ask(hosts: dict[str, Host], accepted: dict[str, list[str]]) -> None:
    """Before a roll every host is asked for something."""
    for name in NAMES:
        session = f"till-{len(accepted[name])}"
        told = hosts[name].cli("work", "add", "How is the stock?", "--session", session)
        accepted[name].append(str(told["work"]))


def processes(hosts: dict[str, Host]) -> dict[str, int]:
    return {name: running(hosts[name]).main_pid for name in NAMES}


def kept(controller: Controller) -> list[dict[str, Any]]:
    """The fleet receipts, oldest first; each is the operator's alone."""
    paths = sorted(controller.folder.glob("receipts/fleet-*.json"), key=lambda path: path.stat().st_mtime)
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} <= {0o600}
    return [json.loads(path.read_text()) | {"file": path.name} for path in paths]


def told(play: Play, controller: Controller, count: int, *outcomes: str) -> dict[str, Any]:
    """The run printed one header and one table, and its receipt says what became of each host."""
    assert play.output.count("FLEET: ") == 1, play.output[-3000:]
    assert play.output.count("HOST ") == 1, play.output[-3000:]
    found = kept(controller)
    assert len(found) == count
    seen = {row["host"]: row["outcome"] for row in found[-1]["hosts"]}
    assert seen == dict(zip(NAMES, outcomes, strict=True)), play.output[-4000:]
    assert f"receipts/{found[-1]['file']}" in play.output
    return found[-1]


def test_a_bad_canary_is_the_only_host_that_is_touched(
    controller: Controller,
    hosts: dict[str, Host],
    target: Callable[[str], str],
    accepted: dict[str, list[str]],
) -> None:
    ask(hosts, accepted)
    bad, before = target("crashes"), processes(hosts)
    old = {name: len(receipts(hosts[name])) for name in NAMES}
    play = controller.playbook("upgrade", "--diff")
    assert play.rc == 2, play.output[-4000:]
    receipt = told(play, controller, 1, "failed", *["not attempted"] * 4)
    assert (receipt["target"], receipt["verdict"]) == (bad, "stopped")
    after = processes(hosts)
    assert {name for name in NAMES if after[name] != before[name]} == {"one"}
    assert {name: len(receipts(hosts[name])) - old[name] for name in NAMES} == {
        name: int(name == "one") for name in NAMES
    }
    assert not hosts["two"].testinfra.file(f"/srv/lucy/releases/{bad}").exists
    canary(hosts["one"], after["one"])  # the old release works again


def test_a_host_that_refuses_stops_the_roll(
    controller: Controller,
    hosts: dict[str, Host],
    target: Callable[[str], str],
    accepted: dict[str, list[str]],
) -> None:
    ask(hosts, accepted)
    good, before = target("v2"), processes(hosts)
    hosts["three"].run(f"cp {UNIT} /root/unit && echo '# by hand' >> {UNIT}")
    play = controller.playbook("upgrade", "--diff", extra_vars={"standfast_serial": 1})
    assert play.rc == 2, play.output[-4000:]
    receipt = told(play, controller, 2, "done", "done", "refused", "not attempted", "not attempted")
    assert receipt["target"] == good
    assert UNIT in receipt["hosts"][2]["reason"]
    assert play.tasks.count("host : Host | The service was watched") == 2
    after = processes(hosts)
    assert {name for name in NAMES if after[name] == before[name]} == {"three", "four", "five"}
    status = controller.playbook("status")
    assert status.rc == 2
    assert f"Mixed releases: {receipt['hosts'][2]['before']} on 3, {good} on 2." in status.output
    hosts["three"].run(f"cat /root/unit > {UNIT}")


def test_a_host_that_is_lost_at_work_stops_the_roll_too(
    controller: Controller, hosts: dict[str, Host], accepted: dict[str, list[str]]
) -> None:
    ask(hosts, accepted)
    before, four = processes(hosts), hosts["four"]
    earlier = kept(controller)[-1]["file"]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        run = pool.submit(
            controller.playbook,
            *("upgrade", "--limit", "@receipts/rest-of-upgrade"),
            extra_vars={"standfast_serial": 1},
        )
        wait_until(
            lambda: run.done() or four.run("test -e /srv/lucy/state/upgrade.json", check=False).rc == 0,
            600,
            "four is at work",
            every=0.1,
        )
        podman("kill", four.container)
        play = run.result()
    assert play.rc in {2, 4}, play.output[-4000:]
    receipt = told(play, controller, 3, "done", "done", "done", "unreachable", "not attempted")
    assert receipt["continues"]["file"] == earlier
    assert [row["earlier"] for row in receipt["hosts"]] == [earlier, earlier, None, None, None]
    assert running(hosts["five"]).main_pid == before["five"]
    assert [running(hosts[name]).main_pid for name in ("one", "two")] == [before["one"], before["two"]]
    status = controller.playbook("status", extra_vars={"status_json": "status.json"})
    assert status.rc == 4
    content = json.loads((controller.folder / "status.json").read_text())
    assert [one["reachable"] for one in content["hosts"]] == [True, True, True, False, True]
    assert "UNREACHABLE" in status.output


def test_the_rest_is_done_by_the_page(
    controller: Controller,
    hosts: dict[str, Host],
    runbook: Callable[[str, Host], Executor],
    accepted: dict[str, list[str]],
) -> None:
    before = processes({**hosts, "four": hosts["one"]})
    podman("start", hosts["four"].container)
    wait_booted(hosts["four"].container)
    page = runbook("roll-a-fleet", hosts["one"])
    page.run("Diagnosis")
    roll, rest = (block for block in page.page.blocks if block.section.startswith("Act"))
    page.execute(rest)
    receipt = kept(controller)[-1]
    assert [row["outcome"] for row in receipt["hosts"]] == ["done"] * 5
    assert (receipt["verdict"], len(kept(controller))) == ("done", 4)
    after = processes(hosts)
    assert {name for name in NAMES if after[name] == before[name]} == {"one", "two", "three"}
    for name in NAMES:
        last = list(receipts(hosts[name]).values())[-1]
        assert (last["verdict"], last["release_after"]) == ("done", receipt["target"])
        assert hosts[name].cli("receipt", "verify")["verified"] is True
    page.run("Preconditions")
    page.execute(roll)  # once more over all of them: nothing is left to do
    assert processes(hosts) == after
    assert [row["outcome"] for row in kept(controller)[-1]["hosts"]] == ["unchanged"] * 5
    page.run("Verify")
    for name in NAMES:  # nothing was lost, nothing doubled, on the host that was lost at work, too
        finished_once(hosts[name], accepted[name])
