"""What a release says of itself. The release id is bound to every fact and every file in it."""

import hashlib
import json
import re
from typing import Annotated, Literal

from packaging import version as versions
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

MANIFEST = "manifest.json"
LOCK = "requirements.lock"
APP_LOCK = "app.lock"
WHEELS = "wheels/"

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40,64}$")]


def _ordered(version: str) -> str:
    versions.Version(version)  # InvalidVersion is a ValueError
    return version


Version = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)*[0-9a-z.+]*$", max_length=100),
    AfterValidator(_ordered),
]
"""A version of PEP 440, without an epoch: a rollback floor has to be comparable with it."""
ReleaseId = Annotated[str, StringConstraints(pattern=r"^[0-9a-z.+]+-[0-9a-f]{8}(-dirty)?-[0-9a-f]{8}$")]
PYTHON_VERSION = r"3\.[1-9][0-9]?"
PythonVersion = Annotated[str, StringConstraints(pattern=f"^{PYTHON_VERSION}$")]
Platform = Literal["x86_64", "aarch64"]
"""`uname -m` of a host with glibc 2.28 or newer."""
MEMBER = rf"({re.escape(LOCK)}|{re.escape(APP_LOCK)}|wheels/[A-Za-z0-9][A-Za-z0-9_.+!-]*\.whl)"
"""The paths (a regular expression) that a release may hold beside its manifest."""
MemberPath = Annotated[str, StringConstraints(pattern=f"^{MEMBER}$")]


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, serialize_by_alias=True, validate_by_alias=True, validate_by_name=True
    )


class Source(_Model):
    """Where the release was built from."""

    commit: Commit
    tree: Commit
    """The git tree that was packed: the commit's own, or, when not clean, that of the working folder."""
    clean: bool


class FileEntry(_Model):
    """One file of the archive."""

    sha256: Sha256
    size: Annotated[int, Field(ge=0)]
    """Bytes."""


class Manifest(_Model):
    """`manifest.json`."""

    format: Literal[1] = 1
    release_id: ReleaseId
    version: Version
    source: Source
    lock_sha256: Sha256
    """Of `requirements.lock`."""
    pythons: Annotated[tuple[PythonVersion, ...], Field(min_length=1)]
    """The Pythons it carries wheels for, as X.Y."""
    platforms: Annotated[tuple[Platform, ...], Field(min_length=1)]
    extras: tuple[str, ...] = ()
    schema_versions: Annotated[dict[str, Annotated[int, Field(ge=1)]], Field(alias="schema")]
    """Store component -> the newest version that this release understands."""
    authority_contract: Annotated[int, Field(ge=1)]
    rollback_floor: Version
    """The oldest version that may take over a store which this release has written."""
    reviewed_fallbacks: tuple[ReleaseId, ...] = ()
    """Releases that were reviewed as targets of a code rollback from this one."""
    installer: MemberPath
    """The pip wheel that installs this release on a host."""
    files: dict[MemberPath, FileEntry]
    """Every file of the archive but the manifest itself."""

    @property
    def app_wheel(self) -> str:
        """The path of the package's own wheel."""
        return f"{WHEELS}standfast-{self.version}-py3-none-any.whl"

    def expected_id(self) -> str:
        """The id that these facts and files have."""
        facts = self.model_dump(mode="json", exclude={"release_id"})
        canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
        dirty = "" if self.source.clean else "-dirty"
        return f"{self.version}-{self.source.commit[:8]}{dirty}-{hashlib.sha256(canonical).hexdigest()[:8]}"

    def identified(self) -> "Manifest":
        """The same manifest under the id that it has."""
        return self.model_copy(update={"release_id": self.expected_id()})

    def render(self) -> bytes:
        """The one way in which a manifest is written."""
        return json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True).encode() + b"\n"


def sha256(data: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(data).hexdigest()
