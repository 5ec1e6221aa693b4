"""The image: a private copy of the snapshot in which, in one transaction, its era has ended.

It lies beside the live store, so that it is on the same file system and as private. What a killed restore
left of one is removed by the next.
"""

import hashlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from standfast.authority import end_era, new_epoch
from standfast.durable import create_empty, create_folder
from standfast.errors import Refused
from standfast.layout import Layout
from standfast.operations.recovery.eras import Restored, record_restore
from standfast.operations.restore.source import Source
from standfast.operations.schema import COMPONENTS
from standfast.store import immediate, open_image, triggers

_FOLDER = ".restoring"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Image:
    """What is going to be the state."""

    path: Path
    epoch: str
    interrupted: list[str]
    """Work ids."""
    revoked: list[str]
    """Order ids."""


@contextmanager
def staging(layout: Layout) -> Iterator[Path]:
    """An empty private folder beside the live store, gone afterwards. The caller is the only restore."""
    folder = layout.state / _FOLDER
    clear(layout)
    create_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clear(layout: Layout) -> None:
    """Remove what a killed restore left; raises as `refuse_blocked`. The caller is the only restore."""
    refuse_blocked(layout)
    if (layout.state / _FOLDER).exists():
        shutil.rmtree(layout.state / _FOLDER)


def refuse_blocked(layout: Layout) -> None:
    """Raise Refused `staging_blocked` for what no restore has put where the image is made."""
    folder = layout.state / _FOLDER
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
        raise Refused(
            "staging_blocked",
            "where the image is to be made lies something that is no folder",
            observed=f"{folder} is {'a link' if folder.is_symlink() else 'a file'}",
            remedy="move it away by hand",
        )


def make(folder: Path, source: Source, *, reason: str, safety: str | None, now: float) -> Image:
    """Copy the snapshot into ``folder`` and end its era there.

    Raises Refused `source_changed` when it is not the file any more that was verified.
    """
    path = folder / "image.sqlite"
    path.unlink(missing_ok=True)
    _copy(source, path)
    triggers.reach("restore.staged")
    epoch = new_epoch()
    with closing(open_image(path, COMPONENTS)) as connection, immediate(connection, "restore.image"):
        interrupted, revoked = ending(connection)
        end_era(connection, epoch, reason, now)
        record_restore(
            connection,
            Restored(
                epoch=epoch,
                source=source.folder.name,
                source_sha256=source.manifest.sha256,
                snapshot_epoch=source.manifest.epoch,
                safety=safety,
                restored_at=now,
            ),
        )
    return Image(path=path, epoch=epoch, interrupted=interrupted, revoked=revoked)


def ending(connection: sqlite3.Connection) -> tuple[list[str], list[str]]:
    """The work that the end of the snapshot's era interrupts, and the orders that it revokes."""
    running = connection.execute("SELECT id FROM work WHERE status = 'RUNNING' ORDER BY seq")
    interrupted = [str(row[0]) for row in running]
    approved = connection.execute("SELECT id FROM orders WHERE status IN ('DRAFT', 'APPROVED') ORDER BY seq")
    return interrupted, [str(row[0]) for row in approved]


def _copy(source: Source, path: Path) -> None:
    """The sealed file, hashed on its way: what is restored is what the manifest names."""
    create_empty(path, 0o600)
    found = hashlib.sha256()
    with source.snapshot.open("rb") as sealed, path.open("wb") as copy:
        while block := sealed.read(_BLOCK):
            found.update(block)
            copy.write(block)
    if found.hexdigest() != source.manifest.sha256:
        raise Refused(
            "source_changed",
            "the snapshot was changed while it was read",
            observed=f"sha256 {found.hexdigest()}, the manifest says {source.manifest.sha256}",
            remedy="verify it: `standfast backup verify`; restore another backup",
        )
