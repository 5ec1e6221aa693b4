"""Releases after and beside the one under test: good generations, and bad ones, each bad in one known way.

Each is built from this checkout as it is, with an overlay from molecule/generations/NAME.toml:

    about      what it is for
    version    its version in pyproject.toml
    on         the overlay that it is laid over; none: this tree
    fallbacks  generations whose real release ids a review is made to name (only v1: the tree under test)
    without    the beginning of the name of a wheel that the finished archive is made to lack
    broken     the same, of one that holds no package; lock and manifest agree with what it holds
    [[edit]]   `put` in the place of `find`, which `file` must hold exactly once
    [[append]] `text` at the end of `file`, which may be new

    script/lib/generations.py [NAME...]     build them (all without names), print where they are
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bundle
from archives import broken_wheel, consistent, manifest_of

CHECKOUT = bundle.CHECKOUT
OVERLAYS = CHECKOUT / "molecule/generations"
FOLDER = CHECKOUT / "build/generations"
TREE = (*bundle.SOURCES, "requirements-dev.lock")
BASE = "v1"
PYTHON = "3.13"
"""The hosts' only: one set of wheels makes an archive half as large."""
KEPT = 3
AUTHOR = {"NAME": "Generations", "EMAIL": "generations@standfast.invalid", "DATE": "2026-01-01T00:00:00Z"}


class OverlayError(Exception):
    """An overlay does not fit the tree; the message names it, the file and what to do."""


@dataclass(frozen=True)
class Overlay:
    """One file of molecule/generations."""

    name: str
    about: str
    version: str
    on: str = BASE
    fallbacks: tuple[str, ...] = ()
    without: str = ""
    broken: str = ""
    edit: tuple[dict[str, str], ...] = ()
    append: tuple[dict[str, str], ...] = ()

    @classmethod
    def read(cls, name: str, folder: Path = OVERLAYS) -> Overlay:
        """The overlay of that name."""
        path = folder / f"{name}.toml"
        if not path.is_file():
            raise OverlayError(f"there is no generation {name!r}; there are: {', '.join(names())}")
        found: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
        found |= {key: tuple(found.get(key, ())) for key in ("fallbacks", "edit", "append")}
        return cls(name=name, **found)


def names() -> list[str]:
    """Every generation, the tree under test first."""
    return [BASE, *sorted(path.stem for path in OVERLAYS.glob("*.toml"))]


def ensure(name: str) -> Path:
    """The archive of a generation, built in a few seconds when it is not there."""
    first = bundle.ensure()
    if name == BASE:
        return first
    Overlay.read(name)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with FOLDER.with_suffix(".lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        folder = _folder(first)
        archive = folder / f"{name}.tar"
        if not archive.exists():
            folder.mkdir(exist_ok=True)
            _build(name, archive, {BASE: manifest_of(first).release_id})
            _forget(folder)
    return archive


def together(*wanted: str) -> Path:
    """A folder with NAME.tar for all that are wanted; v1 among them, whether it is or not."""
    first = bundle.ensure()
    folder = _folder(first)
    for name in wanted:
        ensure(name)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / f"{BASE}.tar").exists():
        (folder / f"{BASE}.tar").hardlink_to(first)
    return folder


def _folder(first: Path) -> Path:
    """One for each tree under test (its release id says which) with these overlays."""
    overlays = bundle.content_digest("molecule/generations", "script/lib/generations.py")
    return FOLDER / f"{manifest_of(first).release_id}-{overlays[:12]}"


def _forget(folder: Path) -> None:
    others = sorted(
        (path for path in FOLDER.iterdir() if path != folder), key=lambda path: path.stat().st_mtime
    )
    for earlier in others[: max(0, len(others) - KEPT + 1)]:
        shutil.rmtree(earlier)


def _build(name: str, archive: Path, releases: dict[str, str]) -> None:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=FOLDER.parent, prefix="generation-") as scratch:
        tree = Path(scratch) / "tree"
        source(name, tree, releases)
        _commit(tree, name)
        output = Path(scratch) / "output"
        program = Path(sys.executable).with_name("standfast")
        command: list[str | Path] = [program, "release", "build", "--python", PYTHON, "--output", output]
        done = subprocess.run(command, cwd=tree, check=False, capture_output=True, text=True)
        if done.returncode:
            raise OverlayError(f"generation {name} cannot be built:\n{done.stderr}")
        [made] = output.glob("standfast-*.tar")
        overlay = Overlay.read(name)
        if overlay.without:
            made = _lacking(made, output / "lacking.tar", overlay.without)
        if overlay.broken:
            made = broken_wheel(made, output / "broken.tar", overlay.broken)
        made.rename(archive)
    print(f"generations: {name} built in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _lacking(made: Path, path: Path, wheel: str) -> Path:
    left_out = [file for file in manifest_of(made).files if file.startswith(f"wheels/{wheel}")]
    if not left_out:
        raise OverlayError(f"no wheel of the archive begins with {wheel!r}")
    return consistent(made, path, keep=lambda file: file not in left_out)


def source(name: str, tree: Path, releases: dict[str, str]) -> None:
    """Write this checkout's sources with the overlays of `name` into the new folder `tree`.

    `releases`: generation -> release id, for what the overlay's review names.
    """
    _copy(tree)
    chain = [Overlay.read(name)]
    while chain[0].on != BASE:
        chain.insert(0, Overlay.read(chain[0].on))
    for overlay in chain:
        lay(overlay, tree)
    _release_facts(chain[-1], tree, releases)


def _copy(tree: Path) -> None:
    """The sources as they are in the work tree, tracked or new; ignored files are none."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *TREE],
        cwd=CHECKOUT, check=True, capture_output=True,
    ).stdout.decode()  # fmt: skip
    for path in filter(None, listed.split("\0")):
        if (CHECKOUT / path).is_file():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / path, tree / path)


def lay(overlay: Overlay, tree: Path) -> None:
    """Apply the edits and additions of one overlay; OverlayError when the tree is not as they expect."""
    for edit in overlay.edit:
        replace_once(tree / edit["file"], edit["find"], edit["put"], f"overlay {overlay.name}")
    for addition in overlay.append:
        path = tree / addition["file"]
        earlier = path.read_text("utf-8") if path.exists() else ""
        path.write_text(earlier + addition["text"].removeprefix("" if earlier else "\n"), "utf-8")


def replace_once(path: Path, find: str, put: str, who: str) -> None:
    """Put one text in the place of another that the file must hold exactly once."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise OverlayError(f"{who} edits {path.name}, which is not there any more") from None
    if text.count(find) != 1:
        raise OverlayError(
            f"{who} expects {path.name} to hold exactly once, and it does {text.count(find)} times:\n{find}\n"
            "Read what became of it there, and bring the overlay in molecule/generations up to date."
        )
    path.write_text(text.replace(find, put), "utf-8")


def _release_facts(overlay: Overlay, tree: Path, releases: dict[str, str]) -> None:
    project = tree / "pyproject.toml"
    present = tomllib.loads(project.read_text("utf-8"))
    version, reviewed = present["project"]["version"], present["tool"]["standfast"]["release"]
    who = f"overlay {overlay.name}"
    replace_once(project, f'\nversion = "{version}"\n', f'\nversion = "{overlay.version}"\n', who)
    if overlay.fallbacks:
        if reviewed["reviewed-fallbacks"]:
            raise OverlayError(f"{who} would hide the fallbacks that pyproject.toml itself names")
        listed = ", ".join(f'"{releases[name]}"' for name in overlay.fallbacks)
        replace_once(project, "\nreviewed-fallbacks = []\n", f"\nreviewed-fallbacks = [{listed}]\n", who)


def _commit(tree: Path, name: str) -> None:
    """The same tree is the same commit, so that its release has the same id wherever it is built."""
    who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in AUTHOR.items()}
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    for words in (
        ("init", "--quiet", "--initial-branch", "main"),
        ("add", "--all", "--force"),
        ("commit", "--quiet", "--no-gpg-sign", "--message", f"Generation {name}"),
    ):
        subprocess.run(["git", *words], cwd=tree, check=True, env={**kept, **alone, **who})


def main(wanted: list[str]) -> int:
    try:
        for name in wanted or names():
            print(ensure(name))
    except OverlayError as problem:
        print(f"generations: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
