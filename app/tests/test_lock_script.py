"""`script/lock --check`: what did not reach a lock is named, without the network."""

import shutil
from pathlib import Path

import lock
import pytest

from standfast.release.project import read_lock

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = "[project.optional-dependencies]\n"
OPTIONAL = {"requirements-live.lock", "requirements-supplier.lock"}
INSTALLED = {"requirements.lock", "requirements-dev.lock"} | OPTIONAL
ALL = INSTALLED | {"requirements-newest.lock", "requirements-bench.lock"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path in (ROOT / "pyproject.toml", *ROOT.glob("requirements*.lock")):
        shutil.copy(path, tmp_path)
    return tmp_path


def changed(tree: Path, name: str, old: str, new: str) -> None:
    text = (tree / name).read_text()
    assert old in text
    (tree / name).write_text(text.replace(old, new))


def behind(tree: Path, capsys: pytest.CaptureFixture[str]) -> set[str]:
    code = lock.main(tree, ["--check"])
    named = {line.split()[0] for line in capsys.readouterr().err.splitlines()}
    assert code == (4 if named else 0)
    return named


def test_our_locks_are_in_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert behind(ROOT, capsys) == set()


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('"tzdata",', '"tzdata>=2025",', INSTALLED),
        ('"pytest",', "", {"requirements-dev.lock"}),
        ('"ansible-core>=2.21"', '"ansible-core>=2.22"', {"requirements-newest.lock"}),
        ('"litequeue>=0.14", ', "", {"requirements-bench.lock"}),
        ('requires-python = ">=3.12"', 'requires-python = ">=3.13"', ALL),
        (EXTRAS, f'{EXTRAS}other = ["x"]\n', {"requirements-other.lock", "requirements-dev.lock"}),
        ('"uvicorn>=', '"uvicorn>=0,>=', {"requirements-supplier.lock", "requirements-dev.lock"}),
        ('description = "An', 'description = "Another', set()),
    ],
)  # fmt: skip
def test_what_was_not_locked_again_is_named(
    tree: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, named: set[str]
) -> None:
    changed(tree, "pyproject.toml", old, new)
    assert behind(tree, capsys) == named


def test_every_other_lock_follows_the_base_lock(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(tree, "requirements.lock", "tzdata==", "tzdata==1")
    assert behind(tree, capsys) == INSTALLED - {"requirements.lock"}


def test_the_development_lock_follows_the_extras(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(tree, "requirements-supplier.lock", "starlette==", "starlette==1")
    assert behind(tree, capsys) == {"requirements-dev.lock"}


def test_tests_run_what_a_release_with_extras_holds() -> None:
    def pins(name: str) -> set[str]:
        lines = (ROOT / name).read_text().splitlines()
        return {line.split(" ")[0] for line in lines if "==" in line and not line.startswith((" ", "#"))}

    for name in OPTIONAL:
        assert pins("requirements.lock") < pins(name) < pins("requirements-dev.lock")


def test_a_missing_lock_is_named(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "requirements-newest.lock").unlink()
    assert behind(tree, capsys) == {"requirements-newest.lock"}


def test_a_missing_extra_s_lock_is_named(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "requirements-live.lock").unlink()
    assert behind(tree, capsys) == {"requirements-live.lock", "requirements-dev.lock"}


def test_a_lock_that_cannot_be_made_is_told(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(tree, "pyproject.toml", '"tzdata",', '"tzdata ==",')
    assert lock.main(tree, []) == 1
    assert "requirements.lock was not made" in capsys.readouterr().err


def test_a_release_with_every_extra_has_one_lock_that_agrees() -> None:
    _, pins = read_lock(ROOT, ("live", "supplier"))
    assert {"httpx", "openai", "starlette", "uvicorn", "pydantic"} <= {pin.name for pin in pins}
