"""Room on the disk that a switch takes before it stops anything, and gives back to whoever then must work.

A disk that fills up in the middle of a switch would end the day twice: the release that was left could not
write either when it is started again. So the way back, and the note that it ended, have this room.
"""

import os
import shutil
from pathlib import Path

from standfast.errors import Refused, no_space
from standfast.layout import Layout

SIZE = 8 << 20
"""Many times a start, a canary and the journal."""
_NO_ROOM = 1 << 20
"""Fewer bytes than that are none."""
FULL = "disk_full"
REMEDY = "make room (runbooks/service-down.md, `Act: disk full`), then do the same again"


def path(layout: Layout) -> Path:
    """The file that holds the room."""
    return layout.state / "upgrade.reserve"


def keep(layout: Layout) -> None:
    """Take the room, unless an earlier run that was killed left it. Raises Refused `disk_full`."""
    try:
        descriptor = os.open(path(layout), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, SIZE)
        finally:
            os.close(descriptor)
    except OSError as error:
        free(layout)
        if not no_space(error):
            raise
        raise Refused(
            FULL,
            "there is no room on the disk for a switch and its way back",
            observed=f"{SIZE} bytes are wanted at {layout.state}: {error.strerror}",
            remedy=REMEDY,
        ) from error


def free(layout: Layout) -> None:
    """Give the room back."""
    path(layout).unlink(missing_ok=True)


def code_of(error: BaseException, asked: Layout | None = None) -> str | None:
    """`disk_full` when that is why something failed; of a service, the disk of `asked` tells it."""
    cause: BaseException | None = error
    while cause is not None:
        if no_space(cause) or str(getattr(cause, "code", "")).endswith(("no_space", FULL)):
            return FULL
        cause = cause.__cause__
    return FULL if asked is not None and shutil.disk_usage(asked.state).free < _NO_ROOM else None
