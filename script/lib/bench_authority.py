"""The measures of `script/bench authority`: what the fence, a turn, a step and a start cost."""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import bench_serve
from bench_contest import contest
from bench_instance import Instance
from bench_machine import Rounds, median, paired
from bench_table import Line, Measured, at_least, at_most, loaded, told
from sandbox import CHECKOUT

from standfast import authority, work
from standfast.agent import Reply, Request, ScriptedModel, Status, ToolCall
from standfast.serve import settings
from standfast.serve.turn import Worker

FOLDER = CHECKOUT / "build/bench"
CALLS = 6
"""Tool calls of one measured turn, each in a step of its own; its last step is the answer."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    archive: int
    """Finished work rows."""
    fence: int
    fences: int
    turn: int
    turn_jobs: int
    loop: int
    loop_turns: int
    starts: int


FULL = Sizes(
    archive=1_000_000, fence=15, fences=2_000, turn=15, turn_jobs=1000, loop=15, loop_turns=10, starts=7
)
QUICK = Sizes(archive=20_000, fence=3, fences=200, turn=3, turn_jobs=100, loop=3, loop_turns=3, starts=2)


def fence(rounds: Rounds, sizes: Sizes) -> Measured:
    """`assert_current` for a current claim, one by one, on a new store and on one with an archive."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        instances = _both(Path(name), sizes)
        claims = {}
        for kind, instance in instances.items():
            instance.admit(1)
            claims[kind] = instance.claim()

        def once(number: int) -> dict[str, float]:
            kinds = list(instances)
            ordered = kinds if number % 2 else kinds[::-1]
            return {kind: _fence_seconds(instances[kind], claims[kind], sizes.fences) for kind in ordered}

        try:
            once(0)
            taken = rounds.take(sizes.fence, once)
        finally:
            _close(instances)
    return Measured(
        [
            at_most(
                f"assert_current, median, {sizes.archive:,} finished rows",
                1e6 * median(taken, "full"),
                60,
                "us",
                taken,
                detail=f"{1e6 * median(taken, 'empty'):.1f} us without",
            )
        ],
        taken,
        [f"{sizes.fences} calls a round outside any transaction, the marker file read each time"],
    )


def _both(folder: Path, sizes: Sizes) -> dict[str, Instance]:
    return {
        "empty": Instance.make(folder / "empty", 0),
        "full": Instance.make(folder / "full", sizes.archive),
    }


def _close(instances: dict[str, Instance]) -> None:
    for instance in instances.values():
        instance.connection.close()


def _fence_seconds(instance: Instance, claim: authority.Claim, count: int) -> float:
    connection, marker, now = instance.connection, instance.layout.marker, instance.clock.now
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        authority.assert_current(connection, claim, now(), marker)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def turn(rounds: Rounds, sizes: Sizes) -> Measured:
    """Claim, two observed messages, finish, beside a loop written by hand, in the same rounds."""
    names = ("standfast-turn", "raw-turn")
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        taken = contest(rounds, names, Path(name), sizes.turn, sizes.turn_jobs)
    rates = {each: sizes.turn_jobs / median(taken, each) for each in names}
    cpu = {each: 1e6 * median(taken, f"{each} cpu") / sizes.turn_jobs for each in names}
    lines = [
        at_least(
            "claim, 2 messages, finish, of raw",
            paired(taken, "raw-turn", "standfast-turn"),
            0.85,
            "x",
            taken,
            detail=f"{rates['standfast-turn']:.0f} beside {rates['raw-turn']:.0f} turns/s",
        )
    ]
    lines += [
        Line(f"{each}: CPU of a turn", cpu[each], "us", detail="4 commits", loaded=loaded(taken))
        for each in names
    ]
    return Measured(
        lines,
        taken,
        [
            "a process each, WAL, synchronous=FULL, four commits a turn; raw: written by hand, inlined, its",
            "  fence in every transaction, transcript with an index by job, report with its two indexes",
        ],
    )


class _Timed:
    """Plays a turn of CALLS tool calls and an answer, and keeps the time that this took by itself."""

    source = "scripted"

    def __init__(self) -> None:
        self.seconds = 0.0
        self._script = ScriptedModel(
            [
                *(
                    Reply(calls=(ToolCall(id=f"c{number}", name="list_stock", arguments="{}"),))
                    for number in range(CALLS)
                ),
                Reply(text="Vanilla is two tubs under its point."),
            ]
        )

    def reply(self, request: Request) -> Reply:
        began = time.perf_counter()
        try:
            return self._script.reply(request)
        finally:
            self.seconds += time.perf_counter() - began


def loop(rounds: Rounds, sizes: Sizes) -> Measured:
    """Turns as the service does them, every message durable under the fence; the model's time is left out."""
    logging.getLogger("standfast").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        instances = _both(Path(name), sizes)

        def once(number: int) -> dict[str, float]:
            kinds = list(instances)
            values = {}
            for kind in kinds if number % 2 else kinds[::-1]:
                values[kind], values[f"{kind} cpu"] = _step_seconds(instances[kind], sizes.loop_turns)
            return values

        try:
            once(0)
            taken = rounds.take(sizes.loop, once)
        finally:
            _close(instances)
    return Measured(
        [
            at_most(
                f"one step of a turn without its model, {sizes.archive:,} finished rows",
                1e3 * median(taken, "full"),
                2,
                "ms",
                taken,
                detail=f"{1e3 * median(taken, 'empty'):.2f} ms without",
            ),
            told("the same, CPU alone", 1e3 * median(taken, "full cpu"), "ms", taken),
        ],
        taken,
        [
            f"a turn: {CALLS} steps of one call of list_stock, a last one with the answer; its opening, each",
            "  message in a commit of its own, and the finish with its report are shared out among the steps",
        ],
    )


def _step_seconds(instance: Instance, turns: int) -> tuple[float, float]:
    """By the clock, and of CPU."""
    told = settings.load(instance.layout, {}, None)
    run = work.start_run(
        instance.connection, release="source", pid=0, invocation="", now=instance.clock.now()
    )
    instance.admit(turns)
    taken = cpu = 0.0
    for _ in range(turns):
        model = _Timed()
        worker = Worker(
            connection=instance.connection,
            layout=instance.layout,
            clock=instance.clock,
            settings=told,
            model=model,
            run=run,
            on_step=lambda: None,
            stop=lambda: False,
        )
        claim = instance.claim()
        began, busy = time.perf_counter(), time.process_time()
        status = worker.turn(claim)
        taken += time.perf_counter() - began - model.seconds
        cpu += time.process_time() - busy
        assert status == Status.COMPLETED, status
    steps = turns * (CALLS + 1)
    return taken / steps, cpu / steps


def start(rounds: Rounds, sizes: Sizes) -> Measured:
    """A real `standfast serve`, from the start of its process to READY."""
    with tempfile.TemporaryDirectory(prefix="sf-", dir=FOLDER) as name:
        instances = _both(Path(name), sizes)
        _close(instances)

        def once(number: int) -> dict[str, float]:
            kinds = list(instances)
            return {
                kind: bench_serve.ready_seconds(instances[kind].layout.state)
                for kind in (kinds if number % 2 else kinds[::-1])
            }

        once(0)
        taken = rounds.take(sizes.starts, once)
    return Measured(
        [
            at_most(
                f"serve, start to READY, {sizes.archive:,} finished rows",
                median(taken, "full"),
                1.0,
                "s",
                taken,
            ),
            told("serve, start to READY, new store", median(taken, "empty"), "s", taken),
        ],
        taken,
        ["fresh processes with compiled modules, each stopped by SIGTERM"],
    )


Measure = Callable[[Rounds, Sizes], Measured]
MEASURES: dict[str, Measure] = {"fence": fence, "turn": turn, "loop": loop, "start": start}
"""In the order in which they run."""
