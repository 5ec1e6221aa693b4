"""`standfast supplier serve` before it begins: what it refuses, and that others do not pay for it."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from supplying import TOKEN

from standfast.cli.main import main

Run = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(TOKEN)
    return path


@pytest.fixture
def run(tmp_path: Path, token: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*options: str, ledger: str = str(tmp_path / "ledger")) -> tuple[int, dict[str, Any], str]:
        common = ["--ledger", ledger, "--token-file", str(token), "--port", "0"]
        code = main(["--json", "--check", "supplier", "serve", *common, *options])
        captured = capsys.readouterr()
        assert not (tmp_path / "ledger").exists()
        assert TOKEN not in captured.out + captured.err
        return code, json.loads(captured.out), captured.err

    return call


def test_check_says_that_it_could_begin_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    code, said, err = run()
    assert (code, said["changed"], said["check"], err) == (0, False, True, "")
    assert sorted(tmp_path.iterdir()) == before


def test_a_release_without_the_extra_says_what_to_do(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("standfast.cli.supplier.find_spec", lambda name: None if name == "uvicorn" else name)
    code, said, _ = run()
    assert (code, said["refused"]["code"]) == (3, "extra_missing")
    assert said["refused"]["observed"] == "not installed: uvicorn"
    assert "--extra supplier" in said["refused"]["remedy"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_token_that_others_can_read_is_no_token(run: Run, token: Path, mode: int) -> None:
    token.chmod(mode)
    code, said, _ = run()
    assert (code, said["refused"]["code"]) == (78, "configuration_invalid")
    assert f"{mode:o}" in said["refused"]["reason"]


@pytest.mark.parametrize(
    "content", ["", "\n", "%o8=Zq%", "two words in one token", f"{TOKEN}\n{TOKEN}", "é" * 20, "x" * 5000]
)
def test_a_token_has_a_form(run: Run, token: Path, content: str) -> None:
    token.write_text(content)
    code, said, _ = run()
    assert code == 78
    assert not content.strip() or content.strip() not in said["refused"]["reason"]


def test_a_missing_token_file_is_named(run: Run, token: Path) -> None:
    token.unlink()
    code, said, _ = run()
    assert (code, str(token) in said["refused"]["reason"]) == (78, True)


def test_a_taken_address_is_refused(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, said, _ = run("--port", str(other.getsockname()[1]))
    assert (code, said["refused"]["code"]) == (3, "address_taken")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--host", "supplier.example.org"), ("--ledger", "/srv/a b"), ("--ledger", "ledger")],
)
def test_an_address_or_folder_outside_the_allowed_set_is_bad_input(run: Run, option: str, value: str) -> None:
    code, said, _ = run(option, value)
    assert (code, said["refused"]["code"]) == (2, "bad_input")
    assert value in said["refused"]["reason"]


def test_an_address_beyond_loopback_is_remarked_on(run: Run) -> None:
    code, _, err = run("--host", "0.0.0.0")
    assert code == 0
    assert "unencrypted" in err


@pytest.mark.parametrize(
    "arguments", [["health"], ["supplier", "serve", "--help"], ["schema", "supplier-served"]]
)
def test_other_commands_do_not_load_http(arguments: list[str], tmp_path: Path) -> None:
    script = (
        "import sys; from standfast.cli.main import main; main(sys.argv[1:]);"
        "print([name for name in ('httpx', 'starlette', 'uvicorn', 'openai') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, "--state", str(tmp_path), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.endswith("[]\n")
