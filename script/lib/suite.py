"""What script/test runs: independent parts side by side, a line for each, their logs under build/logs/.

script/test                        everything that CI checks
script/test unit | lint            one part
script/test molecule [SCENARIO...] the scenarios (all without names)
script/test mutations [NAME...]    break the code in every listed way: each must turn its test red (--list)
script/test full                   everything, looping over what CI samples (kill points and the like)
script/test clean                  remove the containers, networks and images of installed hosts made here
"""

from __future__ import annotations

import compileall
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from py_compile import PycInvalidationMode

import bundle
import generations
from processes import kill_tree
from sandbox import CHECKOUT

LOGS = CHECKOUT / "build/logs"
PYTHON = CHECKOUT / ".venv/bin/python"
SUMMARY = re.compile(r"^=+ (.*) in [\d.]+s(?: \([\d:]+\))? =+$", re.MULTILINE)
COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped)")
TAIL = 60
WIDEST = 4000
WORKERS = 3
# The longest first, so that the workers end at about the same time.
ORDER = (
    "refusals",
    "instances",
    "day",
    "runbooks",
    "fleet",
    "upgrade-bad",
    "install",
    "upgrade",
    "secrets",
    "interrupted",
    "rollback",
    "authority",
)
COMPILED = ("app", "script/lib", "molecule/shared")
"""What the tests start again and again, as processes of their own."""
# The scenarios that have a supplier's host: they need its archive, too.
WITH_SUPPLIER = ("authority", "day")
# The scenarios that upgrade: the generations that each of them needs beside the archive under test.
WITH_GENERATIONS = {
    "upgrade": ("v2", "v3"),
    "rollback": ("patch",),
    "interrupted": ("v2",),
    "fleet": ("v2", "crashes"),
    "upgrade-bad": (
        "v2",
        "crashes",
        "never-ready",
        "idle",
        "corrupts",
        "corrupts-live",
        "corrupts-running",
        "unreadable",
        "missing-wheel",
        "broken-wheel",
        "half-migration-live",
    ),
}
PART_TIMEOUT = 2700
LONGER = 3
"""How many times that a part of a full run may take, with its long loops."""


@dataclass(frozen=True)
class Part:
    """A command that prints pytest's last line. `root`: needs containers, hence root and the sandbox."""

    name: str
    command: tuple[str, ...]
    root: bool = False
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a part ended: seconds, whether it is good, and the counts its tests printed."""

    part: Part
    good: bool
    seconds: float
    counts: dict[str, int]


def unit() -> Part:
    """The package's tests; in a full run also those marked ``full``, which pyproject.toml leaves out."""
    everything = ("-m", "") if "STANDFAST_FULL" in os.environ else ()
    command = (str(PYTHON), "-m", "pytest", "-p", "no:cacheprovider", "--durations=5", *everything)
    return Part("unit", (*command, "app/tests"))


def mutations() -> Part:
    """All of them in a full run; CI repeats a sample."""
    sample = () if "STANDFAST_FULL" in os.environ else ("--sample",)
    return Part("mutations", (str(PYTHON), "script/lib/mutations.py", *sample))


def lint() -> Part:
    return Part("lint", ("script/lint",))


def scenarios() -> list[str]:
    """Every scenario, the longest first."""
    found = {path.parent.name for path in (CHECKOUT / "molecule").glob("*/molecule.yml")}
    return [name for name in ORDER if name in found] + sorted(found - set(ORDER))


def molecule(name: str, archives: dict[str, str]) -> Part:
    if name not in scenarios():
        raise SystemExit(f"script/test: no scenario {name!r}; there are: {', '.join(scenarios())}")
    settings = {
        **archives,
        "MOLECULE_EPHEMERAL_DIRECTORY": str(CHECKOUT / "build/molecule" / name),
        "MOLECULE_COMMAND_BORDERS": "0",
        "NO_COLOR": "1",
    }
    return Part(
        f"molecule {name}",
        (str(PYTHON.with_name("molecule")), "test", "--scenario-name", name),
        root=True,
        environment=tuple(settings.items()),
    )


def as_root(*command: str, environment: dict[str, str] | None = None) -> list[str]:
    """A command line that runs `command` in the sandbox as root, whoever we are."""
    settings = [f"{name}={value}" for name, value in (environment or {}).items()]
    inside = [str(PYTHON), str(CHECKOUT / "script/lib/sandbox.py"), *command]
    return [str(CHECKOUT / "script/lib/as_root"), "--leave", "env", *settings, *inside]


def run(part: Part) -> Outcome:
    """Run a part to its end, its output in its log; prints a line when it starts and one when it ends."""
    say(f"...  {part.name}")
    log = LOGS / f"{part.name.replace(' ', '-')}.log"
    environment = dict(part.environment)
    command = as_root("run", *part.command, environment=environment) if part.root else list(part.command)
    timeout = PART_TIMEOUT * (LONGER if "STANDFAST_FULL" in os.environ else 1)
    started = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
        )
        try:
            rc = process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            say(f"---- {part.name}: no end after {timeout} s")
            kill_tree(process.pid)
            rc = process.wait()
    seconds = time.monotonic() - started
    written = log.read_text(errors="replace")
    counts = read_counts(written)
    good = rc == 0 and counts.get("passed", 0) > 0 and not counts.get("failed") and not counts.get("error")
    say(f"{'ok' if good else 'FAIL':4} {part.name}: {told(counts)}, {seconds:.0f} s")
    if not good:
        say(
            "\n".join(
                (f"---- exit {rc}; from {log.relative_to(CHECKOUT)}:", *told_of_failure(written), "----")
            )
        )
    return Outcome(part, good, seconds, counts)


_SAYING = threading.Lock()


def say(text: str) -> None:
    with _SAYING:
        print(text, flush=True)


def read_counts(log: str) -> dict[str, int]:
    """The counts of the last line that pytest (or script/lint, in the same form) printed."""
    summaries = SUMMARY.findall(log)
    if not summaries:
        return {}
    found = COUNT.findall(summaries[-1])
    return {"error" if word == "errors" else word: int(number) for number, word in found}


def told_of_failure(log: str) -> list[str]:
    """The lines that say most: what pytest marks as errors, and the end of what it printed.

    After tests that failed a scenario's log goes on with the removal of its hosts, which says nothing.
    """
    counts, ends = read_counts(log), list(SUMMARY.finditer(log))
    failed = counts.get("failed") or counts.get("error")
    lines = (log[: ends[-1].end()] if failed else log).splitlines()
    errors = [line for line in lines[:-TAIL] if line.startswith("E   ")]
    return [
        line if len(line) <= WIDEST else f"{line[:WIDEST]}..." for line in (*errors[:TAIL], *lines[-TAIL:])
    ]


def told(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {word}" for word, number in counts.items()) or "no tests ran"


def run_all(parts: list[Part]) -> list[Outcome]:
    """Run parts side by side, in their order."""
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(run, parts))


def prepare(names: list[str]) -> dict[str, str]:
    """What scenarios start from, the archives and the images: made when they are not there.

    Returns where the archives are, as variables of the scenarios' environment.
    """
    environment = {"STANDFAST_RELEASE_ARCHIVE": str(bundle.ensure())}
    if set(WITH_SUPPLIER) & set(names):
        environment["STANDFAST_SUPPLIER_ARCHIVE"] = str(bundle.ensure("supplier"))
    wanted = sorted({name for scenario in names for name in WITH_GENERATIONS.get(scenario, ())})
    if wanted:
        environment["STANDFAST_GENERATIONS"] = str(generations.together(*wanted))
    command = as_root("run", str(PYTHON), "script/lib/hosts.py", "images", *names, environment=environment)
    subprocess.run(command, cwd=CHECKOUT, check=True, env={**os.environ, **environment})
    return environment


def compile_modules() -> None:
    """So that no process that the tests start compiles them again, where the environment lets it keep none.

    By their content: a source that is changed within the same second is another one.
    """
    for folder in COMPILED:
        compileall.compile_dir(CHECKOUT / folder, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)


def coverage() -> Part:
    return Part(
        "runbooks",
        (str(PYTHON), "molecule/shared/runbook.py"),
        environment=(("PYTHONPATH", str(CHECKOUT / "script/lib")),),
    )


def tidy() -> None:
    """End the sandbox when nothing is left in it; what root made belongs to who started us."""
    subprocess.run(as_root("settle"), cwd=CHECKOUT, check=False)
    if os.geteuid() != 0:
        subprocess.run([str(CHECKOUT / "script/lib/as_root"), "true"], cwd=CHECKOUT, check=False)


def everything() -> list[Outcome]:
    shutil.rmtree(CHECKOUT / "build/runbooks", ignore_errors=True)
    names = scenarios()
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        # The unit tests are the longest part: begun last, they would run on alone. They and lint need nothing
        # of what the scenarios start from, and much of its making is waiting.
        begun = [pool.submit(run, part) for part in (unit(), lint())]
        archives = prepare(names)
        rest = [*(molecule(name, archives) for name in names), mutations()]
        begun += [pool.submit(run, part) for part in rest]
        outcomes = [one.result() for one in begun]
    tidy()
    # Which blocks of the runbooks were executed is known only now.
    return [*outcomes, run(coverage())]


def finish(outcomes: list[Outcome], seconds: float) -> int:
    """Say what took how long, and end with a line in pytest's form that adds all parts up."""
    for outcome in outcomes:
        say(f"{'ok' if outcome.good else 'FAIL':4} {outcome.seconds:6.0f} s  {outcome.part.name}")
    total = {
        word: sum(outcome.counts.get(word, 0) for outcome in outcomes)
        for word in ("passed", "failed", "error")
    }
    # A part that broke without a failing test (a playbook, a time limit) counts as an error of its own.
    total["error"] += sum(
        not outcome.good and not outcome.counts.get("failed") and not outcome.counts.get("error")
        for outcome in outcomes
    )
    counted = ", ".join(f"{number} {word}" for word, number in total.items() if number)
    say(f"{'=' * 20} {counted or 'no tests ran'} in {seconds:.2f}s {'=' * 20}")
    return 0 if outcomes and all(outcome.good for outcome in outcomes) else 1


def main(arguments: list[str]) -> int:
    LOGS.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    compile_modules()
    try:
        match arguments:
            case []:
                outcomes = everything()
            case ["full"]:
                os.environ["STANDFAST_FULL"] = "1"
                outcomes = everything()
            case ["unit"]:
                outcomes = [run(unit())]
            case ["lint"]:
                outcomes = [run(lint())]
            case ["mutations", *names]:
                command = [str(PYTHON), "script/lib/mutations.py", *names]
                return subprocess.run(command, cwd=CHECKOUT, check=False).returncode
            case ["molecule", *names]:
                chosen = names or scenarios()
                archives = prepare(chosen)
                outcomes = run_all([molecule(name, archives) for name in chosen])
                tidy()
            case ["clean"]:
                return subprocess.run(
                    as_root("run", str(PYTHON), "script/lib/hosts.py", "clean"), check=False
                ).returncode
            case _:
                print(__doc__, file=sys.stderr)
                return 0 if arguments in (["-h"], ["--help"]) else 2
    except (subprocess.CalledProcessError, generations.OverlayError) as problem:
        say(f"FAIL preparation: {problem}")
        say(f"{'=' * 20} 1 error in {time.monotonic() - started:.2f}s {'=' * 20}")
        return 1
    return finish(outcomes, time.monotonic() - started)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
