"""Measure the service: time to READY, from admission to the finished report, and what waiting costs.

    python script/lib/bench_serve.py [SECONDS]

Runs a real `standfast serve` on a fresh state directory; SECONDS (default 60) is how long it then idles.
Targets: at most 55 MB resident and 0.2 % of a core while idle.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

STANDFAST = [sys.executable, "-m", "standfast"]
REQUESTS = 20
SETTLE = 3.0
"""Seconds between the last thing done and the first second that counts as idle."""


def cpu_seconds(pid: int) -> float:
    """Time on a CPU so far, from the scheduler's own account (nanoseconds)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def resident_mb(pid: int) -> float:
    """Resident memory now, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def ask(state: str, *arguments: str) -> dict[str, object]:
    """One command's JSON."""
    command = [*STANDFAST, "--state", state, "--json", *arguments]
    answer: dict[str, object] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return answer


def finish_seconds(state: str) -> float:
    """From the admission of one request to its end, by the store's own times."""
    work = str(ask(state, "work", "add", "How is the stock?", "--session", f"s{time.monotonic_ns()}")["work"])
    while True:
        time.sleep(0.5)
        shown = ask(state, "work", "show", work)["work"]
        assert isinstance(shown, dict)
        if shown["status"] == "DONE":
            return moment(str(shown["finished_at"])) - moment(str(shown["admitted_at"]))


def moment(text: str) -> float:
    """Epoch seconds of an RFC 3339 time."""

    return datetime.fromisoformat(text).timestamp()


@dataclass(frozen=True)
class Measured:
    """What one start of the service took."""

    ready_seconds: float
    """From the start of the process to READY=1."""
    finish_seconds: float
    """Median from the admission of a request to its end; 0 when none was made."""
    idle_percent: float
    """Of one core, while it waits."""
    resident_mb: float


@contextmanager
def serving(state: Path | str, socket_path: Path) -> Iterator[tuple[int, float]]:
    """A real `standfast serve`: its process id, and the seconds until it said READY. Stopped by SIGTERM."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(socket_path))
        began = time.monotonic()
        service = subprocess.Popen(
            [*STANDFAST, "--state", str(state), "serve"],
            env={**os.environ, "NOTIFY_SOCKET": str(socket_path)},
            stderr=subprocess.DEVNULL,
        )
        try:
            while told.recv(4096) != b"READY=1":
                pass
            yield service.pid, time.monotonic() - began
        finally:
            service.terminate()
            service.wait()


def ready_seconds(state: Path) -> float:
    """From the start of the process to READY=1, on a state directory that exists."""
    with (
        tempfile.TemporaryDirectory(prefix="sf-") as folder,
        serving(state, Path(folder) / "notify") as (_, ready),
    ):
        return ready


def measure(folder: Path, idle: float, requests: int = REQUESTS) -> Measured:
    """Run a real `standfast serve` on a fresh state directory in ``folder``."""
    state = f"{folder}/state"
    ask(state, "init")
    with serving(state, folder / "notify") as (pid, ready):
        seconds = [finish_seconds(state) for _ in range(requests)]
        time.sleep(SETTLE)
        before, began = cpu_seconds(pid), time.monotonic()
        time.sleep(idle)
        share = 100 * (cpu_seconds(pid) - before) / (time.monotonic() - began)
        return Measured(
            ready_seconds=ready,
            finish_seconds=statistics.median(seconds or [0.0]),
            idle_percent=share,
            resident_mb=resident_mb(pid),
        )


def main() -> None:
    """Measure and print."""
    idle = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    with tempfile.TemporaryDirectory(prefix="sf-") as folder:
        measured = measure(Path(folder), idle)
    print(f"start to READY             {measured.ready_seconds:6.2f} s")
    print(f"admitted to finished       {measured.finish_seconds:6.2f} s (median of {REQUESTS})")
    print(f"idle CPU                   {measured.idle_percent:6.3f} % of a core (target 0.2)")
    print(f"idle resident              {measured.resident_mb:6.1f} MB (target 55)")


if __name__ == "__main__":
    main()
