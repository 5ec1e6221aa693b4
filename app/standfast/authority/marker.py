"""The authority marker beside the database: line 1 the epoch, line 2 the host's identity.

The fence compares line 1 in every write; start-up and preflight compare line 2.
"""

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from standfast.durable import write_file
from standfast.errors import Refused

MACHINE_ID = Path("/etc/machine-id")

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_LONGEST = 512

_SETTLED = 2.0
"""Seconds after a change in which the next one might still have the same change time: file systems count it
in ticks of their own. A marker that young is read every time."""

_known: dict[str, tuple[tuple[int, int, int], str]] = {}
"""By path: which state of the file was read, and the epoch in it."""


@dataclass(frozen=True)
class Marker:
    """What the marker file says; an empty ``epoch`` never agrees with anything."""

    epoch: str
    """The era that may act."""
    host: str
    """The identity of the host that the state directory belongs to; empty when the line is missing."""


def read(path: Path) -> Marker | None:
    """The marker at ``path``, or None when it is missing, unreadable, empty or not text."""
    try:
        descriptor = os.open(path, _FLAGS)
        try:
            epoch, _, rest = os.read(descriptor, _LONGEST).decode("ascii").partition("\n")
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return None
    return Marker(epoch=epoch, host=rest.partition("\n")[0]) if epoch.strip() else None


def read_epoch(path: Path) -> str | None:
    """The epoch alone, as ``read`` would give it.

    This is done for every write, so a file that has not changed since it was read is not read again: opening
    it costs more than the rest of the fence. Every change of what it says, of its mode or of which file it
    is has another inode or another change time, which nobody can set.
    """
    name = str(path)
    try:
        state = os.stat(name)  # noqa: PTH116 - a Path's stat costs twice as much
    except (OSError, ValueError):
        return None
    identity = (state.st_dev, state.st_ino, state.st_ctime_ns)
    known = _known.get(name)
    if known is not None and known[0] == identity:
        return known[1]
    found = read(path)
    if found is None:
        return None
    if time.time() - state.st_ctime > _SETTLED:
        _known[name] = (identity, found.epoch)
    return found.epoch


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
