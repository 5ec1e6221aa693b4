"""Every error that an operator can meet, with the exit code that the command line gives it."""

import errno
import sqlite3
from collections.abc import Sequence

_SQLITE_NO_SPACE = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,  # a quota, or a limit on the size of files
    sqlite3.SQLITE_IOERR_SHMOPEN,
    sqlite3.SQLITE_IOERR_SHMSIZE,
}
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class StandfastError(Exception):
    """An unexpected failure; the message states what was and what was not done."""

    exit_code = 1


class BadInput(StandfastError):
    """Input that cannot be parsed or lies outside its bounds; nothing was touched."""

    exit_code = 2


class Refused(StandfastError):
    """Well-formed, but a safety rule refuses; nothing was changed.

    ``code`` is stable and machine-readable, ``reason`` is one sentence, ``observed`` what was seen
    (a line, or several) and ``remedy`` what the operator can do.
    """

    exit_code = 3

    def __init__(
        self, code: str, reason: str, *, observed: str | Sequence[str] = "", remedy: str = ""
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.observed = observed
        self.remedy = remedy

    @property
    def seen(self) -> str:
        """What was observed, in one line."""
        return self.observed if isinstance(self.observed, str) else "; ".join(self.observed)


class ConfigurationInvalid(StandfastError):
    """Configuration that no restart can cure; the message names the field, never a secret value."""

    exit_code = 78


class StoreBusy(StandfastError):
    """Another process held the store's write lock past the bound; nothing was written."""

    exit_code = 1


def no_space(error: BaseException) -> bool:
    """Whether a full disk, a quota or a limit on the size of files is the cause."""
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode in _SQLITE_NO_SPACE
    return isinstance(error, OSError) and error.errno in _NO_SPACE
