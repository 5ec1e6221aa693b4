"""The wheels of a lock for one target: downloaded once, and checked against the lock every time."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from standfast.errors import Refused, StandfastError
from standfast.release.lock import Pin, render
from standfast.release.manifest import sha256
from standfast.release.targets import Target

Progress = Callable[[str], None]


def default_cache() -> Path:
    """Where downloaded wheels are kept between builds."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "standfast" / "wheels"


def wheels(
    pins: Sequence[Pin], target: Target, *, cache: Path, scratch: Path, progress: Progress
) -> dict[str, bytes]:
    """File name -> wheel, one for each pin that the target needs.

    Raises StandfastError when they cannot be had, Refused `wheel_missing` when a wheel does not fit.
    """
    # The markers are settled here: pip would evaluate them for the Python that runs it, not for the target.
    needed = [Pin(pin.name, pin.version, pin.hashes) for pin in pins if target.needs(pin.marker)]
    key = sha256(f"{target}\n{render(needed)}".encode())[:16]
    folder = cache / f"{target.python}-{target.platform}-{key}"
    found = _matching(folder, needed, target)
    if found is not None:
        progress(f"{len(found)} wheels for {target}: kept from an earlier build, digests checked")
        return found
    progress(f"{len(needed)} wheels for {target}: downloading")
    fresh = Path(tempfile.mkdtemp(dir=scratch))
    _download(needed, target, fresh)
    found = _matching(fresh, needed, target)
    if found is None:
        raise Refused(
            "wheel_missing",
            f"no usable wheel of each package for {target}",
            observed=", ".join(sorted(path.name for path in fresh.iterdir())) or "no wheels",
            remedy="run script/lock, or build without this Python or platform",
        )
    _keep(fresh, folder)
    return found


def _matching(folder: Path, pins: Sequence[Pin], target: Target) -> dict[str, bytes] | None:
    """The wheels of a folder if they are the pinned ones, all of them, and fit."""
    if not folder.is_dir():
        return None
    found = {path.name: path.read_bytes() for path in sorted(folder.glob("*.whl"))}
    digests = {sha256(data) for name, data in found.items() if target.accepts(name)}
    pinned: frozenset[str] = frozenset().union(*(pin.hashes for pin in pins))
    whole = len(digests) == len(found) and digests <= pinned
    return found if whole and all(pin.hashes & digests for pin in pins) else None


def _keep(fresh: Path, folder: Path) -> None:
    """Put downloaded wheels into the cache, in place of what did not match there."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as name:
        staged = Path(name)
        shutil.copytree(fresh, staged / "new")
        if folder.exists():
            folder.rename(staged / "old")
        try:
            (staged / "new").rename(folder)
        except OSError:
            if not folder.is_dir():  # another build was quicker: its wheels are checked like any others
                raise


def _download(pins: Sequence[Pin], target: Target, folder: Path) -> None:
    requirements = folder.parent / f"{folder.name}.txt"
    requirements.write_text(render(pins), "utf-8")
    command = [
        *(
            sys.executable,
            "-I",
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--no-input",
            "download",
            "--quiet",
        ),
        *("--require-hashes", "--only-binary=:all:", "--no-deps", *target.pip_options()),
        *("--dest", str(folder), "--requirement", str(requirements)),
    ]
    run(command, scratch=folder.parent, failure=f"cannot download the wheels for {target}")


def run(command: Sequence[str], *, scratch: Path, failure: str, cwd: Path | None = None) -> str:
    """What a build tool prints. Its temporary files lie in `scratch`, and the caller's settings for
    reproducible builds or another Python do not reach it. StandfastError with its last lines when it fails.
    """
    done = subprocess.run(
        command,
        cwd=cwd,
        env=tool_environment(os.environ, scratch),
        umask=0o022,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise StandfastError(
            f"{failure}; nothing was published: {_told(done.stderr.decode(errors='replace'))}"
        )
    return done.stdout.decode()


def _told(stderr: str) -> str:
    """The tool's own words, from its first error on, as one line of bounded length."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
    first = next((index for index, line in enumerate(lines) if line.startswith("ERROR")), -3)
    return " ".join(lines[first:])[:1000]


def tool_environment(inherited: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """The environment of a build tool."""
    dropped = ("PYTHON", "HATCH_", "GIT_")
    kept = {name: value for name, value in inherited.items() if not name.startswith(dropped)}
    kept.pop("SOURCE_DATE_EPOCH", None)
    return {**kept, "TMPDIR": str(scratch)}
