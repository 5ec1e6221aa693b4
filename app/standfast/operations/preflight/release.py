"""Checks of the target: that it is whole, runs on what it was installed with, and may take the store over."""

import platform
import sqlite3

from packaging.version import Version

from standfast.errors import BadInput
from standfast.operations.health import sqlite_facts
from standfast.operations.kept import below, floors
from standfast.operations.preflight.seen import Found, Seen, attention, listed, passes, refuses
from standfast.release.verify import verify

_AGAIN = "install the target again from its archive: a release is never repaired in place"


def target_proven(seen: Seen) -> Found:
    """Its manifest, its wheels and every file of its venv are what was sealed."""
    if seen.manifest is None:
        return refuses(f"{seen.folder} is no release: it has no manifest", _AGAIN)
    try:
        found = verify(seen.folder, must_be_installed=True)
    except BadInput as error:
        return refuses(str(error), _AGAIN)
    if found.verified:
        return passes(f"{seen.folder} is what was sealed")
    told = [f"{one.path}: {one.problem} {one.detail}".rstrip() for one in found.differences]
    return refuses(listed(told), _AGAIN)


def python(seen: Seen) -> Found:
    """The interpreter is the one that the target was proven with."""
    now, sealed = platform.python_version(), seen.seal.python if seen.seal else "unknown"
    if now == sealed:
        return passes(f"Python {now}")
    told = f"Python {now}, and the target was installed with {sealed}"
    if now.split(".")[:2] != sealed.split(".")[:2]:
        return refuses(told, _AGAIN)
    return attention(told, "the host's Python was updated since; to prove it anew, install the target again")


def sqlite(seen: Seen) -> Found:
    """Its SQLite is the one that it was proven with."""
    now, sealed = sqlite_facts(sqlite3.sqlite_version_info), seen.seal.sqlite if seen.seal else "unknown"
    if now.version != sealed:
        return attention(
            f"SQLite {now.version}, and the target was installed with {sealed}",
            "the host's SQLite was updated since; to prove it anew, install the target again",
        )
    return passes(f"SQLite {now.version}" + (f", {now.note}" if now.note else ""))


def authority_contract(seen: Seen) -> Found:
    """The target honours what the current release has promised."""
    if seen.manifest is None or seen.current is None:
        return attention(
            "the authority contract of the current release is not known: its manifest cannot be read",
            "`standfast release list` shows what is installed",
        )
    new, old = seen.manifest.authority_contract, seen.current.authority_contract
    if new < old:
        return refuses(
            f"the target honours authority contract {new}, the current release {old}",
            "choose a release of that contract or a later one",
        )
    if new > old:
        return attention(
            f"authority contract {old} becomes {new}",
            "once it has worked, no release of the old contract may be gone back to",
        )
    return passes(f"authority contract {new}, as now")


def rollback_floor(seen: Seen) -> Found:
    """The target does not lie under a floor that any release since has set."""
    if seen.manifest is None:
        return refuses("the version of the target is not known: its manifest cannot be read", _AGAIN)
    version = seen.manifest.version
    under = below(version, floors(seen.record, *([seen.current] if seen.current else [])))
    if under:
        told = [f"{version} is under the floor {floor.version} of {floor.release}" for floor in under]
        return refuses(listed(told), "choose a release at or above the floor; a repair below it is undone")
    if seen.current is not None and Version(version) < Version(seen.current.version):
        return attention(
            f"{version} is older than the current {seen.current.version}",
            "to go back to a release that is kept, use playbooks/rollback.yml",
        )
    if seen.record is None:
        return attention(
            "root's record of this instance is not there, so no floor is known",
            "name it with --record; an install writes it once it has shown that a release works",
        )
    floor = seen.record.floor
    return passes(f"{version}, the floor is {floor.version}" if floor else f"{version}, no floor is set")
