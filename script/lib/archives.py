"""Release archives made from the good one: with a fault, or another release of the same code."""

from __future__ import annotations

import io
import subprocess
import tarfile
from typing import TYPE_CHECKING, Any

from standfast.release import signature
from standfast.release.manifest import FileEntry, Manifest, sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_EMPTY_ZIP = b"PK\x05\x06" + bytes(18)


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        read = {member.name: tar.extractfile(member) for member in tar if member.isfile()}
        return {name: file.read() for name, file in read.items() if file is not None}


def manifest_of(archive: Path) -> Manifest:
    """What the archive says of itself, read without the rest of it."""
    with tarfile.open(archive) as tar:
        file = tar.extractfile("manifest.json")
        assert file is not None
        return Manifest.model_validate_json(file.read())


def write(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o644
            tar.addfile(entry, io.BytesIO(data))
    return path


def consistent(
    good: Path,
    path: Path,
    keep: Callable[[str], bool] = lambda _: True,
    put: Mapping[str, bytes] | None = None,
    **facts: Any,
) -> Path:
    """An archive of fewer wheels, other files or facts whose manifest, digests and id say exactly that."""
    files = {name: data for name, data in members(good).items() if keep(name)} | dict(put or {})
    manifest = Manifest.model_validate_json(files["manifest.json"])
    named = {
        name: FileEntry(sha256=sha256(data), size=len(data))
        for name, data in files.items()
        if name != "manifest.json"
    }
    stated = {"files": named, "lock_sha256": sha256(files["requirements.lock"]), **facts}
    other = manifest.model_copy(update=stated).identified()
    return write(path, {**files, "manifest.json": other.render()})


def broken_wheel(good: Path, path: Path, wheel: str) -> Path:
    """As `good`, but what the one wheel of that beginning holds, and the lock says, is no package at all."""
    files = members(good)
    [name] = [file for file in files if file.startswith(f"wheels/{wheel}")]
    lock = files["requirements.lock"].replace(sha256(files[name]).encode(), sha256(_EMPTY_ZIP).encode())
    return consistent(good, path, put={name: _EMPTY_ZIP, "requirements.lock": lock})


def sign(archive: Path, key: Path) -> None:
    signature.signature_path(archive).write_bytes(signature.sign(archive.read_bytes(), key))


def new_key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path
