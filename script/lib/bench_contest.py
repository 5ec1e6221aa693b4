"""Contestants of a comparison: a process each, all in the same rounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox import CHECKOUT

if TYPE_CHECKING:
    from bench_machine import Round, Rounds

BENCH_PYTHON = CHECKOUT / ".venv-bench/bin/python"
PEERS = ("huey", "litequeue", "persist-queue")
SLICES = 4
"""Of each round: what disturbs the machine for a moment meets all of them alike. A slice is long beside what
a process pays for its first jobs after another one had the core, and a round long enough for its checkpoints:
who writes fewer pages for a job has fewer of these."""


class Contestant:
    """One process of bench_queue.py."""

    def __init__(self, name: str, folder: Path) -> None:
        python = str(BENCH_PYTHON) if name in PEERS else sys.executable
        program = Path(__file__).with_name("bench_queue.py")
        self._process = subprocess.Popen(
            [python, "-I", program, name, folder / name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, verb: str, count: int) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{verb} {count}\n")
        self._process.stdin.flush()
        answer: dict[str, float] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def contest(rounds: Rounds, names: tuple[str, ...], folder: Path, count: int, jobs: int) -> list[Round]:
    """``count`` rounds in which each does ``jobs`` jobs, a slice at a time and in turned order."""
    contestants = {each: Contestant(each, folder) for each in names}

    def once(number: int) -> dict[str, float]:
        values = dict.fromkeys([*names, *(f"{each} cpu" for each in names)], 0.0)
        for each in names:
            contestants[each].ask("put", jobs)
        for turn in range(SLICES):
            turned = (number + turn) % len(names)
            for each in names[turned:] + names[:turned]:
                answer = contestants[each].ask("run", jobs // SLICES)
                values[each] += answer["seconds"]
                values[f"{each} cpu"] += answer["cpu"]
        return values

    try:
        once(0)
        return rounds.take(count, once)
    finally:
        for contestant in contestants.values():
            contestant.close()
