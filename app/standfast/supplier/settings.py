"""What a supplier process is told, and what it says of itself; needs nothing of the extra."""

import os
import stat
import string
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from standfast.errors import ConfigurationInvalid
from standfast.supplier.wire import DEFAULT_KEY_WINDOW

SHORTEST_TOKEN = 16
LONGEST_TOKEN = 4096
"""Characters, both."""

_PRINTABLE = frozenset(string.ascii_letters + string.digits + string.punctuation)


@dataclass(frozen=True)
class Settings:
    """What ``standfast supplier serve`` was told."""

    ledger: Path
    """The ledger's own folder; made when it is not there."""
    token_file: Path
    host: str = "127.0.0.1"
    port: int = 8440
    """0: any free one."""
    key_window: float = DEFAULT_KEY_WINDOW
    """Seconds."""
    faults: bool = False


class SupplierServed(BaseModel):
    """What the supplier did until it was told to stop; with ``--check``, that it could begin."""

    changed: bool
    check: bool
    address: str
    account: str | None
    accepted: int | None
    """How many receipts the ledger holds."""


def read_token(path: Path) -> str:
    """The token in a file of one line; ConfigurationInvalid names what is wrong and never the value."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(LONGEST_TOKEN + 1).strip()
    except OSError as error:
        raise ConfigurationInvalid(f"token file {path} cannot be read: {error.strerror}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationInvalid(
            f"token file {path} is open to others (mode {mode & 0o777:o}): chmod 600 it"
        )
    if not SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN or not all(
        chr(byte) in _PRINTABLE for byte in token
    ):
        raise ConfigurationInvalid(
            f"token file {path}: a token is one line of {SHORTEST_TOKEN} to {LONGEST_TOKEN} printable ASCII"
            " characters without spaces"
        )
    return token.decode()
