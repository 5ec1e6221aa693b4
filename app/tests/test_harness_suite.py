"""script/test must be able to fail: by a failing part, by one that broke, and by one in which no test ran."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import bundle
import generations
import pytest
import suite
from suite import Part, finish, read_counts, run
from target import sample

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(suite, "LOGS", tmp_path)
    monkeypatch.setattr(suite, "CHECKOUT", tmp_path)
    return tmp_path


def printing(text: str, code: int = 0) -> Part:
    return Part("a part", (sys.executable, "-c", f"print({text!r}); raise SystemExit({code})"))


@pytest.mark.parametrize(
    ("log", "counts"),
    [
        ("=== 3 passed in 0.10s ===", {"passed": 3}),
        (
            "=== 1 failed, 2 passed, 1 skipped in 61.00s (0:01:01) ===",
            {"failed": 1, "passed": 2, "skipped": 1},
        ),
        ("=== 2 errors in 0.10s ===", {"error": 2}),
        ("=== 9 passed in 1.00s ===\nnoise\n=== 1 failed in 1.00s ===", {"failed": 1}),
        ("=== no tests ran in 0.01s ===", {}),
        ("3 passed", {}),
    ],
)
def test_counts_are_read_from_the_last_summary(log: str, counts: dict[str, int]) -> None:
    assert read_counts(log) == counts


@pytest.mark.parametrize(
    ("text", "code", "good"),
    [
        ("=== 3 passed in 0.10s ===", 0, True),
        ("=== 3 passed in 0.10s ===", 1, False),
        ("=== 1 failed, 3 passed in 0.10s ===", 0, False),
        ("=== 3 passed, 1 error in 0.10s ===", 0, False),
        ("=== no tests ran in 0.10s ===", 0, False),
        ("nothing", 0, False),
    ],
)
def test_a_part_is_good_only_when_tests_ran_and_all_is_well(
    text: str, code: int, capsys: pytest.CaptureFixture[str], *, good: bool
) -> None:
    assert run(printing(text, code)).good is good
    said = capsys.readouterr().out
    assert ("FAIL a part" in said) is not good
    assert ("from a-part.log" in said) is not good


def test_a_failure_is_told_by_what_pytest_said_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    errors = f"E   {'wide ' * 2000}"
    log = "\n".join([errors, *["noise"] * 200, "=== 1 failed in 1.00s ===", *["hosts are removed"] * 99])
    run(printing(log, 1))
    said = capsys.readouterr().out
    assert "E   wide wide" in said
    assert "=== 1 failed in 1.00s ===" in said
    assert "hosts are removed" not in said
    assert len(said) < 10_000


def test_a_part_without_an_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "PART_TIMEOUT", 0.2)
    assert not run(Part("slow", ("sleep", "60"))).good


def test_the_last_line_adds_up_and_a_broken_part_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = run(printing("=== 3 passed in 0.10s ==="))
    broken = run(printing("=== 2 passed in 0.10s ===", 1))
    capsys.readouterr()
    assert finish([good], 1.0) == 0
    assert capsys.readouterr().out.splitlines()[-1].strip("= ") == "3 passed in 1.00s"
    assert finish([good, broken], 2.5) == 1
    assert capsys.readouterr().out.splitlines()[-1].strip("= ") == "5 passed, 1 error in 2.50s"
    assert finish([], 0.0) == 1


def test_an_unknown_scenario_is_refused() -> None:
    with pytest.raises(SystemExit, match="no scenario 'nosuch'"):
        suite.molecule("nosuch", {})


def test_only_a_full_run_has_every_test_and_every_mutation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDFAST_FULL", raising=False)
    assert suite.unit().command[-2:] == ("--durations=5", "app/tests")
    assert suite.mutations().command[-1] == "--sample"
    monkeypatch.setenv("STANDFAST_FULL", "1")
    assert suite.unit().command[-3:] == ("-m", "", "app/tests")
    assert suite.mutations().command[-1].endswith("mutations.py")


def test_every_scenario_has_its_place_in_the_order() -> None:
    assert sorted(suite.ORDER) == sorted(
        path.parent.name for path in (bundle.CHECKOUT / "molecule").glob("*/molecule.yml")
    )


def test_what_was_compiled_is_never_taken_for_another_source(tmp_path: Path) -> None:
    """One of the same size and time, as a quick change in place may be."""
    source = tmp_path / "app/one.py"
    source.parent.mkdir()
    source.write_text("print(1)\n")
    suite.compile_modules()
    assert list(source.parent.glob("__pycache__/one.*.pyc"))
    times = source.stat().st_atime_ns, source.stat().st_mtime_ns
    source.write_text("print(2)\n")
    os.utime(source, ns=times)
    program = [sys.executable, "-c", "import one"]
    told = subprocess.run(program, cwd=source.parent, capture_output=True, text=True, check=True)
    assert told.stdout == "2\n"


def test_a_sample_has_both_ends_and_the_full_run_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDFAST_FULL", raising=False)
    assert sample(list(range(10)), 4) == [0, 3, 6, 9]
    assert sample([1, 2], 4) == [1, 2]
    monkeypatch.setenv("STANDFAST_FULL", "1")
    assert sample(list(range(10)), 4) == list(range(10))


def test_generations_are_built_for_the_scenarios_that_upgrade_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, ...]] = []

    def together(*names: str) -> Path:
        asked.append(names)
        return tmp_path

    monkeypatch.setattr(generations, "together", together)
    monkeypatch.setattr(bundle, "ensure", lambda *_: tmp_path / "archive")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    assert "STANDFAST_GENERATIONS" not in suite.prepare(["install"])
    assert suite.prepare(["install", "upgrade", "interrupted"])["STANDFAST_GENERATIONS"] == str(tmp_path)
    assert asked == [("v2", "v3")]


def test_every_generation_that_a_scenario_needs_exists() -> None:
    wanted = {name for needed in suite.WITH_GENERATIONS.values() for name in needed}
    assert wanted <= set(generations.names())
