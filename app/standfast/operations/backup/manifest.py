"""What a backup says of itself: the manifest, written last, and the small files that come beside it later."""

import hashlib
import os
import stat
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from standfast.durable import create_file, write_file
from standfast.errors import Refused
from standfast.operations.backup.folders import FILE_MODE, MANIFEST

LONGEST = 16 * 1024 * 1024
"""Bytes; a longer file is no manifest."""

Digest = Annotated[str, StringConstraints(pattern=r"\A[0-9a-f]{64}\z")]
Count = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    # A later version may add fields: a reader ignores what it does not know.
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, serialize_by_alias=True)


class Totals(_Part):
    """The business in a few numbers, so that a person can tell whether a backup is the right one."""

    orders: dict[str, Count]
    """How many by status."""
    stock: dict[str, int]
    """Units on hand by sku, as the stock events add up."""
    spent_cents: Count
    """Over all days."""
    reserved_cents: Count


class Releases(_Part):
    """An upgrade's two releases; the snapshot was taken under the first."""

    before: str
    after: str


class Companion(_Part):
    """One file that belongs to the instance and does not lie in its database."""

    kind: str
    path: str
    """Where it was."""
    mode: Annotated[str, StringConstraints(pattern=r"\A0[0-7]{3}\z")]
    bytes: Count
    sha256: Digest | None
    """null for credentials: a digest would let a short secret be guessed."""
    copied: str | None = None
    """Its copy below the backup's folder, or null when it is only told of."""


class Migrated(_Part):
    """A backup that was brought forward as a copy."""

    from_sha256: Digest
    """Of the original's snapshot, which is kept as evidence."""
    from_schema: dict[str, Count]
    at: str


class BackupManifest(_Part):
    """All that a restore and a person need to know before they trust a snapshot."""

    format: Literal[1] = 1
    sequence: Annotated[int, Field(ge=1)]
    """Which backup of the instance it is: order by this, never by a clock."""
    release: str
    """The release that took it; `source` outside a release."""
    releases: Releases | None = None
    schema_versions: dict[str, Count] = Field(alias="schema")
    """The version of every component."""
    application_id: int
    epoch: str
    """The era under which it was taken; a restore never takes it up again."""
    sqlite: str
    page_size: Annotated[int, Field(ge=512)]
    bytes: Annotated[int, Field(ge=512)]
    sha256: Digest
    rows: dict[str, Count]
    """By table."""
    totals: Totals
    host: str
    """The host's identity, as in the marker."""
    made_at: str
    """When the snapshot was taken: everything committed before is in it, nothing after."""
    seconds: Annotated[float, Field(ge=0)]
    asked_by: str
    companions: list[Companion] = []
    not_included: list[str]
    """What a person would have to find elsewhere."""
    migrated: Migrated | None = None


class Result(_Part):
    """The last verification or rehearsal of one backup; bound to the manifest that it was made of."""

    ok: bool
    at: str
    manifest_sha256: Digest


def read_manifest(folder: Path) -> BackupManifest:
    """The manifest of the backup in `folder`.

    Raises Refused: `backup_incomplete` (no manifest: the backup was never finished) or `manifest_invalid`.
    """
    return parse_manifest(read_private(folder / MANIFEST), folder / MANIFEST)


def parse_manifest(data: bytes | None, path: Path) -> BackupManifest:
    """The manifest that `data` is; errors as `read_manifest`."""
    if data is None:
        raise Refused(
            "backup_incomplete",
            f"{path.parent} holds no readable manifest: it is no finished backup",
            observed=f"{path} is absent, not a plain file, or too long",
            remedy="use another backup; `standfast backup list` shows them",
        )
    try:
        return BackupManifest.model_validate_json(data)
    except ValidationError as error:
        told = [
            f"{'.'.join(map(str, problem['loc'])) or 'manifest'}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)[:10]
        ]
    raise Refused(
        "manifest_invalid",
        f"{path} is not a backup's manifest",
        observed=told,
        remedy="use another backup; `standfast backup list` shows them",
    )


def write_manifest(folder: Path, manifest: BackupManifest) -> bytes:
    """Publish the manifest, durably and exclusively: from here on the folder is a backup. Its bytes."""
    data = (manifest.model_dump_json(indent=2) + "\n").encode()
    create_file(folder / MANIFEST, data, FILE_MODE)
    return data


def write_result(folder: Path, name: str, *, ok: bool, at: str, manifest: bytes) -> None:
    """Keep the result of a verification or rehearsal beside the manifest with these bytes."""
    result = Result(ok=ok, at=at, manifest_sha256=hashlib.sha256(manifest).hexdigest())
    write_file(folder / name, (result.model_dump_json(indent=2) + "\n").encode(), FILE_MODE)


def read_result(folder: Path, name: str, manifest: bytes) -> Result | None:
    """The kept result, unless it was made of another manifest."""
    data = read_private(folder / name)
    try:
        result = None if data is None else Result.model_validate_json(data)
    except ValidationError:
        return None
    if result is None or result.manifest_sha256 != hashlib.sha256(manifest).hexdigest():
        return None
    return result


def read_private(path: Path) -> bytes | None:
    """A plain file's bytes; None when it is absent, a link, a device, unreadable or longer than LONGEST."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(LONGEST + 1)
    finally:
        os.close(descriptor)
    return None if len(data) > LONGEST else data
