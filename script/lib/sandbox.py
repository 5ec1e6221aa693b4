"""Run a command where containers with systemd inside work, and find the same containers again later.

On a host with unified cgroups nothing is special. Elsewhere ("hybrid" cgroups) the command runs in a private
mount namespace in which /sys/fs/cgroup is a cgroup2 file system; the machine's own mounts are not touched.
One holder process per checkout keeps that namespace; every later command enters the holder's, because
containers started in one mount namespace cannot be executed into from another.

Names of containers and networks start with `PREFIX`, which differs from checkout to checkout, so that test
runs in two clones of the repository never meet.

    sandbox.py run COMMAND [ARGUMENT...]   run a command (as root) where containers work
    sandbox.py clean                       remove this checkout's containers and networks, end the holder
    sandbox.py settle                      end the holder if no container of this checkout is left
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
PREFIX = "standfast-" + hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:6]
RUNTIME = Path("/run/standfast-tests") / PREFIX
INSIDE = RUNTIME / "inside"
"""A file for each host: what runs commands in its container, and by which name it knows that."""
LABEL = f"standfast.checkout={PREFIX}"
CGROUP2_MAGIC = "cgroup2fs"
CAP_SYS_RESOURCE = 24
ENOUGH = (
    20_000  # open files and processes of one host; podman lowers its own limits before it starts a container
)
PACKAGES = {
    "git": "git",
    "podman": "podman",
    "runc": "runc",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "/usr/lib/podman/netavark": "netavark",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
}

# Runs inside the new namespace; its one line of output says that the namespace is ready.
HOLDER = """
set -e
umount --recursive --lazy /sys/fs/cgroup
mount -t cgroup2 standfast-tests /sys/fs/cgroup
echo ready
exec -a "$1" sleep infinity > /dev/null 2>&1
"""


class SandboxError(Exception):
    """Containers cannot be run here; the message says what is missing."""


@dataclass(frozen=True)
class Holder:
    """A process that keeps a mount namespace: id, start time (ticks since boot), inode of the namespace."""

    pid: int
    started: int
    namespace: int

    @classmethod
    def of(cls, pid: int) -> Holder:
        stat = Path(f"/proc/{pid}/stat").read_text()
        started = int(stat.rpartition(")")[2].split()[19])
        return cls(pid, started, Path(f"/proc/{pid}/ns/mnt").stat().st_ino)

    def alive(self) -> bool:
        """Whether this very process (not another one that got its id) still runs."""
        try:
            return Holder.of(self.pid) == self
        except OSError:
            return False


def unified() -> bool:
    done = subprocess.run(
        ["stat", "-f", "-c", "%T", "/sys/fs/cgroup"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip() == CGROUP2_MAGIC


def counts_processes() -> bool:
    """Whether the unified hierarchy can bound the processes of a container; a nested one may not."""
    return unified() and "pids" in Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()


def may_raise_limits() -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_SYS_RESOURCE & 1)
    return False


def _within_hard_limit(number: int) -> int:
    hard = resource.getrlimit(number)[1]
    return ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)


def containers_conf(*, private: bool, bounded: bool) -> str:
    """podman's settings here: `private` where cgroups count no processes, `bounded` without a capability."""
    containers = []
    if bounded:
        numbers = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
        limits = {name: _within_hard_limit(number) for name, number in numbers.items()}
        listed = ", ".join(f'"{name}={limit}:{limit}"' for name, limit in limits.items())
        containers.append(f"default_ulimits = [{listed}]")
    if private:
        containers.append("pids_limit = 0")
    engine = ['runtime = "runc"', 'cgroup_manager = "cgroupfs"'] if private else []
    lines = ["[containers]", *containers, "[engine]", *engine, "[network]", 'network_backend = "netavark"']
    return "\n".join(lines) + "\n"


def missing_packages() -> list[str]:
    # A login that is not root has no sbin on its PATH, and sudo keeps that PATH.
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    return [
        package
        for probe, package in PACKAGES.items()
        if not (Path(probe).exists() if probe.startswith("/") else shutil.which(probe, path=path))
    ]


def install_packages() -> None:
    """Install what is missing for running containers, from the machine's own package sources."""
    missing = missing_packages()
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise SandboxError(f"these packages are needed and this machine has no apt-get: {' '.join(missing)}")
    print(f"sandbox: installing {' '.join(missing)}", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for attempt in range(1, 4):
        done = subprocess.run(["apt-get", "-qq", "update"], env=environment, check=False)
        if done.returncode == 0:
            done = subprocess.run(
                ["apt-get", "-qq", "-y", "--no-install-recommends", "install", *missing],
                env=environment,
                stdout=subprocess.DEVNULL,
                check=False,
            )
        if done.returncode == 0:
            return
        time.sleep(5 * attempt)
    raise SandboxError(f"apt-get could not install {' '.join(missing)} (tried three times)")


def _recorded_holder() -> Holder | None:
    try:
        return Holder(**json.loads((RUNTIME / "holder.json").read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _member_of(namespace: int) -> int | None:
    """A process (a container's monitor) still inside a namespace whose holder was killed."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "ns/mnt").stat().st_ino == namespace:
                    return int(entry.name)
            except OSError:
                continue
    return None


def _start_holder(inside: int | None) -> Holder:
    """Start a holder: in the namespace of process `inside`, or in a new one."""
    if inside is None:
        command = ["unshare", "--mount", "--propagation", "private", "bash", "-c", HOLDER]
    else:
        command = [
            "nsenter",
            "--mount",
            "--target",
            str(inside),
            "bash",
            "-c",
            'echo ready; exec -a "$1" sleep infinity > /dev/null 2>&1',
        ]
    process = subprocess.Popen(
        [*command, "holder", f"{PREFIX}-holder"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd="/",
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    if process.stdout.readline().strip() != "ready":
        raise SandboxError(f"no private mount namespace with cgroup2: {process.stderr.read().strip()}")
    holder = Holder.of(process.pid)
    (RUNTIME / "holder.json").write_text(json.dumps(asdict(holder)))
    return holder


def holder() -> Holder | None:
    """The living holder of this checkout's namespace, started when needed; None where none is needed."""
    if unified():
        return None
    with (RUNTIME / "guard").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        recorded = _recorded_holder()
        if recorded and recorded.alive():
            return recorded
        survivor = _member_of(recorded.namespace) if recorded else None
        return _start_holder(survivor)


def prepare_environment() -> None:
    """Set what commands in the sandbox rely on. Called as root."""
    RUNTIME.mkdir(parents=True, exist_ok=True)
    configuration = RUNTIME / "containers.conf"
    configuration.write_text(containers_conf(private=not counts_processes(), bounded=not may_raise_limits()))
    environment = CHECKOUT / ".venv"
    os.environ.update(
        CONTAINERS_CONF=str(configuration),
        STANDFAST_CONTAINERS=PREFIX,
        STANDFAST_CHECKOUT=str(CHECKOUT),
        STANDFAST_INSIDE=str(INSIDE),
        ANSIBLE_HOME=str(CHECKOUT / "build/ansible"),
        ANSIBLE_CONNECTION_PLUGINS=str(CHECKOUT / "molecule/shared/connection"),
        PYTHONDONTWRITEBYTECODE="1",
        PATH=f"{environment / 'bin'}:{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin",
    )


def enter() -> None:
    """Move this process into the sandbox: afterwards podman works in it and in its children."""
    if os.geteuid() != 0:
        raise SandboxError("containers with systemd are run by root: start it with sudo")
    recorded = _recorded_holder()
    if recorded and recorded.namespace == Path("/proc/self/ns/mnt").stat().st_ino:
        return  # already inside, with its environment
    install_packages()
    prepare_environment()
    keeper = holder()
    if keeper is None:
        return
    folder = Path.cwd()
    descriptor = os.open(f"/proc/{keeper.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.unshare(os.CLONE_FS)  # a process that shares its folder with others may not change namespaces
        os.setns(descriptor, os.CLONE_NEWNS)
    finally:
        os.close(descriptor)
    os.chdir(folder)


def podman(*arguments: str, check: bool = True, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run podman; with `check`, a failure raises SandboxError with podman's own words."""
    done = subprocess.run(
        ["podman", "--log-level=error", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )
    if check and done.returncode != 0:
        raise SandboxError(f"podman {' '.join(arguments)}: {done.stderr.strip()}")
    return done


def remove_containers() -> None:
    for container in podman("ps", "--all", "--quiet", "--filter", f"label={LABEL}").stdout.split():
        podman("rm", "--force", "--time", "0", "--volumes", container)


def clean() -> None:
    """Remove this checkout's containers and networks and end its holder; images stay, keyed by content."""
    if os.geteuid() == 0 and not shutil.which("podman"):
        return
    enter()
    remove_containers()
    for network in podman("network", "ls", "--quiet", "--filter", f"label={LABEL}").stdout.split():
        podman("network", "rm", "--force", network)
    _end()


def settle() -> None:
    """After a test run: end the holder, unless hosts of this checkout are left (another run's, or kept)."""
    enter()
    if not podman("ps", "--all", "--quiet", "--filter", f"label={LABEL}").stdout.split():
        _end()


def _end() -> None:
    keeper = _recorded_holder()
    if keeper and keeper.alive():
        os.kill(keeper.pid, signal.SIGTERM)
    shutil.rmtree(RUNTIME, ignore_errors=True)


def main(arguments: list[str]) -> int:
    try:
        match arguments:
            case ["run", *command] if command:
                enter()
                os.execvp(command[0], command)
            case ["clean"]:
                clean()
            case ["settle"]:
                settle()
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except (SandboxError, OSError) as problem:
        print(f"sandbox: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
