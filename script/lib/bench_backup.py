"""The measures of `script/bench backup`: a large store, each copy beside the tool that people would take."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench_machine import Rounds, median, paired
from bench_table import Measured, at_most, told
from sandbox import CHECKOUT, SandboxError

from standfast.authority import operations
from standfast.durable import create_empty, create_file, sync_file
from standfast.layout import Layout
from standfast.operations.backup import snapshot
from standfast.operations.backup.limits import Guard, Limits
from standfast.operations.restore import copying
from standfast.operations.schema import COMPONENTS
from standfast.orders.intent import Intent
from standfast.store import immediate, open_readonly, open_store
from standfast.supplier.ledger import LEDGER, Ledger
from standfast.supplier.wire import EpochRegistration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FOLDER = CHECKOUT / "build/bench"
MEMORY_MB = 80
ROW = 10_000
"""Characters of each of the rows that give the store its size."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    megabytes: int
    rounds: int
    restores: int
    receipts: int


FULL = Sizes(megabytes=1000, rounds=7, restores=3, receipts=10_000)
QUICK = Sizes(megabytes=60, rounds=2, restores=1, receipts=1_000)


@contextmanager
def _instance(sizes: Sizes) -> Iterator[Layout]:
    """An initialised instance of that size, gone afterwards."""
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix="backup-") as folder:
        layout = Layout(Path(folder) / "state")
        _standfast(layout, "init")
        layout.receipts.mkdir(mode=0o700)
        with closing(open_store(layout.database, COMPONENTS)) as store:
            for part in range(max(1, sizes.megabytes // 50)):
                with immediate(store):
                    store.execute(
                        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
                        " INSERT INTO work (id, role, session, subject, prompt, status, admitted_at,"
                        " finished_at) SELECT printf('%012x%012x', ?, i), 'agent', 's', 'stock',"
                        " hex(randomblob(?)), 'DONE', i, i FROM n",
                        (50_000_000 // ROW, part, ROW // 2),
                    )
            store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        yield layout


@dataclass(frozen=True)
class _Ran:
    seconds: float
    megabytes: float
    """The most that was resident."""


# A process tells its own peak: what its parent sees also counts the moment before the program began.
_PROGRAM = """
import sys
from pathlib import Path
from standfast.cli.main import main
code = main(sys.argv[1:])
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
sys.stderr.write("\\n" + peak.split()[1])
sys.exit(code)
"""


def _standfast(layout: Layout, *words: str, environment: dict[str, str] | None = None) -> _Ran:
    command = [sys.executable, "-I", "-c", _PROGRAM, "--state", str(layout.state), *words]
    began = time.perf_counter()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})}
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SandboxError(f"{words}: exit code {done.returncode}: {done.stderr[-500:]}")
    return _Ran(seconds, int(done.stderr.splitlines()[-1]) / 1000)


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _shell(layout: Layout, target: Path) -> None:
    subprocess.run(["sqlite3", layout.database, f".backup '{target}'"], check=True)
    sync_file(target)


def _ours(layout: Layout, target: Path) -> None:
    create_empty(target)
    guard = Guard(Limits(), live=layout.database, target=target.parent)
    with closing(open_readonly(layout.database)) as source:
        snapshot.copy_database(source, target, guard)
    sync_file(target)


def copy(rounds: Rounds, sizes: Sizes) -> Measured:
    """The consistent copy, synced, beside the SQLite shell's; and everything that makes it a backup."""
    with _instance(sizes) as layout:
        target = layout.root / "copy.sqlite"

        def once(number: int) -> dict[str, float]:
            values = {}
            ways = {"shell": _shell, "copy": _ours}
            for name in list(ways) if number % 2 else list(ways)[::-1]:
                os.sync()
                values[name] = _timed(lambda way=ways[name]: way(layout, target))  # type: ignore[misc]
                target.unlink()
            os.sync()
            made = _standfast(layout, "backup", "create")
            values |= {"create": made.seconds, "create_mb": made.megabytes}
            shutil.rmtree(layout.backups)
            return values

        taken = rounds.take(sizes.rounds, once)
    return Measured(
        [
            at_most(
                "backup: copy, seal, fsync, of sqlite3's .backup + fsync",
                paired(taken, "copy", "shell"),
                1.15,
                "x",
                taken,
                detail=f"{median(taken, 'copy'):.2f} s beside {median(taken, 'shell'):.2f} s",
            ),
            told(
                "backup create, whole: also integrity, keys, digest, counts",
                paired(taken, "create", "shell"),
                "x",
                taken,
                f"{median(taken, 'create'):.2f} s",
            ),
            at_most("backup create, resident", median(taken, "create_mb"), MEMORY_MB, "MB", taken),
        ],
        taken,
        [f"a store of {sizes.megabytes} MB; every way in every round, order turned, files removed between"],
    )


_WRITER = """
import sys, time
from pathlib import Path
from standfast.operations.schema import COMPONENTS
from standfast.store import immediate, open_store
store = open_store(Path(sys.argv[1]), COMPONENTS)
print("ready", flush=True)
number = 0
while True:
    number += 1
    began = time.monotonic()
    with immediate(store):
        store.execute("INSERT INTO runs VALUES (?, 'r', 1, '', 1.0)", (f"{began}-{number}",))
    print(began, time.monotonic() - began, flush=True)
"""


def writer(rounds: Rounds, sizes: Sizes) -> Measured:
    """A process that commits one row after the other, alone and beside a backup."""

    def once(_: int) -> dict[str, float]:
        with _instance(sizes) as layout, tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen([sys.executable, "-c", _WRITER, layout.database], stdout=log)
            try:
                time.sleep(3)
                began = time.monotonic()
                _standfast(layout, "backup", "create")
                ended = time.monotonic()
            finally:
                process.kill()
                process.wait()
            log.seek(0)
            commits = [tuple(map(float, line.split())) for line in log.readlines()[1:] if line.endswith("\n")]
        beside = sorted(seconds for at, seconds in commits if began <= at <= ended)
        alone = sorted(seconds for at, seconds in commits if at < began)
        return {
            "beside": 1000 * _p99(beside),
            "alone": 1000 * _p99(alone),
            "longest": 1000 * beside[-1],
            "per_second": len(beside) / (ended - began),
        }

    taken = rounds.take(max(1, sizes.restores), once)
    return Measured(
        [
            at_most(
                "a writer's p99 commit beside a backup",
                median(taken, "beside"),
                50,
                "ms",
                taken,
                detail=f"alone {median(taken, 'alone'):.1f} ms; longest {median(taken, 'longest'):.0f} ms",
            ),
            told("that writer, while the backup lasts", median(taken, "per_second"), "commits/s", taken),
        ],
        taken,
        [],
    )


def _p99(ordered: list[float]) -> float:
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


def restore(rounds: Rounds, sizes: Sizes) -> Measured:
    """The copy into the live file, until it is checkpointed, beside SQLite's shell and beside copying a file.

    And the whole commands.
    """
    with _instance(sizes) as layout:
        _standfast(layout, "backup", "create")
        [name] = [path.name for path in layout.backups.iterdir() if path.is_dir()]
        image, target = layout.backups / name / "snapshot.sqlite", layout.root / "copy.sqlite"

        def plain() -> None:
            shutil.copyfile(image, target)
            sync_file(target)

        def ours() -> None:
            copying.install(layout.database, image, lambda: None)
            with closing(open_store(layout.database, COMPONENTS)) as live:
                copying.checkpoint(live)

        def shell() -> None:
            subprocess.run(["sqlite3", layout.database, f".restore '{image}'"], check=True)

        def once(number: int) -> dict[str, float]:
            values = {}
            ways = {"plain": plain, "install": ours, "shell": shell}
            for way in list(ways) if number % 2 else list(ways)[::-1]:
                os.sync()
                values[way] = _timed(ways[way])
                target.unlink(missing_ok=True)
            whole = _standfast(layout, "restore", name)
            for path in layout.backups.iterdir():
                if path.is_dir() and path.name != name:
                    shutil.rmtree(path)  # the safety backup
            checked = _standfast(layout, "backup", "verify", name)
            rehearsed = _standfast(layout, "backup", "rehearse", name)
            return values | {
                "restore": whole.seconds,
                "restore_mb": whole.megabytes,
                "verify": checked.seconds,
                "verify_mb": checked.megabytes,
                "rehearse": rehearsed.seconds,
                "rehearse_mb": rehearsed.megabytes,
            }

        taken = rounds.take(sizes.restores, once)
    lines = [
        at_most(
            "restore: into the live file and checkpointed, of a copy + fsync",
            paired(taken, "install", "plain"),
            2.0,
            "x",
            taken,
            detail=f"{median(taken, 'install'):.2f} s beside {median(taken, 'plain'):.2f} s",
        ),
        told(
            "restore: that copy, of sqlite3's .restore into the same file",
            paired(taken, "install", "shell"),
            "x",
            taken,
            detail=f"{median(taken, 'install'):.2f} s beside {median(taken, 'shell'):.2f} s",
        ),
        told(
            "restore, whole: verified, safety backup, image, copied, checked",
            median(taken, "restore"),
            "s",
            taken,
        ),
        told("backup verify", median(taken, "verify"), "s", taken),
        told("backup rehearse", median(taken, "rehearse"), "s", taken),
    ]
    lines += [
        at_most(f"{command}, resident", median(taken, f"{command}_mb"), MEMORY_MB, "MB", taken)
        for command in ("restore", "verify", "rehearse")
    ]
    return Measured(lines, taken, [f"a store of {sizes.megabytes} MB"])


@contextmanager
def _account(layout: Layout, receipts: int) -> Iterator[dict[str, str]]:
    """The supplier's process with so many receipts of the present epoch; the environment that leads there."""
    with closing(open_readonly(layout.database)) as store:
        epoch = operations(store).epoch
    ledger, token, now = layout.root / "ledger", layout.root / "token", time.time()
    create_file(token, b"a-token-for-the-bench-0123456789\n")
    account = Ledger.open(ledger, now)
    account.register(EpochRegistration(epoch=epoch), now)
    account.close()
    with closing(sqlite3.connect(ledger / LEDGER)) as books, books:
        intents = [Intent("supplier", "vanilla", 1 + number % 40, 300, "EUR") for number in range(receipts)]
        books.executemany(
            "INSERT INTO receipts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (number, f"{number:024x}", f"{number:024x}", epoch, *astuple(intent), intent.digest, now)
                for number, intent in enumerate(intents, 1)
            ),
        )
    words = ["supplier", "serve", "--ledger", str(ledger), "--token-file", str(token), "--port", "0"]
    command = [sys.executable, "-I", "-m", "standfast", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = next(found for line in process.stderr if (found := re.search(r"listens on (\S+)$", line)))
            yield {"STANDFAST_SUPPLIER_URL": said[1], "STANDFAST_SUPPLIER_TOKEN": token.read_text().strip()}
        finally:
            process.kill()


def _answered(plan: Path) -> str:
    """Every question of the plan is answered; its digest."""
    content = json.loads(plan.read_bytes())
    for one in content["inventory"].values():
        one["on_hand"] = 3
    for number, one in enumerate(content["deliveries"].values()):
        one["received"] = number % 2 == 0
    data = json.dumps(content).encode()
    plan.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def recover(rounds: Rounds, sizes: Sizes) -> Measured:
    """The account is inspected, and the plan applied: receipts that the restored store never heard of."""

    def once(_: int) -> dict[str, float]:
        with tempfile.TemporaryDirectory(dir=FOLDER, prefix="recover-") as folder:
            layout = Layout(Path(folder) / "state")
            _standfast(layout, "init")
            layout.receipts.mkdir(mode=0o700)
            with _account(layout, sizes.receipts) as environment:
                _standfast(layout, "backup", "create")
                [name] = [path.name for path in layout.backups.iterdir() if path.is_dir()]
                _standfast(layout, "restore", name)
                plan, operator = layout.root / "plan.json", ("--operator", "lucy")
                words = ["account", "inspect", *operator, "--out", str(plan)]
                inspected = _standfast(layout, *words, environment=environment)
                words = ["recover", *operator, "--plan", str(plan), "--digest", _answered(plan)]
                recovered = _standfast(layout, *words, environment=environment)
        return {
            "both": inspected.seconds + recovered.seconds,
            "inspect": inspected.seconds,
            "recover": recovered.seconds,
            "inspect_mb": inspected.megabytes,
            "recover_mb": recovered.megabytes,
        }

    taken = rounds.take(sizes.rounds, once)
    return Measured(
        [
            at_most(
                f"account inspect and recover with {sizes.receipts} receipts",
                median(taken, "both"),
                3.0,
                "s",
                taken,
                detail=f"{median(taken, 'inspect'):.2f} s and {median(taken, 'recover'):.2f} s",
            ),
            at_most("account inspect, resident", median(taken, "inspect_mb"), MEMORY_MB, "MB", taken),
            at_most("recover, resident", median(taken, "recover_mb"), MEMORY_MB, "MB", taken),
        ],
        taken,
        ["all of them unknown to the restored store, so that each is imported; the supplier is a process"],
    )


MEASURES = {"copy": copy, "writer": writer, "restore": restore, "recover": recover}
