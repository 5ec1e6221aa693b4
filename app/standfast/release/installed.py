"""Releases on a host: the seal that makes one count as installed, its differences, and the list of them."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from standfast.errors import BadInput
from standfast.layout import Layout
from standfast.release.contents import Difference
from standfast.release.manifest import MANIFEST, Manifest, sha256

SEAL = "installed.json"
VENV = "venv"
OWN_ENTRIES = frozenset({SEAL, VENV})
"""What an installed release has beside the files of its archive."""
_SEARCHABLE = stat.S_IROTH | stat.S_IXOTH


class Seal(BaseModel):
    """`installed.json`: what was installed, and with what. Written last, once everything else is on disk."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    release_id: str
    sealed_at: str
    """RFC 3339, UTC."""
    interpreter: str
    """The real path of the Python that the venv stands on."""
    python: str
    """X.Y.Z"""
    sqlite: str
    files: Annotated[dict[str, str], Field(min_length=1)]
    """Path below the release -> sha256 of every file below `venv/`, or `-> target` for a symbolic link."""


@dataclass(frozen=True)
class InstalledRelease:
    """One folder below an instance's `releases`, whose name is the release's id."""

    folder: Path
    seal: Seal | None
    """None: half-made; the next installation removes it."""
    manifest: Manifest | None
    """None when it cannot be read."""
    current: bool
    """Whether the link `current` leads here."""


@dataclass
class Scan:
    """What lies below a release."""

    files: dict[str, str] = field(default_factory=dict)
    """Path -> digest or link target, for everything below `venv/`."""
    access: list[Difference] = field(default_factory=list)
    """Whatever somebody else than the release's owner owns or may write, and what the service cannot read."""


def begun(root: Path) -> bool:
    """Whether an installation was begun there, finished or not."""
    return (root / VENV).exists() or (root / SEAL).exists()


def read_seal(root: Path) -> Seal:
    """The seal of a release; FileNotFoundError when half-made, ValidationError when malformed."""
    return Seal.model_validate_json((root / SEAL).read_bytes())


def read_manifest(root: Path) -> Manifest:
    """The manifest of an unpacked or installed release; BadInput when it has none."""
    try:
        return Manifest.model_validate_json((root / MANIFEST).read_bytes())
    except OSError as error:
        raise BadInput(f"{root / MANIFEST}: {error.strerror}") from None
    except ValidationError:
        raise BadInput(f"{root / MANIFEST} is not a release manifest of this format") from None


def differences(root: Path) -> list[Difference]:
    """How an installed release differs from its seal: its files, its interpreter, who may write them."""
    try:
        seal = read_seal(root)
    except FileNotFoundError:
        return [Difference(path=SEAL, problem="half-made", detail="the installation was never finished")]
    except OSError as error:
        return [Difference(path=SEAL, problem="malformed", detail=str(error.strerror))]
    except ValidationError as error:
        fields = sorted({".".join(map(str, problem["loc"])) or "JSON" for problem in error.errors()})
        return [Difference(path=SEAL, problem="malformed", detail=", ".join(fields))]
    found = scan(root)
    differing = _file_differences(seal.files, found.files) + found.access
    if not Path(seal.interpreter).is_file():
        detail = f"{seal.interpreter}, which it was installed with, is gone"
        differing.append(Difference(path=f"{VENV}/bin/python", problem="interpreter", detail=detail))
    if seal.release_id != root.resolve().name:
        differing.append(
            Difference(path=SEAL, problem="release_id", detail=f"the seal is of {seal.release_id}")
        )
    return differing


def _file_differences(sealed: dict[str, str], found: dict[str, str]) -> list[Difference]:
    missing = [Difference(path=path, problem="missing") for path in sealed.keys() - found.keys()]
    extra = [
        Difference(path=path, problem="extra", detail="not in the seal")
        for path in found.keys() - sealed.keys()
    ]
    changed = [
        Difference(path=path, problem="changed", detail=f"{found[path]}, sealed as {sealed[path]}")
        for path in sealed.keys() & found.keys()
        if sealed[path] != found[path]
    ]
    return sorted(missing + extra + changed, key=lambda difference: difference.path)


def scan(root: Path) -> Scan:
    """Digest everything below the venv (about 2,500 files: 0.1 s) and look who may write in the release."""
    found = Scan()
    top = root.stat()
    _note_access(".", top, top.st_uid, found)
    for path, entry in _entries(root, ""):
        status = entry.stat(follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            _note_access(path, status, top.st_uid, found)
        if path.startswith(f"{VENV}/") and not stat.S_ISDIR(status.st_mode):
            found.files[path] = _state(entry.path, status.st_mode)
    return found


def _entries(folder: Path, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = prefix + entry.name
            yield path, entry
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(Path(entry.path), f"{path}/")


def _state(path: str, mode: int) -> str:
    if stat.S_ISLNK(mode):
        return f"-> {Path(path).readlink()}"
    if not stat.S_ISREG(mode):
        return "neither a file nor a link"
    with FileIO(path) as file:  # there are thousands, and none is large
        return sha256(file.readall())


def _note_access(path: str, status: os.stat_result, owner: int, found: Scan) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        detail = f"mode {mode:04o}: others than its owner may write it"
        found.access.append(Difference(path=path, problem="writable", detail=detail))
    needed = _SEARCHABLE if stat.S_ISDIR(status.st_mode) else stat.S_IROTH
    if mode & needed != needed:
        detail = f"mode {mode:04o}: the service cannot read it"
        found.access.append(Difference(path=path, problem="unreadable", detail=detail))
    if status.st_uid != owner:
        detail = f"belongs to user {status.st_uid}, the release to {owner}"
        found.access.append(Difference(path=path, problem="owner", detail=detail))


def releases(layout: Layout) -> list[InstalledRelease]:
    """The releases of an instance, oldest seal first, half-made ones last. Verifies nothing."""
    try:
        folders = [
            path
            for path in layout.releases.iterdir()
            if path.is_dir() and not path.is_symlink() and not path.name.startswith(".")
        ]
    except FileNotFoundError:
        folders = []
    except OSError as error:
        raise BadInput(f"{layout.releases}: {error.strerror}") from None
    current = layout.current.resolve() if layout.current.is_symlink() else None
    return sorted((installed_at(folder, current) for folder in folders), key=_age)


def _age(found: InstalledRelease) -> tuple[str, str]:
    return (found.seal.sealed_at if found.seal else "~", found.folder.name)


def installed_at(folder: Path, current: Path | None = None) -> InstalledRelease:
    """What lies in a release's folder, whole or not; `current` is where the link leads."""
    seal, manifest = None, None
    with suppress(OSError, ValidationError):
        seal = read_seal(folder)
    with suppress(BadInput):
        manifest = read_manifest(folder)
    return InstalledRelease(folder, seal, manifest, current=folder.resolve() == current)
