"""The measures of `script/bench upgrade`: on real systemd hosts, with work arriving all the time.

Silence is what the store says, for both ways of deploying: the longest time between two items of finished
work while the release is changed. The comparison (bench/symlink) deploys the same archives of the same agent
to a host of its own: releases/<time>, shared state, `current` switched, service restarted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import bundle
import generations
import images
from archives import manifest_of
from bench_machine import Rounds, load, median, paired, spread
from bench_table import Line, Measured, at_most, told
from hosts import Group, HostSpec, installed_image
from sandbox import CHECKOUT, SandboxError, enter, podman

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER = CHECKOUT / "build/bench"
GROUP = Group("bench-upgrade")
ITEM_BYTES = 4000
"""Of each report that gives the store its size; with its rows an item takes about 4.6 kB."""
FEED = 0.1
"""Seconds between two requests."""
SLACK = 5.0
"""Seconds of watching before a change and after it."""
TIMEOUTS = {"upgrade_start_timeout": 30, "upgrade_canary_timeout": 20}
BAD = ("crashes", "never-ready", "idle", "half-migration-live", "corrupts-live", "unreadable")


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    megabytes: int
    rounds: int
    bad: tuple[str, ...]
    watched: float
    """Seconds of watching after a bad release."""
    backfilled: int
    """Items of finished work of which v3 fills a column."""
    fleet: int
    fleets: int
    seen: int
    """Hosts of one status."""


FULL = Sizes(megabytes=100, rounds=7, bad=BAD, watched=60, backfilled=1_000_000, fleet=8, fleets=3, seen=20)
QUICK = Sizes(megabytes=5, rounds=1, bad=BAD[:1], watched=15, backfilled=20_000, fleet=4, fleets=1, seen=3)

# Requests for as long as it may, as the service's user, with the code that was there first.
_FEEDER = """
import sys, time
from pathlib import Path
from standfast.errors import StoreBusy
from standfast.operations.schema import COMPONENTS
from standfast.store import immediate, open_store
from standfast.work import Request, admit_within
store = open_store(Path(sys.argv[1]), COMPONENTS)
print("feeding", flush=True)
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    origin = f"bench-{time.time_ns()}"
    try:
        with immediate(store):
            request = Request(origin=origin, session=origin, prompt="How is the stock?")
            admit_within(store, request, now=time.time(), limits=None)
    except StoreBusy:
        pass
    time.sleep(float(sys.argv[3]))
"""
_FINISHED = """
import json, sqlite3, sys
store = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
query = "SELECT finished_at, release FROM work JOIN runs ON runs.id = run WHERE finished_at > ? ORDER BY 1"
print(json.dumps(store.execute(query, (float(sys.argv[2]),)).fetchall()))
"""
_COUNTED = """
import json, sqlite3, sys
store = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
query = "SELECT count(*) FROM work WHERE status = 'DONE' AND finished_at < ?"
print(store.execute(query, (float(sys.argv[2]),)).fetchone()[0])
"""


@dataclass(frozen=True)
class Shop:
    """A host with the agent on it, deployed one way or the other."""

    name: str
    user: str
    state: str
    first: str
    """The folder of the release that it starts with."""
    service: tuple[str, ...]
    """`systemctl` for its unit's manager."""
    unit: str

    def run(
        self, *words: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """As the service's user."""
        command = [*self._exec(), *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise SandboxError(f"{self.name}: {words[0]}: exit {done.returncode}: {done.stderr[-800:]}")
        return done

    def _exec(self) -> list[str]:
        environment = ["--env", f"XDG_RUNTIME_DIR=/run/user/{_uid(self.name, self.user)}"]
        return ["podman", "exec", "-i", "--user", self.user, *environment, GROUP.container(self.name)]

    def systemctl(self, *words: str) -> None:
        """Of the unit, by whoever may."""
        own = self.service[-1] == "--user"
        through = self._exec() if own else ["podman", "exec", GROUP.container(self.name)]
        command = [*through, *self.service, *words, self.unit]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SandboxError(f"{self.name}: {words}: {done.stderr[-500:]}")

    def fill(self, items: int, size: int | None = None) -> None:
        """Finished work of so many items, the service stopped meanwhile."""
        self.systemctl("stop")
        program = (CHECKOUT / "script/lib/history.py").read_text()
        more = [] if size is None else [str(size)]
        self.run("python3", "-I", "-", f"{self.state}/agent.sqlite", str(items), *more, stdin=program)
        self.systemctl("start")

    @contextmanager
    def fed(self, seconds: float) -> Iterator[None]:
        """With work arriving meanwhile."""
        words = [f"{self.first}/venv/bin/python", "-I", "-c", _FEEDER, f"{self.state}/agent.sqlite"]
        command = [*self._exec(), "timeout", f"{seconds:g}", *words, f"{seconds:g}", f"{FEED:g}"]
        feeder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            assert feeder.stdout is not None
            if feeder.stdout.readline().strip() != b"feeding":
                raise SandboxError(f"{self.name}: no work could be added")
            yield
        finally:
            feeder.kill()
            feeder.wait()
            podman("exec", GROUP.container(self.name), "pkill", "-u", self.user, "-f", "bench-", check=False)

    def finished(self, since: float) -> list[tuple[float, str]]:
        """When work was finished after `since`, and by which release."""
        words = ("python3", "-I", "-c", _FINISHED, f"{self.state}/agent.sqlite", str(since))
        return [(at, release) for at, release in json.loads(self.run(*words).stdout)]

    def kept(self, before: float) -> int:
        """Items that were finished before a moment and still are."""
        words = ("python3", "-I", "-c", _COUNTED, f"{self.state}/agent.sqlite", str(before))
        return int(self.run(*words).stdout)

    def megabytes(self) -> float:
        """Of the database."""
        return int(self.run("stat", "-c", "%s", f"{self.state}/agent.sqlite").stdout) / 1e6


def _uid(host: str, user: str) -> str:
    return podman("exec", GROUP.container(host), "id", "-u", user).stdout.strip()


def longest_gap(finished: list[tuple[float, str]], until: float) -> float:
    """The longest time in which nothing was finished, up to `until`."""
    times = [at for at, _ in finished] + [until]
    return max((later - earlier for earlier, later in pairwise(times)), default=0.0)


def _ours(name: str, image: str) -> Shop:
    GROUP.boot(HostSpec(name, image))
    release = podman("exec", GROUP.container(name), "readlink", "/srv/lucy/current").stdout.strip()
    first = f"/srv/lucy/releases/{release.rpartition('/')[2]}"
    return Shop(name, "lucy", "/srv/lucy/state", first, ("systemctl", "--user"), "lucy-agent.service")


def _theirs(name: str, image: str) -> Shop:
    GROUP.boot(HostSpec(name, image))
    first = podman("exec", GROUP.container(name), "readlink", "-f", "/srv/shop/current").stdout.strip()
    return Shop(name, "shop", "/srv/shop/shared/state", first, ("systemctl",), "shop.service")


@dataclass(frozen=True)
class Played:
    """One run of a playbook."""

    seconds: float
    good: bool


def _play(
    playbook: str, *hosts: str, archive: Path | None, forks: int = 5, ok: bool = True, **variables: Any
) -> Played:
    """Run a playbook against these hosts; one that must succeed and does not ends the measurement."""
    connection = {"ansible_connection": "standfast_podman", "ansible_python_interpreter": "/usr/bin/python3"}
    listed = {name: {"ansible_host": GROUP.container(name)} for name in hosts}
    inventory, log = FOLDER / "upgrade-inventory.json", FOLDER / "upgrade.log"
    inventory.write_text(json.dumps({"agents": {"hosts": listed, "vars": connection}}))
    settings = {"receipt_controller_folder": str(FOLDER / "receipts"), **variables}
    if archive is not None:
        settings["release_archive"] = str(archive)
    words = ["-i", str(inventory), playbook, "--forks", str(forks), "-e", json.dumps(settings)]
    began = time.monotonic()
    with log.open("w") as output:
        done = subprocess.run(
            ["ansible-playbook", *words],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if ok and done.returncode:
        raise SandboxError(f"{playbook} ended with {done.returncode}: see {log}")
    return Played(time.monotonic() - began, done.returncode == 0)


@contextmanager
def _images(megabytes: int) -> Iterator[tuple[str, str]]:
    """Images of two hosts with the first release and as much state: ours, and the comparison's."""
    enter()
    archive = bundle.ensure()
    os.environ["STANDFAST_RELEASE_ARCHIVE"] = str(archive)
    images.ensure("trixie")
    names = ("localhost/standfast-bench-ours:1", "localhost/standfast-bench-theirs:1")
    items = megabytes * 1_000_000 // (ITEM_BYTES + 600)
    try:
        ours = _ours("ours", installed_image())
        ours.fill(items, ITEM_BYTES)
        GROUP.commit("ours", names[0])
        GROUP.boot(HostSpec("theirs"))
        _play("bench/symlink/prepare.yml", "theirs", archive=None)
        _play("bench/symlink/deploy.yml", "theirs", archive=archive, deploy_restart=False)
        words = (
            "/srv/shop/current/venv/bin/python",
            "-I",
            "-m",
            "standfast",
            "--state",
            "/srv/shop/shared/state",
        )
        podman("exec", "--user", "shop", GROUP.container("theirs"), *words, "init")
        podman("exec", GROUP.container("theirs"), "systemctl", "enable", "--now", "shop.service")
        first = podman(
            "exec", GROUP.container("theirs"), "readlink", "-f", "/srv/shop/current"
        ).stdout.strip()
        theirs = Shop("theirs", "shop", "/srv/shop/shared/state", first, ("systemctl",), "shop.service")
        theirs.fill(items, ITEM_BYTES)
        GROUP.commit("theirs", names[1])
        yield names
    finally:
        GROUP.remove()
        for name in names:
            podman("image", "rm", "--force", name, check=False)


def _container(rounds: Rounds, name: str) -> None:
    pid = podman("inspect", "--format", "{{.State.Pid}}", GROUP.container(name)).stdout
    rounds.meter.container = int(pid)


def _cycle(shop: Shop) -> float:
    """Seconds of the service's own stop and start until READY, one after the other."""
    manager = " ".join(shop.service)
    line = f"s=$(date +%s.%N); {manager} stop {shop.unit}; {manager} start {shop.unit}; e=$(date +%s.%N)"
    words = ("bash", "-c", f'{line}; python3 -c "print($e - $s)"')
    return float(shop.run(*words).stdout)


def _reported(shop: Shop) -> float:
    """The silence that the newest receipt tells."""
    names = shop.run("ls", "/srv/lucy/receipts").stdout.split()
    receipt = json.loads(shop.run("cat", f"/srv/lucy/receipts/{max(names)}").stdout)
    return float(receipt["switch"]["silence_seconds"])


def silence(rounds: Rounds, sizes: Sizes) -> Measured:
    """An upgrade with a migration, the service's own stop + start, and a symlink deploy, on large state."""
    with _images(sizes.megabytes) as (ours_image, theirs_image):
        v2 = generations.ensure("v2")

        def once(number: int) -> dict[str, float]:
            ways = (_round_ours, _round_theirs)
            shops = ((ours_image, ways[0]), (theirs_image, ways[1]))
            values: dict[str, float] = {"load": load()}
            for image, way in shops if number % 2 else shops[::-1]:
                values |= way(rounds, image, v2)
            return values

        try:
            taken = rounds.take(sizes.rounds, once)
        finally:
            rounds.meter.container = None
    low, high = spread(taken, "silence")
    return Measured(
        [
            at_most("upgrade: business silence, by the receipts", median(taken, "reported"), 5, "s", taken),
            at_most("upgrade: that silence, of the service's own stop + start",
                    paired(taken, "reported", "cycle"), 2, "x", taken,
                    detail=f"stop + start to READY {median(taken, 'cycle'):.2f} s"),
            at_most("upgrade: longest time without finished work", median(taken, "silence"), 5, "s", taken,
                    detail=f"{low:.2f} to {high:.2f} s"),
            at_most("upgrade of one host, in total", median(taken, "total"), 90, "s", taken),
            told("symlink deploy: longest time without finished work", median(taken, "their_silence"), "s",
                 taken,
                 detail="no backup, no proof; the new process migrates"),
            told("upgrade: that time, of the symlink deploy's", paired(taken, "silence", "their_silence"),
                 "x", taken),
            told("symlink deploy of one host, in total", median(taken, "their_total"), "s", taken),
        ],
        taken,
        [
            f"v1 -> v2 on a store of {median(taken, 'megabytes'):.0f} MB; a request every {FEED:g} s, always",
            "fresh hosts each round, order turned",
        ],
    )  # fmt: skip


def _watched(
    shop: Shop, change: tuple[str, Path], **more: Any
) -> tuple[float, float, list[tuple[float, str]]]:
    """Seconds of the change, the longest silence around it, and what was finished."""
    began = time.time()
    with shop.fed(600):
        time.sleep(SLACK)
        seconds = _play(change[0], shop.name, archive=change[1], **more).seconds
        time.sleep(SLACK)
        until = time.time()
        finished = shop.finished(began)
    return seconds, longest_gap(finished, until), finished


def _round_ours(rounds: Rounds, image: str, archive: Path) -> dict[str, float]:
    shop = _ours("ours", image)
    _container(rounds, shop.name)
    size, cycle = shop.megabytes(), _cycle(shop)
    total, gap, finished = _watched(shop, ("playbooks/upgrade.yml", archive))
    assert finished[-1][1] == manifest_of(archive).release_id, finished[-1]
    reported = _reported(shop)
    GROUP.remove(shop.name)
    return {"megabytes": size, "cycle": cycle, "total": total, "silence": gap, "reported": reported}


def _round_theirs(rounds: Rounds, image: str, archive: Path) -> dict[str, float]:
    shop = _theirs("theirs", image)
    _container(rounds, shop.name)
    total, gap, finished = _watched(shop, ("bench/symlink/deploy.yml", archive))
    assert finished[-1][1] == manifest_of(archive).release_id, finished[-1]
    GROUP.remove(shop.name)
    return {"their_total": total, "their_silence": gap}


def bad(rounds: Rounds, sizes: Sizes) -> Measured:
    """What a bad release does to the business: silence, who works afterwards, what was forgotten."""
    lines: list[Line] = []
    taken = []
    with _images(min(20, sizes.megabytes)) as (ours_image, theirs_image):
        for name in sizes.bad:
            archive = generations.ensure(name)
            said: dict[str, str] = {}

            def once(_: int, archive: Path = archive, said: dict[str, str] = said) -> dict[str, float]:
                found = (
                    _bad_round(_ours("ours", ours_image), "playbooks/upgrade.yml", archive, sizes),
                    _bad_round(_theirs("theirs", theirs_image), "bench/symlink/deploy.yml", archive, sizes),
                )
                said |= {"ours": found[0].told, "theirs": found[1].told}
                return {"ours": found[0].silence, "theirs": found[1].silence}

            found = rounds.take(1, once)
            taken += found
            for shop, label in (("ours", "upgrade"), ("theirs", "symlink deploy")):
                seconds, what = found[0].values[shop], f"{name}, {label}: silence"
                lines.append(told(what, seconds, "s", found, detail=said[shop]))
                print(f"bench: {what} {seconds:.1f} s; {said[shop]}", file=sys.stderr, flush=True)
    notes = [
        f"watched for {sizes.watched:g} s after the run ended; where nobody works, it would have gone on",
        f"start and canary of the upgrade may take {list(TIMEOUTS.values())} s; systemd's own limit is 90 s",
    ]
    return Measured(lines, taken, notes)


@dataclass(frozen=True)
class _Bad:
    silence: float
    told: str


def _bad_round(shop: Shop, playbook: str, archive: Path, sizes: Sizes) -> _Bad:
    began = time.time()
    before = shop.kept(began)
    more = TIMEOUTS if playbook.startswith("playbooks") else {}
    with shop.fed(900):
        time.sleep(SLACK)
        played = _play(playbook, shop.name, archive=archive, ok=False, **more)
        time.sleep(sizes.watched)
        until = time.time()
        finished = shop.finished(began)
    forgotten = before - shop.kept(began)
    works = finished[-1][1] if finished and until - finished[-1][0] < SLACK else None
    new = manifest_of(archive).release_id
    who = "nobody" if works is None else "the bad release" if works == new else "the old release"
    verdict = "the run SUCCEEDED" if played.good else "the run failed"
    lost = f"; {forgotten} finished items forgotten" if forgotten else ""
    GROUP.remove(shop.name)
    return _Bad(longest_gap([(began, ""), *finished], until), f"{verdict}; afterwards {who} works{lost}")


def backfill(rounds: Rounds, sizes: Sizes) -> Measured:
    """v3, which fills a column of all finished work there is."""
    with _images(1) as (ours_image, _):

        def once(_: int) -> dict[str, float]:
            shop = _ours("ours", ours_image)
            _container(rounds, shop.name)
            # The few that made the image's size are there already, under the first numbers.
            began = time.monotonic()
            shop.run("systemctl", "--user", "stop", shop.unit)
            program = (CHECKOUT / "script/lib/history.py").read_text()
            items = str(sizes.backfilled)
            words = (f"{shop.state}/agent.sqlite", items, "36", "1000000")
            shop.run("python3", "-I", "-", *words, stdin=program)
            shop.run("systemctl", "--user", "start", shop.unit)
            made, size = time.monotonic() - began, shop.megabytes()
            total, gap, _finished = _watched(
                shop, ("playbooks/upgrade.yml", generations.ensure("v3")), upgrade_canary_timeout=180
            )
            return {
                "made": made,
                "megabytes": size,
                "total": total,
                "silence": gap,
                "reported": _reported(shop),
            }

        try:
            taken = rounds.take(1, once)
        finally:
            rounds.meter.container = None
    size = f"{median(taken, 'megabytes'):.0f} MB"
    return Measured(
        [
            told(f"v1 -> v3 with {sizes.backfilled:,} items to fill: silence", median(taken, "silence"), "s",
                 taken, detail=f"{size}, backup included; receipt {median(taken, 'reported'):.2f} s"),
            told("that upgrade in total", median(taken, "total"), "s", taken),
        ],
        taken,
        [f"the items were made in {median(taken, 'made'):.0f} s"],
    )  # fmt: skip


def _booted(count: int, image: str) -> list[str]:
    names = [f"host-{number:02}" for number in range(1, count + 1)]
    GROUP.boot(*(HostSpec(name, image) for name in names))
    for name in names:
        command = ["/usr/local/bin/lucy-agent", "canary"]
        podman("exec", GROUP.container(name), *command, timeout=120)
    return names


def fleet(rounds: Rounds, sizes: Sizes) -> Measured:
    """Upgrades of one host and of some, one after the other; then of some in one batch, and of twice as many.

    Hosts and controller share this machine's cores, and a host's upgrade keeps one of them at work all the
    time: more forks than cores can make nothing faster here. Its speed changes within minutes by more than
    what is looked for: the smaller runs come before the larger one and after it, and count as one.
    """
    enter()
    os.environ["STANDFAST_RELEASE_ARCHIVE"] = str(bundle.ensure())
    archive = generations.ensure("patch")
    cores = os.cpu_count() or 1
    half, many, forks = sizes.fleet // 2, sizes.fleet, 2 * cores

    def rolled(count: int, forks: int) -> float:
        names = _booted(count, installed_image())
        play = _play("playbooks/upgrade.yml", *names, archive=archive, forks=forks, standfast_serial="100%")
        GROUP.remove()
        return play.seconds

    def once(_: int) -> dict[str, float]:
        began = load()
        one, row, last = (rolled(count, 1) for count in (1, half, 1))
        some, whole, again = (rolled(count, forks) for count in (half, many, half))
        return {
            "load": began,
            "one": (one + last) / 2,
            "row": row,
            "ones": (one + last) / 2 * half,
            "half": (some + again) / 2,
            "whole": whole,
            "bound": (one + last) / 2 * many / cores,
        }

    try:
        taken = rounds.take(sizes.fleets, once)
    finally:
        GROUP.remove()
    seconds = {key: median(taken, key) for key in ("one", "row", "half", "whole")}
    return Measured(
        [
            at_most(f"upgrade of {half} hosts with one fork, of one host's time * {half}",
                    paired(taken, "row", "ones"), 1, "x", taken,
                    detail=f"{seconds['row']:.0f} s, one host {seconds['one']:.0f} s"),
            at_most(f"upgrade of {many} hosts with {forks} forks, of {half} hosts' time",
                    paired(taken, "whole", "half"), 2, "x", taken,
                    detail=f"{seconds['whole']:.0f} s beside {seconds['half']:.0f} s"),
            told(f"upgrade of {many} hosts with {forks} forks, of one host's time * {many} / {cores} cores",
                 paired(taken, "whole", "bound"), "x", taken),
        ],
        taken,
        [f"the hosts share this machine's {cores} cores with the controller"],
    )  # fmt: skip


def status(rounds: Rounds, sizes: Sizes) -> Measured:
    """One table of many hosts."""
    enter()
    os.environ["STANDFAST_RELEASE_ARCHIVE"] = str(bundle.ensure())
    try:
        names = _booted(sizes.seen, installed_image())

        def once(_: int) -> dict[str, float]:
            played = _play("playbooks/status.yml", *names, archive=None, forks=20, ok=False)
            return {"status": played.seconds, "load": load()}

        taken = rounds.take(3, once)
    finally:
        GROUP.remove()
    return Measured(
        [at_most(f"status of {sizes.seen} hosts", median(taken, "status"), 15, "s", taken)],
        taken,
        ["20 forks; the hosts share this machine's cores with the controller"],
    )


MEASURES = {"silence": silence, "bad": bad, "backfill": backfill, "fleet": fleet, "status": status}
