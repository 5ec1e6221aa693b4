"""A hand that stops a switch at exactly the step that its journal names, and what can be lost then.

Outside the switch a controller is lost at a task of its playbook.
"""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evidence import freed
from hosts import wait_booted
from sandbox import podman
from target import wait_until

if TYPE_CHECKING:
    from target import Controller, Host, Play

# A killed controller's lock lasts so long; the usual minutes are too long to wait for here.
SHORT = {"host_lock_seconds": 8, "host_lock_outlasts": False}
WORDS = {"upgrade": "upgrade switch", "rollback": "rollback", "configure": "upgrade configure"}
"""By playbook: what the command of its switch has among its words."""

# Watches the journal, and stops the process of the switch (SIGSTOP) once it names the step; says where it
# really stands then.
HAND = """
import json, os, signal, sys, time
path, words, wanted = "/srv/lucy/state/upgrade.json", sys.argv[1].split(), sys.argv[2]
end = time.monotonic() + float(sys.argv[3])

def journal():
    try:
        with open(path) as file:
            return json.load(file)
    except FileNotFoundError:
        return {}

def switches():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = open(f"/proc/{pid}/cmdline").read().split(chr(0))
        except OSError:
            continue
        if line[0].endswith("/venv/bin/python") and "--check" not in line and set(words) <= set(line):
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
    pids: list[int]
    """Its own and, at times, that of a child which it has just made."""
    step: str
    play: Future[Play]
    kill: threading.Event

    def go_on(self, signal: str) -> None:
        """Send the process a signal, and let runuser go on, which stops itself when its child is stopped."""
        every = " ".join(map(str, self.pids))
        self.host.run(f"parent=$(ps -o ppid= {min(self.pids)}); kill -{signal} {every}; kill -CONT $parent")

    def journal(self) -> dict[str, Any]:
        return dict(json.loads(self.host.run(["cat", "/srv/lucy/state/upgrade.json"]).stdout))


class Freezer:
    """`freeze(host, step, variables)`: a playbook on that host that stands still where the step begins.

    The inventory is the one with the host's name, or the named one.
    """

    def __init__(self, controller: Controller, playbook: str) -> None:
        self._controller = controller
        self._playbook = playbook
        self._pool = ThreadPoolExecutor(8)

    def __call__(
        self, host: Host, step: str, variables: dict[str, Any], inventory: str | None = None
    ) -> Frozen:
        kill = threading.Event()
        watching = ["python3", "-c", HAND, WORDS[self._playbook], step, "420"]
        hand = self._pool.submit(host.run, watching, check=False, timeout=440)
        play = self._pool.submit(
            self._controller.playbook,
            self._playbook,
            inventory=inventory or host.name,
            extra_vars=variables,
            kill_on=kill,
        )
        done = hand.result()
        assert done.rc == 0, f"{done.stderr}{play.result().output[-3000:] if play.done() else ''}"
        seen = json.loads(done.stdout)
        return Frozen(host, seen["pids"], seen["step"], play, kill)


def lose_process(frozen: Frozen) -> None:
    """Its process is killed; the controller is there and says so."""
    frozen.go_on("KILL")
    play = frozen.play.result()
    assert play.rc != 0
    said = " ".join(play.output.split())
    assert "The switch was cut short" in said
    assert "run the very same command again" in said


def lose_host(frozen: Frozen) -> None:
    """As a power cut: every process ends at once, and the host boots again by itself."""
    podman("restart", "--time", "0", frozen.host.container, timeout=120)
    play = frozen.play.result()
    assert play.rc != 0
    wait_booted(frozen.host.container)


def lose_controller(frozen: Frozen) -> None:
    """The controller is gone; on the host the switch goes on to its end, and the lock is left."""
    frozen.kill.set()
    assert frozen.play.result().killed
    frozen.go_on("CONT")
    wait_until(lambda: frozen.journal()["outcome"] is not None, 120, "the switch came to its end by itself")
    assert freed(frozen.host)


def lose_at_task(
    controller: Controller,
    playbook: str,
    host: Host,
    at: int | str,
    *,
    inventory: str,
    variables: dict[str, Any] | None = None,
) -> None:
    """Kill a run and its workers as it comes to a task, by number or name; on the host that may go on."""
    died = controller.playbook(
        playbook, inventory=inventory, extra_vars={**SHORT, **(variables or {})}, kill_at=at
    )
    assert died.killed, f"it never came to {at}: {died.output[-3000:]}"
    freed(host)


def points(play: Play) -> list[tuple[int, str]]:
    """The tasks of a whole run, by number and name, at which others lose their controller.

    STANDFAST_STRIDE=7 takes every seventh only, STANDFAST_FIRST=20 none before the twentieth.
    """
    first, stride = (int(os.environ.get(f"STANDFAST_{name}", "1")) for name in ("FIRST", "STRIDE"))
    return list(enumerate(play.tasks, 1))[first - 1 :: stride]
