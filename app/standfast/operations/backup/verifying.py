"""Whether a backup is what its manifest says: every check is told, and no sidecar is made."""

import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from standfast.clock import rfc3339
from standfast.errors import Refused
from standfast.operations.backup import meaning, snapshot
from standfast.operations.backup.folders import (
    FILE_MODE,
    FOLDER_MODE,
    MANIFEST,
    SNAPSHOT,
    VERIFIED,
    in_use,
)
from standfast.operations.backup.limits import Report, quiet
from standfast.operations.backup.manifest import (
    BackupManifest,
    parse_manifest,
    read_private,
    write_result,
)
from standfast.store import APPLICATION_ID, schema_versions


class Check(BaseModel):
    """One thing that was looked at."""

    name: str
    outcome: Literal["pass", "fail"]
    observed: str


class Verification(BaseModel):
    """Whether one backup is whole. What a failed check makes impossible to look at is left out."""

    ok: bool
    path: str
    checks: list[Check]


type Look = Callable[[], str]
"""Gives what was seen; raises Fault when it is not as it must be."""


class Fault(Exception):
    """One check failed; the message says what was seen."""


def verify(path: Path, *, report: Report = quiet, record: bool = True) -> Verification:
    """Verify the backup in the folder `path`, reading all of its snapshot.

    `record`: keep the result beside the manifest for `list` and health, where that can be written. Raises
    nothing for a bad backup: the checks say it.
    """
    with in_use(path):
        return _verify(path, report, record=record)


def _verify(path: Path, report: Report, *, record: bool) -> Verification:
    data = read_private(path / MANIFEST)
    checks: list[Check] = []
    try:
        manifest = parse_manifest(data, path / MANIFEST)
    except Refused as refused:
        checks.append(Check(name="manifest", outcome="fail", observed=refused.reason))
        return Verification(ok=False, path=str(path), checks=checks)
    told = f"sequence {manifest.sequence}, made {manifest.made_at}"
    checks.append(Check(name="manifest", outcome="pass", observed=told))
    checks += _looked_at(path, manifest, report)
    ok = all(check.outcome == "pass" for check in checks)
    if record and data is not None and path.stat().st_uid == os.geteuid():
        with suppress(OSError):  # a backup on a medium that cannot be written is verified all the same
            write_result(path, VERIFIED, ok=ok, at=rfc3339(time.time()), manifest=data)
    return Verification(ok=ok, path=str(path), checks=checks)


def _looked_at(path: Path, manifest: BackupManifest, report: Report) -> Iterator[Check]:
    """Each check relies on those before it, so the first fault of the file ends them."""
    file = path / SNAPSHOT
    yield looked("private", lambda: _private(path))
    for name, look in (
        ("sealed", lambda: _sealed(file)),
        ("bytes", lambda: equal(file.stat().st_size, manifest.bytes)),
        ("sha256", lambda: equal(snapshot.digest(file, report=report), manifest.sha256)),
    ):
        found = looked(name, look)
        yield found
        if found.outcome == "fail":
            return
    yield from checks_inside(file, manifest)
    yield looked("companions", lambda: _companions(path, manifest))


def checks_inside(file: Path, manifest: BackupManifest) -> Iterator[Check]:
    """What the database itself says, compared with the manifest. `file` is sealed."""
    with snapshot.sealed(file) as copy:
        looks: tuple[tuple[str, Look], ...] = (
            ("application", lambda: _application(copy, manifest)),
            ("schema", lambda: equal(schema_versions(copy), manifest.schema_versions)),
            ("integrity", lambda: _none(snapshot.damage(copy), "integrity_check: ok")),
            ("foreign keys", lambda: _none(snapshot.dangling(copy), "no reference dangles")),
            ("epoch", lambda: equal(_epoch(copy), manifest.epoch)),
            ("rows", lambda: _alike(meaning.rows(copy), manifest.rows)),
            ("totals", lambda: _alike(meaning.totals(copy).model_dump(), manifest.totals.model_dump())),
        )
        for name, look in looks:
            yield looked(name, look)


def looked(name: str, look: Look) -> Check:
    """What a look gave: its words, or its fault."""
    try:
        return Check(name=name, outcome="pass", observed=look())
    except (Fault, Refused, OSError, sqlite3.Error) as error:
        return Check(name=name, outcome="fail", observed=str(error) or type(error).__name__)


def _private(path: Path) -> str:
    for found, mode, kind in (
        (path, FOLDER_MODE, stat.S_ISDIR),
        (path / SNAPSHOT, FILE_MODE, stat.S_ISREG),
        (path / MANIFEST, FILE_MODE, stat.S_ISREG),
    ):
        try:
            seen = found.lstat()
        except FileNotFoundError:
            raise Fault(f"{found} is missing") from None
        if not kind(seen.st_mode):
            raise Fault(f"{found} is a link or no plain file or folder")
        if stat.S_IMODE(seen.st_mode) != mode:
            raise Fault(
                f"{found} has mode {stat.S_IMODE(seen.st_mode):04o}, not {mode:04o}; if you put it there"
                f" yourself: chmod -R a-x,u=rwX,go= {path}"
            )
        if seen.st_uid != os.geteuid():
            raise Fault(f"{found} belongs to uid {seen.st_uid}, and uid {os.geteuid()} looks at it")
    return "0700 and 0600, this user's"


def _sealed(file: Path) -> str:
    if file.is_symlink() or not file.is_file():
        raise Fault(f"{file.name} is missing, a link or no plain file")
    if not snapshot.is_sealed(file):
        beside = ", ".join(snapshot.sidecars(file))
        raise Fault(
            f"{beside} beside it: somebody opened it for writing"
            if beside
            else "its header is not that of a plain SQLite database"
        )
    return "one plain file"


def _application(copy: sqlite3.Connection, manifest: BackupManifest) -> str:
    seen = copy.execute("PRAGMA application_id").fetchone()[0]
    if seen != APPLICATION_ID:
        raise Fault(f"application_id {seen:#x} is another application's")
    equal(seen, manifest.application_id)
    equal(copy.execute("PRAGMA page_size").fetchone()[0], manifest.page_size)
    return f"application_id {seen:#x}"


def _epoch(copy: sqlite3.Connection) -> str:
    return str(copy.execute("SELECT epoch FROM operations WHERE id = 1").fetchone()[0])


def equal(seen: object, wanted: object) -> str:
    """What was seen; Fault when the manifest (or the release) says something else."""
    if seen != wanted:
        raise Fault(f"it is {seen}, the manifest says {wanted}")
    return str(seen)


def _alike(seen: dict[str, object] | dict[str, int], wanted: dict[str, object] | dict[str, int]) -> str:
    differs = sorted(
        name for name in {*seen, *wanted} if seen.get(name, "absent") != wanted.get(name, "absent")
    )
    if differs:
        raise Fault(
            "; ".join(
                f"{name}: {seen.get(name, 'absent')}, the manifest says {wanted.get(name, 'absent')}"
                for name in differs
            )
        )
    return f"{len(seen)} agree"


def _none(found: list[str], told: str) -> str:
    if found:
        raise Fault("; ".join(found))
    return told


def _companions(path: Path, manifest: BackupManifest) -> str:
    copied = [one for one in manifest.companions if one.copied is not None]
    for one in copied:
        assert one.copied is not None
        file = path / one.copied
        if not file.is_file():  # a pipe would never end, and a name may be none at all
            raise Fault(f"{one.copied!r} is not a file")
        if not file.resolve().is_relative_to(path.resolve()) or file.is_symlink():
            raise Fault(f"{one.copied} leads out of the backup")
        equal(file.stat().st_size, one.bytes)
        if one.sha256 is not None:
            equal(snapshot.digest(file), one.sha256)
    return f"{len(copied)} copies"
