"""The measures of `script/bench install`, each in rounds with its comparison beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import bench_serve
import bundle
import images
from bench_contest import PEERS, contest
from bench_instance import Instance
from bench_machine import Rounds, load, median, paired, spread
from bench_table import Line, Measured, at_least, at_most, loaded, told
from hosts import Group, HostSpec
from sandbox import CHECKOUT, SandboxError, enter, podman

FOLDER = CHECKOUT / "build/bench"
GROUP = Group("bench")
HOST = "shop"
PLAIN = "import typer\nfrom pydantic import BaseModel\nclass Model(BaseModel):\n    a: int\n    b: str\n"
HEALTH_ANSWERS = (0, 4)
"""Exit codes of a health that looked; 4 says that no service runs, which is so here."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    installs: int
    builds: int
    starts: int
    idle: float
    """Seconds."""
    flat: int
    flat_jobs: int
    archive: int
    queue: int
    queue_jobs: int


FULL = Sizes(
    installs=3,
    builds=3,
    starts=31,
    idle=60,
    flat=31,
    flat_jobs=20,
    archive=1_000_000,
    queue=21,
    queue_jobs=1000,
)
QUICK = Sizes(
    installs=1, builds=1, starts=3, idle=5, flat=3, flat_jobs=10, archive=20_000, queue=3, queue_jobs=100
)


def _release(environment: dict[str, str], output: Path) -> float:
    program = Path(sys.executable).with_name("standfast")
    pythons = [word for version in bundle.PYTHONS for word in ("--python", version)]
    began = time.monotonic()
    subprocess.run(
        [program, "release", "build", *pythons, "--allow-dirty", "--output", output],
        cwd=CHECKOUT,
        check=True,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.monotonic() - began


def build(rounds: Rounds, sizes: Sizes) -> Measured:
    """A release from this tree, with an empty cache of wheels and with the one that this left."""

    def once(_: int) -> dict[str, float]:
        with tempfile.TemporaryDirectory(dir=FOLDER) as name:
            folder = Path(name)
            cache = {"XDG_CACHE_HOME": str(folder / "cache")}
            cold = _release(cache, folder / "cold")
            warm = _release(cache, folder / "warm")
            archive = next((folder / "warm").glob("standfast-*.tar"))
            return {"cold": cold, "warm": warm, "megabytes": archive.stat().st_size / 1e6}

    taken = rounds.take(sizes.builds, once)
    return Measured(
        [
            at_most("bundle for Python 3.12 and 3.13", median(taken, "megabytes"), 25, "MB", taken),
            told("release build, cold (downloads every wheel)", median(taken, "cold"), "s", taken),
            told("release build, warm", median(taken, "warm"), "s", taken),
        ],
        taken,
        ["cold depends on the package index and the way to it"],
    )


def _play(archive: Path) -> float:
    inventory = GROUP.inventory(FOLDER / "inventory.json")
    settings = {"release_archive": str(archive), "receipt_controller_folder": str(FOLDER / "receipts")}
    log = FOLDER / "install.log"
    began = time.monotonic()
    with log.open("a") as output:
        done = subprocess.run(
            ["ansible-playbook", "-i", inventory, "playbooks/install.yml", "-e", json.dumps(settings)],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    taken = time.monotonic() - began
    if done.returncode != 0:
        raise SandboxError(f"playbooks/install.yml ended with {done.returncode}: see {log}")
    return taken


def install(rounds: Rounds, sizes: Sizes) -> Measured:
    """Fresh install of a built release on a booted bare host, and the same again with nothing to do."""
    enter()
    archive = bundle.ensure()
    images.ensure("trixie")

    def once(_: int) -> dict[str, float]:
        GROUP.boot(HostSpec(HOST))
        container = GROUP.container(HOST)
        rounds.meter.container = int(podman("inspect", "--format", "{{.State.Pid}}", container).stdout)
        rounds.meter.restart()
        return {"fresh": _play(archive), "again": _play(archive), "load": load()}

    try:
        taken = rounds.take(sizes.installs, once)
    finally:
        rounds.meter.container = None
        GROUP.remove()
    lowest = "; ".join(f"{name} at best {spread(taken, name)[0]:.0f} s" for name in ("fresh", "again"))
    return Measured(
        [
            at_most("fresh install on a booted host", median(taken, "fresh"), 60, "s", taken, detail=lowest),
            at_most("the same again, nothing to do", median(taken, "again"), 20, "s", taken),
        ],
        taken,
        ["Debian 13 in a container without a network, ansible over podman exec, the canary included"],
    )


def _seconds(command: list[str], allowed: tuple[int, ...]) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True)
    taken = time.perf_counter() - began
    if done.returncode not in allowed:
        raise SandboxError(f"{command}: exit code {done.returncode}: {done.stderr.decode()[-500:]}")
    return taken


def start(rounds: Rounds, sizes: Sizes) -> Measured:
    """`standfast health` in a fresh process, beside a Python that imports typer and defines one model."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        state = f"{folder}/state"
        command = [sys.executable, "-I", "-m", "standfast", "--state", state]
        _seconds([*command, "init"], (0,))
        commands = {
            "health": ([*command, "health"], HEALTH_ANSWERS),
            "plain": ([sys.executable, "-I", "-c", PLAIN], (0,)),
        }

        def once(number: int) -> dict[str, float]:
            names = list(commands)
            ordered = names if number % 2 else names[::-1]
            return {name: _seconds(*commands[name]) for name in ordered}

        taken = rounds.take(sizes.starts, once)
    return Measured(
        [
            at_most(
                "standfast health, cold, of a plain typer + pydantic",
                paired(taken, "health", "plain"),
                1.5,
                "x",
                taken,
                detail=f"{median(taken, 'health'):.3f} s beside {median(taken, 'plain'):.3f} s",
            )
        ],
        taken,
        [f"{sizes.starts} rounds, fresh processes with compiled modules, order turned each round"],
    )


def idle(rounds: Rounds, sizes: Sizes) -> Measured:
    """A service that has finished some requests and has nothing to do."""

    def once(_: int) -> dict[str, float]:
        with tempfile.TemporaryDirectory(prefix="sf-") as folder:
            requests = bench_serve.REQUESTS if sizes is FULL else 2
            measured = bench_serve.measure(Path(folder), sizes.idle, requests)
        return {
            "ready": measured.ready_seconds,
            "finish": measured.finish_seconds,
            "percent": measured.idle_percent,
            "megabytes": measured.resident_mb,
        }

    taken = rounds.take(1, once)
    return Measured(
        [
            at_most("idle serve, resident", median(taken, "megabytes"), 55, "MB", taken),
            at_most(
                "idle serve, CPU",
                median(taken, "percent"),
                0.2,
                "% core",
                taken,
                detail=f"over {sizes.idle:.0f} s",
            ),
            told("serve, start to READY", median(taken, "ready"), "s", taken),
            told("serve, admitted to finished, offline model", median(taken, "finish"), "s", taken),
        ],
        taken,
        [],
    )


def flat(rounds: Rounds, sizes: Sizes) -> Measured:
    """Claim and health on a new store and on one with an archive, side by side."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        instances = {
            "empty": Instance.make(Path(name) / "empty", 0),
            "full": Instance.make(Path(name) / "full", sizes.archive),
        }

        def once(number: int) -> dict[str, float]:
            values = {}
            for kind in ("empty", "full") if number % 2 else ("full", "empty"):
                values[f"claim_{kind}"] = instances[kind].claims(sizes.flat_jobs)
                values[f"look_{kind}"] = instances[kind].look(sizes.flat_jobs)
                layout = instances[kind].layout
                command = [sys.executable, "-I", "-m", "standfast", "--state", str(layout.state), "health"]
                values[f"health_{kind}"] = _seconds(command, HEALTH_ANSWERS)
            return values

        try:
            once(0)  # the first look at a new file finds nothing in memory
            taken = rounds.take(sizes.flat, once)
        finally:
            for instance in instances.values():
                instance.connection.close()
    lines = []
    for what, kind, scale in (
        ("one claim", "claim", 1e6),
        ("one look at the health, in process", "look", 1e6),
        ("standfast health, cold", "health", 1e6),
    ):
        both = [scale * median(taken, f"{kind}_{which}") for which in ("empty", "full")]
        lines.append(
            at_most(
                f"{what}: {sizes.archive:,} finished rows / none",
                paired(taken, f"{kind}_full", f"{kind}_empty"),
                1.2,
                "x",
                taken,
                detail=f"{both[1]:.0f} us beside {both[0]:.0f} us",
            )
        )
    return Measured(lines, taken, ["each finished row has its origin and its delivered report"])


CONTESTANTS = (
    "standfast",
    "raw",
    "raw-bare",
    *PEERS,
    "standfast-chained",
    "raw-chained",
    "append",
    "overwrite",
)
QUEUE_NOTES = [
    "all: WAL, synchronous=FULL, a process each, jobs stored beforehand; a job is claimed in one commit and",
    "  finished in a second. A round goes over the contestants in turned order, a slice of each, until",
    "  all its jobs are done; a ratio is the median of the rounds' ratios",
    "standfast: every component's schema, marker file read twice, fence, one live claim per session, leases,",
    "  report, run: the two commits that the service makes; standfast-chained: finish_and_claim, one commit",
    "  for each job, which the service does not use: between two turns it delivers, fires and looks around;",
    "  raw-chained is the raw loop with the same one commit",
    "raw: written by hand, inlined: id, session, prompt, owner, generation, epoch, lease; an index of READY",
    "  and RUNNING; pause and epoch read inside both transactions; finish checks owner, generation, epoch",
    "  and lease and stores a report with an id of its own and an index of the undelivered. No marker file,",
    "  no rule for sessions, no take-over, no counts. raw-bare: the same without any index on reports",
    "huey: dequeue (a DELETE), put_data; litequeue: pop, done; persist-queue: get, ack; the latter two keep",
    "  no report, and persist-queue has no index: its get slows down with every job it has ever held",
    "append, overwrite: for each job twice: write one WAL frame and fdatasync, to a growing file and to one",
    "  that has its space already",
]


def queue(rounds: Rounds, sizes: Sizes) -> Measured:
    """Claim + finish beside a loop written by hand and other queues on SQLite, in the same rounds."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        taken = contest(rounds, CONTESTANTS, Path(name), sizes.queue, sizes.queue_jobs)
    rates = {each: sizes.queue_jobs / median(taken, each) for each in CONTESTANTS}
    cpu = {each: 1e6 * median(taken, f"{each} cpu") / sizes.queue_jobs for each in CONTESTANTS}
    lines = [
        at_least(
            f"claim + finish, of {other}",
            paired(taken, other, "standfast"),
            bound,
            "x",
            taken,
            detail=f"{rates['standfast']:.0f} beside {rates[other]:.0f} jobs/s",
        )
        for other, bound in (("raw", 0.9), *((peer, 1.0) for peer in PEERS))
    ]
    lines.append(
        told(
            "finish and next claim in one commit, of raw so",
            paired(taken, "raw-chained", "standfast-chained"),
            "x",
            taken,
            detail=f"{rates['standfast-chained']:.0f} beside {rates['raw-chained']:.0f} jobs/s",
        )
    )
    lines += [
        Line(
            f"{each}: jobs",
            rates[each],
            "/s",
            detail=f"CPU {cpu[each]:.0f} us/job, raw / this {paired(taken, 'raw', each):.2f}",
            loaded=loaded(taken),
        )
        for each in CONTESTANTS
    ]
    return Measured(lines, taken, QUEUE_NOTES)


Measure = Callable[[Rounds, Sizes], Measured]
MEASURES: dict[str, Measure] = {
    "build": build,
    "start": start,
    "idle": idle,
    "flat": flat,
    "queue": queue,
    "install": install,
}
"""In the order in which they run; the last enters the sandbox of containers."""
