"""The files of an archive or of an unpacked folder, and the one way in which an archive is written.

Reading never extracts anything. Whatever is not a plain file at a known path is a difference. An archive has
exactly one form (uncompressed USTAR; sorted; fixed mode, owner and time), so every other byte outside the
files is a difference too, and no reader can see another release in it than ours.
"""

import io
import os
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from standfast.release.manifest import MANIFEST, MEMBER

MAX_BYTES = 512 * 1024 * 1024
"""A larger archive is none of ours; it is refused before it is read."""
MAX_MEMBERS = 1000
_MODE = 0o644
_END = bytes(2 * tarfile.BLOCKSIZE)
_KNOWN = re.compile(rf"{re.escape(MANIFEST)}|{MEMBER}")

Problem = Literal[
    "changed",
    "extra",
    "half-made",
    "interpreter",
    "lock_sha256",
    "malformed",
    "misplaced",
    "missing",
    "owner",
    "release_id",
    "signature_missing",
    "signature_wrong",
    "truncated",
    "unreadable",
    "unsafe",
    "wheel_missing",
    "wheel_unlocked",
    "writable",
]


class Difference(BaseModel):
    """One way in which something is not what it should be."""

    path: str
    problem: Problem
    detail: str = ""


@dataclass
class Contents:
    """Plain files by path, and everything else that was met."""

    files: dict[str, bytes] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)

    def differs(self, path: str, problem: Problem, detail: str = "") -> None:
        """Note a difference."""
        self.differences.append(Difference(path=path, problem=problem, detail=detail))


def pack(files: Mapping[str, bytes]) -> bytes:
    """The archive of these files: the same bytes wherever and whenever it is made."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(files):
            member = tarfile.TarInfo(name)
            member.size = len(files[name])
            member.mode = _MODE
            archive.addfile(member, io.BytesIO(files[name]))
    return stream.getvalue()


def from_archive(data: bytes, name: str) -> Contents:
    """The files of an archive called `name`."""
    contents = Contents()
    try:
        with tarfile.open(
            fileobj=io.BytesIO(data), mode="r:", encoding="utf-8", errors="surrogateescape"
        ) as archive:
            for count, member in enumerate(archive):
                if count == MAX_MEMBERS:  # a crafted size can make tarfile read the same header for ever
                    raise tarfile.ReadError(f"more than {MAX_MEMBERS} members")
                _read_member(archive, member, contents)
    except (tarfile.TarError, EOFError, ValueError, OverflowError, MemoryError) as error:
        contents.differs(name, "truncated", f"not a whole tar archive: {error}")
        return contents
    if not contents.differences and data != (whole := pack(contents.files)):
        ended = data.startswith(whole) or (len(data) % tarfile.RECORDSIZE == 0 and data.endswith(_END))
        problem: Problem = "malformed" if ended else "truncated"
        contents.differs(
            name, problem, f"{len(data)} bytes, where these files make {len(whole)} in the one form"
        )
    return contents


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo, contents: Contents) -> None:
    shown = ascii(member.name)[1:-1]
    if member.type != tarfile.REGTYPE or member.issparse():
        contents.differs(shown, "unsafe", f"{_kind(member)}; only plain files belong in a release")
    elif _unsafe(member.name):
        contents.differs(shown, "unsafe", "a path that leads outside the release")
    elif member.name in contents.files:
        contents.differs(shown, "unsafe", "the same path twice")
    elif not _KNOWN.fullmatch(member.name):
        contents.differs(shown, "extra", "no path of a release")
    else:
        stream = archive.extractfile(member)
        contents.files[member.name] = stream.read() if stream else b""


def _kind(member: tarfile.TarInfo) -> str:
    kinds = {
        tarfile.SYMTYPE: "a symbolic link",
        tarfile.LNKTYPE: "a hard link",
        tarfile.CHRTYPE: "a device",
        tarfile.BLKTYPE: "a device",
        tarfile.FIFOTYPE: "a pipe",
        tarfile.DIRTYPE: "a folder",
    }
    sparse = "a sparse file" if member.issparse() else f"a member of type {member.type!r}"
    return kinds.get(member.type, sparse)


def _unsafe(name: str) -> bool:
    return name.startswith("/") or "\\" in name or any(part in {"", ".", ".."} for part in name.split("/"))


def from_folder(folder: Path, *, ignoring: frozenset[str] = frozenset()) -> Contents:
    """The files of an unpacked release, following no link; `ignoring` names entries of its top."""
    contents = Contents()
    _walk(folder, "", contents, ignoring)
    return contents


def _walk(folder: Path, prefix: str, contents: Contents, ignoring: frozenset[str]) -> None:
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        name = prefix + entry.name
        if name in ignoring:
            continue
        if entry.is_dir(follow_symlinks=False) and name == "wheels":
            _walk(folder / entry.name, "wheels/", contents, ignoring)
        elif not _KNOWN.fullmatch(name):
            contents.differs(ascii(name)[1:-1], "extra", "no path of a release")
        elif not entry.is_file(follow_symlinks=False):
            contents.differs(name, "unsafe", "not a plain file")
        else:
            contents.files[name] = (folder / entry.name).read_bytes()
