"""What a measurement must say about its machine: facts, load, and CPU that others used meanwhile.

A core that somebody else keeps busy changes what is measured: the foreign CPU of every round is kept beside
its values, and a round with more than FOREIGN_BOUND of one core is marked.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox import CHECKOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FOREIGN_BOUND = 0.25
"""Of one core: a round during which others used more is marked."""
ENOUGH_QUIET = 5
"""With at least so many unmarked rounds, the marked ones are left out of the medians."""
TICKS = os.sysconf("SC_CLK_TCK")
SETTLE = 1.0


def facts(folder: Path) -> dict[str, Any]:
    """The machine and what is measured on it; ``folder`` lies on the disk that is measured."""
    git = ("git", "-C", str(CHECKOUT))
    return {
        "cores": os.cpu_count(),
        "processor": _first_line("/proc/cpuinfo", "model name"),
        "memory_mb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e6),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "file_system": _said(
            "findmnt", "--noheadings", "--output", "FSTYPE,OPTIONS", "--target", str(folder)
        ),
        "commit": _said(*git, "rev-parse", "HEAD"),
        "clean": not _said(*git, "status", "--porcelain", "--untracked-files=no"),
    }


def _said(*command: str) -> str:
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def _first_line(path: str, name: str) -> str:
    lines = Path(path).read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "unknown")


def load() -> float:
    """The load average over one minute."""
    return os.getloadavg()[0]


@dataclass(frozen=True)
class _Process:
    parent: int
    namespace: str
    seconds: float
    """Its own and its ended children's."""


class Meter:
    """Foreign CPU since the last look: what the machine was busy with, less what our own processes used."""

    def __init__(self) -> None:
        self.container: int | None = None
        """A process of a container of ours: everything in its process namespace is ours too."""
        self._before = self._now()

    def restart(self) -> None:
        """Forget what was until now."""
        self._before = self._now()

    def foreign(self) -> float:
        """Of one core, since the last call or restart."""
        before, self._before = self._before, self._now()
        at, busy, own = (now - then for now, then in zip(self._before, before, strict=True))
        return max(0.0, (busy - own) / at) if at else 0.0

    def _now(self) -> tuple[float, float, float]:
        processes = {
            int(entry.name): _process(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()
        }
        living = {pid: process for pid, process in processes.items() if process is not None}
        inside = living[self.container].namespace if self.container in living else None
        own = sum(
            process.seconds
            for pid, process in living.items()
            if _descends(pid, living) or (inside is not None and process.namespace == inside)
        )
        return time.monotonic(), _busy(), own


def _process(entry: Path) -> _Process | None:
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
        namespace = str((entry / "ns/pid").readlink())
    except OSError:
        return None
    return _Process(int(fields[1]), namespace, sum(map(int, fields[11:15])) / TICKS)


def _descends(pid: int, living: dict[int, _Process]) -> bool:
    ourselves = os.getpid()
    while pid > 1 and pid in living:
        if pid == ourselves:
            return True
        pid = living[pid].parent
    return False


def _busy() -> float:
    """Seconds of all cores that were not idle; waiting for a disk is idle."""
    user, nice, system, _idle, _wait, irq, soft, steal, *_ = (
        int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + soft + steal) / TICKS


@dataclass(frozen=True)
class Round:
    """One round of one measure: a value for each thing that was measured, side by side."""

    values: dict[str, float]
    foreign: float
    """Foreign CPU while it lasted, of one core."""

    @property
    def marked(self) -> bool:
        return self.foreign > FOREIGN_BOUND


class Rounds:
    """Runs a measure's rounds, and waits for a quiet machine before each for as long as was allowed."""

    def __init__(self, meter: Meter, patience: float) -> None:
        self.meter = meter
        self._deadline = time.monotonic() + patience

    def take(self, count: int, once: Callable[[int], dict[str, float]]) -> list[Round]:
        """``count`` rounds of ``once(number)``."""
        taken = []
        for number in range(count):
            self._wait()
            self.meter.restart()
            values = once(number)
            taken.append(Round(values, self.meter.foreign()))
        return taken

    def _wait(self) -> None:
        while time.monotonic() < self._deadline:
            self.meter.restart()
            time.sleep(SETTLE)
            if self.meter.foreign() <= FOREIGN_BOUND:
                return


def counted(rounds: Sequence[Round]) -> list[Round]:
    """The rounds that medians are taken of: the unmarked ones if there are enough, else all."""
    quiet = [one for one in rounds if not one.marked]
    return quiet if len(quiet) >= min(ENOUGH_QUIET, len(rounds)) else list(rounds)


def median(rounds: Sequence[Round], name: str) -> float:
    """Of one value over the counted rounds."""
    return statistics.median(one.values[name] for one in counted(rounds))


def paired(rounds: Sequence[Round], above: str, below: str) -> float:
    """The median over the rounds of one value divided by another of the same round."""
    return statistics.median(one.values[above] / one.values[below] for one in counted(rounds))


def spread(rounds: Sequence[Round], name: str) -> tuple[float, float]:
    """The lowest and the highest of the counted rounds."""
    values = [one.values[name] for one in counted(rounds)]
    return min(values), max(values)
