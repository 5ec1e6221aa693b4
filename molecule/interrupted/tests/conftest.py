"""Hosts on which v2 is staged beside v1, and a hand that stops a switch at exactly the step that it names."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from archives import manifest_of
from evidence import good, running
from target import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from target import Controller, Host, Play

# Watches the journal, and stops the process of the switch (SIGSTOP) once it names the step; says where it
# really stands then.
HAND = """
import json, os, signal, sys, time
path, wanted, end = "/srv/lucy/state/upgrade.json", sys.argv[1], time.monotonic() + float(sys.argv[2])

def journal():
    try:
        with open(path) as file:
            return json.load(file)
    except FileNotFoundError:
        return {}

def switches():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline").read().split(chr(0))
        except OSError:
            continue
        if words[0].endswith("/venv/bin/python") and "upgrade" in words and "switch" in words:
            yield int(pid)

while time.monotonic() < end:
    seen = journal()
    if seen.get("step") == wanted and seen.get("outcome") is None:
        stopped = list(switches())
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        print(json.dumps({"pids": stopped, "step": journal()["step"]}))
        sys.exit(0 if stopped else "the switch is gone already")
    time.sleep(0.001)
sys.exit(f"no switch came to {wanted}: {journal().get('step')}")
"""


@dataclass
class Frozen:
    """A switch that was stopped at a step, and the run of the controller that began it."""

    host: Host
    pid: int
    step: str
    play: Future[Play]
    kill: threading.Event

    def go_on(self, signal: str) -> None:
        """Send the process a signal, and let runuser go on, which stops itself when its child is stopped."""
        self.host.run(f"parent=$(ps -o ppid= {self.pid}); kill -{signal} {self.pid}; kill -CONT $parent")

    def journal(self) -> dict[str, Any]:
        return dict(json.loads(self.host.run(["cat", "/srv/lucy/state/upgrade.json"]).stdout))


@pytest.fixture(scope="session")
def archive() -> Path:
    return Path(os.environ["STANDFAST_GENERATIONS"]) / "v2.tar"


@pytest.fixture(scope="session")
def release(archive: Path) -> str:
    return manifest_of(archive).release_id


@pytest.fixture(scope="session")
def staged(controller: Controller, hosts: dict[str, Host], archive: Path) -> dict[str, Host]:
    """All hosts at once: v1 works, v2 is there."""
    for host in hosts.values():
        works(host)
    stage(controller, archive, list(hosts))
    return hosts


def works(host: Host) -> None:
    wait_until(lambda: running(host), 60, "the installed service runs")


def stage(controller: Controller, archive: Path, names: list[str]) -> None:
    controller.write_inventory("all", {name: {} for name in names}, {"release_archive": str(archive)})
    good(controller.playbook("preflight", inventory="all", extra_vars={"standfast_serial": "100%"}))


@pytest.fixture(scope="session")
def freeze(controller: Controller) -> Callable[[Host, str, dict[str, Any]], Frozen]:
    """`freeze(host, step, variables)`: an upgrade of that host that stands still where the step begins."""
    pool = ThreadPoolExecutor(8)

    def frozen(host: Host, step: str, variables: dict[str, Any]) -> Frozen:
        kill = threading.Event()
        hand = pool.submit(host.run, ["python3", "-c", HAND, step, "420"], check=False, timeout=440)
        play = pool.submit(
            controller.playbook, "upgrade", inventory=host.name, extra_vars=variables, kill_on=kill
        )
        done = hand.result()
        assert done.rc == 0, f"{done.stderr}{play.result().output[-3000:] if play.done() else ''}"
        seen = json.loads(done.stdout)
        (pid,) = seen["pids"]
        return Frozen(host, pid, seen["step"], play, kill)

    return frozen
