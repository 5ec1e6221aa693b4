"""The probe that looks at a host before a venv is there, driven as roles drive it: on stdin of a Python."""

import ast
import concurrent.futures
import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from standfast.operations.attention import RULES

SCRIPT = Path(__file__).resolve().parents[2] / "roles/host/files/hostcheck.py"
USER = pwd.getpwuid(os.getuid()).pw_name
LOADER = "import sys; text, _, REQUEST = sys.stdin.buffer.read().rpartition(b'\\n'); exec(text)"

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="acting as another user needs root")


def call(words: str, request: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-I", "-c", LOADER, *words.split()],
        input=SCRIPT.read_bytes() + b"\n" + request.encode(),
        capture_output=True,
        check=False,
    )


def ask(words: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    done = call(words, json.dumps(request))
    assert done.stdout, done.stderr.decode()
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def hostcheck() -> ModuleType:
    """The probe as a module, for what a whole preflight would not reach on this machine."""
    module = ModuleType("hostcheck")
    module.__dict__["__file__"] = str(SCRIPT)
    sys.modules["hostcheck"] = module
    exec(compile(SCRIPT.read_text(), str(SCRIPT), "exec"), module.__dict__)
    return module


@pytest.fixture
def request_for(tmp_path: Path) -> dict[str, Any]:
    root = str(tmp_path / "root")
    return {
        "instance": "test-agent",
        "user": USER,
        "root": root,
        "release": "0.1.0-aaaaaaaa-bbbbbbbb",
        "keep": 3,
        "purpose": "install",
        "pythons": [f"{sys.version_info.major}.{sys.version_info.minor}"],
        "platforms": [os.uname().machine],
        "python": "",
        "stop_seconds": 90,
        "free_mb": 1,
        "mountinfo": "/proc/self/mountinfo",
        "now": time.time(),
        "run_id": "aaaa",
        "holder": "one@controller",
        "lock_seconds": 60,
        "lock_folder": str(tmp_path / "lock"),
        "registry": str(tmp_path / "registry"),
        "inputs": {"instance_root": ["path", root], "instance_name": ["instance", "test-agent"]},
    }


def rows(answer: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in answer["checks"]}


def outcome(request: dict[str, Any], name: str) -> str:
    return rows(ask("preflight", request)[1])[name]["outcome"]


def test_it_is_python_3_9_and_of_the_standard_library_alone() -> None:
    tree = ast.parse(SCRIPT.read_text(), feature_version=(3, 9))
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name) or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    "root",
    [
        "srv/lucy",
        "/srv/with space",
        "/srv/%n",
        "/srv/$HOME",
        "/srv/../etc",
        "/srv//lucy",
        "/srv/lucy/",
        "//srv",
        "/",
        7,
    ],
)
def test_a_malformed_root_is_refused_by_variable_and_rule_and_nothing_else_is_looked_at(
    request_for: dict[str, Any], root: object
) -> None:
    request_for["inputs"]["instance_root"] = ["path", root]
    code, answer = ask("preflight", request_for)
    assert code == 3
    assert [row["name"] for row in answer["checks"]] == ["input"]
    assert "instance_root" in answer["checks"][0]["observed"]
    assert "absolute path" in answer["checks"][0]["remedy"]
    assert answer["survey"] is None


@pytest.mark.parametrize("name", ["", "Lucy", "1st", "a" * 49, "a b", "a\n", "../x", None])
def test_a_malformed_instance_name_is_refused(request_for: dict[str, Any], name: object) -> None:
    request_for["inputs"]["instance_name"] = ["instance", name]
    code, answer = ask("preflight", request_for)
    assert code == 3
    assert "instance_name" in answer["checks"][0]["observed"]


@pytest.mark.parametrize(
    ("root", "fault"),
    [("/srv", "top-level"), ("/tmp/lucy", "folder of the system"), ("/etc/lucy", "folder of the system")],
)
def test_a_root_that_is_not_a_folder_of_its_own_is_refused(
    request_for: dict[str, Any], root: str, fault: str
) -> None:
    row = rows(ask("preflight", request_for | {"root": root})[1])["root"]
    assert row["outcome"] == "refuse"
    assert fault in row["observed"]


def mountinfo(tmp_path: Path, *lines: tuple[str, str]) -> str:
    path = tmp_path / "mountinfo"
    path.write_text(
        "".join(
            f"{number} 1 0:{number} / {point} rw,relatime shared:1 - {kind} source rw\n"
            for number, (point, kind) in enumerate([("/", "ext4"), *lines], start=20)
        )
    )
    return str(path)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("nfs4", "refuse"), ("nfs", "refuse"), ("cifs", "refuse"), ("9p", "refuse"), ("fuse.sshfs", "refuse"),
     ("fuse", "refuse"), ("fuseblk", "refuse"), ("tmpfs", "refuse"), ("ext4", "pass"), ("xfs", "pass"),
     ("btrfs", "pass"), ("overlay", "pass"), ("fusectl", "pass")],
)  # fmt: skip
def test_the_file_system_under_the_root_decides(
    request_for: dict[str, Any], tmp_path: Path, kind: str, expected: str
) -> None:
    request_for["mountinfo"] = mountinfo(tmp_path, (str(tmp_path), kind))
    assert outcome(request_for, "filesystem") == expected


def test_the_innermost_and_latest_mount_counts_and_a_sibling_does_not(
    request_for: dict[str, Any], tmp_path: Path
) -> None:
    root = request_for["root"]
    local_below = mountinfo(tmp_path, (str(tmp_path), "nfs4"), (root, "ext4"))
    assert outcome(request_for | {"mountinfo": local_below}, "filesystem") == "pass"
    covered = mountinfo(tmp_path, (root, "ext4"), (root, "nfs4"))
    assert outcome(request_for | {"mountinfo": covered}, "filesystem") == "refuse"
    sibling = mountinfo(tmp_path, (root + "-other", "nfs4"))
    assert outcome(request_for | {"mountinfo": sibling}, "filesystem") == "pass"


def test_a_python_of_another_version_is_not_enough_and_the_needed_one_is_said(
    request_for: dict[str, Any],
) -> None:
    request_for["pythons"] = ["9.8", "9.9"]
    row = rows(ask("preflight", request_for)[1])["python"]
    assert row["outcome"] == "refuse"
    assert "9.8 or 9.9" in row["remedy"]


def test_another_architecture_and_too_small_a_disk_are_refused(request_for: dict[str, Any]) -> None:
    answer = rows(ask("preflight", request_for | {"platforms": ["pdp11"], "free_mb": 10**12})[1])
    assert answer["architecture"]["outcome"] == "refuse"
    assert "pdp11" in answer["architecture"]["remedy"]
    assert answer["space"]["outcome"] == "refuse"


@pytest.mark.parametrize(
    ("off", "expected"), [(0, "pass"), (600, "attention"), (100_000, "refuse"), (-100_000, "refuse")]
)
def test_the_clock_is_compared_with_the_controllers(
    request_for: dict[str, Any], off: float, expected: str
) -> None:
    assert outcome(request_for | {"now": time.time() + off}, "clock") == expected


def write_identity(request: dict[str, Any], **other: str) -> Path:
    root = Path(request["root"])
    root.mkdir(exist_ok=True)
    identity = {
        "format": 1,
        "instance": request["instance"],
        "user": request["user"],
        "root": request["root"],
    }
    (root / "instance.json").write_text(json.dumps(identity | other))
    return root


@pytest.mark.parametrize("field", ["instance", "user", "root"])
def test_another_instances_root_is_refused(request_for: dict[str, Any], field: str) -> None:
    write_identity(request_for)
    assert outcome(request_for, "identity") == "pass"
    write_identity(request_for, **{field: "rosa"})
    row = rows(ask("preflight", request_for)[1])["identity"]
    assert row["outcome"] == "refuse"
    assert "rosa" in row["observed"]


def test_a_folder_with_something_else_in_it_is_refused_and_an_empty_one_is_free(
    request_for: dict[str, Any],
) -> None:
    root = Path(request_for["root"])
    root.mkdir()
    assert outcome(request_for, "identity") == "pass"
    (root / "photos").mkdir()
    assert outcome(request_for, "identity") == "refuse"


def test_current_as_a_folder_is_refused(request_for: dict[str, Any]) -> None:
    root = write_identity(request_for)
    (root / "releases/x").mkdir(parents=True)
    (root / "current").symlink_to("releases/x")
    assert outcome(request_for, "current") == "pass"
    (root / "current").unlink()
    (root / "current").mkdir()
    assert outcome(request_for, "current") == "refuse"


def test_the_environment_file_is_a_private_regular_file_of_the_service_user(
    request_for: dict[str, Any],
) -> None:
    state = write_identity(request_for) / "state"
    state.mkdir()
    assert outcome(request_for, "environment") == "pass"
    file = state / "agent.env"
    file.touch(0o600)
    assert outcome(request_for, "environment") == "pass"
    file.chmod(0o644)
    assert outcome(request_for, "environment") == "refuse"
    assert outcome(request_for | {"user": "nobody"}, "environment") == "refuse"
    file.rename(state / "real")
    file.symlink_to("real")
    assert outcome(request_for, "environment") == "refuse"


def test_an_instance_named_like_a_command_is_refused(request_for: dict[str, Any]) -> None:
    assert outcome(request_for | {"instance": "sh"}, "helper") == "refuse"
    assert outcome(request_for, "helper") == "pass"


@pytest.mark.parametrize("look", ["preflight", "status"])
def test_a_look_changes_nothing(request_for: dict[str, Any], tmp_path: Path, look: str) -> None:
    write_identity(request_for)
    before = sorted((str(path), path.lstat().st_mtime_ns) for path in tmp_path.rglob("*"))
    ask(look, request_for)
    assert sorted((str(path), path.lstat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def seal(request: dict[str, Any], *releases: str) -> Path:
    root = write_identity(request)
    for number, name in enumerate(releases):
        folder = root / "releases" / name
        folder.mkdir(parents=True)
        (folder / "installed.json").write_text(json.dumps({"sealed_at": f"2026-11-0{number + 1}T00:00:00Z"}))
        describe_release(root, name, "0.1.0", "0.1.0")
    return root


def describe_release(root: Path, release: str, version: object, floor: object) -> None:
    manifest = {"release_id": release, "version": version, "rollback_floor": floor}
    (root / "releases" / release).mkdir(parents=True, exist_ok=True)
    (root / "releases" / release / "manifest.json").write_text(json.dumps(manifest))


def test_pruning_keeps_the_newest_and_whatever_is_referred_to(request_for: dict[str, Any]) -> None:
    root = seal(request_for, "a", "b", "c", "d", "e")
    (root / "releases/half").mkdir()
    (root / "releases/.old.tar").touch()
    (root / "current").symlink_to("releases/b")
    for release in ("a", "b"):
        assert ask("proof", request_for | {"release": release})[0] == 0
    _, answer = ask("survey", request_for | {"release": "e", "keep": 1})
    assert answer["previous_good"] == "a"
    assert sorted(answer["prunable"]) == [".old.tar", "c", "d", "half"]
    _, answer = ask("survey", request_for | {"release": "new", "keep": 3})
    assert sorted(answer["prunable"]) == [".old.tar", "c", "half"]
    _, answer = ask("survey", request_for | {"release": "half", "keep": 9})
    assert answer["prunable"] == [".old.tar"]


def test_a_second_run_is_refused_the_lock_with_its_holder_and_since(request_for: dict[str, Any]) -> None:
    assert ask("lock acquire", request_for)[0] == 0
    code, answer = ask("lock acquire", request_for | {"run_id": "bbbb", "holder": "two@controller"})
    assert code == 3
    assert answer["refused"]["code"] == "lock_held"
    assert "one@controller (run aaaa) since 20" in answer["refused"]["observed"]
    assert outcome(request_for | {"run_id": "bbbb"}, "lock") == "refuse"
    assert outcome(request_for, "lock") == "pass"


def test_the_lock_is_renewed_and_released_by_its_own_run_only(request_for: dict[str, Any]) -> None:
    other = request_for | {"run_id": "bbbb"}
    _, taken = ask("lock acquire", request_for)
    _, renewed = ask("lock renew", request_for)
    assert renewed["lock"]["since"] == taken["lock"]["since"]
    assert renewed["lock"]["expires"] > taken["lock"]["expires"]
    assert ask("lock renew", other)[0] == 3
    assert ask("lock release", other)[1] == {"changed": False}
    assert ask("lock release", request_for)[1] == {"changed": True}
    assert ask("lock release", request_for)[1] == {"changed": False}
    assert ask("lock renew", request_for)[1]["refused"]["code"] == "lock_lost"
    assert ask("lock acquire", other)[0] == 0


def test_the_lock_stays_where_a_switch_is_still_at_work(request_for: dict[str, Any]) -> None:
    """As where the controller's connection was killed: the command on the host goes on without it."""
    switch = Path(request_for["root"]) / "state/upgrade.lock"
    switch.parent.mkdir(parents=True)
    ask("lock acquire", request_for)
    with switch.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert ask("lock release", request_for)[1] == {"changed": False}
        assert ask("lock acquire", request_for | {"run_id": "bbbb"})[0] == 3
    assert ask("lock release", request_for)[1] == {"changed": True}
    assert ask("lock acquire", request_for | {"run_id": "bbbb"})[0] == 0


def test_an_expired_lock_is_taken_over_and_its_first_run_can_not_go_on(request_for: dict[str, Any]) -> None:
    ask("lock acquire", request_for | {"lock_seconds": 0.05})
    time.sleep(0.1)
    code, answer = ask("lock acquire", request_for | {"run_id": "bbbb"})
    assert code == 0
    assert answer["took_over"]["run_id"] == "aaaa"
    assert ask("lock renew", request_for)[0] == 3


def test_a_lock_of_another_boot_has_expired(request_for: dict[str, Any]) -> None:
    ask("lock acquire", request_for)
    path = Path(request_for["lock_folder"]) / "deploy.lock"
    lock = json.loads(path.read_text())
    path.write_text(json.dumps(lock | {"expires": lock["expires"] + 1_000}))
    assert ask("lock acquire", request_for | {"run_id": "bbbb"})[0] == 0


def test_of_eight_at_once_exactly_one_gets_the_lock(request_for: dict[str, Any]) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda run: ask("lock acquire", request_for | {"run_id": f"r{run}"})[0], range(8))
    assert sorted(answers) == [0, *[3] * 7]


def test_a_pending_receipt_is_private_kept_once_and_only_in_an_instance(request_for: dict[str, Any]) -> None:
    request = request_for | {"receipt": {"verdict": "failed"}}
    assert ask("pending-receipt", request)[1]["changed"] is False
    assert not Path(request["root"]).exists()
    write_identity(request)
    path = Path(ask("pending-receipt", request)[1]["path"])
    assert json.loads(path.read_text()) == {"verdict": "failed"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert ask("pending-receipt", request | {"receipt": {}})[1]["changed"] is False
    assert json.loads(path.read_text()) == {"verdict": "failed"}


def test_a_file_is_placed_whole_with_its_mode_whatever_the_umask(request_for: dict[str, Any]) -> None:
    path = Path(request_for["root"]) / "state/sub/x.toml"
    path.parent.parent.mkdir(parents=True)
    request = {
        "user": USER,
        "root": request_for["root"],
        "path": str(path),
        "text": "a = 1\n",
        "mode": "0644",
    }
    before = os.umask(0o077)
    try:
        assert ask("place", request)[1] == {"changed": True}
    finally:
        os.umask(before)
    assert path.read_text() == "a = 1\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    assert ask("place", request)[1] == {"changed": False}
    assert ask("place", request | {"text": None})[1] == {"changed": True}
    assert ask("place", request | {"text": None})[1] == {"changed": False}
    assert ask("place", request | {"path": "/var/elsewhere"})[0] == 3


@needs_root
def test_a_link_planted_by_the_user_does_not_lead_root_elsewhere(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == 0 and not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(0o711)
    nobody = pwd.getpwnam("nobody")
    state = tmp_path / "root/state"
    state.mkdir(parents=True)
    target = tmp_path / "only-roots"
    target.mkdir(0o755)
    (state / "sub").symlink_to(target)
    os.chown(state, nobody.pw_uid, nobody.pw_gid)
    request = {
        "user": "nobody",
        "root": str(tmp_path / "root"),
        "path": str(state / "sub/x"),
        "text": "x",
        "mode": "0644",
    }
    done = call("place", json.dumps(request))
    assert done.returncode == 1
    assert b"Permission denied" in done.stderr
    assert list(target.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "request_text"),
    [("", "{}"), ("lock", "{}"), ("lock steal", "{}"), ("preflight", "{"), ("preflight", "{}")],
)
def test_bad_usage_is_exit_2_and_says_what_there_is(words: str, request_text: str) -> None:
    done = call(words, request_text)
    assert done.returncode == 2
    assert b"pending-receipt" in done.stderr


def test_a_request_may_be_longer_than_an_argument(request_for: dict[str, Any]) -> None:
    write_identity(request_for)
    receipt = {"verdict": "failed", "reason": "x" * 300_000}
    assert ask("pending-receipt", request_for | {"receipt": receipt})[1]["changed"] is True


def test_a_refusal_is_said_in_words_too(request_for: dict[str, Any]) -> None:
    done = call("lock renew", json.dumps(request_for))
    assert done.returncode == 3
    assert done.stderr.startswith(b"Refused: this run no longer holds the deploy lock: null. To do: ")


@pytest.mark.parametrize(
    "content",
    ['{"operation": []}', "[" * 100_000, '{"operation": "install", "verdict": {"a": []}}', "\0\0", "[]", "{"],
)
def test_nothing_that_a_receipt_holds_stops_a_survey(request_for: dict[str, Any], content: str) -> None:
    receipts = write_identity(request_for) / "receipts"
    receipts.mkdir()
    good = {"operation": "install", "verdict": "done", "sequence": 1}
    (receipts / "000001-install-0a.json").write_text(json.dumps(good))
    (receipts / "000002-install-0b.json").write_text(content)
    (receipts / "000003-install-0c.json").mkdir()
    os.mkfifo(receipts / "000004-install-0d.json")
    (receipts / "000005-install-0e.json").symlink_to("/etc/hostname")
    code, answer = ask("survey", request_for)
    assert code == 0
    assert answer["receipts"]["last"]["operation"] == "install"


def test_receipts_are_in_the_order_of_their_numbers(request_for: dict[str, Any]) -> None:
    receipts = write_identity(request_for) / "receipts"
    receipts.mkdir()
    for number in (999_999, 1_000_000):
        (receipts / f"{number:06d}-install-0a.json").write_text(
            json.dumps({"operation": "install", "sequence": number})
        )
    assert ask("survey", request_for)[1]["receipts"]["last"]["sequence"] == 1_000_000


def test_what_a_killed_pending_receipt_leaves_is_not_one(request_for: dict[str, Any]) -> None:
    write_identity(request_for)
    path = Path(ask("pending-receipt", request_for | {"receipt": {}})[1]["path"])
    assert ask("survey", request_for)[1]["receipts"]["pending"] == 1
    # The name that the file has while it is written.
    path.rename(path.with_name(f".{path.name}.4711.new"))
    (path.parent / "pending-aaaa.json.4711.new").touch()
    assert ask("survey", request_for)[1]["receipts"]["pending"] == 0


def test_a_file_is_written_under_a_dot_name_first(
    hostcheck: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hostcheck.os, "unlink", killed)
    monkeypatch.setattr(hostcheck.os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        hostcheck.place_file(str(tmp_path / "pending-a.json"), "{}", 0o600)
    assert all(path.name.startswith(".pending-a.json.") for path in tmp_path.iterdir())


def test_an_interpreter_that_others_can_change_is_never_run(
    hostcheck: ModuleType, request_for: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\ntouch {ran}\necho {sys.version.split()[0]}\n")
    python.chmod(0o755)
    row = rows(ask("preflight", request_for | {"python": str(python)})[1])["python"]
    assert row["outcome"] == "refuse"
    assert f"{python}, not run: " in row["observed"]
    assert not ran.exists()
    monkeypatch.setattr(hostcheck, "changeable_by_others", lambda _: None)
    hostcheck.find_python(hostcheck.Checks(), request_for | {"python": str(python)})
    assert ran.exists()  # The file would have been run, but for that rule.


@needs_root
def test_every_step_to_an_interpreter_must_be_roots(hostcheck: ModuleType) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    with tempfile.TemporaryDirectory(dir="/opt") as name:
        top = Path(name)
        top.chmod(0o755)
        (top / "bin").mkdir(mode=0o755)
        file = top / "bin/python3.13"
        file.touch(0o755)
        (top / "python3").symlink_to("link/python3.13")
        (top / "link").symlink_to(top / "bin")
        link = str(top / "python3")
        assert hostcheck.changeable_by_others(link) is None
        for step in (file, top / "bin", top / "link", top / "python3", top):
            os.chown(step, nobody, 0, follow_symlinks=False)
            assert str(step) in hostcheck.changeable_by_others(link)
            os.chown(step, 0, 0, follow_symlinks=False)
        for step in (file, top / "bin", top):
            step.chmod(0o775)
            assert f"{step} belongs to root:root 0775" == hostcheck.changeable_by_others(link)
            step.chmod(0o755)
        assert hostcheck.changeable_by_others(link) is None


def test_a_release_is_discarded_only_under_the_lock_and_without_a_seal(request_for: dict[str, Any]) -> None:
    root = seal(request_for, "sealed")
    half, staged = root / "releases/half", root / "releases/.half.aaaa.tar"
    (half / "venv").mkdir(parents=True)
    staged.touch()
    request = request_for | {"release": "half", "staged": staged.name}
    assert ask("discard", request)[1]["refused"]["code"] == "lock_lost"
    ask("lock acquire", request_for | {"run_id": "bbbb"})
    assert ask("discard", request)[1]["refused"]["code"] == "lock_held"
    assert half.exists()
    assert staged.exists()
    ask("lock release", request_for | {"run_id": "bbbb"})
    ask("lock acquire", request_for)
    assert ask("discard", request)[1] == {"changed": True}
    assert not half.exists()
    assert not staged.exists()
    assert ask("discard", request)[1] == {"changed": False}
    assert ask("discard", request | {"release": "sealed"})[1] == {"changed": False}
    assert (root / "releases/sealed").exists()


def test_a_proof_holds_for_its_unit_and_its_environment_file(
    request_for: dict[str, Any], hostcheck: ModuleType
) -> None:
    state = seal(request_for, "a", "b") / "state"
    state.mkdir()
    (state.parent / "current").symlink_to("releases/b")
    env = state / "agent.env"
    env.touch(0o600)
    assert ask("survey", request_for)[1]["proven"] is None
    ask("proof", request_for | {"release": "a"})
    assert ask("survey", request_for)[1]["proven"] == "a"
    os.utime(env, (1, 1))
    assert ask("survey", request_for)[1]["proven"] is None
    ask("proof", request_for | {"release": "b"})
    ask("proof", request_for | {"release": "b"})
    answer = ask("survey", request_for)[1]
    assert (answer["proven"], answer["previous_good"]) == ("b", "a")
    proof = answer["record"]["proof"]
    assert hostcheck.proven_release(proof, "another unit", proof["env_at"]) is None
    record = Path(request_for["registry"], "records/test-agent.json")
    assert stat.S_IMODE(record.stat().st_mode) == 0o644
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o755


def record_of(request: dict[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = ask("survey", request)[1]["record"]
    return record


def test_every_verdict_is_kept_in_order_with_what_the_manifest_says(request_for: dict[str, Any]) -> None:
    root = seal(request_for, "a", "b")
    describe_release(root, "b", "0.2.0", "0.1.5")
    assert ask("proof", request_for | {"release": "a"})[1] == {"changed": True}
    why = {"release": "b", "why": "nothing was finished within 60 s"}
    assert ask("condemn", request_for | why)[1] == {"changed": True}
    assert ask("condemn", request_for | {"release": "gone", "why": "crashed"})[0] == 0
    record = record_of(request_for)
    assert [(entry["release"], entry["version"], entry["floor"], entry["verdict"], entry["why"]) for entry in
            record["history"]] == [
        ("a", "0.1.0", "0.1.0", "good", ""),
        ("b", "0.2.0", "0.1.5", "bad", "nothing was finished within 60 s"),
        ("gone", None, None, "bad", "crashed"),
    ]  # fmt: skip
    assert all(entry["at"].endswith("Z") for entry in record["history"])
    assert record["floor"] == {"version": "0.1.0", "release": "a"}
    assert record["proof"]["release"] == "a"


def test_the_newest_fifty_verdicts_are_kept(request_for: dict[str, Any]) -> None:
    seal(request_for, "a")
    assert ask("condemn", request_for | {"release": "a", "why": "time 0"})[0] == 0
    file = Path(request_for["registry"]) / "records/test-agent.json"
    record = json.loads(file.read_text())
    (entry,) = record["history"]
    # As 50 calls would have left it; the last two are made.
    record["history"] = [entry | {"why": f"time {number}"} for number in range(50)]
    file.write_text(json.dumps(record))
    for number in (50, 51):
        assert ask("condemn", request_for | {"release": "a", "why": f"time {number}"})[0] == 0
    history = record_of(request_for)["history"]
    assert [entry["why"] for entry in history] == [f"time {number}" for number in range(2, 52)]


def test_a_floor_is_raised_and_never_lowered(request_for: dict[str, Any]) -> None:
    """Neither by an older release, nor by one that is condemned, nor by what becomes of its folder."""
    root = seal(request_for, "a", "b", "c", "d")
    for release, floor in (("a", "0.9.1"), ("b", "0.10.0"), ("c", "0.10.0rc1"), ("d", "0.2.0")):
        describe_release(root, release, "1.0.0", floor)
        assert ask("proof", request_for | {"release": release})[0] == 0
    assert record_of(request_for)["floor"] == {"version": "0.10.0", "release": "b"}
    assert ask("condemn", request_for | {"release": "b", "why": "too slow"})[0] == 0
    (root / "releases/b/manifest.json").unlink()
    describe_release(root, "e", "9.0.0", "8.0.0")
    assert ask("condemn", request_for | {"release": "e", "why": "never ready"})[0] == 0
    assert record_of(request_for)["floor"] == {"version": "0.10.0", "release": "b"}


@pytest.mark.parametrize("field", ["version", "floor"])
@pytest.mark.parametrize("value", [None, 7, "", "one", "1.0-1", "1!2", "1.0.0\n", "1" * 200])
def test_a_release_whose_floor_is_not_known_is_not_put_on_record_as_good(
    request_for: dict[str, Any], field: str, value: object
) -> None:
    root = seal(request_for, "a")
    describe_release(root, "a", **({"version": "1.0", "floor": "1.0"} | {field: value}))
    code, answer = ask("proof", request_for | {"release": "a"})
    assert (code, answer["refused"]["code"]) == (3, "manifest_unreadable")
    assert record_of(request_for)["history"] == []
    assert record_of(request_for)["floor"] is None


@pytest.mark.parametrize(
    "bad",
    [{"why": ""}, {"why": " "}, {"why": "a\nb"}, {"why": "x" * 501}, {"why": None}, {"release": "../a"}],
)
def test_a_verdict_without_a_reason_or_a_release_is_bad_usage(
    request_for: dict[str, Any], bad: dict[str, Any]
) -> None:
    seal(request_for, "a")
    done = call("condemn", json.dumps(request_for | {"release": "a", "why": "crashed"} | bad))
    assert done.returncode == 2
    assert record_of(request_for)["history"] == []


NUMBERS = st.integers(0, 12).map(str)


@st.composite
def versions(draw: st.DrawFn) -> str:
    """What the manifest's pattern admits and PEP 440 knows."""
    parts = [".".join(draw(st.lists(NUMBERS, min_size=1, max_size=4)))]
    dot, number = st.sampled_from(["", "."]), st.one_of(st.just(""), NUMBERS)
    for words in (("a", "alpha", "b", "beta", "c", "rc", "pre", "preview"), ("post", "rev", "r"), ("dev",)):
        if draw(st.booleans()):
            parts += [draw(dot), draw(st.sampled_from(words)), draw(dot), draw(number)]
            if parts[-1] == "":
                parts[-2] = ""
    if draw(st.booleans()):
        parts += [
            "+",
            ".".join(draw(st.lists(st.sampled_from(["1", "9", "10", "a", "b1"]), min_size=1, max_size=4))),
        ]
    return "".join(parts)


@given(st.lists(versions(), min_size=2, max_size=6))
def test_versions_are_ordered_as_pep_440_orders_them(hostcheck: ModuleType, found: list[str]) -> None:
    for one in found:
        for other in found:
            ours = hostcheck.version_key(one), hostcheck.version_key(other)
            assert (ours[0] < ours[1]) == (Version(one) < Version(other)), (one, other)
            assert (ours[0] == ours[1]) == (Version(one) == Version(other)), (one, other)


@pytest.mark.parametrize(
    ("lower", "higher"),
    [
        ("0.9.1", "0.10.0"),
        ("0.10.0rc1", "0.10.0"),
        ("0.10.0.dev3", "0.10.0a1"),
        ("0.10.0b2", "0.10.0rc1"),
        ("0.10.0", "0.10.0.post1"),
        ("0.10.0", "0.10.0+fix.1"),
        ("0.10", "0.10.0.1"),
    ],
)
def test_the_higher_floor_is_the_later_version(hostcheck: ModuleType, lower: str, higher: str) -> None:
    low, high = ({"version": version, "release": version} for version in (lower, higher))
    assert hostcheck.raised_floor(low, high) == high
    assert hostcheck.raised_floor(high, low) == high


def test_the_previous_good_release_is_the_last_one_that_was_not_condemned_since(
    request_for: dict[str, Any],
) -> None:
    root = seal(request_for, "a", "b", "c")
    for release in ("a", "b", "c"):
        ask("proof", request_for | {"release": release})
    (root / "current").symlink_to("releases/c")
    assert ask("survey", request_for)[1]["previous_good"] == "b"
    ask("condemn", request_for | {"release": "b", "why": "lost a report"})
    found = ask("survey", request_for | {"keep": 1})[1]
    assert (found["previous_good"], found["proven"]) == ("a", "c")
    assert found["prunable"] == ["b"]
    ask("condemn", request_for | {"release": "c", "why": "slow"})
    assert ask("survey", request_for)[1]["proven"] is None
    ask("proof", request_for | {"release": "c"})
    assert ask("survey", request_for)[1]["proven"] == "c"


def test_a_record_of_before_there_was_a_history_still_names_the_previous_release(
    request_for: dict[str, Any],
) -> None:
    root = seal(request_for, "a", "b", "c")
    record = Path(request_for["registry"], "records/test-agent.json")
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"format": 1, "units": [], "proof": {"release": "b", "previous": "a"}}))
    (root / "current").symlink_to("releases/b")
    assert ask("survey", request_for)[1]["previous_good"] == "a"
    ask("proof", request_for | {"release": "c"})
    (root / "current").unlink()
    (root / "current").symlink_to("releases/c")
    assert ask("survey", request_for)[1]["previous_good"] == "b"


def test_a_kept_state_keeps_its_floor_when_its_instance_is_taken_off(request_for: dict[str, Any]) -> None:
    seal(request_for, "a")
    record = Path(request_for["registry"], "records/test-agent.json")
    assert ask("forget", request_for)[1] == {"changed": False}
    ask("proof", request_for | {"release": "a"})
    before = record_of(request_for)
    assert ask("forget", request_for)[1] == {"changed": True}
    assert ask("forget", request_for)[1] == {"changed": False}
    kept = record_of(request_for)
    assert kept == {"units": [], "jobs": {}, "proof": {}} | {
        name: before[name] for name in ("history", "floor")
    }
    assert ask("forget", request_for | {"delete_state": True})[1] == {"changed": True}
    assert not record.exists()


@pytest.mark.parametrize(
    ("release", "verdict"),
    [
        ("0.10.0-aaaaaaaa-bbbbbbbb", "pass"),
        ("0.9.1-aaaaaaaa-bbbbbbbb", "refuse"),
        ("0.10.0rc1-aaaaaaaa-bbbbbbbb", "refuse"),
        ("strange", "refuse"),
    ],
)
def test_no_release_under_the_floor_is_put_over_a_state(
    request_for: dict[str, Any], release: str, verdict: str
) -> None:
    root = seal(request_for, "a")
    describe_release(root, "a", "0.10.0", "0.10.0")
    ask("proof", request_for | {"release": "a"})
    request = request_for | {"release": release}
    assert "floor" not in rows(ask("preflight", request)[1]), "there is no state to guard"
    store(request_for, work=1)
    assert outcome(request, "floor") == verdict


JOURNALED = ("operation", "run_id", "step", "outcome", "to", "from")


@pytest.mark.parametrize(
    ("journal", "told"),
    [
        (None, None),
        ("garbage", dict.fromkeys(JOURNALED)),
        ("[1]", dict.fromkeys(JOURNALED)),
        (
            '{"step": "migrate", "outcome": null, "from": "a", "to": "b", "backup": "x", "run_id": "y"}',
            {"operation": None, "run_id": "y", "step": "migrate", "outcome": None, "from": "a", "to": "b"},
        ),
        (
            json.dumps({"step": 7, "outcome": "upgraded", "from": "x" * 101, "to": ["b"]}),
            dict.fromkeys(JOURNALED) | {"outcome": "upgraded"},
        ),
    ],
)
def test_the_journal_of_an_upgrade_is_told_and_can_hold_anything(
    request_for: dict[str, Any], journal: str | None, told: dict[str, Any] | None
) -> None:
    state = write_identity(request_for) / "state"
    state.mkdir()
    if journal is not None:
        (state / "upgrade.json").write_text(journal)
    assert ask("survey", request_for)[1]["upgrade"] == told


def test_what_an_upgrade_left_is_told_and_comes_first(
    hostcheck: ModuleType, request_for: dict[str, Any]
) -> None:
    def told(purpose: str, outcome: str | None, active: str = "inactive") -> list[str]:
        checks = hostcheck.Checks()
        journal = {"step": "start", "outcome": outcome, "from": "a", "to": "b"}
        found = {"upgrade": journal, "service": {"active_state": active}, "untold": None}
        hostcheck.check_upgrade(checks, request_for | {"purpose": purpose}, found)
        assert all("a -> b" in row["observed"] for row in checks.rows)
        return [row["outcome"] for row in checks.rows]

    for purpose in ("install", "restore", "recover"):
        assert told(purpose, None) == ["refuse"]
    for purpose in ("status", "backup", "rehearse", "uninstall"):
        assert told(purpose, None) == ["attention"]
    for purpose in ("upgrade", "rollback", "configure"):
        assert told(purpose, None) == []
        assert told(purpose, "stopped") == ["attention"]
    assert told("restore", "stopped") == ["attention"]
    assert told("status", "stopped", "active") == []
    assert told("install", "upgraded") == []
    checks = hostcheck.Checks()
    nothing = {"upgrade": None, "service": None, "untold": None}
    hostcheck.check_upgrade(checks, request_for | {"purpose": "install"}, nothing)
    assert checks.rows == []


@pytest.mark.parametrize("text", ["", "{}", '{"step": "start", "from": "a"', '{"step": "start", "to": "b"}'])
def test_a_journal_that_does_not_say_how_it_stands_is_no_switch_to_go_on_with(
    request_for: dict[str, Any], text: str
) -> None:
    state = write_identity(request_for) / "state"
    state.mkdir()
    (state / "upgrade.json").write_text(text)
    for purpose in ("upgrade", "rollback", "configure", "install", "restore", "recover"):
        assert outcome(request_for | {"purpose": purpose}, "upgrade") == "refuse", purpose
    checks = ask("preflight", request_for | {"purpose": "rollback"})[1]["checks"]
    [found] = [check for check in checks if check["name"] == "upgrade"]
    assert found["observed"] == f"{state}/upgrade.json does not say how the last switch stands"
    assert "again" not in found["remedy"]
    assert outcome(request_for | {"purpose": "backup"}, "upgrade") == "attention"


def test_both_releases_of_an_unfinished_upgrade_are_kept(request_for: dict[str, Any]) -> None:
    root = seal(request_for, "a", "b", "c", "d")
    (root / "state").mkdir()
    request = request_for | {"release": "d", "keep": 1}
    for outcome, prunable in ((None, ["c"]), ("upgraded", ["a", "b", "c"])):
        journal = {"step": "start", "outcome": outcome, "from": "a", "to": "b"}
        (root / "state/upgrade.json").write_text(json.dumps(journal))
        assert ask("survey", request)[1]["prunable"] == prunable


def configured(
    request: dict[str, Any], outcome: str | None = "configured", operation: str = "configure"
) -> None:
    """The journal of a change that the run `1-a` made."""
    journal = {
        "operation": operation,
        "run_id": "1-a",
        "step": "done",
        "outcome": outcome,
        "from": "a",
        "to": "a",
    }
    (Path(request["root"]) / "state/upgrade.json").write_text(json.dumps(journal))


def test_a_change_of_the_configuration_is_untold_until_a_receipt_or_a_proof(
    request_for: dict[str, Any],
) -> None:
    root, request = seal(request_for, "a"), request_for | {"release": "a"}
    for folder in ("state", "receipts"):
        (root / folder).mkdir()

    def untold() -> object:
        return ask("survey", request)[1]["untold"]

    assert untold() is None
    for outcome, operation in (("resumed", "configure"), (None, "configure"), ("upgraded", "upgrade")):
        configured(request, outcome, operation)
        assert untold() is None
    configured(request)
    assert untold() == "1-a"
    row = rows(ask("preflight", request)[1])["upgrade"]
    assert (row["outcome"], "run 1-a changed the configuration" in row["observed"]) == ("attention", True)

    def receipt(number: int, run: object, **told: Any) -> None:
        found = {"operation": "configure", "run_id": run, "verdict": "done"} | told
        (root / f"receipts/{number:06}-configure.json").write_text(json.dumps(found))

    receipt(1, "another")
    assert untold() == "1-a"
    receipt(2, "by-hand", checks=[{"name": "run", "observed": "by hand; in the journal: 1-a"}])
    assert untold() is None
    receipt(3, "1-a")
    assert untold() is None
    receipt(4, "refused-since", verdict="refused")
    assert untold() == "1-a"
    receipt(5, ["1-a"], checks=[{"name": "run", "observed": ""}])
    assert untold() == "1-a", "it may hold anything"
    assert ask("proof", request)[0] == 0
    assert untold() is None
    assert "upgrade" not in rows(ask("preflight", request)[1])


def unit_row(hostcheck: ModuleType, request: dict[str, Any], path: Path, **found: Any) -> dict[str, str]:
    checks = hostcheck.Checks()
    facts = {
        "user": None,
        "unit": {"path": str(path), "sha256": hostcheck.sha256_of(path), "release": found.get("release")},
        "record": hostcheck.read_record(request),
        "releases": [{"id": name, "sealed": True} for name in found.get("sealed", [])],
        "upgrade": found.get("upgrade"),
    }
    hostcheck.check_unit(checks, request, facts)
    row: dict[str, str] = checks.rows[0]
    return row


def test_a_unit_is_known_by_roots_record_even_when_its_release_is_gone(
    hostcheck: ModuleType, request_for: dict[str, Any]
) -> None:
    unit = Path(request_for["root"]) / "state/x.service"
    unit.parent.mkdir(parents=True)
    request = request_for | {"path": str(unit), "text": "ExecStart=one\n", "mode": "0644"}
    ask("place", request)
    row = unit_row(hostcheck, request_for, unit, release="gone")
    assert row["outcome"] == "refuse"
    assert "ExecStart=one" in row["observed"]
    assert f"mv {unit} /root/" in row["remedy"]
    for text in ("ExecStart=one\n", "ExecStart=two\n", "ExecStart=two\n"):
        ask("place", request | {"text": text, "unit": True})
        assert unit_row(hostcheck, request_for, unit, release="gone")["outcome"] == "pass"
    unit.write_text("ExecStart=one\n")  # The run died between its record and its unit.
    assert unit_row(hostcheck, request_for, unit, release="gone")["outcome"] == "pass"
    unit.write_text("ExecStart=edited\n")
    assert unit_row(hostcheck, request_for, unit, release="gone")["outcome"] == "refuse"


def test_an_edited_unit_of_a_finished_release_is_put_back_and_not_removed(
    hostcheck: ModuleType, request_for: dict[str, Any]
) -> None:
    """An upgrade refuses an instance without a unit as well: the remedy would lead in a circle."""
    root = Path(request_for["root"])
    unit = root / "state/x.service"
    python = root / "releases/old/venv/bin/python"
    for path in (unit, python):
        path.parent.mkdir(parents=True)
    unit.write_text("ExecStart=one\n# mine\n")
    python.write_text("""#!/bin/sh\necho '{"refused": {"observed": ["-# mine"]}}'\nexit 3\n""")
    python.chmod(0o755)
    row = unit_row(hostcheck, request_for, unit, release="old", sealed=["old"])
    assert (row["outcome"], row["observed"]) == ("refuse", f"{unit}: -# mine")
    assert "put back what old writes" in row["remedy"]
    assert "mv " not in row["remedy"]


@pytest.mark.parametrize(("purpose", "outcome"), [("upgrade", "attention"), ("install", "refuse")])
def test_a_unit_that_a_switch_put_there_goes_on_with_its_release(
    hostcheck: ModuleType, request_for: dict[str, Any], purpose: str, outcome: str
) -> None:
    """Nobody is told to remove it; and what another switch left, or one that has ended, is a stranger's."""
    unit = Path(request_for["root"]) / "state/x.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("ExecStart=one\n")
    request = request_for | {"purpose": purpose}
    left = {"step": "start", "outcome": None, "to": "gone", "from": "old"}
    row = unit_row(hostcheck, request, unit, release="gone", upgrade=left)
    assert row["outcome"] == outcome
    assert "upgrade-stopped-half-way" in row["remedy"]
    for other in (left | {"to": "another"}, left | {"outcome": "stopped"}, None):
        row = unit_row(hostcheck, request, unit, release="gone", upgrade=other)
        assert (row["outcome"], "keep your copy" in row["remedy"]) == ("refuse", True)
    unreadable = dict.fromkeys(left)  # names no release, as a unit of others does
    assert unit_row(hostcheck, request, unit, upgrade=unreadable)["outcome"] == "refuse"


def test_an_account_without_a_readable_home_can_be_uninstalled_and_not_installed(
    hostcheck: ModuleType, request_for: dict[str, Any], tmp_path: Path
) -> None:
    found = {"user": {"uid": 1000, "home": str(tmp_path / "gone")}}
    for purpose, expected in (("install", "refuse"), ("status", "refuse"), ("uninstall", "attention")):
        checks = hostcheck.Checks()
        hostcheck.check_home(checks, request_for | {"purpose": purpose}, found)
        assert [row["outcome"] for row in checks.rows] == [expected]


@pytest.mark.parametrize(
    ("variable", "rule", "value", "good"),
    [
        ("release_keep", "count", "0", True),
        ("release_keep", "count", "3", True),
        ("release_keep", "count", "-1", False),
        ("release_python", "path or nothing", "", True),
        ("release_python", "path or nothing", "/usr/bin/python3.13", True),
        ("release_python", "path or nothing", "/opt/my python", False),
    ],
)
def test_numbers_and_optional_paths_are_well_formed(
    hostcheck: ModuleType, variable: str, rule: str, value: str, good: bool
) -> None:
    checks = hostcheck.Checks()
    assert hostcheck.check_inputs(checks, {"inputs": {variable: [rule, value]}}) is good
    assert good or variable in checks.rows[0]["observed"]


def store(request: dict[str, Any], **versions: int) -> Path:
    """A store of these components in a root that holds an instance."""
    path = write_identity(request) / "state/agent.sqlite"
    path.parent.mkdir(exist_ok=True)
    with contextlib.closing(sqlite3.connect(path, autocommit=True)) as made:
        made.execute("PRAGMA journal_mode = WAL")
        made.execute("CREATE TABLE meta (component TEXT PRIMARY KEY, version INTEGER)")
        made.executemany("INSERT INTO meta VALUES (?, ?)", versions.items())
    return path


@pytest.mark.parametrize(
    ("schema", "verdict", "said"),
    [
        ({"work": 3, "orders": 1}, "pass", "is not newer"),
        ({"work": 4, "orders": 1, "usage": 1}, "pass", "is not newer"),
        ({"work": 2, "orders": 1}, "refuse", "work 3 (this release understands 2)"),
        ({"work": 3}, "refuse", "orders 1 (this release understands none)"),
    ],
)
def test_a_store_that_a_release_not_yet_there_would_refuse_is_found_before_it_is_built(
    request_for: dict[str, Any], schema: dict[str, int], verdict: str, said: str
) -> None:
    path = store(request_for, work=3, orders=1)
    before = path.read_bytes()
    row = rows(ask("preflight", request_for | {"schema": schema})[1])["store"]
    assert row["outcome"] == verdict
    assert said in row["observed"]
    assert path.read_bytes() == before


def test_a_store_that_is_none_is_refused_and_an_installed_release_is_asked_itself(
    request_for: dict[str, Any],
) -> None:
    store(request_for, work=3).write_bytes(b"not a database, though it is long enough to be one" * 20)
    request = request_for | {"schema": {"work": 3}}
    row = rows(ask("preflight", request)[1])["store"]
    assert row["outcome"] == "refuse"
    assert "file is not a database" in row["observed"]
    seal(request_for, request_for["release"])
    assert "store" not in rows(ask("preflight", request)[1])


@pytest.mark.parametrize(
    ("text", "version"), [("systemd 257 (257.8-1~deb13u2)\n+PAM", 257), ("systemd 249.11", 249), ("", 0)]
)
def test_the_version_of_systemd_is_read(hostcheck: ModuleType, text: str, version: int) -> None:
    assert hostcheck.systemd_version(text) == version


def installed(request: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A survey of a host on which the target release is installed, proven and running, with changes."""
    release, root = request["release"], request["root"]
    found = {
        "current": release,
        "proven": release,
        "untold": None,
        "user": {"name": "lucy"},
        "receipts": {"last": {"verdict": "done", "release_after": release}, "pending": 0},
        "unit": {"sha256": "ab", "modified_at": 50.0, "release": release, "is_wanted": True},
        "paths": {f"{root}/state/agent.env": {"modified_at": 60.0}, f"{root}/releases": {}, root: {}},
        "service": {
            "active_state": "active",
            "sub_state": "running",
            "release": release,
            "started_at": 100.0,
            "reload_needed": False,
            "enabled": True,
            "main_pid": 7,
        },
        "manager": True,
        "lingering_ours": True,
        "other_instances": [],
        "releases": [{"id": release, "sealed": True}],
        "helper_sha256": "cd",
        "registered": {},
        "jobs": {},
    }
    return found | changes


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, []),
        ({"current": "older"}, ["current"]),
        ({"proven": None}, ["no run"]),
        ({"receipts": {"last": None, "pending": 0}}, ["last receipt"]),
        (
            {"receipts": {"last": {"verdict": "failed", "release_after": "0.1.0-aaaaaaaa-bbbbbbbb"}}},
            ["last receipt"],
        ),
        ({"receipts": {"last": {"verdict": "done", "release_after": "older"}}}, ["last receipt"]),
        ({"current": None, "proven": None}, ["current", "no run"]),
        ({"untold": "1-a"}, ["never told"]),
    ],
)
def test_what_is_not_on_record_is_proven_anew(
    hostcheck: ModuleType, request_for: dict[str, Any], changes: dict[str, Any], why: list[str]
) -> None:
    reasons = hostcheck.unproven(installed(request_for, **changes), request_for)
    assert len(reasons) == len(why)
    assert all(word in reason for word, reason in zip(why, reasons, strict=True))


@pytest.mark.parametrize(
    ("service", "changes", "differs"),
    [
        ({}, {}, {}),
        ({"release": "older"}, {}, {"restart": True}),
        ({"started_at": 55.0}, {"proven": "older"}, {"restart": True}),
        ({"started_at": 55.0}, {}, {}),  # proven with these files: a clock was set back
        ({"started_at": 61.0}, {"proven": None}, {}),
        ({"active_state": "activating"}, {}, {"up": False}),
        ({"sub_state": "auto-restart"}, {}, {"up": False}),
        ({"reload_needed": True, "enabled": False}, {}, {"reload": True, "enable": True}),
    ],
)
def test_a_process_is_started_again_when_it_is_older_than_what_it_should_run(
    hostcheck: ModuleType,
    request_for: dict[str, Any],
    service: dict[str, Any],
    changes: dict[str, Any],
    differs: dict[str, Any],
) -> None:
    found = installed(request_for, **changes)
    found["service"] |= service
    good = {"up": True, "restart": False, "reload": False, "enable": False, "pid": 7}
    assert hostcheck.start_plan(found, request_for) == good | differs


def test_without_a_manager_everything_is_to_be_started(
    hostcheck: ModuleType, request_for: dict[str, Any]
) -> None:
    plan = hostcheck.start_plan(installed(request_for, service=None), request_for)
    assert plan == {"up": False, "restart": True, "reload": False, "enable": True, "pid": 0}


def test_an_uninstall_knows_what_there_is_to_do(hostcheck: ModuleType, request_for: dict[str, Any]) -> None:
    plan = hostcheck.removal_plan(installed(request_for), request_for)
    assert plan == {
        "unit": True,
        "running": True,
        "enabled": True,
        "wanted": False,
        "delete": False,
        "lingering": True,
        "releases": [request_for["release"]],
        "job_files": [],
        "job_timers": [],
        "needed": True,
    }
    found = installed(request_for, service=None, manager=False, other_instances=["second"])
    plan = hostcheck.removal_plan(found, request_for | {"delete_state": True})
    assert (plan["running"], plan["wanted"], plan["delete"], plan["lingering"]) == (False, True, True, False)
    found |= {"current": None, "helper_sha256": None, "registered": None}
    found["unit"] |= {"sha256": None}
    found["paths"][f"{request_for['root']}/releases"] = None
    files = {"files": {"/a/x.service": "ef", "/a/x.timer": None}, "enabled": False, "active": True}
    jobs = hostcheck.removal_plan(found | {"jobs": {"backup": files}}, request_for)
    assert (jobs["job_files"], jobs["job_timers"], jobs["needed"]) == (
        ["/a/x.service"],
        ["test-agent-backup.timer"],
        True,
    )
    assert hostcheck.removal_plan(found, request_for)["needed"] is False
    assert hostcheck.removal_plan(found, request_for | {"delete_state": True})["needed"] is True


HEALTHY: dict[str, Any] = {
    "attention": [],
    "last_backup": {"path": "b/2", "made_at": "T", "age_seconds": 7_200, "verified": True},
    "last_rehearsal": {"path": "b/1", "at": "T", "age_seconds": 3_600, "ok": False},
}


def test_a_status_says_what_is_there_and_what_asks_for_a_person(
    hostcheck: ModuleType, request_for: dict[str, Any]
) -> None:
    last = {"sequence": 3, "operation": "install", "verdict": "done", "finished_at": "T"}
    found = installed(request_for, receipts={"last": last, "pending": 1})
    assert hostcheck.status_attention(request_for, found, (0, HEALTHY, "")) == []
    told = hostcheck.status_report(request_for, found, 0, HEALTHY)
    assert [line.split()[0] for line in told] == [
        *("instance", "release", "unit", "health", "backup", "rehearsal", "deployed", "receipts")
    ]
    assert "health    nothing needs attention" in told
    assert "backup    b/2 of T, 2.0 h old, verified" in told
    assert "rehearsal FAILED, 1.0 h old: b/1" in told
    assert told[-2:] == ["deployed  3 install done T", "receipts  1 pending"]
    paused = hostcheck.status_report(request_for, found, 4, {"paused": True, "reason": "restored"})
    assert "health    attention, PAUSED: restored" in paused


@pytest.mark.parametrize(
    ("changes", "asked", "said"),
    [
        ({"current": None}, (-1, {}, ""), "release: nothing is installed"),
        ({"service": None}, (0, {}, ""), "unit: it is not active"),
        ({"current": "newer"}, (0, {}, ""), "release: current, unit and process are not one"),
        (
            {},
            (4, {"attention": [{"rule": "paused", "observed": "since T", "remedy": "recover"}]}, "x"),
            "health: paused: since T. To do: recover",
        ),
        ({}, (3, {}, "the store is newer"), "health: the store is newer. To do: test-agent health"),
        ({}, (124, {}, ""), "health: exit 124"),
    ],
)
def test_a_status_names_what_to_do(
    hostcheck: ModuleType,
    request_for: dict[str, Any],
    changes: dict[str, Any],
    asked: tuple[int, dict[str, Any], str],
    said: str,
) -> None:
    (line,) = hostcheck.status_attention(request_for, installed(request_for, **changes), asked)
    assert line.startswith(said)


def test_a_status_has_the_facts_of_a_line_in_a_table(
    hostcheck: ModuleType, request_for: dict[str, Any]
) -> None:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 90))
    release = request_for["release"]
    judged = [{"release": name, "verdict": "good", "at": at} for name in (release, "older")]
    found = installed(request_for, record={"history": judged}, upgrade=None)
    health = {
        "paused": False,
        "schema_versions": {"work": 3, "orders": 2},
        "understood_versions": {"work": 5, "orders": 2, "usage": 1},
        "oldest_ready_seconds": None,
        "oldest_running_seconds": 7.0,
        "last_backup": {"age_seconds": 60.0},
        "last_rehearsal": None,
    }
    row = hostcheck.status_row(request_for, found, health)
    assert (row["release"], row["running"], row["schema_due"]) == (release, release, 3)
    assert (row["oldest_work"], row["backup_age"], row["rehearsal_age"]) == (7.0, 60.0, None)
    assert 89 < row["canary_age"] < 95
    assert hostcheck.status_row(request_for, found, {})["schema"] is None


def test_what_stops_a_roll_are_rules_of_health(hostcheck: ModuleType) -> None:
    assert {rule.__name__ for rule in RULES} >= hostcheck.UNWELL


def test_a_status_of_a_bare_host_asks_nobody(request_for: dict[str, Any]) -> None:
    _, answer = ask("status", request_for | {"purpose": "status"})
    assert "ATTENTION release: nothing is installed. To do: playbooks/install.yml" in answer["attention"]
    assert answer["report"][0].startswith("instance  test-agent")
    request_for["inputs"]["instance_root"] = ["path", "here"]
    code, answer = ask("status", request_for)
    assert (code, answer["report"], answer["row"]) == (4, [], {"instance": "test-agent"})
    assert answer["attention"][0].startswith("ATTENTION input: instance_root")


def test_the_units_of_the_jobs_are_known_by_roots_record(
    hostcheck: ModuleType, request_for: dict[str, Any]
) -> None:
    unit = Path(request_for["root"]) / "state/test-agent-backup.timer"
    unit.parent.mkdir(parents=True)
    request = request_for | {"path": str(unit), "mode": "0644", "unit": "job"}

    def judged(purpose: str = "backup") -> list[str]:
        checks = hostcheck.Checks()
        digest = hostcheck.sha256_of(unit)
        found = {
            "jobs": {"backup": {"files": {str(unit): digest}}},
            "record": hostcheck.read_record(request_for),
        }
        hostcheck.check_jobs(checks, request_for | {"purpose": purpose}, found)
        return [row["outcome"] for row in checks.rows]

    assert judged() == []
    for text in ("[Timer]\nOnCalendar=daily\n", "[Timer]\nOnCalendar=weekly\n"):
        assert ask("place", request | {"text": text})[1]["changed"] is True
        assert judged() == []
    assert hostcheck.read_record(request_for)["units"] == []
    unit.write_text("[Timer]\nOnCalendar=hourly\n")
    assert [judged(purpose) for purpose in ("backup", "install", "uninstall", "restore", "status")] == [
        *(["refuse"], ["refuse"], ["refuse"], ["attention"], ["attention"])
    ]
    unit.unlink()
    unit.symlink_to("/dev/null")
    assert judged() == ["refuse"]


def test_a_release_that_a_job_runs_is_not_pruned(hostcheck: ModuleType, request_for: dict[str, Any]) -> None:
    seal(request_for, "a", "b", "c", "d", "e")
    found = ask("survey", request_for)[1]
    assert "a" in found["prunable"]
    found["jobs"]["backup"]["release"] = "a"
    assert "a" not in hostcheck.prunable(found, request_for)


@pytest.mark.parametrize("missing", ["user", "current", "manager"])
def test_what_is_done_to_an_instance_needs_one(
    hostcheck: ModuleType, request_for: dict[str, Any], missing: str
) -> None:
    for found, expected in (
        (installed(request_for), "pass"),
        (installed(request_for, **{missing: None}), "refuse"),
    ):
        checks = hostcheck.Checks()
        hostcheck.check_installed(checks, request_for, found)
        assert [row["outcome"] for row in checks.rows] == [expected]


def test_the_newest_receipt_of_each_operation_is_told_with_what_was_observed(
    request_for: dict[str, Any],
) -> None:
    receipts = write_identity(request_for) / "receipts"
    receipts.mkdir()
    seen = [{"name": "epoch", "outcome": "pass", "observed": "e2"}]
    for number, operation, checks in ((1, "restore", []), (2, "restore", seen), (3, "install", "odd")):
        (receipts / f"{number:06d}-{operation}-0a.json").write_text(
            json.dumps({"operation": operation, "sequence": number, "verdict": "done", "checks": checks})
        )
    answer = ask("survey", request_for)[1]["receipts"]
    assert answer["newest"]["restore"]["sequence"] == 2
    assert answer["newest"]["restore"]["seen"] == {"epoch": "e2"}
    assert answer["newest"]["install"]["seen"] == {}
    assert answer["last"]["sequence"] == 3


def test_what_brought_the_service_to_its_release_is_told_whatever_came_of_later_runs(
    request_for: dict[str, Any],
) -> None:
    receipts = write_identity(request_for) / "receipts"
    receipts.mkdir()
    runs = [
        ("install", "done", None, "a"),
        ("upgrade", "done", "a", "b"),
        ("rollback", "done", "b", "a"),
        ("rollback", "refused", "a", "a"),
        ("upgrade", "failed", "a", "a"),
        ("install", "done", "a", "a"),
        ("backup", "done", "a", "a"),
        (["odd"], "done", 1, {}),
    ]
    moved = []
    for number, (operation, verdict, before, after) in enumerate(runs, 1):
        told = {"operation": operation, "verdict": verdict, "release_before": before, "release_after": after}
        (receipts / f"{number:06d}-x-0a.json").write_text(json.dumps({**told, "sequence": number}))
        moved.append(ask("survey", request_for)[1]["receipts"]["moved"]["sequence"])
    assert moved == [1, 2, 3, 3, 3, 3, 3, 3]


def test_a_file_is_set_out_for_the_login_alone_and_taken_away(request_for: dict[str, Any]) -> None:
    source = write_identity(request_for) / "snapshot.sqlite"
    source.write_bytes(os.urandom(3_000_017))
    request = request_for | {"path": str(source), "login": USER}
    for _ in range(2):  # what a run that died left is replaced
        answer = ask("stage", request)[1]
        copy = Path(answer["path"])
        assert copy.read_bytes() == source.read_bytes()
        assert (answer["sha256"], answer["bytes"]) == (
            hashlib.sha256(source.read_bytes()).hexdigest(),
            3_000_017,
        )
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert ask("unstage", request_for)[1] == {"changed": True}
    assert not copy.parent.exists()
    assert ask("unstage", request_for)[1] == {"changed": False}
    code, answer = ask("stage", request | {"path": f"{source}.gone"})
    assert (code, answer["refused"]["code"]) == (3, "unreadable")
    assert list(copy.parent.iterdir()) == []


@needs_root
def test_what_is_set_out_is_read_as_the_service_user(request_for: dict[str, Any]) -> None:
    """A link to a file of root's, planted in a folder of theirs, is not followed with root's rights."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        secret = folder / "secret"
        secret.write_text("root's alone")
        secret.chmod(0o600)
        (folder / "snapshot.sqlite").symlink_to(secret)
        request = {"user": "nobody", "login": "root", "path": str(folder / "snapshot.sqlite")}
        code, answer = ask("stage", request_for | request)
    assert code == 3
    assert "Permission denied" in answer["refused"]["observed"]


STEADY = {"active_state": "active", "sub_state": "running", "main_pid": 7, "n_restarts": 2, "exit_code": 0}


@pytest.mark.parametrize(
    ("now", "pid", "trouble"),
    [
        ({}, 7, None),
        ({"active_state": "failed", "sub_state": "failed", "exit_code": 1}, 7, "the service is failed"),
        ({"active_state": "activating", "sub_state": "auto-restart"}, 7, "is activating (auto-restart"),
        ({"main_pid": 8, "n_restarts": 3}, 7, "process 8 in the place of 7, 3 restarts"),
        ({}, 6, "process 7 in the place of 6"),  # since the canary's process, not only since the first look
    ],
)
def test_a_watched_service_that_is_not_what_it_was_is_trouble(
    hostcheck: ModuleType, now: dict[str, Any], pid: int, trouble: str | None
) -> None:
    seen = hostcheck.unsteady(STEADY, STEADY | now, pid)
    assert (seen is None) if trouble is None else trouble in seen


def test_a_watch_ends_at_the_first_trouble_and_else_asks_for_health(
    hostcheck: ModuleType, request_for: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [STEADY, STEADY, STEADY | {"active_state": "failed"}]
    monkeypatch.setattr(hostcheck, "WATCH_EVERY", 0.01)
    monkeypatch.setattr(hostcheck, "service_facts", lambda *_: seen.pop(0))
    asked: list[str] = []

    def held(*_: object) -> tuple[int, dict[str, Any], str]:
        asked.append("health")
        return 4, HELD, ""

    monkeypatch.setattr(hostcheck, "ask_health", held)
    assert hostcheck.watch(request_for | {"seconds": 60}) == (
        {"changed": False, "trouble": "the service is failed (running, exit 0)"},
        4,
    )
    assert (seen, asked) == ([], [])
    seen.extend([STEADY] * 2)
    answer, code = hostcheck.watch(request_for | {"seconds": 0, "pid": 7})
    assert (answer["trouble"], code) == ("health: ready_old: 901 s", 4)


HELD = {"attention": [{"rule": "backup_old"}, {"rule": "ready_old", "observed": "901 s"}]}


def test_a_health_that_only_waits_for_a_person_does_not_stop_a_roll(hostcheck: ModuleType) -> None:
    assert hostcheck.unwell((4, {"attention": [{"rule": "backup_old"}]}, "")) is None
    assert hostcheck.unwell((0, {}, "")) is None
    assert hostcheck.unwell((3, {}, "store_absent")) == "health: store_absent"
