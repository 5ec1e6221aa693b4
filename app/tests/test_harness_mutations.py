"""The mutation runner must be able to fail: by a survivor, a wrong reason, a change that applies no more."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import mutations
import pytest
from mutations import Change, Mutation, NoLongerApplies
from sandbox import CHECKOUT

CODE = "def double(number):\n    return number * 2\n"
TESTS = """\
import pytest
from code_under_test import double

def test_doubles():
    assert double(3) == 6

def test_is_blind():
    double(3)

@pytest.fixture
def broken():
    return double(0)

def test_by_its_set_up(broken):
    assert broken == 0
"""

WRONG = Change("app/code_under_test.py", "number * 2", "number * 3")
MUTATION = Mutation("triple", "doubles", (WRONG,), "app/tests/test_it.py::test_doubles")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one function and three tests of it."""
    (tmp_path / "app/tests").mkdir(parents=True)
    (tmp_path / "app/code_under_test.py").write_text(CODE)
    (tmp_path / "app/tests/test_it.py").write_text(TESTS)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\npythonpath = ['app']\n")
    (tmp_path / "build").mkdir()
    monkeypatch.setattr(mutations, "SCRATCH", tmp_path / "build/mutations")
    monkeypatch.setattr(mutations, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(mutations.copy_to, "__defaults__", (tmp_path,))
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "result", "detail"),
    [
        (MUTATION, "red", "assert 9 == 6"),
        (replace(MUTATION, shows="assert 9 == 6"), "red", "assert 9 == 6"),
        (replace(MUTATION, shows="assert 7"), "WRONG REASON", "no failure says"),
        (replace(MUTATION, test="app/tests/test_it.py::test_is_blind"), "SURVIVED", "green"),
        (
            replace(MUTATION, test="app/tests/test_it.py::test_not_there"),
            "WRONG REASON",
            "pytest ended with 4",
        ),
        (replace(MUTATION, changes=(replace(WRONG, new="number *"),)), "WRONG REASON", ""),
        (replace(MUTATION, changes=(replace(WRONG, new="nombre * 2"),)), "WRONG REASON", "NameError"),
        (
            replace(
                MUTATION,
                changes=(replace(WRONG, new="1 // number"),),
                test="app/tests/test_it.py::test_by_its_set_up",
            ),
            "WRONG REASON",
            "ZeroDivisionError",
        ),
        (replace(MUTATION, changes=(replace(WRONG, old="number"),)), "NO LONGER APPLIES", "2 times"),
        (replace(MUTATION, changes=(replace(WRONG, old="nothing"),)), "NO LONGER APPLIES", "0 times"),
        (replace(MUTATION, changes=(replace(WRONG, file="app/gone.py"),)), "NO LONGER APPLIES", "0 times"),
    ],
)
def test_only_a_failing_test_is_red(checkout: Path, changed: Mutation, result: str, detail: str) -> None:
    found = mutations.attempt(changed)
    assert (found.result, detail in found.detail) == (result, True), found.detail
    assert (checkout / "app/code_under_test.py").read_text() == CODE, "the checkout itself was changed"
    assert not (checkout / "build/mutations/triple").exists()


def test_a_test_without_an_end_is_none(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutations, "TIMEOUT", 3)
    change = replace(WRONG, old="    return number * 2", new="    while True: pass")
    endless = replace(MUTATION, changes=(change,))
    assert mutations.attempt(endless).result == "NO END"
    assert checkout.exists()


def test_the_unchanged_code_must_be_green(checkout: Path) -> None:
    assert mutations.unchanged_is_green([MUTATION])
    (checkout / "app/code_under_test.py").write_text(CODE.replace("2", "3"))
    assert not mutations.unchanged_is_green([MUTATION])


RUNS = {"red": ("number * 3", 0, "1 passed"), "green": ("number + number", 1, "1 failed, 0 passed")}


@pytest.mark.parametrize("case", RUNS.values(), ids=RUNS)
def test_a_survivor_fails_the_run(
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: tuple[str, int, str],
) -> None:
    new, code, last = case
    listed = checkout / "mutations.toml"
    listed.write_text(
        "[[mutation]]\nname = 'one'\npromise = 'doubles'\ntest = 'app/tests/test_it.py::test_doubles'\n"
        f"change = [{{ file = 'app/code_under_test.py', old = 'number * 2', new = '{new}' }}]\n"
    )
    monkeypatch.setattr(mutations.load, "__defaults__", (listed,))
    assert mutations.main([]) == code
    assert f" {last} in " in capsys.readouterr().out.splitlines()[-1]
    assert mutations.main(["--list"]) == 0
    with pytest.raises(SystemExit, match="no mutation two"):
        mutations.main(["two"])


def test_every_listed_mutation_still_applies(tmp_path: Path) -> None:
    """Quick, so that whoever moves the code hears of it at once and not from a full run."""
    listed = mutations.load()
    assert len(listed) >= 24
    assert 8 <= sum(one.sample for one in listed) <= 16
    for folder in mutations.COPIED:
        shutil.copytree(CHECKOUT / folder, tmp_path / folder)
    for one in listed:
        for change in one.changes:
            assert change.file.partition("/")[0] in mutations.COPIED, "else this checkout would be changed"
            text = (tmp_path / change.file).read_text()
            assert text.count(change.old) == 1, (
                f"{one.name}: its old text is not in {change.file} exactly once"
            )
            compile(text.replace(change.old, change.new), change.file, "exec")
        assert (tmp_path / one.test.partition("::")[0]).is_file(), one.name
    with pytest.raises(NoLongerApplies):
        mutations.apply(replace(MUTATION, changes=(WRONG,)), tmp_path)
