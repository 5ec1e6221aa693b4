"""A tiny releasable project with its own wheels: real git, hatchling, pip and tar, and no network."""

import base64
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from standfast.release.build import BuildResult, Request, build
from standfast.release.manifest import sha256

PYTHONS = ("3.12", "3.13")

WHEELS = (
    ("pip", "9.9", "py3-none-any"),
    ("pure", "1.0", "py2.py3-none-any"),
    ("native", "2.0", "cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64"),
    ("native", "2.0", "cp313-cp313-manylinux_2_28_x86_64"),
    ("backport", "3.0", "py3-none-any"),
    ("windows", "4.0", "py3-none-any"),
    ("live", "5.0", "py3-none-any"),
)

PYPROJECT = """
[build-system]
requires = ["hatchling==1.33.0"]
build-backend = "hatchling.build"

[project]
name = "standfast"
version = "1.2.3"
requires-python = ">=3.12"

[project.optional-dependencies]
live = ["live"]

[tool.hatch.build.targets.wheel]
packages = ["app/standfast"]

[tool.standfast.release]
rollback-floor = "1.1.0"
reviewed-fallbacks = ["1.1.0-0a1b2c3d-4e5f6a7b"]
"""

FILES = {
    "pyproject.toml": PYPROJECT,
    ".gitignore": "/dist/\n__pycache__/\n",
    "app/standfast/__init__.py": "",
    "app/standfast/authority/__init__.py": "CONTRACT = 7\n",
    "app/standfast/operations/__init__.py": "",
    "app/standfast/operations/schema.py": 'def understood():\n    return {"work": 3, "authority": 2}\n',
}


def wheel(name: str, version: str, tag: str) -> bytes:
    """A minimal wheel that pip accepts."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": b"",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    record = "".join(f"{path},sha256={_record(data)},{len(data)}\n" for path, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path), data)
    return stream.getvalue()


def _record(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def pin(name: str, marker: str = "") -> str:
    """The lock line of one of WHEELS."""
    made = [(version, sha256(wheel(known, version, tag))) for known, version, tag in WHEELS if known == name]
    hashes = "".join(f" \\\n    --hash=sha256:{digest}" for _, digest in made)
    return f"{name}=={made[0][0]}{marker}{hashes}\n    # via standfast\n"


LOCK = (
    pin("native")
    + pin("pure")
    + pin("backport", " ; python_full_version < '3.13'")
    + pin("windows", " ; sys_platform == 'win32'")
)


@dataclass
class World:
    """A git repository, the folder pip finds wheels in, and a cache."""

    repository: Path
    links: Path
    cache: Path

    @property
    def dist(self) -> Path:
        return self.repository / "dist"

    def write(self, path: str, text: str) -> None:
        target = self.repository / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false"]
        command = ["git", *identity, "-C", str(self.repository), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, message: str = "change") -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def build(self, *, check: bool = False, steps: list[str] | None = None, **options: Any) -> BuildResult:
        request = Request(self.repository, PYTHONS, self.dist, cache=self.cache)
        told: list[str] = [] if steps is None else steps
        return build(replace(request, **options), told.append, check=check)

    def cli(self, *arguments: str, umask: int = -1, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run the command line in the repository."""
        return subprocess.run(
            [sys.executable, "-m", "standfast", *arguments],
            cwd=self.repository,
            env={**os.environ, "XDG_CACHE_HOME": str(self.cache), **environment},
            umask=umask,
            capture_output=True,
            text=True,
            check=False,
        )


def make_world(folder: Path, cache: Path | None = None) -> World:
    """A committed project below `folder`; tests that share a cache download once."""
    world = World(folder / "repository", folder / "links", cache or folder / "cache")
    world.links.mkdir(parents=True)
    for name, version, tag in WHEELS:
        (world.links / f"{name}-{version}-{tag}.whl").write_bytes(wheel(name, version, tag))
    for path, text in FILES.items():
        world.write(path, text)
    world.write("requirements.lock", LOCK)
    world.write("requirements-live.lock", LOCK + pin("live"))
    world.write("requirements-dev.lock", LOCK + pin("pip"))
    world.git("init", "--quiet", "--initial-branch=main")
    world.commit("first")
    return world
