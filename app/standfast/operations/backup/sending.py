"""Copies off the host: backups in a restic repository, each read back before anything older is forgotten.

restic encrypts and knows many kinds of repositories; it is the distribution's, and is called as a process.
Its password comes from a file, and no argument of a process names a secret.
"""

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from standfast.errors import BadInput, Refused, StandfastError
from standfast.layout import Layout
from standfast.operations.backup import companions, folders
from standfast.operations.backup.folders import MANIFEST, SNAPSHOT, in_use
from standfast.operations.backup.limits import Report, quiet
from standfast.operations.backup.listing import named
from standfast.operations.backup.manifest import BackupManifest, read_manifest, read_private
from standfast.operations.backup.verifying import verify
from standfast.operations.opening import refuse_other_user
from standfast.store import triggers

KEEP = 30
"""Newest copies that stay in any case."""
SECONDS = 3600.0
"""The longest that one run of restic may take."""

_OUR = "standfast"
_GOOD = "read-back"
"""The tag of a copy that was read back from the repository and was what had been sent."""
_PASSED_ON = ("RESTIC_", "AWS_", "B2_", "AZURE_", "GOOGLE_", "ST_", "OS_")
_WITH_PASSWORD = re.compile(r"://[^/@]*:[^/@]*@")
_TOLD = 400
_BLOCK = 1 << 20


class Sent(BaseModel):
    """What `backup send` did, or with `--check` would do."""

    changed: bool
    check: bool
    backup: str
    """The backup's folder."""
    snapshot: str | None
    """restic's id of the copy; null under `--check` when there is none yet."""
    made_repository: bool
    read_back: bool
    """True when the copy was read from the repository just now or by an earlier run, and is what was sent."""
    removed: list[str]
    """The backups whose copies were forgotten."""
    kept: list[str]
    """Newest (highest sequence) first."""


@dataclass(frozen=True)
class Repository:
    """Where the copies go. `password`: a private file; `address`: as restic takes it, without a secret."""

    address: str
    password: Path
    make: bool = False
    """Whether one that is not there is made."""


@dataclass(frozen=True)
class _Copy:
    """One of this instance's snapshots in the repository."""

    id: str
    backup: str
    sequence: int
    manifest: str
    """The sha256 of its manifest: of two backups with the same content that is another one."""
    made_at: float
    """Epoch seconds, of the backup; no clock of the repository counts."""
    good: bool


def send(
    layout: Layout,
    which: str | None,
    repository: Repository,
    *,
    now: float,
    keep: int = KEEP,
    days: float = 0,
    check: bool = False,
    report: Report = quiet,
) -> Sent:
    """Copy a backup (by default the newest) into the repository, read it back, and forget old copies.

    Newest means the highest sequence. What is among the `keep` newest or younger than `days` stays, and so
    does the newest that was read back. Raises BadInput; Refused `restic_absent`, `password_file`,
    `repository_secret`, `repository_password`, `repository_absent`, `backup_bad` and what `named` refuses;
    StandfastError when restic fails or the copy is not what was sent (nothing is forgotten then). What
    failed is kept for health to see, until a copy succeeds.
    """
    if keep < 1 or days < 0:
        raise BadInput("--keep is at least 1, and --days not below 0")
    refuse_other_user(layout)
    path = named(layout, which, now)
    with nullcontext() if check else folders.told_of_failure(layout.backups / folders.SEND_FAILED):
        return _sent(layout, path, repository, now=now, keep=keep, days=days, check=check, report=report)


def _sent(
    layout: Layout,
    path: Path,
    repository: Repository,
    *,
    now: float,
    keep: int,
    days: float,
    check: bool,
    report: Report,
) -> Sent:
    manifest = read_manifest(path)
    restic = _Restic(repository)
    with in_use(path):
        if not verify(path, report=report, record=not check).ok:
            raise Refused(
                "backup_bad",
                "the backup is not what its manifest says, so no copy of it is worth anything",
                observed=str(path),
                remedy="see `standfast backup verify`; make a new one: `standfast backup create`",
            )
        made = restic.open(check=check)
        instance = layout.instance().instance
        found = [] if made and check else restic.copies(instance)
        mine = next((one for one in found if one.manifest == _told(path) and one.good), None)
        changed = made or mine is None
        if mine is None and not check:
            mine = _copied(restic, instance, path, manifest, found)
            found = restic.copies(instance)
    triggers.reach("send.read_back")
    doomed = _doomed(found, keep, timedelta(days=days).total_seconds(), now)
    if doomed and not check:
        restic.run("forget", "--prune", *(one.id for one in doomed))
    ordered = sorted(found, key=lambda one: -one.sequence)
    return Sent(
        changed=changed or bool(doomed),
        check=check,
        backup=str(path),
        snapshot=None if mine is None else mine.id,
        made_repository=made,
        read_back=mine is not None,
        removed=[one.backup for one in ordered if one in doomed],
        kept=[one.backup for one in ordered if one not in doomed],
    )


def _copied(
    restic: "_Restic", instance: str, path: Path, manifest: BackupManifest, found: Sequence[_Copy]
) -> _Copy:
    """The copy, read back and marked as good. One that a killed run has left is read back, not made anew."""
    left = next((one for one in found if one.manifest == _told(path)), None)
    name = left.id if left else restic.backup(path, _tags(instance, path, manifest))
    triggers.reach("send.copied")
    restic.compare(name, path, manifest)
    restic.run("tag", "--add", _GOOD, name)
    good = [one for one in restic.copies(instance) if one.manifest == _told(path) and one.good]
    if not good:
        raise StandfastError("restic lost the copy that it had just read back; nothing was forgotten")
    return good[0]


def _tags(instance: str, path: Path, manifest: BackupManifest) -> list[str]:
    return [
        _OUR,
        f"instance={instance}",
        f"backup={path.name}",
        f"sequence={manifest.sequence}",
        f"manifest={_told(path)}",
        f"made={folders.seconds_of(manifest.made_at):.0f}",
    ]


def _doomed(found: Sequence[_Copy], keep: int, seconds: float, now: float) -> list[_Copy]:
    """By sequence, as on the host: a clock that was wrong removes nothing too early."""
    ordered = sorted(found, key=lambda one: -one.sequence)
    newest_good = next((one for one in ordered if one.good), None)
    doomed, latest = [], float("-inf")
    for position, one in reversed(list(enumerate(ordered))):
        latest = max(latest, one.made_at)
        if position >= keep and now - latest >= seconds and newest_good is not None and one != newest_good:
            doomed.append(one)
    return doomed


def holds_password(address: str) -> bool:
    """Whether a repository's address names a password."""
    return _WITH_PASSWORD.search(address) is not None


class _Restic:
    """The program, the repository and its password file."""

    def __init__(self, repository: Repository) -> None:
        if holds_password(repository.address):
            raise Refused(
                "repository_secret",
                "the repository's address holds a password",
                observed="an address of the form ...://USER:PASSWORD@...",
                remedy="an address is printed and logged: use SFTP with a key, or no user",
            )
        program = shutil.which("restic")
        if program is None:
            raise Refused(
                "restic_absent",
                "there is no restic on this host",
                observed=f"PATH is {os.environ.get('PATH', '')}",
                remedy="install the distribution's: apt-get install restic",
            )
        _refuse_open_password(repository.password)
        self._repository = repository
        self._program = program
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if name in {"PATH", "HOME", "TMPDIR"} or name.startswith(_PASSED_ON)
        } | {
            "RESTIC_REPOSITORY": repository.address,
            "RESTIC_PASSWORD_FILE": str(repository.password),
        }

    def open(self, *, check: bool) -> bool:
        """See that the repository is there; True when it was made, or under `check` would be."""
        done = self._call("cat", "config")
        if done.returncode == 0:
            return False
        said = _said(done)
        if "wrong password" in said or "no key found" in said:
            raise Refused(
                "repository_password",
                "the password is not the repository's",
                observed=said,
                remedy=f"put the right one into {self._repository.password}",
            )
        if not self._repository.make:
            raise Refused(
                "repository_absent",
                "there is no repository that can be reached there",
                observed=said,
                remedy="correct its address; or have a new one made: --make-repository",
            )
        if not check:
            self.run("init")
        return True

    def copies(self, instance: str) -> list[_Copy]:
        """This instance's."""
        listed = json.loads(self.run("snapshots", "--json", "--tag", f"{_OUR},instance={instance}") or "[]")
        return [one for one in map(_copy, listed or []) if one is not None]

    def backup(self, path: Path, tags: Sequence[str]) -> str:
        """Copy the folder; returns the snapshot's id."""
        words = [word for tag in tags for word in ("--tag", tag)]
        # Results of later looks at the backup change; the copy is of the backup alone.
        told = self.run("backup", "--json", "--force", *words, *_files(path))
        for line in told.splitlines():
            said: dict[str, Any] = json.loads(line)
            if said.get("message_type") == "summary":
                return str(said["snapshot_id"])
        raise StandfastError("restic does not say what it made; nothing was forgotten")

    def compare(self, name: str, path: Path, manifest: BackupManifest) -> None:
        """Read the copy back; StandfastError unless it is byte for byte what was sent."""
        same = self._digest(name, path / SNAPSHOT) == manifest.sha256
        if not same or self._digest(name, path / MANIFEST) != _told(path):
            raise StandfastError(
                f"the copy {name} in the repository is not what was sent; nothing was forgotten;"
                " look at the repository: restic check --read-data"
            )

    def run(self, *words: str) -> str:
        """What it prints; StandfastError when it fails."""
        done = self._call(*words)
        if done.returncode:
            raise StandfastError(f"restic {words[0]} failed, and nothing was forgotten: {_said(done)}")
        return done.stdout.decode("utf-8", "replace")

    def _call(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                [self._program, "--no-cache", "--quiet", *words],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise StandfastError(f"restic {words[0]} did not end in {SECONDS:g} s") from error

    def _digest(self, name: str, file: Path) -> str:
        command = [self._program, "--no-cache", "--quiet", "dump", name, str(file)]
        found = hashlib.sha256()
        with subprocess.Popen(
            command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdout is not None
            while block := process.stdout.read(_BLOCK):
                found.update(block)
        return found.hexdigest() if process.returncode == 0 else ""


def _copy(snapshot: dict[str, Any]) -> _Copy | None:
    tags = dict(str(tag).partition("=")[::2] for tag in snapshot.get("tags") or [])
    try:
        return _Copy(
            id=str(snapshot["id"]),
            backup=tags["backup"],
            sequence=int(tags["sequence"]),
            manifest=tags["manifest"],
            made_at=float(tags["made"]),
            good=_GOOD in tags,
        )
    except (KeyError, ValueError):
        return None  # somebody else's


def _files(path: Path) -> list[str]:
    """The backup alone: what later looks at it have left beside the manifest changes."""
    return [str(path / name) for name in (SNAPSHOT, MANIFEST, companions.FOLDER) if (path / name).exists()]


def _refuse_open_password(path: Path) -> None:
    try:
        found = path.stat()
    except OSError as error:
        raise BadInput(f"--password-file: {path} cannot be read: {error.strerror}") from error
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISREG(found.st_mode) or mode & 0o077 or found.st_uid != os.geteuid():
        raise Refused(
            "password_file",
            "the file of the repository's password is not private",
            observed=f"{path}: mode {mode:04o}, user {found.st_uid}",
            remedy=f"chmod 0600 {path}, and give it to the service's user",
        )
    if not found.st_size:
        raise BadInput(f"--password-file: {path} is empty")


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    said = " ".join(done.stderr.decode("utf-8", "replace").split())
    return said[:_TOLD] or f"exit code {done.returncode}"


def _told(path: Path) -> str:
    """The sha256 of what the backup says of itself."""
    return hashlib.sha256(read_private(path / MANIFEST) or b"").hexdigest()
