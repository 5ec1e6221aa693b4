"""The release archive under test: built once from the tree as it is, reused while the tree stays the same."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDER = CHECKOUT / "build/release"
SOURCES = ("app/standfast", "pyproject.toml", "requirements.lock", "README.md", "LICENSE")
KEPT = 10
PYTHONS = ("3.12", "3.13")


def _files(part: str) -> list[Path]:
    path = CHECKOUT / part
    return [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if file.is_file()]


def content_digest(*parts: str) -> str:
    """A digest of names and contents of files and folders of the checkout; compiled files do not count."""
    digest = hashlib.sha256()
    for part in parts:
        for file in _files(part):
            if "__pycache__" not in file.parts:
                digest.update(
                    f"{file.relative_to(CHECKOUT)}\0".encode() + hashlib.sha256(file.read_bytes()).digest()
                )
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def ensure(*extras: str) -> Path:
    """The archive of this tree (marked dirty when it is), built in some ten seconds when it is not there.

    With `extras` one that carries them too: the supplier's has ``supplier``, the agent's has none.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    with FOLDER.with_suffix(".lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        return _ensure(extras)


def _ensure(extras: tuple[str, ...]) -> Path:
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    ).stdout.strip()
    locks = [f"requirements-{extra}.lock" for extra in extras]
    folder = FOLDER / "-".join((commit[:8], content_digest(*SOURCES, *locks)[:12], *extras))
    archives = sorted(folder.glob("standfast-*.tar"))
    if archives:
        return archives[0]
    making = FOLDER / "making"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir()
    started = time.monotonic()
    print("bundle: building the release", file=sys.stderr, flush=True)
    wanted = [word for version in PYTHONS for word in ("--python", version)]
    wanted += [word for extra in extras for word in ("--extra", extra)]
    program = Path(sys.executable).with_name("standfast")
    subprocess.run(
        [program, "release", "build", *wanted, "--allow-dirty", "--output", making],
        cwd=CHECKOUT, check=True, stdout=sys.stderr,
    )  # fmt: skip
    making.rename(folder)
    # A run that is still at work on the tree as it was before needs its archive: only old ones go.
    for earlier in sorted(FOLDER.iterdir(), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(earlier)
    print(f"bundle: built in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return next(folder.glob("standfast-*.tar"))


if __name__ == "__main__":
    print(ensure())
