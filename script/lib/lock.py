"""Write the hash-pinned locks from pyproject.toml, or say which of them are out of step with it.

Called by `script/lock` with the development environment. Each lock begins with the digest of what it was
made from, so that a look at the files tells, without the network, which lock was not made again.
Exit codes: 0 done or in step, 4 a lock is out of step (--check only), 1 uv could not make one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASE = "requirements.lock"
APART = ("newest", "bench")
"""Dependency groups with an environment of their own, which holds nothing of ours."""
MARK = "# made by script/lock from inputs with the digest "


@dataclass(frozen=True)
class Lock:
    """One lock file, what goes into it, and how uv is asked for it."""

    name: str
    python: str
    requirements: tuple[str, ...]
    sources: tuple[str, ...]
    follows: tuple[str, ...] = ()
    """The locks whose versions it keeps to, so that tests run what a release holds."""


def locks(root: Path) -> list[Lock]:
    """Every lock that pyproject.toml calls for, the base first."""
    found = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    python = found["project"]["requires-python"].removeprefix(">=")
    base = found["project"]["dependencies"]
    extras = found["project"].get("optional-dependencies", {})
    groups = found["dependency-groups"]
    whole = ("pyproject.toml",)
    optional = [
        Lock(
            f"requirements-{extra}.lock", python, (*base, *extras[extra]), ("--extra", extra, *whole), (BASE,)
        )
        for extra in sorted(extras)
    ]
    developed = [*base, *(line for extra in sorted(extras) for line in extras[extra]), *groups["dev"]]
    return [
        Lock(BASE, python, tuple(base), whole),
        *optional,
        Lock(
            "requirements-dev.lock",
            python,
            tuple(developed),
            ("--all-extras", "--group", "dev", *whole),
            (BASE, *(lock.name for lock in optional)),
        ),
        *(
            Lock(f"requirements-{group}.lock", python, tuple(groups[group]), ("--group", group))
            for group in APART
        ),
    ]


def mark(root: Path, lock: Lock) -> str:
    """The first line of a lock that is in step."""
    inputs = {
        "python": lock.python,
        "requirements": sorted(lock.requirements),
        "follows": [_text(root / name) for name in lock.follows],
    }
    return f"{MARK}{hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()}\n"


def _text(path: Path) -> str | None:
    return path.read_text("utf-8") if path.is_file() else None


def in_step(root: Path, lock: Lock) -> bool:
    """Whether a lock was made from what pyproject.toml and the base lock say now."""
    path = root / lock.name
    return path.is_file() and path.read_text("utf-8").startswith(mark(root, lock))


def write(root: Path, lock: Lock, *, upgrade: bool) -> None:
    """Make one lock; what is pinned already stays pinned, unless `upgrade`."""
    path = root / lock.name
    command = [
        *(Path(sys.executable).with_name("uv"), "pip", "compile", "--quiet", "--no-config", "--no-header"),
        *("--universal", "--generate-hashes", "--python-version", lock.python),
        *(("--upgrade",) if upgrade else ()),
        *(option for name in lock.follows for option in ("--constraint", name)),
        *("--output-file", lock.name, *lock.sources),
    ]
    subprocess.run(command, cwd=root, check=True, stdout=subprocess.DEVNULL)
    path.write_text(mark(root, lock) + path.read_text("utf-8"), "utf-8")


def main(root: Path, arguments: list[str]) -> int:
    """Make the locks, or look at them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--upgrade", action="store_true")
    options = parser.parse_args(arguments)
    if options.check:
        behind = [lock.name for lock in locks(root) if not in_step(root, lock)]
        for name in behind:
            print(f"{name} is out of step with pyproject.toml: run script/lock", file=sys.stderr)
        return 4 if behind else 0
    for lock in locks(root):
        print(f"lock: {lock.name}", file=sys.stderr)
        try:
            write(root, lock, upgrade=options.upgrade)
        except subprocess.CalledProcessError:
            print(f"{lock.name} was not made", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(ROOT, sys.argv[1:]))
