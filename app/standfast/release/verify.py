"""Whether a release is what it says it is: every difference, found without extracting anything."""

import stat
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from standfast.errors import BadInput
from standfast.release import installed, signature
from standfast.release.contents import MAX_BYTES, Contents, Difference, from_archive, from_folder
from standfast.release.lock import Pin, parse, render
from standfast.release.manifest import APP_LOCK, LOCK, MANIFEST, WHEELS, Manifest, sha256
from standfast.release.targets import declared

Kind = Literal["archive", "unpacked", "installed"]


class ReleaseVerification(BaseModel):
    """What `standfast release verify` prints."""

    verified: bool
    kind: Kind
    release_id: str | None
    manifest: Manifest | None
    """null when it cannot be read."""
    differences: list[Difference]
    archive_sha256: str | None = None
    signed_by: str | None = None
    """The principal whose signature was asked for and found good."""


def verify(
    path: Path, *, policy: signature.Policy | None = None, must_be_installed: bool = False
) -> ReleaseVerification:
    """Check an archive, an unpacked folder or an installed release.

    Raises BadInput when there is nothing to check or the question makes no sense for what is there.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    if stat.S_ISREG(mode) and not must_be_installed:
        return verify_archive(path, policy)
    if not stat.S_ISDIR(mode):
        raise BadInput(f"{path} is not {'a folder' if must_be_installed else 'an archive or a folder'}")
    if policy is not None:
        raise BadInput("a signature belongs to an archive; a folder has none")
    if must_be_installed or installed.begun(path):
        return _verify_installed(path)
    return _verification("unpacked", *check_contents(from_folder(path)))


def verify_archive(path: Path, policy: signature.Policy | None) -> ReleaseVerification:
    """Check one archive; its signature too when a policy is given."""
    if path.stat().st_size > MAX_BYTES:
        raise BadInput(f"{path} is larger than any release ({MAX_BYTES} bytes)")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    manifest, differences = check_contents(from_archive(data, path.name))
    signer = None
    if policy is not None:
        problem = _signature_difference(path, data, policy)
        differences += [problem] if problem else []
        signed = problem is None and signature.signature_path(path).is_file()
        signer = policy.signer if signed else None
    found = _verification("archive", manifest, differences)
    return found.model_copy(update={"archive_sha256": sha256(data), "signed_by": signer})


def _signature_difference(archive: Path, data: bytes, policy: signature.Policy) -> Difference | None:
    path = signature.signature_path(archive)
    if not path.is_file():
        if not policy.required:
            return None
        return Difference(path=path.name, problem="signature_missing", detail="a signature is required")
    problem = signature.check(data, path, policy)
    if problem is None:
        return None
    return Difference(path=path.name, problem="signature_wrong", detail=problem)


def _verify_installed(root: Path) -> ReleaseVerification:
    found = verify_unsealed(root, access=False)
    return _verification("installed", found.manifest, found.differences + installed.differences(root))


def verify_unsealed(root: Path, *, access: bool = True) -> ReleaseVerification:
    """Check a release that is about to be sealed: everything but the seal."""
    contents = from_folder(root, ignoring=installed.OWN_ENTRIES)
    manifest, differences = check_contents(contents)
    if access:
        differences += installed.scan(root).access
    if manifest is not None and root.resolve().name != manifest.release_id:
        detail = f"the release is {manifest.release_id}, and a venv cannot be moved"
        differences.append(Difference(path=root.name, problem="misplaced", detail=detail))
    return _verification("installed", manifest, differences)


def _verification(
    kind: Kind, manifest: Manifest | None, differences: list[Difference]
) -> ReleaseVerification:
    return ReleaseVerification(
        verified=not differences,
        kind=kind,
        release_id=manifest.release_id if manifest else None,
        manifest=manifest,
        differences=differences,
    )


def check_contents(contents: Contents) -> tuple[Manifest | None, list[Difference]]:
    """The manifest and every difference between it and the files."""
    data = contents.files.get(MANIFEST)
    if data is None:
        contents.differs(MANIFEST, "missing")
        return None, contents.differences
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        fields = sorted({".".join(map(str, problem["loc"])) or "JSON" for problem in error.errors()})
        contents.differs(MANIFEST, "malformed", f"not a manifest of this format: {', '.join(fields)}")
        return None, contents.differences
    if data != manifest.render():
        contents.differs(MANIFEST, "changed", "not as a build writes it")
    if manifest.release_id != (expected := manifest.expected_id()):
        contents.differs(MANIFEST, "release_id", f"these facts and files are those of {expected}")
    _check_files(manifest, contents)
    _check_locks(manifest, contents)
    return manifest, contents.differences


def _check_files(manifest: Manifest, contents: Contents) -> None:
    for path, entry in sorted(manifest.files.items()):
        data = contents.files.get(path)
        if data is None:
            contents.differs(path, "missing")
        elif len(data) < entry.size:
            contents.differs(path, "truncated", f"{len(data)} bytes of {entry.size}")
        elif sha256(data) != entry.sha256:
            contents.differs(path, "changed", f"sha256 {sha256(data)}, not {entry.sha256}")
    for path in sorted(contents.files.keys() - manifest.files.keys() - {MANIFEST}):
        contents.differs(path, "extra", "not in the manifest")


def _check_locks(manifest: Manifest, contents: Contents) -> None:
    lock = contents.files.get(LOCK)
    if lock is not None and sha256(lock) != manifest.lock_sha256:
        contents.differs(LOCK, "lock_sha256", f"sha256 {sha256(lock)}, not {manifest.lock_sha256}")
    pins = _pins(LOCK, contents)
    app = _pins(APP_LOCK, contents)
    if pins is None or app is None:
        return
    app_wheel = manifest.files.get(manifest.app_wheel)
    pin = Pin("standfast", manifest.version, frozenset({app_wheel.sha256} if app_wheel else ()))
    if contents.files[APP_LOCK].decode() != render([pin]):
        contents.differs(APP_LOCK, "changed", f"does not pin {manifest.app_wheel}")
    if not any(path == manifest.installer for path in manifest.files):
        contents.differs(manifest.installer, "missing", "the pip that installs this release")
    try:
        _check_wheels(manifest, (*pins, *app), contents)
    except BadInput as error:
        contents.differs(LOCK, "malformed", str(error))


def _pins(path: str, contents: Contents) -> tuple[Pin, ...] | None:
    try:
        return parse(contents.files[path].decode(), path)
    except KeyError:
        if not any(found.path == path for found in contents.differences):
            contents.differs(path, "missing")
    except (BadInput, UnicodeDecodeError) as error:
        contents.differs(path, "malformed", str(error))
    return None


def _check_wheels(manifest: Manifest, pins: tuple[Pin, ...], contents: Contents) -> None:
    """Each target has a wheel for each requirement, and each wheel is one that the lock names."""
    wheels = {path: entry.sha256 for path, entry in manifest.files.items() if path.startswith(WHEELS)}
    for target in declared(manifest):
        for pin in pins:
            found = any(
                digest in pin.hashes and target.accepts(path.removeprefix(WHEELS))
                for path, digest in wheels.items()
            )
            if target.needs(pin.marker) and not found:
                contents.differs(WHEELS, "wheel_missing", f"{pin} for {target}")
    pinned = frozenset().union(*(pin.hashes for pin in pins))
    for path, digest in sorted(wheels.items()):
        if digest not in pinned and path != manifest.installer:
            contents.differs(path, "wheel_unlocked", "no lock of this release names it")
