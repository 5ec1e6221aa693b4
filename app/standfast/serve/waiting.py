"""Stopping and waiting: a signal ends any wait at once, and a wait costs nothing until something is written.

The kernel tells of writes beside the store (F_NOTIFY, the one way that the standard library has): looking
every second costs an idle machine more than everything else that the service does. Where it cannot tell, and
for a while after it did, the store is asked one PRAGMA each time.
"""

import fcntl
import math
import os
import select
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

FIRST_LOOK = 0.02
"""Seconds from a write to the first look whether it was committed: its bytes are still to be synced."""


class Stop:
    """Whether SIGTERM or SIGINT has arrived, and waits that end when it does."""

    def __init__(self) -> None:
        self.requested = False
        self._on_request: Callable[[], None] = lambda: None
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._folder: int | None = None

    @contextmanager
    def listening(self, on_request: Callable[[], None], folder: Path) -> Iterator[None]:
        """Handle the signals for the block, once; ``on_request`` runs once, when the first arrives.

        ``folder``: where writes are watched for.
        """
        self._on_request = on_request
        before = {number: signal.signal(number, self._arrived) for number in (signal.SIGTERM, signal.SIGINT)}
        before[signal.SIGIO] = signal.signal(signal.SIGIO, lambda _number, _frame: None)
        wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield
        finally:
            os.close(self._folder)
            self._folder = None
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._read)
            os.close(self._write)

    def _arrived(self, _number: int, _frame: FrameType | None) -> None:
        if not self.requested:
            self.requested = True
            self._on_request()

    def wait(self, seconds: float) -> None:
        """Sleep, or less when a stop is asked for."""
        end = time.monotonic() + seconds
        while not self.requested and (left := end - time.monotonic()) > 0:
            self.doze(left)

    def doze(self, seconds: float) -> bool:
        """Sleep, or less when a stop is asked for or a watched write happened: True."""
        woken = bool(select.select([self._read], [], [], max(0.0, seconds))[0])
        if woken:
            os.read(self._read, 4096)
        return woken

    def watch(self) -> bool:
        """Let the next write to a file in the folder end a doze, once; False where nothing tells of it."""
        if self._folder is None:
            return False
        self.doze(0)  # what was written before is no news
        try:
            fcntl.fcntl(self._folder, fcntl.F_NOTIFY, fcntl.DN_MODIFY)
        except OSError:
            return False
        return True


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes whenever another connection has committed to the store."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def until_something_happens(
    connection: sqlite3.Connection, stop: Stop, *, seen: int, longest: float, poll: float
) -> None:
    """Wait until another connection has committed since ``seen``, or a stop; ``longest`` seconds at most.

    After a write it looks soon and then less and less often, until every ``poll`` seconds.
    """
    end = time.monotonic() + longest
    pause = math.inf if stop.watch() else poll
    while not stop.requested and data_version(connection) == seen:
        left = end - time.monotonic()
        if left <= 0:
            return
        woken = stop.doze(min(pause, left))
        pause = FIRST_LOOK if woken else min(2 * pause, poll)
