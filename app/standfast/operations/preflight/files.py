"""Checks of the instance's own files: whose they are, the unit, and what the service is told."""

import hashlib
import os
import pwd
import stat
from pathlib import Path

from standfast.errors import BadInput, ConfigurationInvalid, Refused, StandfastError
from standfast.operations import environment
from standfast.operations.preflight.seen import Found, Seen, attention, listed, passes, refuses
from standfast.operations.unit import UnitText, compare, read_unit, seconds
from standfast.operations.upgrade.manager import Manager, release_in
from standfast.operations.upgrade.sides import side
from standfast.shop import config

_PRIVATE = 0o077
_OTHERS_WRITE = 0o022


def identity(seen: Seen) -> Found:
    """The root is this instance's, and this user's."""
    layout, name = seen.layout, pwd.getpwuid(os.geteuid()).pw_name
    if not layout.identity.exists():
        return refuses(f"there is no {layout.identity}", "install the instance: playbooks/install.yml")
    own = layout.instance()
    if (own.root, own.user) != (str(layout.root), name):
        return refuses(
            f"{layout.identity} says user {own.user} and root {own.root}; this is {name} at {layout.root}",
            "choose the root of this instance, or correct its account",
        )
    return passes(f"{own.instance} of {own.user} at {own.root}")


def ownership(seen: Seen) -> Found:
    """State, backups and receipts are the user's alone; releases are not the user's to write."""
    layout, user = seen.layout, os.geteuid()
    database = layout.database
    sidecars = [database.with_name(database.name + suffix) for suffix in ("-wal", "-shm")]
    wrong = [
        *(_folder(path, user, _PRIVATE) for path in (layout.state, layout.backups, layout.receipts)),
        *(_file(path, user, _PRIVATE) for path in (database, layout.marker)),
        *(_file(path, user, _PRIVATE) for path in sidecars if os.path.lexists(path)),
        _file(layout.shop, user, _OTHERS_WRITE),
        *(_folder(path, seen.places.administrator, _OTHERS_WRITE) for path in (layout.root, layout.releases)),
        _link(layout.current, layout.releases),
    ]
    found = [told for told in wrong if told]
    if found:
        return refuses(listed(found), "put it right, after asking who changed it: playbooks/install.yml does")
    return passes(f"as an install leaves them below {layout.root}")


def _folder(path: Path, owner: int, forbidden: int) -> str:
    return _entry(path, owner, forbidden, stat.S_IFDIR, "a folder")


def _file(path: Path, owner: int, forbidden: int) -> str:
    return _entry(path, owner, forbidden, stat.S_IFREG, "a file")


def _entry(path: Path, owner: int, forbidden: int, kind: int, what: str) -> str:
    try:
        found = path.lstat()
    except OSError as error:
        return f"{path}: {error.strerror}"
    if stat.S_IFMT(found.st_mode) != kind:
        return f"{path} is not {what}"
    if found.st_uid != owner:
        return f"{path} belongs to user {found.st_uid}, not {owner}"
    mode = stat.S_IMODE(found.st_mode)
    return f"{path} has mode {mode:04o}" if mode & forbidden else ""


def _link(path: Path, below: Path) -> str:
    if not path.is_symlink():
        return f"{path} is not a link"
    if path.resolve().parent != below.resolve():
        return f"{path} leads to {path.resolve()}"
    return ""


def unit(seen: Seen) -> Found:
    """The unit is what an install placed: an edit would be lost, and nobody asked for that."""
    path = Manager.of(seen.layout.instance().instance).path
    try:
        found = read_unit(path)
    except (Refused, BadInput) as error:
        return refuses(
            str(error), "install the release that works now again: playbooks/install.yml with its archive"
        )
    # Whoever may write it decides what runs as this user.
    if told := _file(path, os.geteuid(), _OTHERS_WRITE):
        return refuses(told, "make it a file of this user with mode 0644, after asking who changed it")
    if seen.record is not None and hashlib.sha256(found).hexdigest() in seen.record.units:
        return passes(f"{path} is what was put there")
    return _by_its_release(seen, path, found)


def _by_its_release(seen: Seen, path: Path, found: bytes) -> Found:
    """Root's record does not know it: the release that it names says what it would write."""
    instance = seen.layout.instance().instance
    release = release_in(found.decode("utf-8", "replace"))
    if release is None or not (seen.layout.releases / release).is_dir():
        return refuses(
            f"{path} names no release of {seen.layout.releases}",
            f"no install put it there: keep your copy elsewhere, then remove it (mv {path} /root/)",
        )
    try:
        wanted = side(seen.layout, release).unit_text()
        compare(UnitText(instance=instance, release=release, name=path.name, text=wanted), found, str(path))
    except Refused as refused:
        lines = refused.observed if isinstance(refused.observed, str) else " | ".join(refused.observed)
        return refuses(f"{path}: {lines}", refused.remedy)
    except StandfastError as error:
        return refuses(f"{path} could not be compared: {error}", f"mend {release}, or remove an edited unit")
    return passes(f"{path} is what {release} writes")


def environment_file(seen: Seen) -> Found:
    """systemd gives the service every pair of agent.env."""
    found = environment.check(seen.layout)
    if not found.ok:
        told = [f"line {one.line}: {one.problem}" if one.line else one.problem for one in found.problems]
        return refuses(listed(told), "correct the inventory's pairs and run playbooks/install.yml")
    if found.edited:
        return attention(
            f"{found.file} was edited by hand",
            "bring the change into the inventory's pairs",
        )
    return passes(f"{len(found.names)} names")


def shop(seen: Seen) -> Found:
    """The target understands shop.toml."""
    try:
        found = config.load(seen.layout.shop)
    except ConfigurationInvalid as error:
        return refuses(str(error), "correct it in the inventory and run playbooks/install.yml")
    return passes(f"{len(found.product)} products")


def settings(seen: Seen) -> Found:
    """The target would start with shop.toml and agent.env as they are."""
    try:
        seen.configured(seen.layout, environment.given(seen.layout), seconds("WatchdogSec"))
    except ConfigurationInvalid as error:
        return refuses(str(error), "correct it in the inventory and run playbooks/install.yml")
    return passes("as the service would read them")
