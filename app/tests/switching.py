"""An instance with two installed releases, the service of one running, for tests of upgrade and rollback.

The releases are real: a venv each, whose interpreter runs this tree or a changed copy of it, with manifest
and seal. The service is a real process. Only the user's systemd manager is a test double
(`double/systemctl`); the molecule scenarios have the real one.
"""

import hashlib
import json
import os
import py_compile
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from releases import manifest
from support import Instance

import standfast
from standfast.layout import Layout
from standfast.operations.schema import understood
from standfast.release import installed
from standfast.release.installed import Seal
from standfast.release.lock import Pin, render
from standfast.release.manifest import APP_LOCK, LOCK, FileEntry, sha256

TESTS = Path(__file__).parent
PACKAGE = Path(standfast.__file__).parent
UNIT = "lucy-agent.service"
MIGRATION = '("CREATE TABLE notes (id TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT",{more}),'
_SHOP = (
    '            """,\n        ),\n    ),\n)',
    '            """,\n        ),\n        {migration}\n    ),\n)',
)
UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH
NEWER = understood() | {"shop": 2}

type Edit = tuple[str, str, str]
"""A file of the package, what is there once, what comes in its place."""


def migrating(more: str = "") -> Edit:
    """A release that adds a table, and does `more` (statements in quotes, with commas)."""
    return ("shop/schema.py", _SHOP[0], _SHOP[1].format(migration=MIGRATION.format(more=more)))


CRASHING: Edit = ("serve/service.py", "    to_stderr(environment)\n", "    raise SystemExit(3)\n")
IDLE: Edit = ("serve/service.py", "did = self._work() if self._may_work() else False", "did = False")
_READY = "        self._notifier.ready()\n"
_STEALS = '        self._connection.execute("UPDATE stock_events SET delta = delta - 1")\n'
STEALING: Edit = ("serve/service.py", _READY, _STEALS + _READY)


@dataclass
class Ran:
    """How a switch ended."""

    code: int
    result: dict[str, Any]
    points: list[str]
    error: str

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


@dataclass
class Host:
    """One root with its releases, and the double of the manager."""

    root: Path
    releases: dict[str, str] = field(default_factory=dict)
    """Name -> release id."""

    @property
    def hog(self) -> Path:
        """The file that takes all the room of the disk that the instance is on."""
        return self.root / "hog"

    @property
    def layout(self) -> Layout:
        return Layout(self.root / "state")

    @property
    def instance(self) -> Instance:
        return Instance(self.layout)

    @property
    def manager(self) -> Path:
        return self.root / "manager"

    @property
    def unit(self) -> str:
        return (self.manager / "home" / UNIT).read_text()

    def journal(self) -> dict[str, Any]:
        found = json.loads((self.layout.state / "upgrade.json").read_bytes())
        assert isinstance(found, dict)
        return found

    def calls(self) -> list[str]:
        return (self.manager / "calls").read_text().split()

    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.root}/bin:{os.environ['PATH']}"}

    def install(self, name: str, *edits: Edit, version: str = "0.1.0", **changes: Any) -> str:
        """A release of this tree with edits; returns its id."""
        if any(file == "shop/schema.py" for file, _, _ in edits):
            changes.setdefault("schema_versions", NEWER)
        contents = _contents(version)
        files = {path: FileEntry(sha256=sha256(data), size=len(data)) for path, data in contents.items()}
        found = manifest(version, files=files, **changes)
        folder = self.layout.releases / found.release_id
        folder.mkdir(parents=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        purelib = sysconfig.get_path("purelib")
        package, named = PACKAGE.parent, str(PACKAGE.parent)
        if edits:
            package, named = folder / "venv/lib/app", "../../app"
            shutil.copytree(PACKAGE, package / "standfast")
        for file, old, new in edits:
            text = (package / "standfast" / file).read_text()
            assert text.count(old) == 1, (file, old)
            (package / "standfast" / file).write_text(text.replace(old, new))
            py_compile.compile(str(package / "standfast" / file), invalidation_mode=UNCHECKED)
        [site] = (folder / "venv/lib").glob("python3*/site-packages")
        (site / "tree.pth").write_text(f"{named}\n{purelib}\n")
        (folder / "wheels").mkdir()
        for path, data in contents.items():
            (folder / path).write_bytes(data)
        (folder / "manifest.json").write_bytes(found.render())
        subprocess.run(["chmod", "-R", "u=rwX,go=rX", folder], check=True)
        seal = Seal(
            release_id=found.release_id,
            sealed_at=f"2026-03-01T0{len(self.releases)}:00:00Z",
            interpreter=os.path.realpath(sys.executable),
            python="3.12.1",
            sqlite="3.40.1",
            files=installed.scan(folder).files,
        )
        (folder / "installed.json").write_text(seal.model_dump_json())
        self.releases[name] = found.release_id
        return found.release_id

    def python(self, name: str) -> str:
        return str(self.layout.releases / self.releases[name] / "venv/bin/python")

    def cli(self, name: str, *words: str, stdin: bytes = b"") -> dict[str, Any]:
        """A command of a release."""
        command = [
            self.python(name),
            "-B",
            "-I",
            "-m",
            "standfast",
            "--state",
            str(self.layout.state),
            "--json",
        ]
        done = subprocess.run([*command, *words], capture_output=True, check=False, input=stdin)
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def systemctl(self, *words: str) -> str:
        command = [str(self.root / "bin/systemctl"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def run(self, name: str) -> None:
        """Let the service of a release run."""
        (self.manager / "home" / UNIT).write_text(self.cli(name, "unit")["text"])
        for words in (["daemon-reload"], ["enable", UNIT], ["start", UNIT]):
            self.systemctl(*words)
        assert self.running() == self.releases[name], (self.manager / "journal").read_text()

    def running(self) -> str | None:
        """The release whose service runs, by its process."""
        told = dict(line.partition("=")[::2] for line in self.systemctl("show", UNIT).splitlines())
        if told["ActiveState"] != "active":
            return None
        command = Path(f"/proc/{told['MainPID']}/cmdline").read_bytes().split(b"\0")[0].decode()
        return Path(command).parts[-4]

    def idle(self) -> bool:
        """Whether all that was asked for is done and told."""
        open_ = "SELECT 1 FROM work WHERE status IN ('READY', 'RUNNING')"
        return not self.instance.rows(f"{open_} UNION SELECT 1 FROM reports WHERE delivery <> 'sent'")

    def pid(self) -> int:
        return int((self.manager / "pid").read_text())

    def reboot(self) -> None:
        """Every process ends; what is enabled starts by itself, from the unit file as it is now."""
        self.end()
        (self.manager / "state").unlink(missing_ok=True)
        self.systemctl("daemon-reload")
        if (self.manager / "enabled").exists():
            self.systemctl("start", UNIT)

    def switch(
        self,
        by: str,
        old: str,
        *,
        operation: str = "upgrade",
        at: str = "",
        signal_: str = "KILL",
        force: tuple[str, str] = ("", ""),
    ) -> Ran:
        """A whole switch by the code of one release; `old` is the other one. At a point it gets a signal."""
        words = [operation, self.releases[old], *([at, signal_] if at else [])]
        return self._child(by, words, {"FLOOR": force[0], "REASON": force[1]})

    def configure(
        self,
        *,
        pairs: dict[str, str] | None = None,
        shop: Path | None = None,
        at: str = "",
        signal_: str = "KILL",
    ) -> Ran:
        """A change of the configuration by the release that is named `old`."""
        told = {"PAIRS": "" if pairs is None else json.dumps(pairs), "SHOP": str(shop or "")}
        return self._child("old", ["configure", self.releases["old"], *([at, signal_] if at else [])], told)

    def typed(self, by: str, *words: str) -> Ran:
        """A command of a release that reaches the double of the manager."""
        return self._child(by, ["cli", "-"], {"WORDS": json.dumps(words)})

    def _child(self, by: str, words: list[str], told: dict[str, str]) -> Ran:
        command = [self.python(by), "-B", str(TESTS / "switching_child.py"), str(self.layout.state)]
        done = subprocess.run(
            [*command, str(self.manager / "home"), *words],
            env=self.environment() | {"HOG": str(self.hog)} | told,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        points = [
            line.removeprefix("point ") for line in done.stderr.splitlines() if line.startswith("point ")
        ]
        return Ran(done.returncode, json.loads(done.stdout) if done.stdout else {}, points, done.stderr)

    def end(self) -> None:
        with suppress(FileNotFoundError, ProcessLookupError, ValueError):
            os.kill(self.pid(), signal.SIGKILL)
        until = time.monotonic() + 10
        while self.running() and time.monotonic() < until:
            time.sleep(0.02)


def _contents(version: str) -> dict[str, bytes]:
    """What the archive of a release holds, as far as its verification goes."""
    app = f"wheels/standfast-{version}-py3-none-any.whl"
    pin = Pin("standfast", version, frozenset({sha256(app.encode())}))
    pip = "wheels/pip-9.9-py3-none-any.whl"
    return {LOCK: b"", APP_LOCK: render([pin]).encode(), app: app.encode(), pip: b""}


def make(root: Path, template: Host | None = None, *, outside: Path | None = None) -> Host:
    """An initialised instance with some work to do, and the releases of the template.

    With `outside` the double of the manager lies there, and only its units on the disk of the instance.
    """
    root.mkdir(exist_ok=True)
    if outside is None:
        for folder in ("bin", "manager", "manager/home"):
            (root / folder).mkdir()
    else:
        (root / "home").mkdir()
        for folder in ("bin", "manager"):
            (outside / folder).mkdir(exist_ok=True)
            (root / folder).symlink_to(outside / folder)
        (outside / "manager/home").symlink_to(root / "home")
    double = (TESTS / "double/systemctl").read_text().partition("\n")[2]
    # Our own interpreter: what is called python3 may be a script that looks for one, many times a switch.
    (root / "bin/systemctl").write_text(f"#!{os.path.realpath(sys.executable)} -ISE\n{double}")
    (root / "bin/systemctl").chmod(0o755)
    host = Host(root)
    if template is not None:
        host.layout.releases.symlink_to(template.layout.releases)
        host.releases = template.releases
    Instance.make(root)
    host.instance.add("How is the stock?")
    return host


def tree_digest(root: Path) -> str:
    """Of every name, mode, size and content below a folder."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        found = path.lstat()
        digest.update(f"{path.relative_to(root)} {found.st_mode} {found.st_size}\n".encode())
        if stat.S_ISREG(found.st_mode):
            digest.update(path.read_bytes())
    return digest.hexdigest()


@contextmanager
def ended(host: Host) -> Iterator[Host]:
    """The host, whose service is ended whatever becomes of the test."""
    try:
        yield host
    finally:
        host.end()
