"""What a scenario's tests see: its hosts, the controller's folder, and playbook runs.

A host is looked at by what podman itself uses to run a command in it (0.06 s; `podman exec` takes 0.3 s).
Everything raises AssertionError with what was observed, so that a failing test says why by itself.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import testinfra
from hosts import Group, inside, wait_booted
from processes import kill_tree
from sandbox import podman

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CHECKOUT = Path(__file__).resolve().parents[2]
HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RECAP = re.compile(r"^(\S+)\s*: ((?:\w+=\d+\s*)+)$")
TASK = re.compile(r"^(?:TASK|RUNNING HANDLER) \[(.*)\] \**$")


def wait_until[T](look: Callable[[], T], timeout: float, what: str, every: float = 0.5) -> T:
    """Call `look` until it returns something true and return that; else say `what` and what was seen."""
    deadline = time.monotonic() + timeout
    while True:
        seen: object
        try:
            result = look()
            if result:
                return result
            seen = result
        except AssertionError as failure:
            seen = failure
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s: {what}; last seen: {seen!r}")
        time.sleep(every)


@dataclass(frozen=True)
class Done:
    """A finished command on a host."""

    command: str
    rc: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class UnitState:
    """A unit of a user's manager, as systemd shows it; one that does not exist has `load` "not-found"."""

    load: str
    active: str
    sub: str
    main_pid: int
    restarts: int
    result: str
    exit_status: int


class Host:
    """One systemd host in a container."""

    def __init__(self, group: Group, name: str) -> None:
        self.group = group
        self.name = name
        self.container = group.container(name)

    def _entering(self, user: str, settings: Sequence[str]) -> list[str]:
        """The words before a command. A user by name needs podman, which looks the name up in the host."""
        if user != "root" and not user[0].isdigit():
            return [
                *("podman", "--log-level=error", "exec", "--interactive"),
                *("--user", user, *settings, self.container),
            ]
        runtime, container = inside(self.container)
        return [runtime, "exec", *(() if user == "root" else ("--user", user)), *settings, container]

    def renew(self) -> None:
        """Another container in its place, as it was when the scenario began."""
        self.group.boot(self.group.spec(self.name))

    @cached_property
    def testinfra(self) -> testinfra.host.Host:
        return testinfra.get_host(f"podman://{self.container}")

    def run(
        self,
        command: str | Sequence[str],
        *,
        user: str = "root",
        check: bool = True,
        timeout: float = 60,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Done:
        """Run a bash line or an argument list; `check` makes another exit than 0 an AssertionError."""
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        # For crun, what is set takes the place of all that the container has.
        given = {"PATH": HOST_PATH, **env} if env else {}
        settings = [word for key, value in given.items() for word in ("--env", f"{key}={value}")]
        shown = command if isinstance(command, str) else " ".join(argv)
        try:
            done = subprocess.run(
                [
                    *self._entering(user, settings),
                    "timeout",
                    "--kill-after=5",
                    f"{timeout:g}",
                    *argv,
                ],
                capture_output=True,
                text=True,
                input=stdin,
                check=False,
                timeout=timeout + 30,
            )
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name}: no answer within {timeout + 30:g} s: {shown}") from None
        if check and done.returncode != 0:
            raise AssertionError(
                f"{self.name}: exit {done.returncode} from {shown!r}\n{done.stdout}\nstderr: {done.stderr}"
            )
        return Done(shown, done.returncode, done.stdout, done.stderr)

    def as_user(self, user: str, command: str | Sequence[str], **how: Any) -> Done:
        """Run as a service user, with the environment that reaches that user's manager."""
        _, _, uid, gid, _, home, _ = self.run(["getent", "passwd", user]).stdout.split(":")
        env = {"XDG_RUNTIME_DIR": f"/run/user/{uid}", "HOME": home, "USER": user, **how.pop("env", {})}
        return self.run(command, user=f"{uid}:{gid}", env=env, **how)

    def user_service(self, user: str, unit: str) -> UnitState:
        names = ("LoadState", "ActiveState", "SubState", "MainPID", "NRestarts", "Result", "ExecMainStatus")
        shown = self.as_user(
            user, ["systemctl", "--user", "show", unit, f"--property={','.join(names)}"]
        ).stdout
        values = dict(line.split("=", 1) for line in shown.splitlines())
        return UnitState(
            values["LoadState"],
            values["ActiveState"],
            values["SubState"],
            int(values.get("MainPID", 0)),
            int(values.get("NRestarts", 0)),
            values.get("Result", ""),
            int(values.get("ExecMainStatus", 0)),
        )

    def cli(
        self, *words: str, instance: str = "lucy-agent", rc: int = 0, timeout: float = 60
    ) -> dict[str, Any]:
        """Run the operator's helper with --json; returns the object it printed. It must end with `rc`."""
        done = self.run([f"/usr/local/bin/{instance}", "--json", *words], check=False, timeout=timeout)
        assert done.rc == rc, f"{done.command}: exit {done.rc}, not {rc}\n{done.stdout}\n{done.stderr}"
        printed = json.loads(done.stdout)
        assert isinstance(printed, dict), f"{done.command} printed no JSON object: {done.stdout}"
        return printed

    def boot_marker(self) -> str:
        """Tells boots apart: PID 1's start time (a container's restart keeps the kernel's boot id)."""
        return self.run("cut -d' ' -f22 /proc/1/stat").stdout.strip()

    def restart(self, timeout: float = 90) -> None:
        """Reboot, without anybody logging in, and wait until systemd says `running`."""
        before = self.boot_marker()
        podman("restart", "--time", "60", self.container, timeout=timeout)
        wait_booted(self.container, timeout)
        assert self.boot_marker() != before, f"{self.name}: PID 1 is the one from before the restart"

    def pid(self) -> str:
        """Of the host's first process, as the controller numbers it."""
        return podman("container", "inspect", "--format", "{{.State.Pid}}", self.container).stdout.strip()

    def outside(self, *command: str) -> None:
        """Run a command in the host's mount namespace with our rights: a container itself may not mount."""
        entered = ["nsenter", "--mount", "--pid", "--target", self.pid(), *command]
        done = subprocess.run(entered, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{self.name}: {' '.join(command)}: {done.stderr}"

    def mount_small_disk(self, path: str, megabytes: int) -> None:
        """Put a file system of that size under a folder and its content; the service must be stopped."""
        self.run(f"cp -a {path} /root/small-disk")
        owner = self.run(["stat", "--format", "%u %g %a", path]).stdout.split()
        options = "size={}m,uid={},gid={},mode={}".format(megabytes, *owner)
        self.outside("mount", "-t", "tmpfs", "-o", options, "tmpfs", path)
        self.run(f"cp -a /root/small-disk/. {path}/ && rm -r /root/small-disk")

    def tree_digest(self, *paths: str) -> str:
        """A digest of names, owners, modes, sizes and contents below `paths`: equal means nothing changed."""
        listing = (
            "for p in " + " ".join(paths) + "; do [ -e $p ] || { echo absent $p; continue; }; "
            "find $p -xdev -printf '%p %u %g %m %y %l\\n' | sort; "
            "find $p -xdev -type f -print0 | sort -z | xargs -0r sha256sum; done"
        )
        return self.run(f"({listing}) | sha256sum").stdout.split()[0]

    def journal(self, lines: int = 40) -> str:
        """The journal's end, without what a playbook's own logins write into it."""
        noise = r" (sudo|python3|ansible-[^ ]*)\["
        script = f"journalctl --no-pager --lines 2000 | grep -vE '{noise}' | tail -n {lines}"
        done = podman("exec", self.container, "bash", "-c", script, check=False)
        return done.stdout + done.stderr


@dataclass(frozen=True)
class Play:
    """A finished (or killed) playbook run: `hosts` has the recap counts by host, `tasks` what it started."""

    rc: int
    # Not in a failed assertion's text: it would hide what the assertion itself says.
    output: str = field(repr=False)
    hosts: dict[str, dict[str, int]]
    tasks: list[str] = field(default_factory=list, repr=False)
    killed: bool = False

    @property
    def changed(self) -> int:
        return sum(counts["changed"] for counts in self.hosts.values())


class Controller:
    """A copy of what an operator has in front of them: playbooks, roles, inventories and one release archive.

    The folder is laid out as the runbooks say (`inventories/yours/hosts.yml`, `dist/standfast-*.tar`), so
    their blocks run in it as they are printed.
    """

    PARTS = ("ansible.cfg", "playbooks", "roles", "inventories/example")

    def __init__(self, folder: Path, group: Group, archive: Path | None) -> None:
        self.folder = folder
        self.group = group
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for part in self.PARTS:
            source = CHECKOUT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, folder / part)
        if archive is not None:
            (folder / "dist").mkdir()
            for file in (archive, archive.with_name(archive.name + ".sig")):
                if file.exists():
                    shutil.copy2(file, folder / "dist" / file.name)
            self.archive = folder / "dist" / archive.name

    def write_inventory(
        self,
        name: str,
        hosts: Mapping[str, Mapping[str, Any]],
        variables: Mapping[str, Any] | None = None,
        group: str = "agents",
    ) -> Path:
        """Write inventories/NAME/hosts.yml: the group `agents` with these hosts and their variables."""
        connection = {
            "ansible_connection": "standfast_podman",
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        listed = {
            host: {"ansible_host": self.group.container(host), **given} for host, given in hosts.items()
        }
        path = self.folder / "inventories" / name / "hosts.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        common = {**connection, "release_archive": str(getattr(self, "archive", "")), **(variables or {})}
        path.write_text(json.dumps({group: {"hosts": listed, "vars": common}}, indent=2) + "\n")
        return path

    @cached_property
    def environment(self) -> dict[str, str]:
        """The sandbox's environment without molecule's: ansible.cfg is the folder's own."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MOLECULE_")}
        kept.pop("ANSIBLE_CONFIG", None)
        return {**kept, "PYTHONUNBUFFERED": "1", "ANSIBLE_NOCOLOR": "1"}

    def playbook(
        self,
        name: str,
        *arguments: str,
        inventory: str = "yours",
        check: bool = False,
        extra_vars: Mapping[str, Any] | None = None,
        kill_at: int | str | None = None,
        kill_late: float = 0.0,
        kill_on: threading.Event | None = None,
        timeout: float = 600,
        env: Mapping[str, str] | None = None,
        binary: str = "ansible-playbook",
    ) -> Play:
        """Run playbooks/NAME.yml against inventories/INVENTORY/hosts.yml.

        `check` adds --check --diff. `kill_at` sends SIGKILL to the run and all its workers as its Nth task (1
        is the first), or the task of that name, is announced, `kill_late` seconds later; on the host the task
        may go on, as after a lost connection. `kill_on` does the same once that is set.
        """
        command = [
            binary,
            "-i",
            f"inventories/{inventory}/hosts.yml",
            f"playbooks/{name}.yml",
            *(("--check", "--diff") if check else ()),
            *(("-e", json.dumps(extra_vars)) if extra_vars else ()),
            *arguments,
        ]
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env={**self.environment, **(env or {})},
            text=True,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        late = threading.Event()

        def stop_late() -> None:
            late.set()
            kill_tree(process.pid)

        lines: list[str] = []
        tasks: list[str] = []
        killed = False
        guard = threading.Timer(timeout, stop_late)
        guard.start()
        ended = _ends_with(process, kill_on)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                task = TASK.match(line.rstrip())
                if task:
                    tasks.append(task.group(1))
                if kill_at and task and kill_at in {len(tasks), tasks[-1], tasks[-1].partition(" : ")[2]}:
                    time.sleep(kill_late)
                    killed = True
                    break
        finally:
            guard.cancel()
            if process.poll() is None and (killed or sys.exc_info()[0]):
                kill_tree(process.pid)
        rc = process.wait(timeout=60)
        ended.set()
        process.stdout.close()
        if late.is_set():
            raise AssertionError(
                f"{' '.join(command)} ran longer than {timeout:g} s:\n{''.join(lines)[-4000:]}"
            )
        return Play(rc, "".join(lines), _recap(lines), tasks, killed or _asked(kill_on))


def _asked(asked: threading.Event | None) -> bool:
    return asked is not None and asked.is_set()


def _ends_with(process: subprocess.Popen[str], asked: threading.Event | None) -> threading.Event:
    """Kill a run and its workers once `asked` is set; the event that is returned says that it has ended."""
    ended = threading.Event()

    def watch(asked: threading.Event) -> None:
        while not asked.wait(0.05):
            if ended.is_set():
                return
        kill_tree(process.pid)

    if asked is not None:
        threading.Thread(target=watch, args=(asked,), daemon=True).start()
    return ended


def _recap(lines: list[str]) -> dict[str, dict[str, int]]:
    hosts = {}
    for line in lines:
        match = RECAP.match(line.rstrip())
        if match:
            counts = (word.split("=") for word in match.group(2).split())
            hosts[match.group(1)] = {key: int(value) for key, value in counts}
    return hosts


def sample[T](items: Sequence[T], count: int) -> list[T]:
    """All of `items` under `script/test full`, else `count` (> 1) of them: first, last and evenly between."""
    if os.environ.get("STANDFAST_FULL") or len(items) <= count:
        return list(items)
    return [items[round(step * (len(items) - 1) / (count - 1))] for step in range(count)]
