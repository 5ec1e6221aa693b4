"""Restore, step by step: everything that can be refused is refused before the live store is touched.

Then: a backup of the present state; the image, in which the snapshot's era has ended; the pause of the live
store; the copy, in one commit; the marker; the check. A kill leaves the old state, paused or not, or the new
paused one. Nothing here resumes.
"""

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from standfast.authority import host_identity, operations, pause, refuse_while_held, writer_lock
from standfast.authority import marker as markers
from standfast.authority.marker import Marker
from standfast.errors import Refused, StandfastError, StoreBusy, no_space
from standfast.layout import Layout
from standfast.locking import locked
from standfast.operations.backup.creating import Request, create
from standfast.operations.backup.folders import in_use
from standfast.operations.backup.limits import Limits, Report, quiet
from standfast.operations.backup.snapshot import sealed
from standfast.operations.opening import refuse_other_user
from standfast.operations.recovery.eras import is_awaiting, restored
from standfast.operations.restore.active import Active, damage_in, examine, put_aside
from standfast.operations.restore.copying import Changed, begin, checkpoint, install, refuse_damaged
from standfast.operations.restore.image import Image, clear, ending, make, refuse_blocked, staging
from standfast.operations.restore.source import Source, find, refuse_unverified
from standfast.operations.schema import COMPONENTS, understood
from standfast.receipts.model import Check
from standfast.store import Store, open_readonly, open_store, schema_versions, triggers

MARGIN = 16 * 1024 * 1024
"""Bytes that stay free beside the live store."""

_TRIES = 4
"""How often the safety backup is made once more because somebody has written meanwhile."""


class RestoreResult(BaseModel):
    """What a restore did, or with `--check` would do."""

    changed: bool
    """False when the live store is the restored image of this very backup, and still awaits its recovery."""
    check: bool
    source: str
    source_sha256: str
    epoch_before: str | None
    """The live store's; null when that was lost."""
    epoch: str | None
    """The new one, which begins paused; null under `--check`."""
    safety_backup: str | None
    """The backup of the state that was replaced; null when there was none that could be read."""
    evidence: str | None
    """Where the files of a damaged or newer state were put."""
    lost: str | None
    """Why there could be no safety backup."""
    interrupted: list[str]
    """Work that was RUNNING in the backup."""
    revoked_orders: list[str]
    """Orders that were drafts or approved in the backup."""
    checkpointed: bool
    """False when a reader of the old state kept the log from being emptied; it is later."""
    seconds: float
    receipt: str | None = None
    """The operation receipt's file; null when the caller keeps one, and when nothing was changed."""

    def seen(self) -> list[Check]:
        """What the operation's receipt says."""
        kept = self.safety_backup or self.evidence or "nothing was there"
        told = (
            f"restored from {self.source}, sha256 {self.source_sha256}; the epoch before was"
            f" {self.epoch_before or 'lost'}; kept before it: {kept};"
            f" interrupted work: {', '.join(self.interrupted) or 'none'};"
            f" approvals revoked: {', '.join(self.revoked_orders) or 'none'}"
        )
        return [
            Check(name="epoch", outcome="pass", observed=self.epoch or ""),
            Check(name="restore", outcome="attention", observed=told),
        ]


def restore(
    layout: Layout,
    given: str,
    *,
    now: float,
    live: bool = False,
    newer_aside: bool = False,
    check: bool = False,
    report: Report = quiet,
    limits: Limits | None = None,
) -> RestoreResult:
    """Make the backup `given` (a name or a folder) the state, under a new epoch and paused.

    `live`: also while the service runs; `newer_aside`: also over a store of a newer release, which is then
    kept as evidence, for no safety backup of it can be made; `limits`: of the safety backup. Raises BadInput,
    and Refused with nothing changed: what `find`, `examine` and `refuse_unverified` refuse,
    `page_size_differs`, `marker_blocked`, `staging_blocked`, `restore_no_space`, `writer_held`,
    `restore_running`, `store_held`, and what the safety backup refuses. StandfastError and StoreBusy once the
    live store is paused: it then stays so, under its old epoch, until a restore succeeds.
    """
    refuse_other_user(layout)
    source = find(layout, given, now)
    asked = _Asked(layout, source, now, time.monotonic(), live, report, limits or Limits())
    active = examine(layout, newer_aside=newer_aside)
    if done := _already(asked, active):
        if check:
            return done
        with _alone(layout):
            clear(layout)
            return done.model_copy(update={"checkpointed": _fold_back(layout)})
    _refuse_unfit(asked, active)
    if check:
        refuse_unverified(asked.source, report)
        if not live:
            refuse_while_held(layout)
        return _foreseen(asked, active)
    with in_use(asked.source.folder), _alone(layout), _writer(layout, live=live):
        refuse_unverified(asked.source, report)
        active = examine(layout, newer_aside=newer_aside)
        _refuse_unfit(asked, active)
        with staging(layout) as folder:
            return _Restore(asked, active, folder).run()


@dataclass(frozen=True)
class _Asked:
    layout: Layout
    source: Source
    now: float
    began: float
    live: bool
    report: Report
    limits: Limits

    @property
    def present(self) -> float:
        """Epoch seconds. What a running service has done since the restore began may be of another day."""
        return self.now + time.monotonic() - self.began

    @property
    def reason(self) -> str:
        return f"restored from {self.source.folder.name}"


@dataclass
class _Restore:
    """One restore, with every lock it needs."""

    asked: _Asked
    active: Active
    folder: Path
    host: str = ""

    def run(self) -> RestoreResult:
        self.host = host_identity()
        if self.active.kind != "whole":
            return self._over_nothing(self.active)
        try:
            return self._over_whole()
        except _Damaged as damaged:
            lost = Active("damaged", str(damaged), inode=self.active.inode, bytes=self.active.bytes)
            _refuse_live_loss(self.asked, lost)
            return self._over_nothing(lost)

    def _over_whole(self) -> RestoreResult:
        with closing(open_store(self.asked.layout.database, COMPONENTS)) as live:
            for attempt in range(_TRIES):
                # What is written after the safety backup has begun is not in it, so it must not be replaced.
                seen = _data_version(live)
                try:
                    safety = self._safety()
                    image = self._image(safety)
                except StandfastError as error:
                    if not attempt:
                        raise
                    raise StandfastError(  # no refusal any more: the pause stays
                        f"the live store is paused under its old epoch, and was not replaced: {error};"
                        " mend the cause, and restore again from the same backup"
                    ) from error
                self._pause(live)
                try:
                    self._install(image, partial(_refuse_change, live, seen))
                except Changed:
                    continue
                return self._finish(image, safety=safety, evidence=None, inode=self.active.inode)
        raise StandfastError(
            "the live store is paused under its old epoch: others kept writing to it, and nothing may be lost"
            " that no safety backup holds; stop them, and restore again from the same backup"
        )

    def _pause(self, live: Store) -> None:
        try:
            pause(live, f"a restore is under way: {self.asked.reason}", self.asked.now)
        except sqlite3.Error as error:
            raise StandfastError(f"the live store could not be paused, and is as it was: {error}") from error
        triggers.reach("restore.paused")

    def _over_nothing(self, lost: Active) -> RestoreResult:
        evidence = None
        if lost.kind in {"damaged", "newer"}:
            evidence = put_aside(self.asked.layout, lost.kind, self.asked.now)
            triggers.reach("restore.put_aside")
        image = self._image(None)
        begin(self.asked.layout.database, self.asked.source.manifest.page_size)
        triggers.reach("restore.begun")
        self._install(image, lambda: None)
        return self._finish(image, safety=None, evidence=evidence, inode=None, lost=lost.observed)

    def _safety(self) -> str:
        asked_by = f"restore of {self.asked.source.folder.name}"[:100]
        request = Request.of(asked_by=asked_by, limits=self.asked.limits)
        try:
            made = create(self.asked.layout, request, report=self.asked.report)
        except StandfastError as error:
            damage = damage_in(error.__cause__)
            if isinstance(error, Refused) and error.code == "backup_damaged":
                damage = error.seen
            if not damage:
                raise
            raise _Damaged(damage) from error
        triggers.reach("restore.safety_made")
        return made.folder

    def _image(self, safety: str | None) -> Image:
        try:
            image = make(
                self.folder,
                self.asked.source,
                reason=self.asked.reason,
                safety=safety,
                now=self.asked.present,
            )
        except (sqlite3.Error, OSError) as error:
            if no_space(error):
                raise _too_little(str(error)) from error
            raise StandfastError(
                f"the image could not be made; the live store is as it was: {error}"
            ) from error
        triggers.reach("restore.image_made")
        return image

    def _install(self, image: Image, unchanged: Callable[[], None]) -> None:
        try:
            install(self.asked.layout.database, image.path, unchanged, self.asked.report)
        except (StoreBusy, sqlite3.Error, OSError) as error:
            raise StandfastError(
                f"the copy into the live store failed, and that is as it was, paused under its old epoch:"
                f" {error}; mend the cause, and restore again from the same backup"
            ) from error
        triggers.reach("restore.copied")

    def _finish(
        self, image: Image, *, safety: str | None, evidence: Path | None, inode: int | None, lost: str = ""
    ) -> RestoreResult:
        layout = self.asked.layout
        try:
            markers.write(layout.marker, Marker(epoch=image.epoch, host=self.host))
        except OSError as error:
            raise StandfastError(
                "the store is restored and paused, but its marker could not be written, so nothing can act:"
                f" {error}; mend the cause, and restore again from the same backup"
            ) from error
        triggers.reach("restore.marker_written")
        emptied = _fold_back(layout)
        triggers.reach("restore.checkpointed")
        _verify(layout, image, inode)
        triggers.reach("restore.verified")
        before = self.active.control
        return RestoreResult(
            changed=True,
            check=False,
            source=str(self.asked.source.folder),
            source_sha256=self.asked.source.manifest.sha256,
            epoch_before=None if before is None else before.epoch,
            epoch=image.epoch,
            safety_backup=safety,
            evidence=None if evidence is None else str(evidence),
            lost=lost or None,
            interrupted=image.interrupted,
            revoked_orders=image.revoked,
            checkpointed=emptied,
            seconds=round(time.monotonic() - self.asked.began, 3),
        )


def _fold_back(layout: Layout) -> bool:
    """Move the restored store's log into its file; False when a reader of the old state keeps it there."""
    try:
        with closing(open_store(layout.database, COMPONENTS)) as connection:
            return checkpoint(connection)
    except sqlite3.Error as error:
        raise StandfastError(
            "the store is restored and paused, and only its log could not be moved into its file:"
            f" {error}; mend the cause, and restore again from the same backup, which then only does that"
        ) from error


class _Damaged(Exception):
    """The live store opens, and is damaged further in."""


def _data_version(connection: sqlite3.Connection) -> int:
    """Changes whenever another connection has committed."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def _refuse_change(connection: sqlite3.Connection, seen: int) -> None:
    if _data_version(connection) != seen:
        raise Changed


def _already(asked: _Asked, active: Active) -> RestoreResult | None:
    """The restored image of this very backup, which nobody has recovered yet, is not restored once more."""
    control = active.control
    if control is None or not control.paused:
        return None
    with closing(open_readonly(asked.layout.database)) as connection:
        made = restored(connection, control.epoch)
        if made is None or made.source_sha256 != asked.source.manifest.sha256:
            return None
        if not is_awaiting(connection, control.epoch) or not _vouched(asked.layout, control.epoch):
            return None
        return RestoreResult(
            changed=False,
            check=False,
            source=str(asked.source.folder),
            source_sha256=made.source_sha256,
            epoch_before=control.epoch,
            epoch=control.epoch,
            safety_backup=made.safety,
            evidence=None,
            lost=None,
            interrupted=[],
            revoked_orders=[],
            checkpointed=True,
            seconds=round(time.monotonic() - asked.began, 3),
        )


def _vouched(layout: Layout, epoch: str) -> bool:
    """Whether the marker names the epoch and this host."""
    return markers.read(layout.marker) == Marker(epoch=epoch, host=host_identity())


def _foreseen(asked: _Asked, active: Active) -> RestoreResult:
    with sealed(asked.source.snapshot) as snapshot:
        interrupted, revoked = ending(snapshot)
    return RestoreResult(
        changed=True,
        check=True,
        source=str(asked.source.folder),
        source_sha256=asked.source.manifest.sha256,
        epoch_before=None if active.control is None else active.control.epoch,
        epoch=None,
        safety_backup=None,
        evidence=None,
        lost=active.observed or None,
        interrupted=interrupted,
        revoked_orders=revoked,
        checkpointed=False,
        seconds=round(time.monotonic() - asked.began, 3),
    )


def _refuse_unfit(asked: _Asked, active: Active) -> None:
    """What would make the restore fail half-way."""
    wanted = asked.source.manifest.page_size
    if active.kind == "whole" and active.page_size != wanted:
        raise Refused(
            "page_size_differs",
            "the backup's pages are not of the live store's size, so it cannot be copied into the same file",
            observed=f"backup {wanted} bytes, live store {active.page_size}",
            remedy="restore on a host without a store, or move the live store away by hand",
        )
    if asked.layout.marker.is_dir():
        raise Refused(
            "marker_blocked",
            "there is a folder where the marker belongs",
            observed=str(asked.layout.marker),
            remedy="move it away by hand",
        )
    refuse_blocked(asked.layout)
    _refuse_live_loss(asked, active)
    _refuse_little_space(asked, active)


def _refuse_live_loss(asked: _Asked, active: Active) -> None:
    if asked.live and active.kind != "whole":
        raise Refused(
            "store_held",
            "a lost state is never replaced beside a running service",
            observed=active.observed,
            remedy="stop the service, and restore without --live",
        )


def _refuse_little_space(asked: _Asked, active: Active) -> None:
    """The image, the write-ahead log through which it is copied, and the safety backup."""
    layout, image = asked.layout, asked.source.manifest.bytes
    wanted = 2 * image + max(0, image - active.bytes) + MARGIN
    backups = layout.backups if layout.backups.is_dir() else layout.root
    if active.kind == "whole" and backups.stat().st_dev == layout.state.stat().st_dev:
        wanted += active.bytes
    free = shutil.disk_usage(layout.state).free
    if free < wanted:
        raise _too_little(f"{free} bytes are free at {layout.state}, {wanted} are wanted")


def _too_little(observed: str) -> Refused:
    return Refused(
        "restore_no_space",
        "there is not enough free space for the image, its log and the safety backup",
        observed=observed,
        remedy="make room: `standfast backup prune`; the live store was not touched",
    )


@contextmanager
def _alone(layout: Layout) -> Iterator[None]:
    """Be the only restore of this state directory; the kernel frees the lock when the process dies."""
    with locked(layout.state) as mine:
        if not mine:
            raise Refused(
                "restore_running",
                "another restore of this state directory is under way",
                observed=f"{layout.state} is locked",
                remedy="wait until it has ended",
            )
        yield


@contextmanager
def _writer(layout: Layout, *, live: bool) -> Iterator[None]:
    """The writer's lock; with `live` the running service may keep it, and is refused by the fence later."""
    if live:
        try:
            refuse_while_held(layout)
        except Refused:
            yield
            return
    with writer_lock(layout):
        yield


def _verify(layout: Layout, image: Image, inode: int | None) -> None:
    """From a new connection: it is the same file, and it holds the new era, paused, and nothing else."""
    with closing(open_readonly(layout.database)) as connection:
        control = operations(connection)
        seen = (control.epoch, control.paused, schema_versions(connection))
        if seen != (image.epoch, True, understood()):
            raise StandfastError(f"the restored store is not the image: epoch, pause and schema are {seen}")
        refuse_damaged(connection)
    if inode is not None and layout.database.stat().st_ino != inode:
        raise StandfastError(f"{layout.database} is not the same file any more: somebody has replaced it")
