"""Time: one clock that never goes back within a process, and its text form.

Leases are judged by :meth:`Clock.now`. An operator or NTP may step the wall clock at any moment: a step
back must not lengthen a lease and a step forward may only shorten one.
"""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

_boot_seconds = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class Clock:
    """Epoch seconds that never go back: the wall clock, or the last offset carried on by CLOCK_BOOTTIME.

    CLOCK_BOOTTIME also counts suspended time, so a laptop's sleep ends leases as it should. Safe to share
    between threads. Tests pass their own ``wall`` and ``boot``.
    """

    def __init__(
        self, *, wall: Callable[[], float] = time.time, boot: Callable[[], float] = _boot_seconds
    ) -> None:
        self._wall = wall
        self._boot = boot
        self._offset = wall() - boot()
        self._lock = threading.Lock()

    def now(self) -> float:
        """Epoch seconds (UTC), never less than any value returned before."""
        wall = self._wall()
        boot = self._boot()  # after it, so that a pause between the two cannot move the clock ahead
        if wall - boot > self._offset:
            with self._lock:
                self._offset = max(self._offset, wall - boot)
        return boot + self._offset

    def wall(self) -> float:
        """What the host's wall clock says now; may go back."""
        return self._wall()


def rfc3339(seconds: float) -> str:
    """``seconds`` of the epoch as RFC 3339 in UTC with milliseconds and ``Z``."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
