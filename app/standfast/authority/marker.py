"""The authority marker beside the database: line 1 the epoch, line 2 the host's identity.

The fence compares line 1 in every write; start-up and preflight compare line 2.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from standfast.durable import write_file
from standfast.errors import Refused

MACHINE_ID = Path("/etc/machine-id")

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_LONGEST = 512


@dataclass(frozen=True)
class Marker:
    """What the marker file says; an empty ``epoch`` never agrees with anything."""

    epoch: str
    """The era that may act."""
    host: str
    """The identity of the host that the state directory belongs to; empty when the line is missing."""


def read(path: Path) -> Marker | None:
    """The marker at ``path``, or None when it is missing, unreadable, empty or not text."""
    lines = _lines(path)
    return None if lines is None else Marker(epoch=lines[0], host=lines[2].partition("\n")[0])


def read_epoch(path: Path) -> str | None:
    """The epoch alone, as ``read`` would give it; this is done for every write."""
    lines = _lines(path)
    return None if lines is None else lines[0]


def _lines(path: Path) -> tuple[str, str, str] | None:
    """The first line, its end and the rest; None as ``read`` says."""
    try:
        descriptor = os.open(path, _FLAGS)
        try:
            lines = os.read(descriptor, _LONGEST).decode("ascii").partition("\n")
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return None
    return None if not lines[0] or lines[0].isspace() else lines


def write(path: Path, marker: Marker) -> None:
    """Publish ``marker`` durably, mode 0600."""
    write_file(path, f"{marker.epoch}\n{marker.host}\n".encode("ascii"), 0o600)


def host_identity(machine_id: Path = MACHINE_ID) -> str:
    """A digest that only this host gives; the machine id itself is confidential and is not stored.

    Raises Refused ``host_unidentified`` when the host has no machine id. A whole-machine clone that keeps its
    machine id gives the same digest.
    """
    try:
        text = machine_id.read_text("ascii").strip()
    except (OSError, ValueError):
        text = ""
    if len(text) < 32:  # noqa: PLR2004 - man 5 machine-id: 32 hex digits; "uninitialized" during first boot
        raise Refused(
            "host_unidentified",
            "this host has no machine id, so its state directory could not be told from a copy",
            observed=f"{machine_id} is missing or not initialised",
            remedy="run systemd-machine-id-setup",
        )
    return hashlib.sha256(b"standfast host identity\n" + text.encode()).hexdigest()


def refuse_other_host(path: Path, host: str) -> None:
    """Raise Refused ``other_host`` when the marker at ``path`` belongs to another host than ``host``.

    A missing marker is the fence's business, not this one's.
    """
    marker = read(path)
    if marker is not None and marker.host != host:
        raise Refused(
            "other_host",
            "the state directory belongs to another host",
            observed=f"marker of host {marker.host[:12] or '(none)'}, this host is {host[:12]}",
            remedy="leave it stopped, or take it over with `standfast adopt` if it is the one to go on with",
        )
