"""Detached signatures of an archive, made and checked by `ssh-keygen -Y` with an allowed-signers file."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from standfast.errors import BadInput, StandfastError

NAMESPACE = "standfast-release"
"""What the signature is for: a key's signature of anything else never passes as one of a release."""


@dataclass(frozen=True)
class Policy:
    """Whose signature counts."""

    allowed_signers: Path
    signer: str
    """The principal, as the allowed-signers file names it."""
    required: bool = False
    """Whether an unsigned archive is a difference."""


def signature_path(archive: Path) -> Path:
    """Where the signature of an archive lies."""
    return archive.with_name(f"{archive.name}.sig")


def sign(data: bytes, key: Path) -> bytes:
    """The signature of `data` by a key file; a public one when an ssh agent holds its private half."""
    if not key.is_file():
        raise BadInput(f"--sign: {key} is no key file")
    return _ssh_keygen(["-Y", "sign", "-f", str(key), "-n", NAMESPACE], data, f"cannot sign with {key}")


def signed_by(data: bytes, signature: Path, key: Path) -> bool:
    """Whether this signature of `data` is whole and was made by that key."""
    fingerprint = _ssh_keygen(["-l", "-f", str(key)], b"", f"cannot read {key}").split()[1]
    checked = _run(["-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(signature)], data)
    return checked.returncode == 0 and fingerprint in checked.stdout.split()


def check(data: bytes, signature: Path, policy: Policy) -> str | None:
    """Why this signature of `data` does not count; None when it does."""
    if not policy.allowed_signers.is_file():
        raise BadInput(f"--allowed-signers: {policy.allowed_signers} is no file")
    principal = ["-f", str(policy.allowed_signers), "-I", policy.signer]
    checked = _run(["-Y", "verify", *principal, "-n", NAMESPACE, "-s", str(signature)], data)
    return None if checked.returncode == 0 else _last_line(checked)


def _ssh_keygen(arguments: list[str], data: bytes, failure: str) -> bytes:
    done = _run(arguments, data)
    if done.returncode != 0:
        raise StandfastError(f"{failure}: {_last_line(done)}")
    return done.stdout


def _run(arguments: list[str], data: bytes) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(["ssh-keygen", *arguments], input=data, capture_output=True, check=False)
    except FileNotFoundError:
        raise StandfastError("ssh-keygen is not installed here (package openssh-client)") from None


def _last_line(done: "subprocess.CompletedProcess[bytes]") -> str:
    lines = (done.stderr + b"\n" + done.stdout).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"ssh-keygen ended with {done.returncode}"
