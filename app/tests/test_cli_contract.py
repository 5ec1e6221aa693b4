"""The contract of the command line, held for every registered command."""

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from standfast.cli import common, schemas
from standfast.cli import main as cli
from standfast.errors import BadInput, ConfigurationInvalid, Refused, StandfastError, StoreBusy

EXITS = {0, 1, 2, 3, 4, 78}


def walk(path: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from walk([*path, name], below)


EVERY = [found for name in cli.COMMANDS for found in walk([name], cli.load_command(name))]
LEAVES = [(path, command) for path, command in EVERY if not hasattr(command, "commands")]


def ids(value: object) -> str | None:
    return " ".join(value) if isinstance(value, list) else ""


@dataclass
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object; fails when stdout holds anything else."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    for name in ("STANDFAST_STATE", "STANDFAST_DEBUG"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = cli.main(arguments)
        told = capsys.readouterr()
        return Ran(code, told.out, told.err)

    return call


def test_people_are_told_the_command_that_they_type(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a host that is the instance's own, whose helper tells its name; JSON stays as it is everywhere."""
    monkeypatch.setenv("STANDFAST_COMMAND", "lucy-agent")
    state = ("--state", str(tmp_path / "none"))
    assert "run `lucy-agent init` as the service user" in run(*state, "health").err
    assert "`standfast init`" in run("--json", *state, "health").out
    for odd in ("", "a b", "$(reboot)", "x" * 65):
        monkeypatch.setenv("STANDFAST_COMMAND", odd)
        assert "run `standfast init` as the service user" in run(*state, "health").err


def test_each_command_module_is_registered_and_each_registered_command_has_a_module() -> None:
    folder = Path(cli.__file__).parent
    helpers = {"__init__", "main", "common", "schemas", "progress", "keeping"}
    modules = {path.stem for path in folder.glob("*.py")} - helpers
    assert modules == set(cli.COMMANDS)


@pytest.mark.parametrize(("path", "command"), EVERY, ids=ids)
def test_help_works_and_every_command_shows_an_example(path: list[str], command: Any, run: Run) -> None:
    told = run(*path, "--help")
    assert told.code == 0
    assert told.out.startswith(f"Usage: standfast {' '.join(path)}")
    assert "\x1b" not in told.out
    if not hasattr(command, "commands"):
        assert "Example" in told.out
        assert f"standfast {path[0]}" in told.out or f" {' '.join(path)}" in told.out


@pytest.mark.parametrize(("path", "command"), EVERY, ids=ids)
def test_bad_usage_is_2_and_one_json_object(path: list[str], command: Any, run: Run) -> None:
    told = run("--json", *path, "--no-such-option")
    assert told.code == 2
    assert told.json["changed"] is False
    assert told.json["refused"]["code"] == "usage"
    assert "Traceback" not in told.err
    assert run(*path, "--no-such-option").out == ""


def sample(parameter: Any) -> list[str]:
    """Arguments that satisfy a required parameter."""
    if not parameter.required:
        return []
    value = "1" if "int" in str(getattr(parameter, "type", "")).lower() else "sample"
    if parameter.param_type_name == "argument":
        return [value]
    return [parameter.opts[0], value]


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=ids)
def test_a_failure_is_one_json_object_without_a_traceback(
    path: list[str], command: Any, run: Run, tmp_path: Path
) -> None:
    """Every command, on a state directory that does not exist, with nothing on stdin."""
    arguments = [word for parameter in command.params for word in sample(parameter)]
    told = run("--json", "--state", str(tmp_path / "absent" / "state"), *path, *arguments)
    assert told.code in EXITS
    assert "Traceback" not in told.err
    found = told.json
    if told.code not in {0, 4}:
        common.Failure.model_validate(found)
        assert found["refused"]["reason"]
        assert told.err.startswith("standfast: ")
        assert not (tmp_path / "absent").exists(), "a refusal changes nothing"


@pytest.mark.parametrize("name", sorted(schemas.PUBLISHED))
def test_every_published_model_has_a_schema(name: str, run: Run) -> None:
    told = run("schema", name)
    assert told.code == 0
    assert told.json["type"] == "object"
    assert told.json["properties"]
    model = schemas.load(name)
    assert model.__doc__
    assert name in json.loads(run("--json", "schema").out)["schemas"]


def test_published_names_are_sorted_and_models_published_once() -> None:
    assert list(schemas.PUBLISHED) == sorted(schemas.PUBLISHED)
    assert len(set(schemas.PUBLISHED.values())) == len(schemas.PUBLISHED)


def test_an_unknown_schema_is_bad_input(run: Run) -> None:
    told = run("--json", "schema", "helth")
    assert (told.code, told.json["refused"]["code"]) == (2, "bad_input")
    assert "health" in told.json["refused"]["reason"]


@pytest.mark.parametrize(
    "state", ["relative", "/srv/a b", "/srv/100%", "/srv/$HOME", "/srv/../x", "/srv/é", ""]
)
def test_a_state_path_outside_the_allowed_set_is_bad_input(
    state: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = run("--json", "--state", state, "health")
    assert told.code == 2
    assert "--state" in told.json["refused"]["reason"]
    if state:
        monkeypatch.setenv("STANDFAST_STATE", state)
        told = run("--json", "health")
        assert told.code == 2
        assert "STANDFAST_STATE" in told.json["refused"]["reason"]


def test_version_says_version_and_release(run: Run) -> None:
    assert run("--version").out == "standfast 0.1.0 (source)\n"
    assert run("--json", "--version").json == {"version": "0.1.0", "release": "source"}


@pytest.mark.parametrize("arguments", [[], ["bogus"], ["--bogus"], ["work"], ["heath"], ["--state"]])
def test_typer_usage_errors_are_json_too(arguments: list[str], run: Run) -> None:
    told = run("--json", *arguments)
    assert told.code == 2
    assert told.json["refused"]["remedy"]


def test_a_misspelt_command_and_a_misplaced_option_get_a_hint(run: Run) -> None:
    assert "'health'" in run("heath").err
    told = run("health", "--json")
    assert told.code == 2
    assert "before the command" in told.json["refused"]["remedy"]


class Strict(BaseModel):
    """A model whose validation error would quote its input."""

    model_config = ConfigDict(extra="forbid")

    port: int


def invalid() -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Strict.model_validate({"port": "hunter2"})
    return caught.value


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (BadInput("no such thing"), (2, False, "bad_input")),
        (Refused("paused", "it is paused", observed=["a", "b"], remedy="resume"), (3, False, "paused")),
        (ConfigurationInvalid("shop.toml: unit"), (78, False, "configuration_invalid")),
        (StoreBusy("locked"), (1, None, "store_busy")),
        (StandfastError("half done"), (1, None, "failed")),
        (RuntimeError("boom\nsecond line"), (1, None, "unexpected")),
        (invalid(), (1, None, "unexpected")),
    ],
)
def test_every_kind_of_error_has_its_exit_code_and_shape(
    error: Exception, expected: tuple[int, bool | None, str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_name: str) -> None:
        raise error

    monkeypatch.setattr(cli, "load_command", fail)
    told = run("--json", "health")
    assert (told.code, told.json["changed"], told.json["refused"]["code"]) == expected
    assert "Traceback" not in told.err
    assert "hunter2" not in told.out + told.err
    assert "second line" not in told.err
    if expected[2] == "paused":
        assert told.json["refused"]["observed"] == ["a", "b"]
        assert told.err == "standfast: it is paused\n  observed: a\n  observed: b\n  remedy: resume\n"
    monkeypatch.setenv("STANDFAST_DEBUG", "1")
    assert "Traceback" in run("health").err


def test_every_command_that_the_package_names_exists() -> None:
    """In remedies, help and docstrings alike: what is quoted as a command can be typed."""
    exist = {" ".join(path) for path, _ in EVERY}
    groups = {" ".join(path) for path, command in EVERY if hasattr(command, "commands")}
    named = set()
    for source in Path(common.__file__).parent.parent.rglob("*.py"):
        command = r"`standfast(?: --[a-z]+)* ([a-z]+)(?: ([a-z][a-z-]*))?"
        for noun, verb in re.findall(command, source.read_text()):
            named.add(f"{noun} {verb}" if noun in groups and verb else noun)
    assert len(named) > 15
    assert named <= exist


def test_a_failure_names_the_command_that_shows_more(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(_name: str) -> None:
        raise error

    monkeypatch.setattr(cli, "load_command", fail)
    error: Exception = RuntimeError("boom")
    assert f"STANDFAST_DEBUG=1 {sys.executable} -I -m standfast" in run("health").err
    (tmp_path / "manifest.json").write_text('{"release_id": "r"}')
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    error = SyntaxError("half a file")
    assert f"{tmp_path}/venv/bin/python -I -m standfast release verify {tmp_path}`" in run("health").err


def test_interruption_is_told_without_a_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load_command", interrupt)
    told = run("--json", "health")
    assert (told.code, told.json["refused"]["code"]) == (130, "interrupted")


def test_an_argument_that_is_no_text_is_bad_input(run: Run, tmp_path: Path) -> None:
    """Bytes that are not UTF-8 come as halves of surrogate pairs, which no store and no JSON can hold."""
    ran = run("--state", str(tmp_path), "--json", "order", "show", "\udcff")
    assert ran.code == 2
    assert ran.json["refused"]["reason"] == "argument 6 is not UTF-8 text: '\\udcff'"


def test_half_a_surrogate_pair_in_a_result_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    common.write_json(common.Refusal(code="x", reason="does not belong: \ud800"))
    assert json.loads(capsys.readouterr().out)["reason"] == "does not belong: \ud800"


def test_text_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    common.table(["A", "B"], [["\x1b[2J", "x\u202ey\n"], ["é", ""]])
    common.facts([("name", "a\rb")])
    out = capsys.readouterr().out
    assert out.splitlines() == ["A        B", "\\x1b[2J  x\\u202ey\\n", "é", "name  a\\rb"]


def test_a_long_table_line_is_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    common.table(["A"], [["x" * 500]])
    assert "x" * 500 in capsys.readouterr().out


def standfast(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-m", "standfast", *arguments], text=True, check=False, **more
    )


def test_a_reader_that_goes_away_is_no_error() -> None:
    """`standfast schema | true` under pipefail: quiet, and the command's own exit code."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        for arguments in (["schema", "health"], ["--json", "schema"], ["--help"]):
            told = standfast(*arguments, stdout=closed, stderr=subprocess.PIPE)
            assert (told.returncode, told.stderr) == (0, ""), arguments


def test_output_is_utf8_whatever_the_locale() -> None:
    told = standfast("schema", "é", capture_output=True, env={"LC_ALL": "C", "PYTHONUTF8": "0"})
    assert told.returncode == 2
    assert "é" in told.stderr


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_only_on_a_terminal_and_never_with_no_color(
    environment: dict[str, str], coloured: bool, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.json"
    copy.write_text(json.dumps(RECEIPT))
    ours, theirs = pty.openpty()
    told = standfast("receipt", "show", str(copy), stdout=theirs, env={"TERM": "xterm", **environment})
    os.close(theirs)
    shown = os.read(ours, 65_536).decode()
    os.close(ours)
    assert told.returncode == 0
    assert ("\x1b[32m" in shown) is coloured
    piped = standfast("receipt", "show", str(copy), capture_output=True, env={"TERM": "xterm"})
    assert "\x1b" not in piped.stdout


RECEIPT = {
    "format": 1,
    "sequence": 1,
    "previous": None,
    "digest": "0" * 64,
    "recorded_at": "2026-11-29T18:00:00.000Z",
    "recorded_by": "source",
    "operation": "install",
    "run_id": "r",
    "instance": "lucy-agent",
    "host": "h",
    "verdict": "done",
    "started_at": "2026-11-29T18:00:00.000Z",
    "finished_at": "2026-11-29T18:00:01.000Z",
    "seconds": 1.0,
}


def test_health_starts_without_what_only_other_commands_need(tmp_path: Path) -> None:
    """Start-up is measured by the bench; here: nothing heavy comes back by accident."""
    script = (
        "import sys; from standfast.cli.main import main\n"
        f"code = main(['--state', '{tmp_path}/state', 'health'])\n"
        "print(code, *sorted(sys.modules))"
    )
    told = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True)
    code, *modules = told.stdout.split()
    assert code == "3"
    assert "standfast.operations.health" in modules
    heavy = (
        "rich",
        "asyncio",
        "http",
        "httpx",
        "httpx2",
        "openai",
        "hypothesis",
        "standfast.release",
        "standfast.serve",
        "standfast.receipts",
    )
    assert [name for name in modules if name in heavy] == []
