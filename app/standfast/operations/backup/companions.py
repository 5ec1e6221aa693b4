"""The files that belong to an instance beside its database: told of in the manifest, copied where asked.

Credentials are copied to an encrypted destination only, and their digest is never told.
"""

import errno
import hashlib
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from standfast.durable import create_file, create_folder, sync_folder
from standfast.errors import BadInput, Refused
from standfast.layout import Layout
from standfast.operations.backup.encryption import is_encrypted
from standfast.operations.backup.folders import FILE_MODE, FOLDER_MODE
from standfast.operations.backup.limits import Guard
from standfast.operations.backup.manifest import Companion
from standfast.operations.unit import user_units

KINDS = ("env", "skills", "reports", "receipts", "units")
"""What can be asked for. The shop's file, `shop.toml`, is always copied: no business goes on without it."""
FOLDER = "companions"
"""Below a backup's folder."""

_ALWAYS = (
    "the supplier's own ledger: what was accepted is known to the supplier; see its receipts after a restore"
)
_ABSENT = {
    "env": "credentials and switches (agent.env)",
    "skills": "skills as readable text (they are in the snapshot)",
    "reports": "delivered reports as files (they are in the snapshot)",
    "receipts": "operation receipts",
    "units": "systemd units and their drop-ins",
}


@dataclass(frozen=True)
class Wanted:
    """Which kinds are told of, and which of those are copied."""

    told: frozenset[str]
    copied: frozenset[str]

    @classmethod
    def of(cls, told: Iterable[str], copied: Iterable[str]) -> "Wanted":
        """BadInput for a kind that there is not."""
        unknown = sorted({*told, *copied} - set(KINDS))
        if unknown:
            raise BadInput(f"{', '.join(unknown)}: a companion is one of {', '.join(KINDS)}")
        return cls(told=frozenset(told) | frozenset(copied), copied=frozenset(copied))

    def refuse_exposed(self, folder: Path) -> None:
        """Refused `not_encrypted` when credentials would be copied to a place that is not encrypted."""
        if "env" in self.copied and not is_encrypted(folder):
            raise Refused(
                "not_encrypted",
                "credentials are copied to an encrypted destination only",
                observed=f"the file system of {folder} is not seen to be encrypted",
                remedy="name an encrypted place with --to, or leave env to the inventory (--with env)",
            )

    def not_included(self) -> list[str]:
        """What the manifest says is not in the backup."""
        lacking = [text for kind, text in _ABSENT.items() if kind not in self.copied]
        return [_ALWAYS, *lacking]


def gather(
    layout: Layout, wanted: Wanted, snapshot: sqlite3.Connection, folder: Path, guard: Guard
) -> list[Companion]:
    """Tell of, and copy below `folder`, what is wanted. A file that is gone by now is left out."""
    found = [("shop", _file("shop", layout.shop))]
    sources: dict[str, Callable[[], Iterable[_Source]]] = {
        "env": lambda: [_file("env", layout.environment)],
        "skills": lambda: _skills(snapshot),
        "reports": lambda: _files("reports", layout.outbox),
        "receipts": lambda: _files("receipts", layout.receipts),
        "units": lambda: _units(layout),
    }
    found += [(kind, source) for kind in KINDS if kind in wanted.told for source in sources[kind]()]
    companions = []
    for kind, source in found:
        guard.check()
        data = source.read()
        if data is not None:
            copied = kind == "shop" or kind in wanted.copied
            companions.append(_kept(source, data, folder if copied else None))
    return companions


@dataclass(frozen=True)
class _Source:
    kind: str
    name: str
    """Below the kind's folder."""
    path: str
    read: Callable[[], "_Data | None"]


@dataclass(frozen=True)
class _Data:
    mode: int
    content: bytes


def _kept(source: _Source, data: _Data, folder: Path | None) -> Companion:
    copied = None
    if folder is not None:
        copied = f"{FOLDER}/{source.kind}/{source.name}"
        _copy(folder, copied, data.content)
    secret = source.kind == "env"
    return Companion(
        kind=source.kind,
        path=source.path,
        mode=f"{data.mode:04o}",
        bytes=len(data.content),
        sha256=None if secret else hashlib.sha256(data.content).hexdigest(),
        copied=copied,
    )


def _copy(folder: Path, name: str, content: bytes) -> None:
    path = folder / name
    for parent in reversed(path.relative_to(folder).parents[:-1]):
        if not (folder / parent).exists():
            create_folder(folder / parent, FOLDER_MODE)
    create_file(path, content, FILE_MODE)
    sync_folder(path.parent)


def _file(kind: str, path: Path, name: str | None = None) -> _Source:
    return _Source(kind=kind, name=name or path.name, path=str(path), read=lambda: _read(path))


def _files(kind: str, folder: Path) -> Iterator[_Source]:
    for path in _inside(folder):
        if not path.name.startswith("."):
            yield _file(kind, path)


def _skills(snapshot: sqlite3.Connection) -> Iterator[_Source]:
    """The texts in force, which lie in the database: as text, a person can read them without any tool."""
    rows = snapshot.execute("SELECT name, max(version), text FROM skills GROUP BY name ORDER BY name")
    for name, _, text in rows.fetchall():
        data = _Data(FILE_MODE, str(text).encode())
        yield _Source("skills", f"{name}.txt", f"skill {name}", lambda data=data: data)  # type: ignore[misc]


def _units(layout: Layout) -> Iterator[_Source]:
    folder = user_units()
    instance = layout.instance().instance
    for kind in ("service", "timer"):
        for unit in (instance, f"{instance}-backup", f"{instance}-rehearse"):
            name = f"{unit}.{kind}"
            yield _file("units", folder / name)
            for path in _inside(folder / f"{name}.d"):
                yield _file("units", path, f"{name}.d/{path.name}")


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> _Data | None:
    """A plain file; None when there is none, a link included. Never called for a database."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise _unreadable(path, error) from error
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        return _Data(stat.S_IMODE(found.st_mode), file.read())


def _unreadable(path: Path, error: OSError) -> Refused:
    return Refused(
        "companion_unreadable",
        f"{path} was asked for and cannot be read",
        observed=error.strerror or str(error),
        remedy="mend its permissions, or leave its kind out of --with",
    )
