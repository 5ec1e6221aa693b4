"""A real service in a process of its own, and an initialised instance, for tests of operations."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from standfast.layout import Layout
from standfast.operations.initialise import initialise_instance

PATIENCE = 20.0
"""Seconds to wait for a process on a busy machine; nothing is timed."""


def instance(root: Path, *, now: float | None = None) -> Layout:
    """A new, initialised state directory below `root`, with the sample shop."""
    layout = Layout(root / "state")
    initialise_instance(layout, now=time.time() if now is None else now)
    return layout


@contextmanager
def service(layout: Layout) -> Iterator[subprocess.Popen[bytes]]:
    """`standfast serve`, ready; stopped with SIGTERM at the end."""
    journal = layout.root / "journal"
    with journal.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-I", "-m", "standfast", "--state", str(layout.state), "serve"],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"]},
        )
    try:
        until = time.monotonic() + PATIENCE
        while b"ready" not in journal.read_bytes():
            assert process.poll() is None, journal.read_text()
            assert time.monotonic() < until, journal.read_text()
            time.sleep(0.05)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
