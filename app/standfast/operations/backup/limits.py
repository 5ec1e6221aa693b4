"""What bounds a backup: a deadline, the growth of the write-ahead log, free space, and whoever cancels it."""

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from standfast.errors import Refused


@dataclass(frozen=True)
class Limits:
    """How far a copy may go before it is given up, leaving nothing behind."""

    deadline: float = 1_800.0
    """Seconds for all of it."""
    wal_cap: int = 1 << 30
    """Bytes by which the live write-ahead log may grow meanwhile: the copy keeps it from starting over."""
    floor: int = 64 << 20
    """Bytes that stay free where the copy goes, and where the live store is."""


class Progress(NamedTuple):
    """How far it is."""

    phase: str
    """`copy`, `check`, `digest`, ..."""
    done: int
    total: int
    """In the phase's own unit; 0 when that is not known."""


type Report = Callable[[Progress], None]


def quiet(_: Progress) -> None:
    """Nobody wants to see the progress."""


class Guard:
    """Watches the limits of one copy. `check` is called at every step and raises when one is passed."""

    def __init__(
        self,
        limits: Limits,
        *,
        live: Path | None,
        target: Path,
        canceled: Callable[[], bool] = lambda: False,
    ) -> None:
        """`live`: the live database that is copied, or None for a sealed source; `target`: the folder that
        the copy goes to. Both are only looked at.
        """
        self.limits = limits
        self._until = time.monotonic() + limits.deadline
        self._wal = None if live is None else live.with_name(live.name + "-wal")
        self._wal_before = _size(self._wal)
        self._folders = {target} if live is None else {live.parent, target}
        self._canceled = canceled

    def left(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(0.0, self._until - time.monotonic())

    def check(self) -> None:
        """Raises Refused: `canceled`, `backup_deadline`, `backup_wal` or `backup_no_space`."""
        if self._canceled():
            raise Refused(
                "canceled",
                "the backup was canceled",
                observed="a signal asked for it",
                remedy="what was made of it is removed; run it again when it suits",
            )
        if not self.left():
            raise Refused(
                "backup_deadline",
                "the backup did not end before its deadline",
                observed=f"{self.limits.deadline:g} s have passed",
                remedy="see what holds the store or the disk up, or give it longer with --deadline",
            )
        grown = _size(self._wal) - self._wal_before
        if grown > self.limits.wal_cap:
            raise Refused(
                "backup_wal",
                "the write-ahead log grew too far while the backup was made",
                observed=f"{self._wal} grew by {grown} bytes (limit {self.limits.wal_cap})",
                remedy="find the reader that does not end; or choose a quieter hour, or raise --wal-cap",
            )
        for folder in self._folders:
            refuse_little_space(folder, self.limits.floor)


def refuse_little_space(folder: Path, wanted: int) -> None:
    """Raise Refused `backup_no_space` unless `wanted` bytes are free at `folder` for this user."""
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise Refused(
            "backup_no_space",
            "there is not enough free space for a backup",
            observed=f"{free} bytes are free at {folder}, {wanted} are wanted",
            remedy="make room (`standfast backup prune`), or name another place with --to",
        )


@contextmanager
def cancelable() -> Iterator[Callable[[], bool]]:
    """Let SIGINT and SIGTERM ask the block to stop at its next step; the second signal acts as ever.

    In another thread than the main one nobody can ask.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _: FrameType | None) -> None:
        asked.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, ask)
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _size(path: Path | None) -> int:
    try:
        return 0 if path is None else path.stat().st_size
    except OSError:
        return 0
