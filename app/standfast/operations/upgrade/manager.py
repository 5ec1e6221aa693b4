"""The instance's unit through its user's systemd manager: stop it and prove that, place its text, start it.

Nothing is inferred from a unit's text or from a call that returned: stopped means that the manager says so,
that no process is left in the unit's control group, and (see `switching`) that the writer's lock is free.
Nothing sleeps but bounded polls.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from standfast.durable import write_file
from standfast.errors import StandfastError
from standfast.operations.unit import MAX_UNIT, user_units

CGROUPS = Path("/sys/fs/cgroup")
POLL = 0.05
CALL = 20.0
"""Seconds for a call to the manager that does not wait for a job."""
SETTLE = 10.0
"""Seconds for what must follow a stop by itself."""

_PROPERTIES = (
    "ActiveState",
    "SubState",
    "Result",
    "MainPID",
    "NRestarts",
    "ExecMainStatus",
    "ControlGroup",
    "UnitFileState",
)
AT_REST = frozenset({"inactive", "failed"})


class ManagerFailed(StandfastError):
    """The manager did not do what was asked, in time; the message says what it says of the unit."""


@dataclass(frozen=True)
class UnitState:
    """What the manager says of the unit."""

    active: str
    """`active`, `inactive`, `failed`, `activating`, ..."""
    sub: str
    result: str
    main_pid: int
    """0: none."""
    restarts: int
    """By the manager itself, since the last start that was asked for."""
    exit_status: int
    cgroup: str
    enabled: bool

    def told(self) -> str:
        """For a message."""
        return (
            f"{self.active} ({self.sub}, result {self.result}, last exit status {self.exit_status},"
            f" restarted {self.restarts} times, pid {self.main_pid})"
        )


@dataclass(frozen=True)
class Manager:
    """The user's systemd manager, for one unit."""

    unit: str
    """`<instance>.service`"""
    folder: Path
    """Where the user's own units are."""
    settle: float = SETTLE
    """Seconds for what must follow by itself: the unit at rest, the writer's lock free."""

    @classmethod
    def of(cls, instance: str) -> "Manager":
        """For the user that runs this."""
        return cls(unit=f"{instance}.service", folder=user_units())

    @property
    def path(self) -> Path:
        """The unit's file."""
        return self.folder / self.unit

    def text(self) -> str | None:
        """The text of the unit that is in place; None when there is none."""
        try:
            with self.path.open("rb") as file:
                return file.read(MAX_UNIT).decode("utf-8", "backslashreplace")
        except FileNotFoundError:
            return None

    def place(self, text: str) -> None:
        """Put the text in place, on disk, and have the manager read its units again."""
        if self.text() != text:
            write_file(self.path, text.encode(), 0o644)
        self._call("daemon-reload")

    def look(self) -> UnitState:
        """What the manager says now. Raises ManagerFailed when it cannot be asked."""
        told = self._call("show", self.unit, f"--property={','.join(_PROPERTIES)}")
        found = dict(line.partition("=")[::2] for line in told.splitlines())
        return UnitState(
            active=found.get("ActiveState", "unknown"),
            sub=found.get("SubState", "unknown"),
            result=found.get("Result", ""),
            main_pid=_number(found.get("MainPID")),
            restarts=_number(found.get("NRestarts")),
            exit_status=_number(found.get("ExecMainStatus")),
            cgroup=found.get("ControlGroup", ""),
            enabled=found.get("UnitFileState") == "enabled",
        )

    def stop(self, timeout: float, cgroup: str) -> None:
        """Stop the unit and show that it is: at rest, and no process left of the control group that it had.

        Raises ManagerFailed, with the unit as it then is, when it is not in time.
        """
        self._call("stop", self.unit, within=timeout)
        if not until(lambda: self._at_rest(cgroup), self.settle):
            left = ", ".join(map(str, processes(cgroup))) or "none"
            raise ManagerFailed(f"{self.unit} was stopped and is {self._told()}, processes left: {left}")

    def _at_rest(self, cgroup: str) -> bool:
        found = self.look()
        return found.active in AT_REST and not processes(cgroup) and not processes(found.cgroup)

    def start(self, timeout: float) -> UnitState:
        """Start the unit and wait until its process has said READY. Raises ManagerFailed when it does not."""
        try:
            self._call("start", self.unit, within=timeout)
        except ManagerFailed as error:
            raise ManagerFailed(f"{error}; {self.unit} is {self._told()}") from None
        found = self.look()
        if found.active != "active" or not found.main_pid:
            raise ManagerFailed(f"{self.unit} said READY and is {found.told()}")
        return found

    def _told(self) -> str:
        try:
            return self.look().told()
        except ManagerFailed as error:
            return str(error)

    def enable(self, *, on: bool) -> None:
        """Whether the unit starts at boot."""
        if self.look().enabled != on:
            self._call("enable" if on else "disable", self.unit)

    def _call(self, *words: str, within: float = CALL) -> str:
        try:
            done = call(["systemctl", "--user", "--no-pager", "--no-ask-password", *words], within)
        except subprocess.TimeoutExpired:
            raise ManagerFailed(f"`systemctl --user {words[0]}` did not end within {within:g} s") from None
        except OSError as error:
            raise ManagerFailed(f"systemctl cannot be run: {error.strerror}") from None
        if done.returncode:
            why = " ".join(done.stderr.split()) or f"exit {done.returncode}"
            raise ManagerFailed(f"`systemctl --user {words[0]}` failed: {why}")
        return done.stdout


def call(command: Sequence[str], within: float) -> subprocess.CompletedProcess[str]:
    """Run a command that asks a manager. Raises subprocess.TimeoutExpired, OSError."""
    return subprocess.run(
        command,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="backslashreplace",
        timeout=within,
        start_new_session=True,  # what ends this process from a terminal does not end the call
        check=False,
    )


def environment() -> dict[str, str]:
    """For what is run here: the bus of this user's own manager, whatever was inherited."""
    return {
        "PATH": os.environ.get("PATH") or "/usr/local/bin:/usr/bin:/bin",
        "XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}",
        "LC_ALL": "C.UTF-8",
    }


def processes(cgroup: str) -> list[int]:
    """The processes of a control group and those below it; none when it is gone."""
    if not cgroup.strip("/"):
        return []
    found = []
    for folder, _, _ in os.walk(CGROUPS / cgroup.lstrip("/")):
        with contextlib.suppress(OSError):
            found += [int(line) for line in (Path(folder) / "cgroup.procs").read_text().split()]
    return found


def release_of(process: int) -> str | None:
    """The id of the release whose interpreter a process runs; None when that cannot be seen."""
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[0].decode()
    except (OSError, ValueError):
        return None
    return release_in(command)


def release_in(text: str) -> str | None:
    """The id of the release whose interpreter a text names."""
    before, found, _ = text.partition("/venv/bin/python")
    return before.rpartition("/releases/")[2] if found and "/releases/" in before else None


def until(met: Callable[[], bool], seconds: float) -> bool:
    """Whether it was met in time."""
    end = time.monotonic() + seconds
    while not met():
        if time.monotonic() > end:
            return False
        time.sleep(POLL)
    return True


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
