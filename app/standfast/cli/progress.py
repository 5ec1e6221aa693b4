"""How far a long command is, for people, on stderr."""

import sys
import time

from standfast.cli.common import note
from standfast.operations.backup.limits import Progress, Report

_EVERY = 10.0
"""Seconds between two lines of progress where there is no terminal."""


def progress() -> Report:
    """On a terminal a line that is written over; elsewhere a line every ten seconds, none for quick work."""
    terminal = sys.stderr.isatty()
    last = [time.monotonic()]

    def report(seen: Progress) -> None:
        share = f"{100 * seen.done // seen.total:3} %" if seen.total else ""
        now = time.monotonic()
        if terminal:
            end = "\n" if seen.total and seen.done == seen.total else ""
            sys.stderr.write(f"\r{seen.phase} {share}\x1b[K{end}")
            sys.stderr.flush()
        elif now - last[0] >= _EVERY:
            last[0] = now
            note(f"standfast: {seen.phase} {share}")

    return report
