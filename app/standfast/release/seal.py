"""The last step of an installation: prove what was installed, then say so in one synced file."""

import importlib
import importlib.metadata
import os
import platform
import sqlite3
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import BaseModel

import standfast
from standfast.clock import rfc3339
from standfast.durable import create_file
from standfast.errors import BadInput, Refused
from standfast.release.contents import Difference
from standfast.release.installed import SEAL, VENV, Scan, Seal, scan
from standfast.release.lock import parse
from standfast.release.manifest import APP_LOCK, LOCK, Manifest
from standfast.release.targets import applies, environment
from standfast.release.verify import verify, verify_unsealed

_SHOWN = 20


class SealResult(BaseModel):
    """What `standfast release seal` prints."""

    changed: bool
    release_id: str
    sealed_at: str
    python: str
    sqlite: str
    modules: int
    """How many modules of the package were imported."""
    files: int
    """How many files of the venv the seal covers."""


def seal(root: Path, *, check: bool = False) -> SealResult:
    """Prove the release in `root`, whose own Python must run this, and write its seal.

    Repeating it on an unchanged release changes nothing. Raises Refused `release_differs` for a release
    whose files are not those of its manifest or its seal, `release_unproven` for one that does not work,
    `release_elsewhere` when another Python runs this.
    """
    root = root.resolve()
    if not root.is_dir():
        raise BadInput(f"{root} is not a folder")
    if Path(sys.prefix).resolve() != root / VENV:
        raise Refused(
            "release_elsewhere",
            "a release is sealed by its own Python",
            observed=f"this Python belongs to {sys.prefix}",
            remedy=f"run {root}/{VENV}/bin/python -I -B -m standfast release seal {root}",
        )
    sealed_before = (root / SEAL).exists()
    verification = verify(root) if sealed_before else verify_unsealed(root)
    manifest = verification.manifest
    if manifest is None or not verification.verified:
        raise _differs(root, verification.differences)
    modules = _prove(root, manifest)
    made = _seal(manifest, scan(root))
    if sealed_before:
        made = Seal.model_validate_json((root / SEAL).read_bytes())
    elif not check:
        _write(root, made)
    return SealResult(
        changed=not sealed_before,
        release_id=made.release_id,
        sealed_at=made.sealed_at,
        python=made.python,
        sqlite=made.sqlite,
        modules=modules,
        files=len(made.files),
    )


def _write(root: Path, made: Seal) -> None:
    os.sync()  # the files first: a seal that survives a power failure must not outlive what it seals
    create_file(root / SEAL, made.model_dump_json(indent=2).encode() + b"\n", mode=0o644)


def _seal(manifest: Manifest, found: Scan) -> Seal:
    return Seal(
        release_id=manifest.release_id,
        sealed_at=rfc3339(time.time()),
        interpreter=os.path.realpath(sys.executable),
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
        files=dict(sorted(found.files.items())),
    )


def _differs(root: Path, differences: Sequence[Difference]) -> Refused:
    shown = [f"{found.path}: {found.problem} {found.detail}".rstrip() for found in differences[:_SHOWN]]
    more = [f"and {len(differences) - _SHOWN} more"] if len(differences) > _SHOWN else []
    return Refused(
        "release_differs",
        f"{root.name} is not what its manifest says",
        observed=shown + more,
        remedy=(
            f"`standfast release verify {root}` lists all of it; remove the folder and install the release"
            " again: a release is never repaired in place"
        ),
    )


def _prove(root: Path, manifest: Manifest) -> int:
    problems = [*_host_problems(manifest), *_package_problems(root)]
    modules, failures = _import_all(root, absent=_of_other_extras(manifest))
    if problems or failures:
        raise Refused(
            "release_unproven",
            f"{manifest.release_id} does not work on this host",
            observed=[*problems, *failures][:_SHOWN],
            remedy="remove the folder and install the release again",
        )
    return modules


def _host_problems(manifest: Manifest) -> list[str]:
    python = ".".join(platform.python_version_tuple()[:2])
    problems = []
    if python not in manifest.pythons:
        problems.append(f"Python {python} is not among the release's: {', '.join(manifest.pythons)}")
    if platform.machine() not in manifest.platforms:
        problems.append(f"{platform.machine()} is not among the release's: {', '.join(manifest.platforms)}")
    return problems


def _package_problems(root: Path) -> list[str]:
    """Exactly the packages of the lock are installed."""
    here = environment(platform.python_version(), platform.machine())
    pins = [pin for name in (LOCK, APP_LOCK) for pin in parse((root / name).read_text("utf-8"), name)]
    wanted = {pin.name: pin.version for pin in pins if applies(pin.marker, here)}
    folder = sysconfig.get_path("purelib")
    found = {
        str(canonicalize_name(package.metadata["Name"])): package.version
        for package in importlib.metadata.distributions(path=[folder])
    }
    return [
        f"{name} is {found.get(name, 'not installed')}, where the lock says {wanted.get(name, 'not at all')}"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]


def _of_other_extras(manifest: Manifest) -> frozenset[str]:
    """The packages that only extras bring which this release was built without."""
    requirements = [Requirement(line) for line in importlib.metadata.requires("standfast") or []]
    carried = ["", *manifest.extras]
    return frozenset(
        requirement.name
        for requirement in requirements
        if requirement.marker and not any(requirement.marker.evaluate({"extra": name}) for name in carried)
    )


def _import_all(root: Path, *, absent: frozenset[str]) -> tuple[int, list[str]]:
    """Import every module of the package; how many there are, and why some do not import.

    A module may need a package of `absent`: it belongs to an extra.
    """
    package = Path(standfast.__file__).resolve()
    if root not in package.parents:
        return 0, [f"standfast is imported from {package.parent}"]
    names = [_module(path.relative_to(package.parent)) for path in sorted(package.parent.rglob("*.py"))]
    failures = []
    for name in names:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever a broken module does, it is named)
            if not (isinstance(error, ModuleNotFoundError) and error.name in absent):
                failures.append(f"{name} does not import: {type(error).__name__}: {error}")
    return len(names), failures


def _module(path: Path) -> str:
    parts = ("standfast", *path.with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
