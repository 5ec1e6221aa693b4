"""Boot, reset and remove systemd hosts in containers, and run playbooks against them.

    script/host boot NAME [--image trixie|bookworm|IMAGE] [--network NAME] [--address OCTET]
    script/host play PLAYBOOK [ANSIBLE ARGUMENT...]   against the group's hosts (--limit NAME for one)
    script/host exec NAME COMMAND...                  as root; with `login NAME` a shell
    script/host reset NAME                            the host as it was right after its boot
    script/host commit NAME IMAGE                     an image of the host as it is now (restarts it)
    script/host rm NAME | list | clean

A host's container is called PREFIX-GROUP-NAME; the group (default `hand`; molecule: the scenario) keeps
apart hosts that belong to different runs. Without --network a host has no network at all.

    script/host boot shop
    script/host play playbooks/install.yml -i inventories/yours/hosts.yml --limit shop --check --diff
    script/host --group hand exec shop lucy-agent health

`play` adds its hosts to the group `agents`, beside what your inventory says of them; name yours the same.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import images
import yaml
from bundle import content_digest, file_digest
from sandbox import (
    CHECKOUT,
    INSIDE,
    LABEL,
    PREFIX,
    RUNTIME,
    SandboxError,
    clean,
    enter,
    podman,
    remove_containers,
)

if TYPE_CHECKING:
    from collections.abc import Callable

BOOT_TIMEOUT = 90.0
NETWORKS = 200
INSTALLED = "installed"
KEPT = 2
INSTALLED_REPOSITORY = "localhost/standfast-installed"


@dataclass(frozen=True)
class HostSpec:
    """What a host is made from. `image`: a suite or an image name; `address`: last octet on `network`."""

    name: str
    image: str = "trixie"
    network: str | None = None
    address: int | None = None
    aliases: dict[str, int] = field(
        default_factory=dict
    )  # extra /etc/hosts names -> last octet, same network
    tmpfs: dict[str, str] = field(
        default_factory=dict
    )  # path -> mount options (a small disk, another file system)

    @classmethod
    def of_platform(cls, platform: dict[str, Any]) -> HostSpec:
        """A host as molecule.yml describes it; `groups` is for the inventory, an unknown key is an error."""
        unknown = platform.keys() - {item.name for item in fields(cls)} - {"groups"}
        if unknown:
            raise SandboxError(f"platform {platform.get('name')}: unknown keys {', '.join(sorted(unknown))}")
        given = {key: value for key, value in platform.items() if key != "groups"}
        if "tmpfs" in given:  # a list, as molecule's own schema wants it
            given["tmpfs"] = dict(entry.split(":", 1) for entry in given["tmpfs"])
        return cls(**given)


@dataclass(frozen=True)
class Group:
    """The hosts of one run."""

    name: str

    def container(self, host: str) -> str:
        return f"{PREFIX}-{self.name}-{host}"

    @property
    def label(self) -> str:
        return f"standfast.group={PREFIX}-{self.name}"

    def boot(self, *specs: HostSpec) -> None:
        """Start fresh hosts (one of that name is replaced) and wait until systemd says `running` in each."""
        for spec in specs:
            self._start(spec)
        for spec in specs:
            wait_booted(self.container(spec.name))

    def _start(self, spec: HostSpec) -> None:
        image = image_named(spec.image)
        container = self.container(spec.name)
        podman("rm", "--force", "--ignore", "--time", "0", "--volumes", container)
        podman(
            "run",
            "--detach",
            "--name",
            container,
            "--hostname",
            spec.name,
            "--systemd=always",
            # Else podman puts a tmpfs there, and a reboot would forget the journal.
            "--volume",
            "/var/log/journal",
            "--label",
            LABEL,
            "--label",
            self.label,
            "--label",
            f"standfast.spec={json.dumps(asdict(spec))}",
            *(
                word
                for path, options in spec.tmpfs.items()
                for word in ("--mount", f"type=tmpfs,destination={path},{options}")
            ),
            *self._network_arguments(spec),
            image,
        )
        described = podman("container", "inspect", "--format", "{{.OCIRuntime}} {{.Id}}", container)
        INSIDE.mkdir(exist_ok=True)
        (INSIDE / container).write_text(described.stdout)

    def _network_arguments(self, spec: HostSpec) -> list[str]:
        if spec.network is None:
            return ["--network", "none"]
        network = f"{PREFIX}-{self.name}-{spec.network}"
        subnet = self._ensure_network(network)
        arguments = ["--network", network]
        if spec.address is not None:
            arguments += ["--ip", f"{subnet}.{spec.address}"]
        for alias, octet in spec.aliases.items():
            arguments += ["--add-host", f"{alias}:{subnet}.{octet}"]
        return arguments

    def _ensure_network(self, network: str) -> str:
        """Make the internal network on the first free 10.89.N.0/24; returns its first three octets."""
        if podman("network", "exists", network, check=False).returncode != 0:
            first = int(PREFIX.rpartition("-")[2], 16) + sum(network.encode())
            for attempt in range(NETWORKS):
                number = (first + attempt) % NETWORKS + 10
                made = podman(
                    "network",
                    "create",
                    "--internal",
                    "--disable-dns",
                    "--subnet",
                    f"10.89.{number}.0/24",
                    "--label",
                    LABEL,
                    "--label",
                    self.label,
                    network,
                    check=False,
                )
                if made.returncode == 0:
                    break
                if "subnet" not in made.stderr:
                    raise SandboxError(f"network {network}: {made.stderr.strip()}")
        described = json.loads(podman("network", "inspect", network).stdout)
        subnet: str = described[0]["subnets"][0]["subnet"]
        return subnet.rpartition(".")[0]

    def names(self) -> list[str]:
        listed = podman(
            "ps", "--all", "--filter", f"label={self.label}", "--format", "{{.Names}}"
        ).stdout.split()
        return sorted(name.removeprefix(f"{PREFIX}-{self.name}-") for name in listed)

    def spec(self, host: str) -> HostSpec:
        label = podman(
            "container",
            "inspect",
            "--format",
            '{{index .Config.Labels "standfast.spec"}}',
            self.container(host),
        )
        return HostSpec(**json.loads(label.stdout))

    def commit(self, host: str, image: str) -> None:
        """Make an image of a host as it is now; it is stopped meanwhile, so that its files are at rest."""
        container = self.container(host)
        podman("stop", "--time", "60", container)
        podman("commit", "--quiet", container, image, timeout=300)
        podman("start", container)
        wait_booted(container)

    def remove(self, *hosts: str) -> None:
        """Remove the named hosts; without names, all of them and the group's networks."""
        for host in hosts or self.names():
            podman("rm", "--force", "--ignore", "--time", "0", "--volumes", self.container(host))
            (INSIDE / self.container(host)).unlink(missing_ok=True)
        if not hosts:
            for network in podman(
                "network", "ls", "--quiet", "--filter", f"label={self.label}"
            ).stdout.split():
                podman("network", "rm", "--force", network)

    def inventory(self, path: Path) -> Path:
        """Write an inventory of the group's hosts (JSON, which YAML readers read)."""
        hosts = {name: {"ansible_host": self.container(name)} for name in self.names()}
        connection = {
            "ansible_connection": "standfast_podman",
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"agents": {"hosts": hosts, "vars": connection}}, indent=2) + "\n")
        return path


def image_named(name: str) -> str:
    """The image that a host description means; a bare or an installed host's is made when it is not there."""
    if name in images.SUITES:
        return images.ensure(name)
    return installed_image() if name == INSTALLED else name


def installed_image() -> str:
    """A host on which playbooks/install.yml has put the release under test, its service enabled and at rest.

    Keyed by all that made it. Earlier ones of this checkout are removed: each holds a whole host.
    """
    archive = Path(os.environ["STANDFAST_RELEASE_ARCHIVE"])
    bundle = content_digest("roles", "playbooks", "ansible.cfg")
    made_from = (images.tag("trixie"), file_digest(archive), bundle)
    name = f"{INSTALLED_REPOSITORY}:{PREFIX}-{hashlib.sha256(repr(made_from).encode()).hexdigest()[:12]}"
    with (RUNTIME / "installed.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if podman("image", "exists", name, check=False).returncode == 0:
            return name
        print("images: installing a host for scenarios to start from", file=sys.stderr, flush=True)
        remove_installed_images(keep=KEPT)
        group = Group(INSTALLED)
        group.boot(HostSpec("agent"))
        folder = CHECKOUT / "build/hosts" / INSTALLED
        inventory = group.inventory(folder / "inventory.json")
        settings = {"release_archive": str(archive), "receipt_controller_folder": str(folder / "receipts")}
        done = subprocess.run(
            ["ansible-playbook", "-i", inventory, "playbooks/install.yml", "-e", json.dumps(settings)],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SandboxError(f"install.yml on a bare host: {done.stdout[-4000:]}{done.stderr[-1000:]}")
        group.commit("agent", name)
        group.remove()
    return name


def remove_installed_images(keep: int = 0) -> None:
    """Remove this checkout's images of installed hosts but the `keep` newest: a run may start from one."""
    listed = podman(
        "image", "ls", "--sort", "created", "--format", "{{.Repository}}:{{.Tag}}", INSTALLED_REPOSITORY
    )
    ours = [name for name in listed.stdout.split() if name.startswith(f"{INSTALLED_REPOSITORY}:{PREFIX}-")]
    for name in ours[keep:]:  # the newest is listed first
        podman("image", "rm", name, check=False)  # one that a host still runs from stays


def inside(container: str) -> tuple[str, str]:
    """What runs commands in a host's container, and by which name it knows that: without podman's 0.2 s."""
    runtime, name = (INSIDE / container).read_text().split()
    return runtime, name


def wait_booted(container: str, timeout: float = BOOT_TIMEOUT) -> None:
    """Wait until the host's systemd has finished booting without a failed unit."""
    deadline = time.monotonic() + timeout
    runtime, name = inside(container)
    asking = [runtime, "exec", name, "systemctl", "is-system-running"]
    state = ""
    while time.monotonic() < deadline:
        asked = subprocess.run(
            asking, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
        )
        state = asked.stdout.strip()
        if state == "running":
            return
        if state == "degraded":
            failed = podman(
                "exec", container, "systemctl", "--failed", "--no-legend", "--plain"
            ).stdout.strip()
            raise SandboxError(f"{container} booted with failed units: {failed}")
        time.sleep(0.3)
    log = podman("logs", "--tail", "20", container, check=False)
    raise SandboxError(
        f"{container} did not boot within {timeout:.0f} s (state {state!r}): {log.stdout}{log.stderr}"
    )


def _inventory(group: Group) -> Path:
    return group.inventory(CHECKOUT / "build/hosts" / group.name / "inventory.json")


def _boot(group: Group, options: argparse.Namespace) -> None:
    spec = HostSpec(options.name, options.image, options.network, options.address)
    started = time.monotonic()
    group.boot(spec)
    print(f"{options.name}: booted as {group.container(spec.name)} in {time.monotonic() - started:.0f} s")


def _reset(group: Group, options: argparse.Namespace) -> None:
    group.boot(group.spec(options.name))
    print(f"{options.name}: fresh again")


def _create(group: Group, _: argparse.Namespace) -> None:
    group.remove()  # what a run that was killed has left
    group.boot(*(HostSpec.of_platform(platform) for platform in json.load(sys.stdin)))


def _play(group: Group, options: argparse.Namespace) -> None:
    os.execvp("ansible-playbook", ["ansible-playbook", *options.words, "-i", str(_inventory(group))])


def _exec(group: Group, options: argparse.Namespace) -> None:
    os.execvp("podman", ["podman", "exec", "-i", group.container(options.name), *options.words])


def _login(group: Group, options: argparse.Namespace) -> None:
    os.execvp("podman", ["podman", "exec", "-it", group.container(options.name), "bash", "-l"])


def _rm(group: Group, options: argparse.Namespace) -> None:
    if options.name not in group.names():
        raise SandboxError(
            f"there is no host {options.name!r} here; there are: {', '.join(group.names()) or 'none'}"
        )
    group.remove(options.name)


def _images(_: Group, options: argparse.Namespace) -> None:
    """Make what the named scenarios boot from, one after the other: the progress lines stay readable."""
    wanted: set[str] = set()
    for name in options.words:
        described = yaml.safe_load((CHECKOUT / "molecule" / name / "molecule.yml").read_text())
        wanted |= {platform.get("image", "trixie") for platform in described["platforms"]}
    for image in sorted(wanted, key=lambda image: image == INSTALLED):
        image_named(image)


def _clean(*_: object) -> None:
    remove_containers()
    remove_installed_images()
    clean()


VERBS: dict[str, Callable[[Group, argparse.Namespace], None]] = {
    "boot": _boot,
    "play": _play,
    "exec": _exec,
    "login": _login,
    "reset": _reset,
    "commit": lambda group, options: group.commit(options.name, options.image),
    "rm": _rm,
    "list": lambda group, _: print("\n".join(group.names())),
    "inventory": lambda group, _: print(_inventory(group)),
    "create": _create,
    "destroy": lambda group, _: group.remove(),
    "images": _images,
    "clean": _clean,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="script/host", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--group", default="hand")
    subparsers = parser.add_subparsers(dest="verb", required=True)
    verbs = {name: subparsers.add_parser(name) for name in VERBS}
    for name in ("boot", "exec", "login", "reset", "commit", "rm"):
        verbs[name].add_argument("name")
    for name in ("play", "exec", "images"):
        verbs[name].add_argument("words", nargs=argparse.REMAINDER)
    verbs["commit"].add_argument("image")
    verbs["boot"].add_argument("--image", default="trixie")
    verbs["boot"].add_argument("--network")
    verbs["boot"].add_argument("--address", type=int)
    return parser


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    try:
        enter()
        VERBS[options.verb](Group(options.group), options)
    except (SandboxError, OSError) as problem:
        print(f"host: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
