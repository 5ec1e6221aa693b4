"""Images of plain Debian hosts with systemd, made from the machine's own Debian mirror (no image registry).

An image's tag carries a digest of its suite, package list and recipe: it is reused while those stay the same.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from sandbox import CHECKOUT, PREFIX, SandboxError, podman

if TYPE_CHECKING:
    from pathlib import Path

REPOSITORY = "localhost/standfast-host"
# A bare server: no acl, no pip, no ensurepip. sudo is there for the login that becomes root.
PACKAGES = (
    "dbus",
    "dbus-user-session",
    "iproute2",
    "libpam-systemd",
    "procps",
    "python3",
    "sudo",
    "systemd",
    "systemd-sysv",
)
# `admin` logs in without being root. The journal is persistent, as on a server (`journalctl --user`).
RECIPE = """
set -eu
root=$1
mkdir -p "$root/var/log/journal"
chroot "$root" useradd --create-home --shell /bin/bash admin
printf 'admin ALL=(ALL:ALL) NOPASSWD: ALL\\n' > "$root/etc/sudoers.d/admin"
chmod 0440 "$root/etc/sudoers.d/admin"
for unit in apt-daily.timer apt-daily-upgrade.timer console-getty.service getty.target; do
  ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
: > "$root/etc/machine-id"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/doc/* "$root"/usr/share/man/*
"""
SUITES = ("trixie", "bookworm", "vault")
# A host that copies its backups with restic over SFTP, and one that keeps them: the distribution's own.
VAULT = (*PACKAGES, "openssh-client", "openssh-server", "restic")
ATTEMPTS = 3


def tag(suite: str) -> str:
    if suite not in SUITES:
        raise SandboxError(f"no recipe for a host of suite {suite!r}; known: {', '.join(SUITES)}")
    digest = hashlib.sha256("\0".join((suite, *_packages(suite), RECIPE)).encode()).hexdigest()[:12]
    return f"{REPOSITORY}:{suite}-{digest}"


def _packages(suite: str) -> tuple[str, ...]:
    return VAULT if suite == "vault" else PACKAGES


def mirror() -> str:
    """The address of the Debian archive this machine itself installs from ($STANDFAST_DEBIAN_MIRROR wins)."""
    named = os.environ.get("STANDFAST_DEBIAN_MIRROR")
    if named:
        return named
    listing = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "ORIGIN: Debian", "LABEL: Debian"],
        capture_output=True,
        text=True,
        check=False,
    )
    addresses = listing.stdout.split()
    if not addresses:
        raise SandboxError(
            "this machine's package sources name no Debian archive: set STANDFAST_DEBIAN_MIRROR to one"
        )
    return addresses[0]


def ensure(suite: str) -> str:
    """The name of the image of a bare host, built when it is not there yet (about a minute)."""
    name = tag(suite)
    if podman("image", "exists", name, check=False).returncode == 0:
        return name
    folder = CHECKOUT / "build/images"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"{PREFIX}-{suite}.{os.getpid()}.tar"
    recipe = archive.with_suffix(".sh")
    recipe.write_text(RECIPE)
    print(f"images: building a bare {suite} host (about a minute)", file=sys.stderr, flush=True)
    started = time.monotonic()
    try:
        _bootstrap(suite, archive, recipe)
        podman(
            "import",
            "--change",
            'CMD ["/lib/systemd/systemd"]',
            "--change",
            "STOPSIGNAL SIGRTMIN+3",
            str(archive),
            name,
            timeout=300,
        )
    finally:
        archive.unlink(missing_ok=True)
        recipe.unlink()
    print(f"images: {name} built in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return name


def _bootstrap(suite: str, archive: Path, recipe: Path) -> None:
    release = "trixie" if suite == "vault" else suite
    command = [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        "--mode=root",
        f"--include={','.join(_packages(suite))}",
        f'--customize-hook=sh {recipe} "$1"',
        release,
        str(archive),
        f"deb {mirror()} {release} main",
    ]
    for attempt in range(1, ATTEMPTS + 1):
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            return
        print(f"images: attempt {attempt} of {ATTEMPTS} failed", file=sys.stderr, flush=True)
        time.sleep(5 * attempt)
    raise SandboxError(f"mmdebstrap {suite}: {done.stderr.strip()[-2000:]}")
