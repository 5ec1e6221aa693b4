"""What the demonstrations share: numbered steps with their times, and questions to the installed agent."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandbox import CHECKOUT, podman

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hosts import Group

AGENT = "/usr/local/bin/lucy-agent"
# A brief is due every minute; a restart after a kill takes RestartSec (10 s) first.
PATIENCE = 150.0
TAIL = 40


class DemoError(Exception):
    """A step did not show what it should; the message says what was seen."""


class Progress:
    """A numbered line for each step, with the seconds since the start."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.started = time.monotonic()
        self.number = 0

    def step(self, text: str) -> None:
        self.number += 1
        seconds = time.monotonic() - self.started
        print(f"\ndemo {self.number}/{self.steps} [{seconds:4.0f} s] {text}", flush=True)

    def say(self, text: str) -> None:
        print("\n".join(f"  {line}" for line in text.rstrip().splitlines()), flush=True)


@dataclass(frozen=True)
class Shop:
    """The agent's host."""

    group: Group
    host: str

    def run(self, *words: str) -> str:
        done = podman("exec", self.group.container(self.host), *words, check=False)
        if done.returncode != 0:
            raise DemoError(f"`{' '.join(words)}` ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def agent(self, *words: str) -> str:
        """What the operator's command prints for people."""
        return self.run(AGENT, *words)

    def ask(self, *words: str) -> dict[str, Any]:
        """The JSON that the installed command line prints."""
        answer: dict[str, Any] = json.loads(self.run(AGENT, "--json", *words))
        return answer


def wait_for[T](look: Callable[[], T | None], what: str) -> T:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(DemoError, ValueError):
            seen = look()
            if seen:
                return seen
        time.sleep(1)
    raise DemoError(f"not within {PATIENCE:.0f} s: {what}")


def play(name: str, inventories: Sequence[Path | str], variables: dict[str, Any], log: Path) -> None:
    """Run playbooks/NAME.yml with its output in a log; DemoError with the log's end when it fails."""
    named = [word for inventory in inventories for word in ("-i", str(inventory))]
    with log.open("w") as output:
        done = subprocess.run(
            ["ansible-playbook", *named, f"playbooks/{name}.yml", "-e", json.dumps(variables)],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        tail = "\n".join(log.read_text().splitlines()[-TAIL:])
        raise DemoError(f"playbooks/{name}.yml ended with {done.returncode}:\n{tail}")
