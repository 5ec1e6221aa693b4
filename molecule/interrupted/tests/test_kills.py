"""An upgrade that loses its controller, its process or its whole host at a step, and the next run.

That one brings it to an end and says which, and why. The switch is stopped (SIGSTOP) once its journal names
the step, so that it dies exactly there. An operator adds work before and in between: every accepted item is
finished exactly once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from conftest import adds, stage, upgraded_once, works
from evidence import good, receipts, running
from freezing import SHORT, lose_at_task, lose_controller, lose_host, lose_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from freezing import Freezer, Frozen
    from runbook import Executor
    from target import Controller, Host

STEPS = ("facts", "stop", "backup", "migrate", "unit", "start", "canary", "compare")
KINDS = ("process", "host", "controller")
# One for each host; all of them under `script/test full`.
SAMPLE = [("process", "migrate"), ("host", "start"), ("controller", "backup"), ("process", "canary")]
EVERY = [(kind, step) for step in STEPS for kind in KINDS]
CASES = EVERY if os.environ.get("STANDFAST_FULL") else SAMPLE
# The next run's controller is lost, too, when the switch is at its end and nobody was told.
LOST_AGAIN = {("process", "canary"): "Host | That it works is on record"}


@pytest.fixture
def host(
    request: pytest.FixtureRequest, controller: Controller, staged: dict[str, Host], archive: Path
) -> Host:
    """One that was not upgraded yet: as many as there are, then used ones made anew."""
    names = sorted(staged)
    number = CASES.index(request.node.callspec.params["case"])
    found = staged[names[number % len(names)]]
    if number >= len(names):
        found.renew()
        works(found)
        stage(controller, archive, [found.name])
    controller.write_inventory(found.name, {found.name: {}}, {"release_archive": str(archive)})
    return found


LOSE: dict[str, Callable[[Frozen], None]] = {
    "process": lose_process,
    "host": lose_host,
    "controller": lose_controller,
}


@dataclass
class Runs:
    """The runs after the one that was lost."""

    controller: Controller
    archive: Path
    page: Callable[[str, Host], Executor] | None

    def again(self, host: Host) -> str:
        """The next run, and what it said; the first time as the page has it, which shows its blocks only."""
        if self.page is None:
            play = self.controller.playbook("upgrade", inventory=host.name)
            good(play)
            return " ".join(play.output.split())
        page = self.page("upgrade-stopped-half-way", host)
        self.page = None
        self.controller.write_inventory("yours", {host.name: {}})
        (self.controller.folder / "new-release.txt").write_text(f"{self.archive}\n")
        page.run("Preconditions", "Diagnosis", "Act: the same command again", "Verify by new work")
        return ""

    def nothing_to_do(self, host: Host) -> None:
        before = (running(host), len(receipts(host)))
        good(self.controller.playbook("upgrade", "--diff", inventory=host.name), changed=0)
        assert (running(host), len(receipts(host))) == before


@pytest.fixture(scope="session")
def runs(controller: Controller, archive: Path, runbook: Callable[[str, Host], Executor]) -> Runs:
    return Runs(controller, archive, runbook)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_lost_at_a_step(
    case: tuple[str, str],
    host: Host,
    release: str,
    freeze: Freezer,
    runs: Runs,
) -> None:
    kind, step = case
    epoch = host.cli("facts")["epoch"]
    accepted = adds(host, 3, "before")
    frozen = freeze(host, step, SHORT)
    assert frozen.step == step  # it really died there
    accepted += adds(host, 2, "between")
    LOSE[kind](frozen)
    left = frozen.journal()
    if kind != "controller":
        assert (left["step"], left["outcome"]) == (step, None)
    accepted += adds(host, 2, "after")

    if (task := LOST_AGAIN.get(case)) is not None:
        lose_at_task(runs.controller, "upgrade", host, task, inventory=host.name)
    said = runs.again(host)
    if (kind == "controller" or task is not None) and said:
        assert "was cut short before it could say so" in said
    elif said:
        assert f"cut short at the step {step}" in said
        assert f"an earlier run was cut short at {step}: " in said

    receipt = upgraded_once(host, release, accepted, epoch)
    told = receipt["switch"]
    assert told["outcome"] == "upgraded"
    assert told["resumed_from"] == (None if kind == "controller" else step)
    assert told["migrated"]
    assert receipt["canary"]["run"]["release"] == release
    assert host.cli("backup", "list")["backups"][0]["problem"] is None
    runs.nothing_to_do(host)
