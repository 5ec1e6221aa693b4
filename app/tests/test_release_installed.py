"""A real installation of this project's own release, step by step as on a host, without the network."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from standfast.layout import Layout
from standfast.release.build import BuildResult, Request, build
from standfast.release.installed import releases
from standfast.release.verify import ReleaseVerification, verify

ROOT = Path(__file__).resolve().parents[2]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass
class Installation:
    """A release folder on its way from unpacked to sealed."""

    root: Path
    manifest: dict[str, object]

    @property
    def python(self) -> str:
        return str(self.root / "venv/bin/python")

    @property
    def package(self) -> Path:
        return next((self.root / "venv/lib").glob("python3*/site-packages/standfast"))

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a step as on a host: no variables of ours, the worst umask."""
        environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PIP_CONFIG_FILE": os.devnull}
        return subprocess.run(
            command, env=environment, cwd="/", umask=0o077, capture_output=True, text=True, check=False
        )

    def step(self, *command: str) -> None:
        done = self.run(*command)
        assert done.returncode == 0, done.stderr

    def unpack(self, archive: str) -> None:
        self.root.mkdir(parents=True)
        options = ["--no-same-owner", "--same-permissions"]
        self.step("tar", "--extract", "--file", archive, "--directory", str(self.root), *options)

    def make_venv(self) -> None:
        self.step(sys.executable, "-I", "-m", "venv", "--without-pip", str(self.root / "venv"))

    def install(self) -> None:
        pip = [self.python, "-I", "-B", f"{self.root}/{self.manifest['installer']}/pip", "--isolated"]
        self.step(
            *(*pip, "--disable-pip-version-check", "install", "--no-input", "--no-index"),
            *("--find-links", f"{self.root}/wheels", "--require-hashes", "--no-deps", "--only-binary=:all:"),
            *("--no-compile", "--no-cache-dir", "--root-user-action", "ignore"),
            *("-r", f"{self.root}/requirements.lock", "-r", f"{self.root}/app.lock"),
        )

    def compile(self) -> None:
        mode = ["--invalidation-mode", "unchecked-hash"]
        self.step(self.python, "-I", "-B", "-m", "compileall", "-q", *mode, f"{self.root}/venv/lib")

    def protect(self) -> None:
        self.step("chmod", "-R", "u=rwX,go=rX", str(self.root))

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self.run(self.python, "-I", "-B", "-m", "standfast", "--json", *arguments)

    def seal(self, *options: str) -> tuple[int, dict[str, object]]:
        done = self.command(*options, "release", "seal", str(self.root))
        return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    folder = tmp_path_factory.mktemp("dist")
    request = Request(repository=ROOT, pythons=(PYTHON,), output=folder, allow_dirty=True)
    return build(request, lambda _: None)


def prepared(built: BuildResult, root: Path) -> Installation:
    manifest = built.manifest.model_dump(mode="json")
    installation = Installation(root / "releases" / built.release_id, manifest)
    installation.unpack(built.archive)
    return installation


@pytest.fixture(scope="module")
def installed(built: BuildResult, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Installed and sealed; tests put back whatever they change."""
    installation = prepared(built, tmp_path_factory.mktemp("instance"))
    installation.make_venv()
    installation.install()
    installation.compile()
    code, refused = installation.seal()
    assert (code, refused["refused"]["code"]) == (3, "release_differs"), refused  # type: ignore[index]
    installation.protect()
    before = time.monotonic()
    code, sealed = installation.seal()
    assert code == 0, sealed
    assert sealed["changed"]
    assert time.monotonic() - before < 60
    return installation


def problems(found: ReleaseVerification) -> set[tuple[str, str]]:
    return {(difference.path, difference.problem) for difference in found.differences}


def relative(installation: Installation, path: Path) -> str:
    return str(path.relative_to(installation.root))


@contextmanager
def bytes_of(path: Path, data: bytes) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(before)


def test_a_sealed_release_verifies_by_itself(installed: Installation, built: BuildResult) -> None:
    done = installed.command("release", "verify", "--installed", str(installed.root))
    found = json.loads(done.stdout)
    assert (done.returncode, found["kind"], found["release_id"]) == (0, "installed", built.release_id), found
    version = installed.run(installed.python, "-I", "-B", "-m", "standfast", "--version").stdout
    assert version == f"standfast {built.manifest.version} ({built.release_id})\n"


def test_the_seal_says_what_was_installed(installed: Installation) -> None:
    seal = json.loads((installed.root / "installed.json").read_text())
    assert seal["python"].startswith(f"{PYTHON}.")
    assert seal["interpreter"] == os.path.realpath(sys.executable)
    assert seal["files"]["venv/lib64"] == "-> lib"
    assert "venv/pyvenv.cfg" in seal["files"]
    assert len(seal["files"]) > 1000
    assert not any(path.endswith("pip/__init__.py") for path in seal["files"])
    assert (installed.root / "installed.json").stat().st_mode & 0o777 == 0o644


def test_using_a_release_does_not_change_it(installed: Installation) -> None:
    assert installed.run(installed.python, "-I", "-m", "standfast", "release", "--help").returncode == 0
    assert verify(installed.root).verified


def test_sealing_again_changes_nothing(installed: Installation) -> None:
    before = (installed.root / "installed.json").read_bytes()
    code, again = installed.seal()
    assert (code, again["changed"]) == (0, False)
    assert (installed.root / "installed.json").read_bytes() == before


def test_every_kind_of_change_is_named(installed: Installation) -> None:
    module = installed.package / "errors.py"
    compiled = next((installed.package / "__pycache__").glob("errors.*.pyc"))
    script = installed.root / "venv/bin/standfast"
    for path in (module, compiled, script):
        data = path.read_bytes()
        with bytes_of(path, data[:-1] + bytes([data[-1] ^ 1])):
            assert problems(verify(installed.root)) == {(relative(installed, path), "changed")}
    with bytes_of(installed.root / "requirements.lock", b""):
        assert ("requirements.lock", "truncated") in problems(verify(installed.root))
    assert verify(installed.root).verified


def test_a_changed_byte_is_refused_by_the_release_itself(installed: Installation) -> None:
    path = installed.package / "errors.py"
    with bytes_of(path, path.read_bytes() + b"#"):
        done = installed.command("release", "verify", "--installed", str(installed.root))
        assert done.returncode == 4
        (difference,) = json.loads(done.stdout)["differences"]
        assert difference["path"] == relative(installed, path)
        code, refused = installed.seal()
        assert (code, refused["refused"]["code"]) == (3, "release_differs")  # type: ignore[index]


def test_missing_extra_and_replaced_files_are_named(installed: Installation) -> None:
    path = installed.package / "errors.py"
    kept = path.with_name("kept")
    path.rename(kept)
    assert problems(verify(installed.root)) == {
        (relative(installed, path), "missing"),
        (relative(installed, kept), "extra"),
    }
    path.symlink_to("kept")
    assert (relative(installed, path), "changed") in problems(verify(installed.root))
    path.unlink()
    os.mkfifo(path)
    assert (relative(installed, path), "changed") in problems(verify(installed.root))
    path.unlink()
    kept.rename(path)
    (installed.root / "notes.txt").touch(0o644)
    assert problems(verify(installed.root)) == {("notes.txt", "extra")}
    (installed.root / "notes.txt").unlink()
    assert verify(installed.root).verified


def test_what_others_may_write_or_the_service_cannot_read_is_named(installed: Installation) -> None:
    package = installed.package
    for path in (installed.root, package, package / "errors.py", installed.root / "installed.json"):
        before = path.stat().st_mode & 0o7777
        for mode, problem in ((before | 0o020, "writable"), (before & ~0o004, "unreadable")):
            path.chmod(mode)
            assert problems(verify(installed.root)) == {(relative(installed, path), problem)}
        path.chmod(before)
    assert verify(installed.root).verified


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_another_user_is_named(installed: Installation) -> None:
    path = installed.package / "errors.py"
    os.chown(path, 12345, -1)
    assert problems(verify(installed.root)) == {(relative(installed, path), "owner")}
    os.chown(path, 0, -1)


def test_a_damaged_seal_and_a_vanished_interpreter_are_named(installed: Installation) -> None:
    path = installed.root / "installed.json"
    seal = json.loads(path.read_text())
    for damaged in (b"", b"{}", json.dumps({**seal, "format": 2}).encode()):
        with bytes_of(path, damaged):
            assert problems(verify(installed.root)) == {("installed.json", "malformed")}
    with bytes_of(path, json.dumps({**seal, "release_id": "other"}).encode()):
        assert problems(verify(installed.root)) == {("installed.json", "release_id")}
    with bytes_of(path, json.dumps({**seal, "interpreter": "/nowhere/python3"}).encode()):
        assert problems(verify(installed.root)) == {("venv/bin/python", "interpreter")}


def test_a_moved_release_is_named(installed: Installation, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(installed.root, moved, symlinks=True)
    assert ("elsewhere", "misplaced") in problems(verify(moved))


def test_a_release_is_sealed_only_by_its_own_python(
    built: BuildResult, installed: Installation, tmp_path: Path
) -> None:
    other = prepared(built, tmp_path)
    done = installed.command("release", "seal", str(other.root))
    assert json.loads(done.stdout)["refused"]["code"] == "release_elsewhere"
    assert not (other.root / "installed.json").exists()
    assert installed.command("release", "seal", str(tmp_path / "nowhere")).returncode == 2


def test_the_list_names_every_release(installed: Installation, tmp_path: Path) -> None:
    root = installed.root.parents[1]
    layout = Layout(root / "state")
    (installed.root.parent / "0.0.9-aaaaaaaa-bbbbbbbb" / "venv").mkdir(parents=True)
    (installed.root.parent / ".incoming").mkdir()
    layout.current.symlink_to(f"releases/{installed.root.name}")
    try:
        done = installed.run(
            *(installed.python, "-I", "-B", "-m", "standfast"),
            *("--state", str(layout.state), "--json", "release", "list"),
        )
        good, half = json.loads(done.stdout)["releases"]
    finally:
        shutil.rmtree(installed.root.parent / "0.0.9-aaaaaaaa-bbbbbbbb")
        (installed.root.parent / ".incoming").rmdir()
        layout.current.unlink()
    assert (good["id"], good["sealed"], good["current"]) == (installed.root.name, True, True)
    assert good["pythons"] == [PYTHON]
    assert good["installed_at"].endswith("Z")
    assert (half["id"], half["sealed"], half["current"]) == ("0.0.9-aaaaaaaa-bbbbbbbb", False, False)
    assert half["why_not"] == "its installation was never finished"
    assert releases(Layout(tmp_path / "nowhere/state")) == []


def test_a_whole_release_that_knows_the_store_may_be_rolled_back_to(
    installed: Installation, tmp_path: Path
) -> None:
    state = installed.root.parents[1] / "state"
    record = tmp_path / "record.json"
    judged = {"release": installed.root.name, "at": "2026-03-01T06:00:00Z", "verdict": "good"}
    record.write_text(json.dumps({"history": [judged]}))

    def listed() -> dict[str, object]:
        done = installed.command("--state", str(state), "release", "list", "--record", str(record))
        [found] = json.loads(done.stdout)["releases"]
        assert isinstance(found, dict)
        return found

    state.mkdir(mode=0o700)
    try:
        assert "there is no store" in str(listed()["why_not"])
        assert installed.command("--state", str(state), "init").returncode == 0
        found = listed()
        assert (found["may_roll_back"], found["why_not"], found["verdict"]) == (True, None, "good")
        assert found["schema"] == installed.manifest["schema"]
        module = installed.package / "clock.py"
        with bytes_of(module, module.read_bytes() + b"\n"):
            found = listed()
        assert (found["understands_store"], found["may_roll_back"]) == (True, False)
        assert found["why_not"] == f"it was altered since: {relative(installed, module)} changed"
    finally:
        shutil.rmtree(state)


@pytest.fixture(scope="module")
def unsealed(built: BuildResult, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Everything but the seal; each test puts back what it changes, and none seals it."""
    installation = prepared(built, tmp_path_factory.mktemp("unsealed"))
    installation.make_venv()
    assert ("installed.json", "half-made") in problems(verify(installation.root))
    installation.install()
    installation.protect()
    return installation


def test_killed_before_its_seal_it_is_half_made(unsealed: Installation) -> None:
    command = [unsealed.python, "-I", "-B", "-m", "standfast", "release", "seal", str(unsealed.root)]
    for delay in (0.02, 0.1, 0.2):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        time.sleep(delay)
        assert process.poll() is None, "it was sealed before it could be killed"
        process.kill()
        process.wait()
        assert problems(verify(unsealed.root)) == {("installed.json", "half-made")}
        assert not verify(unsealed.root, must_be_installed=True).verified


def test_check_proves_it_and_writes_nothing(unsealed: Installation) -> None:
    code, planned = unsealed.seal("--check")
    assert (code, planned["changed"]) == (0, True)
    assert not (unsealed.root / "installed.json").exists()


def test_a_module_that_does_not_import_is_named(unsealed: Installation) -> None:
    for name, body in (("broken", "import nowhere\n"), ("leaving", "raise SystemExit(0)\n")):
        path = unsealed.package / "work" / f"{name}.py"
        path.write_text(body)
        code, refused = unsealed.seal()
        path.unlink()
        assert (code, refused["refused"]["code"]) == (3, "release_unproven")  # type: ignore[index]
        assert f"standfast.work.{name}" in str(refused["refused"])


def test_a_package_that_the_lock_does_not_name_is_named(unsealed: Installation) -> None:
    packages = unsealed.package.parent
    (packages / "stray-1.0.dist-info").mkdir()
    (packages / "stray-1.0.dist-info" / "METADATA").write_text("Name: stray\nVersion: 1.0\n")
    tzdata = next(packages.glob("tzdata-*.dist-info"))
    tzdata.rename(packages / "gone")
    code, refused = unsealed.seal()
    (packages / "gone").rename(tzdata)
    shutil.rmtree(packages / "stray-1.0.dist-info")
    assert (code, refused["refused"]["code"]) == (3, "release_unproven")  # type: ignore[index]
    assert "stray is 1.0" in str(refused["refused"])
    assert "tzdata is not installed" in str(refused["refused"])


def test_a_changed_wheel_or_lock_is_refused_before_the_seal(unsealed: Installation) -> None:
    with bytes_of(unsealed.root / "requirements.lock", b"# nothing\n"):
        code, refused = unsealed.seal()
    assert (code, refused["refused"]["code"]) == (3, "release_differs")  # type: ignore[index]
    assert "requirements.lock" in str(refused["refused"])


def test_pip_refuses_a_changed_wheel_naming_it_and_a_missing_one(built: BuildResult, tmp_path: Path) -> None:
    installation = prepared(built, tmp_path)
    installation.make_venv()
    wheel = next((installation.root / "wheels").glob("typer-*.whl"))
    data = wheel.read_bytes()
    wheel.write_bytes(data[:5000] + b"\0" + data[5001:])
    with pytest.raises(AssertionError, match="typer"):
        installation.install()
    wheel.unlink()
    with pytest.raises(AssertionError, match="typer"):
        installation.install()
    assert problems(verify(installation.root)) >= {
        (relative(installation, wheel), "missing"),
        ("installed.json", "half-made"),
    }
