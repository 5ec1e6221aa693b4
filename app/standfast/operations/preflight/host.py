"""Checks of the host, as far as the service user can see it; what needs root is hostcheck's."""

import json
import os
import pwd
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from standfast.errors import Refused
from standfast.operations.backup import folders
from standfast.operations.backup.limits import Limits
from standfast.operations.preflight.seen import Found, Seen, attention, passes, refuses
from standfast.operations.unit import seconds
from standfast.operations.upgrade import journal as switches
from standfast.operations.upgrade.manager import call

_SECONDS = 10.0
_REMOTE = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "ncpfs", "lustre", "fuseblk"}
)
_VOLATILE = frozenset({"tmpfs", "ramfs"})
_FEWEST_INODES = 1_000


def file_system(seen: Seen) -> Found:
    """The store lies on a local disk: elsewhere its locks and syncs are not what SQLite needs."""
    kind = _file_system_of(seen.layout.state, seen.places.mounts)
    if kind in _REMOTE or kind.partition(".")[0] == "fuse":
        return refuses(
            f"{seen.layout.state} is on {kind}",
            "move the instance to a local disk: runbooks/move-to-a-new-host.md; locks are not safe there",
        )
    if kind in _VOLATILE:
        return refuses(
            f"{seen.layout.state} is on {kind}",
            "move the instance to a local disk: runbooks/move-to-a-new-host.md; a reboot empties this",
        )
    return passes(kind)


def _file_system_of(folder: Path, mounts: Path) -> str:
    """The type of the innermost and latest mount that holds a folder."""
    real, best, found = os.path.realpath(folder), "", "unknown"
    for line in mounts.read_text("utf-8", "replace").splitlines():
        left, _, right = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), left.split()[4])
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, found = point, right.split()[0]
    return found


def disk(seen: Seen) -> Found:
    """There is room for the backup, for the copy that is tried, and for the migrations themselves."""
    layout = seen.layout
    size = sum(_size(layout.database.with_name(layout.database.name + suffix)) for suffix in ("", "-wal"))
    wanted: dict[int, tuple[Path, int]] = {}
    # Beside the store a migration writes every page it changes twice: to the log, then to the file.
    for folder, bytes_wanted in ((layout.state, 2 * size), (layout.backups, 3 * size)):
        place = folder if folder.is_dir() else layout.root
        device = place.stat().st_dev
        wanted[device] = (place, wanted.get(device, (place, Limits().floor))[1] + bytes_wanted)
    short, told = [], []
    for place, needed in wanted.values():
        room = os.statvfs(place)
        free = room.f_bavail * room.f_frsize
        told.append(f"{free // 10**6} MB free at {place}, {needed // 10**6 + 1} MB wanted")
        if free < needed or (room.f_files and room.f_favail < _FEWEST_INODES):
            short.append(f"{told[-1]}, {room.f_favail} inodes free")
    if short:
        return refuses("; ".join(short), "make room: `standfast backup prune`, or a larger disk")
    return passes("; ".join(told))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def backups_folder(seen: Seen) -> Found:
    """The backup that an upgrade makes has a place."""
    try:
        home = folders.backups_folder(seen.layout)
    except Refused as refused:
        return refuses(f"{refused.reason}: {refused.observed}", refused.remedy)
    if os.statvfs(home).f_flag & os.ST_RDONLY or not os.access(home, os.W_OK | os.X_OK):
        return refuses(f"{home} cannot be written to", "mount it for writing; the backup comes before all")
    return passes(str(home))


def lingering(seen: Seen) -> Found:
    """The user's manager is there without a login, and after a reboot."""
    name = pwd.getpwuid(os.geteuid()).pw_name
    if (seen.places.lingering / name).exists():
        return passes(f"{name} lingers")
    return refuses(f"{name} does not linger", f"as root: loginctl enable-linger {name}")


def user_manager(seen: Seen) -> Found:
    """The manager that stops and starts the service can be asked."""
    user = os.geteuid()
    if (seen.places.running / f"user/{user}/systemd/private").exists():
        return passes(f"the manager of user {user} runs")
    return refuses(f"user {user} has no manager", f"as root: systemctl start user@{user}.service")


def manager_stop(_: Seen) -> Found:
    """The manager gives the service the time that its unit asks for."""
    own, user = seconds("TimeoutStopSec"), os.geteuid()
    # The path of user@UID.service on the bus: only what is no letter or digit is escaped, @ and the dot.
    found = ask(
        *("busctl", "--json=short", "get-property", "org.freedesktop.systemd1"),
        f"/org/freedesktop/systemd1/unit/user_40{user}_2eservice",
        *("org.freedesktop.systemd1.Service", "TimeoutStopUSec"),
    )
    try:
        given = int(json.loads(found)["data"]) / 1e6
    except (ValueError, KeyError, TypeError):
        return attention(
            f"the stop timeout of user@{user}.service is not known",
            "the check of the same name in root's look at the host tells it",
        )
    told = f"user@{user}.service is stopped after {given:.0f} s, the unit after {own:.0f} s"
    if given <= own:
        return refuses(told, f"systemctl edit user@{user}.service: TimeoutStopSec above {own:.0f} s")
    return passes(told)


def ask(*command: str) -> str:
    """What a bounded command prints; empty when it fails."""
    try:
        done = call(command, _SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def journal(seen: Seen) -> Found:
    """What the service says survives a reboot."""
    if seen.places.journal.is_dir():
        return passes(f"{seen.places.journal} keeps it")
    return attention(
        f"there is no {seen.places.journal}: the journal is gone after a reboot",
        "as root: mkdir /var/log/journal && journalctl --flush",
    )


def deploy_lock(seen: Seen) -> Found:
    """No other run is deploying to this host."""
    try:
        lock: Any = json.loads((seen.places.running / "standfast/deploy.lock").read_bytes())
        left = float(lock["expires"]) - time.clock_gettime(time.CLOCK_BOOTTIME)
        run, holder, seconds = str(lock["run_id"]), str(lock["holder"]), float(lock["seconds"])
    except FileNotFoundError:
        return passes("free")
    except (OSError, ValueError, KeyError, TypeError):
        return attention("the deploy lock cannot be read", "see who wrote /run/standfast/deploy.lock")
    # Beyond its own span it is of another boot.
    if left <= 0 or left > seconds + 1:
        return passes(f"free: that of run {run} has expired")
    if run == seen.request.run_id:
        return passes(f"held by this run, {run}")
    return refuses(
        f"held by {holder} (run {run}), expires in {left:.0f} s", "wait for that run to end, or to expire"
    )


def unfinished(seen: Seen) -> Found:
    """No earlier change of the code was cut short."""
    last = switches.read(seen.layout)
    if last is None or last.outcome is not None:
        return passes("no upgrade or rollback is unfinished")
    told = f"{last.operation} {last.release_from} -> {last.release_to} was cut short at {last.step}"
    if last.release_to == seen.folder.name:
        return attention(told, "the next run of it goes on, or goes back")
    return refuses(told, "finish that one first: runbooks/upgrade-stopped-half-way.md")
