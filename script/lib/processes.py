"""Ending what we started, and nothing else."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def kill_tree(pid: int) -> None:
    """SIGKILL a process we started and its descendants (ansible's workers leave its process group).

    What they began in a container goes on, as on a host whose connection is lost.
    """
    here = Path("/proc/self/ns/pid").stat().st_ino
    try:
        os.kill(pid, signal.SIGSTOP)  # it starts no new worker while we look
    except ProcessLookupError:
        return
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if (entry / "ns/pid").stat().st_ino != here:
                    continue
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    doomed = [pid]
    for process in doomed:
        doomed.extend(children.get(process, []))
    for process in doomed:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
