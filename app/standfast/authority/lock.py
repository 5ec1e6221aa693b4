"""The writer's lock: at most one process acts as the service, or restores, for a state directory."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from standfast.errors import Refused
from standfast.layout import Layout


def refuse_while_held(layout: Layout) -> None:
    """Raise Refused ``writer_held`` when another process holds the lock now; touches no file."""
    try:
        descriptor = os.open(layout.writer_lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _lock(descriptor, layout)
    finally:
        os.close(descriptor)


@contextmanager
def writer_lock(layout: Layout) -> Iterator[None]:
    """Hold ``state/agent.lock`` for the block; the kernel frees it when the process dies.

    Raises Refused ``writer_held`` at once when another process holds it.
    """
    descriptor = os.open(layout.writer_lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _lock(descriptor, layout)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, layout: Layout) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        raise Refused(
            "writer_held",
            "another process acts for this state directory",
            observed=f"{layout.writer_lock} is held by process {holder or 'unknown'}",
            remedy="stop the service first, or wait for the operation that holds it",
        ) from None
