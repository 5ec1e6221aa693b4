"""Manifests of releases that never were built, for what is decided from a manifest alone."""

from typing import Any

from standfast.authority import CONTRACT
from standfast.operations.schema import understood
from standfast.release.manifest import APP_LOCK, LOCK, FileEntry, Manifest, Source

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def manifest(version: str = "0.1.0", **changes: Any) -> Manifest:
    """A release of this code's schema and contract, with changes, under the id that it has."""
    pip = "wheels/pip-9.9-py3-none-any.whl"
    facts: dict[str, Any] = {
        "release_id": f"{version}-00000000-00000000",
        "version": version,
        "source": Source(commit="a" * 40, tree="b" * 40, clean=True),
        "lock_sha256": EMPTY,
        "pythons": ("3.12", "3.13"),
        "platforms": ("x86_64", "aarch64"),
        "schema_versions": understood(),
        "authority_contract": CONTRACT,
        "rollback_floor": "0.1.0",
        "installer": pip,
        "files": {name: FileEntry(sha256=EMPTY, size=0) for name in (LOCK, APP_LOCK, pip)},
    }
    return Manifest(**(facts | changes)).identified()
