"""Locks on files and folders that the kernel frees when the process dies, asked for without waiting."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def locked(path: Path, flags: int = FOLDER, *, shared: bool = False) -> Iterator[bool]:
    """Whether the lock is ours for the block: alone, or with others who share it; OSError as from opening."""
    descriptor = os.open(path, flags, 0o600)
    try:
        yield _lock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
