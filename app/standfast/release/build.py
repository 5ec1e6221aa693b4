"""Building a release: from one git tree to one archive, the same bytes every time."""

import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from standfast.durable import create_file
from standfast.errors import BadInput, Refused, StandfastError
from standfast.release import signature
from standfast.release.contents import Contents, pack
from standfast.release.lock import Pin, render
from standfast.release.manifest import (
    APP_LOCK,
    LOCK,
    MANIFEST,
    PYTHON_VERSION,
    WHEELS,
    FileEntry,
    Manifest,
    Platform,
    Source,
    sha256,
)
from standfast.release.project import Project, read_installer, read_lock, read_project
from standfast.release.source import Repository
from standfast.release.targets import Target, targets
from standfast.release.verify import check_contents
from standfast.release.wheelhouse import Progress, default_cache, run, wheels

_UNIDENTIFIED = "0-00000000-00000000"

_FACTS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import standfast
from standfast.authority import CONTRACT
from standfast.operations.schema import understood
print(json.dumps({"file": standfast.__file__, "schema": understood(), "authority_contract": CONTRACT}))
"""


@dataclass(frozen=True)
class Request:
    """What to build."""

    repository: Path
    """Any folder of the git work tree."""
    pythons: tuple[str, ...]
    output: Path
    platforms: tuple[Platform, ...] = ("x86_64",)
    extras: tuple[str, ...] = ()
    commit: str | None = None
    """A revision; None: HEAD, of which the work tree must be a clean checkout."""
    allow_dirty: bool = False
    key: Path | None = None
    """An ssh key to sign with."""
    cache: Path | None = None


class BuildResult(BaseModel):
    """What `standfast release build` prints."""

    changed: bool
    """false: the same archive was there already."""
    release_id: str
    archive: str
    archive_sha256: str
    size: int
    """Bytes."""
    signature: str | None
    manifest: Manifest


class SourceFacts(BaseModel):
    """What the packed source says of itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str
    schema_versions: Annotated[dict[str, int], Field(alias="schema")]
    authority_contract: int


def build(request: Request, progress: Progress, *, check: bool = False) -> BuildResult:
    """Build a release and publish it below the output folder, unless `check`.

    Leaves nothing else behind, also when interrupted. Raises Refused `tree_dirty`, `extra_unknown`,
    `python_unsupported`, `backend_differs`, `wheel_missing`, `archive_exists` or `signature_exists`.
    """
    if request.allow_dirty and request.commit is not None:
        raise BadInput("--allow-dirty takes the work tree, --commit a commit: name one of them")
    for python in request.pythons:
        if not re.fullmatch(PYTHON_VERSION, python):
            raise BadInput(f"--python: {python!r} is not a version such as 3.13")
    repository = Repository.around(request.repository)
    with _stoppable(), tempfile.TemporaryDirectory(prefix="standfast-build-") as name:
        scratch = Path(name)
        source = _source(repository, request, scratch)
        folder = scratch / "source"
        folder.mkdir()
        repository.export(source, folder, scratch)
        manifest, files = _release(folder, source, request, scratch, progress)
        archive = pack(files)
        made = request.key and signature.sign(archive, request.key)
        return _publish(request, manifest, archive, made or None, check=check)


def _source(repository: Repository, request: Request, scratch: Path) -> Source:
    if request.commit is not None:
        return repository.committed(request.commit)
    if request.allow_dirty:
        return repository.worktree(request.output, scratch)
    return repository.clean_head(request.output)


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM and SIGHUP end a build as Ctrl-C does: with its temporary files removed."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _release(
    folder: Path, source: Source, request: Request, scratch: Path, progress: Progress
) -> tuple[Manifest, dict[str, bytes]]:
    """The manifest, and all files of the archive."""
    project = read_project(folder)
    wanted = targets(dict.fromkeys(request.pythons), dict.fromkeys(request.platforms))
    project.check_extras(request.extras)
    for target in wanted:
        project.check_target(target)
    lock, pins = read_lock(folder, request.extras)
    installer = read_installer(folder)
    progress(f"the wheel of {source.commit[:8]}{'' if source.clean else ' with uncommitted changes'}")
    app, app_name = _app_wheel(folder, project, scratch)
    facts = _source_facts(folder, scratch)
    files = {
        LOCK: lock,
        APP_LOCK: render([Pin("standfast", project.version, frozenset({sha256(app)}))]).encode(),
    }
    files[WHEELS + app_name] = app
    files |= _dependencies((*pins, installer), wanted, request, scratch, progress)
    manifest = Manifest(
        release_id=_UNIDENTIFIED,
        version=project.version,
        source=source,
        lock_sha256=sha256(lock),
        pythons=tuple(dict.fromkeys(target.python for target in wanted)),
        platforms=tuple(dict.fromkeys(target.platform for target in wanted)),
        extras=tuple(sorted(set(request.extras))),
        schema_versions=facts.schema_versions,
        authority_contract=facts.authority_contract,
        rollback_floor=project.reviewed.rollback_floor,
        reviewed_fallbacks=project.reviewed.reviewed_fallbacks,
        installer=next(path for path, data in files.items() if sha256(data) in installer.hashes),
        files={path: FileEntry(sha256=sha256(data), size=len(data)) for path, data in files.items()},
    ).identified()
    files[MANIFEST] = manifest.render()
    _, differences = check_contents(Contents(files=dict(files)))
    if differences:
        raise StandfastError(f"what was built does not verify; nothing was published: {differences[0]}")
    return manifest, files


def _dependencies(
    pins: tuple[Pin, ...], wanted: list[Target], request: Request, scratch: Path, progress: Progress
) -> dict[str, bytes]:
    cache = request.cache or default_cache()
    return {
        WHEELS + name: data
        for target in wanted
        for name, data in wheels(pins, target, cache=cache, scratch=scratch, progress=progress).items()
    }


def _app_wheel(folder: Path, project: Project, scratch: Path) -> tuple[bytes, str]:
    """The package's own wheel, by the pinned back end without isolation."""
    try:
        installed = metadata.version("hatchling")
    except metadata.PackageNotFoundError:
        installed = "none"
    if installed != project.backend:
        raise Refused(
            "backend_differs",
            "another back end might write other bytes",
            observed=f"hatchling {installed} is installed here, the tree pins {project.backend}",
            remedy="run script/bootstrap at the commit that you build",
        )
    output = scratch / "app"
    command = [
        sys.executable,
        "-I",
        "-B",
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
        str(output),
    ]
    run(command, scratch=scratch, cwd=folder, failure="cannot build the wheel")
    (wheel,) = output.iterdir()
    return wheel.read_bytes(), wheel.name


def _source_facts(folder: Path, scratch: Path) -> SourceFacts:
    """Ask the packed source, not the code that runs this, which store schemas it understands."""
    app = (folder / "app").resolve()
    command = [sys.executable, "-I", "-B", "-c", _FACTS, str(app)]
    printed = run(command, scratch=scratch, failure="the source does not say which store it understands")
    try:
        facts = SourceFacts.model_validate_json(printed)
    except ValidationError as error:
        raise StandfastError(f"the source does not say which store it understands: {error}") from None
    if app not in Path(facts.file).resolve().parents:
        raise StandfastError(f"the facts came from {facts.file}, not from the packed source")
    return facts


def _publish(
    request: Request, manifest: Manifest, archive: bytes, made: bytes | None, *, check: bool
) -> BuildResult:
    path = request.output.resolve() / f"standfast-{manifest.release_id}.tar"
    signed = signature.signature_path(path)
    new = _is_new(path, archive)
    if request.key is not None and signed.exists():
        _check_signature(signed, archive, request.key)
    unsigned = made is not None and not signed.exists()
    if not check:
        _write(path, archive if new else None)
        _write(signed, made if unsigned else None)
    return BuildResult(
        changed=new or unsigned,
        release_id=manifest.release_id,
        archive=str(path),
        archive_sha256=sha256(archive),
        size=len(archive),
        signature=str(signed) if signed.exists() or made is not None else None,
        manifest=manifest,
    )


def _write(path: Path, data: bytes | None) -> None:
    if data is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        create_file(path, data, mode=0o644)


def _is_new(path: Path, archive: bytes) -> bool:
    try:
        if path.read_bytes() == archive:
            return False
    except FileNotFoundError:
        return True
    raise Refused(
        "archive_exists",
        f"{path.name} is there already, with other bytes",
        observed=f"sha256 {sha256(path.read_bytes())}; the one built now has {sha256(archive)}",
        remedy=f"find out where {path} came from; verify it, and remove it if it is damaged",
    )


def _check_signature(signed: Path, archive: bytes, key: Path) -> None:
    if not signature.signed_by(archive, signed, key):
        raise Refused(
            "signature_exists",
            f"{signed.name} is there already, and is no signature of this archive by {key.name}",
            observed=str(signed),
            remedy="remove it if another key is to sign this release",
        )
