"""Release archives made from the good one: with a fault, or another release of the same code."""

from __future__ import annotations

import io
import subprocess
import tarfile
from typing import TYPE_CHECKING, Any

from standfast.release import signature
from standfast.release.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        read = {member.name: tar.extractfile(member) for member in tar if member.isfile()}
        return {name: file.read() for name, file in read.items() if file is not None}


def write(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o644
            tar.addfile(entry, io.BytesIO(data))
    return path


def consistent(good: Path, path: Path, keep: Callable[[str], bool] = lambda _: True, **facts: Any) -> Path:
    """An archive of fewer wheels or other facts whose manifest, digests and id say exactly that."""
    files = {name: data for name, data in members(good).items() if keep(name)}
    manifest = Manifest.model_validate_json(files["manifest.json"])
    named = {name: entry for name, entry in manifest.files.items() if name in files}
    other = manifest.model_copy(update={"files": named, **facts}).identified()
    return write(path, {**files, "manifest.json": other.render()})


def sign(archive: Path, key: Path) -> None:
    signature.signature_path(archive).write_bytes(signature.sign(archive.read_bytes(), key))


def new_key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path
