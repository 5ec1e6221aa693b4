"""For the scenarios that bring a host to another release: what stands, what was refused, what came of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evidence import good, listing, properties, receipts, running
from target import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from target import Controller, Host, Play

UNIT = "/home/lucy/.config/systemd/user/lucy-agent.service"


def generations(*names: str) -> dict[str, Path]:
    """The archives of these generations."""
    folder = Path(os.environ["STANDFAST_GENERATIONS"])
    return {name: folder / f"{name}.tar" for name in names}


def at_work(agent: Host, controller: Controller) -> Host:
    """The host of the inventory `yours`, with its installed release at work."""
    controller.write_inventory("yours", {"agent": {"ansible_user": "admin"}})
    wait_until(lambda: running(agent), 60, "the installed service runs")
    return agent


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
