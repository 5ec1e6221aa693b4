"""Stopping and waiting: a signal ends any wait at once, and a wait costs one PRAGMA a second."""

import math
import os
import select
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

FINISH_SECONDS = 20.0
"""How long a turn in hand may go on after a stop was asked for, so that an upgrade cuts no work short.

With the longest call of a model after it (half the watchdog, 60 s) that is within the unit's TimeoutStopSec.
"""


class Stop:
    """Whether SIGTERM or SIGINT has arrived, and a wait that ends when it does.

    ``finish`` is how many seconds a turn in hand may still take then.
    """

    def __init__(self, finish: float = FINISH_SECONDS) -> None:
        self.requested = False
        self._finish = finish
        self._overdue_at = math.inf
        self._on_request: Callable[[], None] = lambda: None
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @contextmanager
    def listening(self, on_request: Callable[[], None]) -> Iterator[None]:
        """Handle the signals for the block, once; ``on_request`` runs once, when the first arrives."""
        self._on_request = on_request
        before = {number: signal.signal(number, self._arrived) for number in (signal.SIGTERM, signal.SIGINT)}
        wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._read)
            os.close(self._write)

    def _arrived(self, _number: int, _frame: FrameType | None) -> None:
        if not self.requested:
            self.requested = True
            self._overdue_at = time.monotonic() + self._finish
            self._on_request()

    @property
    def overdue(self) -> bool:
        """Whether a turn in hand must end at its next step, too."""
        return time.monotonic() >= self._overdue_at

    def wait(self, seconds: float) -> None:
        """Sleep, or less when a signal arrives."""
        if not self.requested and select.select([self._read], [], [], max(0.0, seconds))[0]:
            os.read(self._read, 4096)

    def pause(self, seconds: float) -> None:
        """As ``wait``, of a turn in hand; one that has to wait for its model is not let finish."""
        self.wait(seconds)
        if self.requested:
            self._overdue_at = -math.inf


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes whenever another connection has committed to the store."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def until_something_happens(
    connection: sqlite3.Connection,
    stop: Stop,
    *,
    seen: int,
    longest: float,
    poll: float,
    due: Callable[[], bool],
) -> None:
    """Wait until another connection has committed since ``seen``, something is due, or a stop; bounded."""
    end = time.monotonic() + longest
    while not stop.requested and not due() and data_version(connection) == seen:
        left = end - time.monotonic()
        if left <= 0:
            return
        stop.wait(min(poll, left))
