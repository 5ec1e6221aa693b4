"""Break the code on purpose, one small change at a time, and see that the test which protects it goes red.

script/test mutations [NAME...]    all, or those named; the list is script/lib/mutations.toml
script/test mutations --list       what there is
script/test mutations --sample     those marked as the sample that every CI run repeats

Each mutation is applied to a copy of the code, never to this checkout, and only its named test runs there.
The same tests first run on an unchanged copy: a test that is red by itself protects nothing. Good is only a
test that fails; one that could not be collected, or broke in its set-up, has shown nothing. A mutation whose
old text is not there exactly once no longer applies: that fails the run too, so that the list keeps up.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sandbox import CHECKOUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LIST = Path(__file__).with_suffix(".toml")
SCRATCH = CHECKOUT / "build/mutations"
PYTHON = CHECKOUT / ".venv/bin/python"
WORKERS = 2
TIMEOUT = 300
COPIED = ("app", "roles")
"""What a copy has for its own, and may be changed; everything else in it is a link into this checkout."""
LEFT_OUT = {"build", ".git", ".venv", ".venv-newest", ".hypothesis", ".pytest_cache"}

type Result = Literal["red", "SURVIVED", "NO LONGER APPLIES", "WRONG REASON", "NO END"]


@dataclass(frozen=True)
class Change:
    """One replacement of text in one file, relative to the checkout; ``old`` is there exactly once."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutation:
    """A way in which the code could be wrong."""

    name: str
    promise: str
    """What users could no longer rely on."""
    changes: tuple[Change, ...]
    test: str
    """The id of the test that must go red."""
    shows: str = ""
    """A regular expression: what the failure must say, when any failure would not do."""
    sample: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of one mutation."""

    mutation: Mutation
    result: Result
    detail: str
    seconds: float


class NoLongerApplies(Exception):
    """The old text of a change is not in its file exactly once."""


# A failure for one of these says that the mutation is no program, not that the test noticed what it does.
NO_PROGRAM = re.compile(
    r"^(ImportError|ModuleNotFoundError|SyntaxError|IndentationError|NameError|UnboundLocalError"
    r"|sqlite3\.OperationalError: (near|no such|incomplete))"
)


def load(path: Path = LIST) -> list[Mutation]:
    """The list, in its order. A name stands for one mutation."""
    found = [
        Mutation(
            name=one["name"],
            promise=one["promise"],
            changes=tuple(Change(**change) for change in one["change"]),
            test=one["test"],
            shows=one.get("shows", ""),
            sample=one.get("sample", False),
        )
        for one in tomllib.loads(path.read_text())["mutation"]
    ]
    names = [one.name for one in found]
    if len(names) != len(set(names)):
        raise SystemExit(f"{path.name}: a name is there twice")
    return found


def copy_to(folder: Path, source: Path = CHECKOUT) -> None:
    """A copy of the checkout in which the code may be changed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for entry in source.iterdir():
        if entry.name in COPIED:
            shutil.copytree(entry, folder / entry.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif entry.name not in LEFT_OUT:
            (folder / entry.name).symlink_to(entry)


def apply(mutation: Mutation, folder: Path) -> None:
    """Change the copy. Raises NoLongerApplies."""
    for change in mutation.changes:
        path = folder / change.file
        text = path.read_text() if path.is_file() else ""
        if (count := text.count(change.old)) != 1:
            raise NoLongerApplies(f"{change.file}: the old text is there {count} times")
        path.write_text(text.replace(change.old, change.new))


def run_tests(folder: Path, tests: Sequence[str]) -> tuple[int, Path, str]:
    """Run tests in a copy; the exit code, the report, and what was printed."""
    report = folder / "report.xml"
    app = folder / "app"
    command = [str(PYTHON), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--junitxml={report}"]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{app}:{app / 'tests'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the package's tests need none, and half the time is theirs
    }
    done = subprocess.run(
        [*command, *tests],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT * max(1, len(tests) // 10),
        check=False,
    )
    return done.returncode, report, done.stdout


def judge(mutation: Mutation, code: int, report: Path) -> tuple[Result, str]:
    """What a run of the mutation's test has shown."""
    if code == 0:
        return "SURVIVED", "its test is green"
    if code != 1 or not report.is_file():
        return "WRONG REASON", f"pytest ended with {code}"
    cases = list(ET.parse(report).iter("testcase"))
    errors = [message(part) for case in cases for part in case.findall("error")]
    failures = [message(part) for case in cases for part in case.findall("failure")]
    if errors or not failures:
        return "WRONG REASON", (errors or ["no test failed"])[0]
    if NO_PROGRAM.match(failures[0]):
        return "WRONG REASON", failures[0]
    said = "\n".join(part.text or "" for case in cases for part in case.findall("failure"))
    if mutation.shows and not re.search(mutation.shows, said):
        return "WRONG REASON", f"no failure says {mutation.shows!r}: {failures[0]}"
    return "red", failures[0]


def message(part: ET.Element) -> str:
    """The first line of a failure."""
    return part.get("message", "").partition("\n")[0]


def attempt(mutation: Mutation) -> Outcome:
    """Make a copy, change it, run the test there, and take the copy away."""
    began = time.monotonic()
    folder = SCRATCH / mutation.name
    try:
        copy_to(folder)
        apply(mutation, folder)
        code, report, _ = run_tests(folder, [mutation.test])
        result, detail = judge(mutation, code, report)
    except NoLongerApplies as problem:
        result, detail = "NO LONGER APPLIES", str(problem)
    except subprocess.TimeoutExpired:
        result, detail = "NO END", f"no end after {TIMEOUT} s"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    outcome = Outcome(mutation, result, detail, time.monotonic() - began)
    print(f"{result:17} {outcome.seconds:5.1f} s  {mutation.name}", flush=True)
    return outcome


def unchanged_is_green(mutations: Iterable[Mutation]) -> bool:
    """Whether every named test passes on an unchanged copy; says which does not."""
    folder = SCRATCH / "unchanged"
    try:
        copy_to(folder)
        code, _, printed = run_tests(folder, sorted({one.test for one in mutations}))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if code != 0:
        print(printed[-4000:])
        print("a test that is to go red is not green on the unchanged code")
    return code == 0


def table(outcomes: Sequence[Outcome]) -> str:
    """For each promise what was tried, by which test it was noticed, and how."""
    lines = []
    for promise in dict.fromkeys(one.mutation.promise for one in outcomes):
        lines += ["", promise]
        for one in outcomes:
            if one.mutation.promise == promise:
                lines.append(f"  {one.result:17} {one.mutation.name}")
                lines.append(f"  {'':17} {one.mutation.test}")
                lines.append(f"  {'':17} {one.detail[:120]}")
    return "\n".join(lines)


def choose(arguments: Sequence[str], mutations: list[Mutation]) -> list[Mutation]:
    """Those that the command line names."""
    if list(arguments) == ["--sample"]:
        return [one for one in mutations if one.sample]
    known = {one.name: one for one in mutations}
    unknown = [name for name in arguments if name not in known]
    if unknown:
        raise SystemExit(f"no mutation {', '.join(unknown)}; see script/test mutations --list")
    return [known[name] for name in arguments] or mutations


def main(arguments: Sequence[str]) -> int:
    """0 when every chosen mutation turned its test red for the right reason."""
    mutations = load()
    if list(arguments) == ["--list"]:
        for one in mutations:
            print(f"{one.name:40} {one.promise}")
        return 0
    chosen = choose(arguments, mutations)
    began = time.monotonic()
    if not chosen or not unchanged_is_green(chosen):
        print(f"{'=' * 20} 1 error in {time.monotonic() - began:.2f}s {'=' * 20}")
        return 1
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        outcomes = list(pool.map(attempt, chosen))
    print(table(outcomes))
    red = sum(one.result == "red" for one in outcomes)
    failed = len(outcomes) - red
    counted = f"{failed} failed, {red} passed" if failed else f"{red} passed"
    print(f"{'=' * 20} {counted} in {time.monotonic() - began:.2f}s {'=' * 20}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
