"""Measure, in one interleaved run, and say on what machine and beside how much foreign work.

    script/bench install|authority|upgrade|backup [--only NAME ...] [--quick] [--patience SECONDS]

Prints a table of medians and ratios with the targets beside them, and writes everything that was measured,
each round of it, to build/bench/SUBJECT-TIME.json. Nothing here is a test: a slow machine fails no build. A
round during which other processes used more than a quarter of a core is marked; with enough unmarked rounds
the medians leave the marked ones out, otherwise the line says `loaded`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import bench_authority
import bench_backup
import bench_install
import bench_upgrade
from bench_machine import Meter, Rounds, facts, load
from bench_table import Line, rendered
from sandbox import CHECKOUT, SandboxError

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = CHECKOUT / "build/bench"


SUBJECTS: dict[str, tuple[Any, str]] = {
    "install": (bench_install, "the installed host and its core"),
    "authority": (
        bench_authority,
        "the fence, a turn, a step of it and a start, beside a million finished items",
    ),
    "upgrade": (bench_upgrade, "upgrades, good and bad, beside a symlink deploy of the same agent"),
    "backup": (bench_backup, "backups, restores and the writer beside them, on a large store"),
}
"""Name -> module with MEASURES, FULL and QUICK; and what it is about."""


def measure(options: argparse.Namespace) -> int:
    """Measure one subject, and print what was promised beside it."""
    subject, _ = SUBJECTS[options.subject]
    sizes = subject.QUICK if options.quick else subject.FULL
    chosen = options.only or list(subject.MEASURES)
    report = {
        "format": 1,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "quick": options.quick,
        "machine": facts(FOLDER),
        "measures": {},
    }
    lines: list[Line] = []
    for name in chosen:
        print(f"bench: {name} (load {load():.1f})", file=sys.stderr, flush=True)
        meter = Meter()
        meter.restart()
        time.sleep(1.0)
        before = {"load": load(), "foreign": round(meter.foreign(), 3)}
        began = time.monotonic()
        measured = subject.MEASURES[name](Rounds(meter, options.patience), sizes)
        lines += measured.lines
        report["measures"][name] = {
            "before": before,
            "load_after": load(),
            "seconds": round(time.monotonic() - began, 1),
            "lines": [line.as_json() for line in measured.lines],
            "notes": measured.notes,
            "rounds": [
                {"foreign": round(one.foreign, 3), "marked": one.marked, **one.values}
                for one in measured.rounds
            ],
        }
    print(rendered(report, lines))
    path = _written(options.subject, report)
    print(f"\nall rounds: {path.relative_to(CHECKOUT)}")
    return 0


def _written(subject: str, report: dict[str, object]) -> Path:
    path = FOLDER / f"{subject}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    path.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="script/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    subjects = parser.add_subparsers(dest="subject", required=True)
    for name, (module, about) in SUBJECTS.items():
        one = subjects.add_parser(name, help=about)
        one.add_argument(
            "--only", action="append", choices=list(module.MEASURES), help="one measure; may be repeated"
        )
        one.add_argument("--quick", action="store_true", help="few rounds, small counts: to see that it runs")
        one.add_argument(
            "--patience", type=float, default=0, help="seconds, for each measure, to wait for a quiet machine"
        )
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    os.chdir(CHECKOUT)
    try:
        return measure(options)
    except SandboxError as problem:
        print(f"bench: {problem}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
