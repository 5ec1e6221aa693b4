"""Whether a folder lies on an encrypted file system, as far as the kernel says so.

Seen are dm-crypt (LUKS), also below LVM or RAID, and stacked file systems that encrypt. What cannot be seen,
a disk that encrypts itself for example, counts as not encrypted.
"""

import os
from pathlib import Path

_STACKED = {"ecryptfs", "fuse.gocryptfs", "fuse.encfs", "fuse.cryfs", "fuse.securefs"}
_MOUNTS = Path("/proc/self/mountinfo")
_BLOCKS = Path("/sys/dev/block")


def is_encrypted(folder: Path, *, mounts: Path = _MOUNTS, blocks: Path = _BLOCKS) -> bool:
    """Whether what is written below `folder` reaches its device encrypted. Unknown is False."""
    found = folder.stat().st_dev
    number = f"{os.major(found)}:{os.minor(found)}"
    for line in _lines(mounts):
        left, _, right = line.partition(" - ")
        if left.split()[2:3] != [number]:
            continue
        kind, source, *_ = right.split()
        return kind in _STACKED or _device_is(_device(number, source), blocks)
    return False


def _lines(mounts: Path) -> list[str]:
    try:
        return mounts.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


def _device(number: str, source: str) -> str:
    """The block device's number; a file system on several devices has one of its own, so ask its source."""
    if not number.startswith("0:") or not source.startswith("/dev/"):
        return number
    try:
        found = Path(source).stat().st_rdev
    except OSError:
        return number
    return f"{os.major(found)}:{os.minor(found)}"


def _device_is(number: str, blocks: Path) -> bool:
    device = blocks / number
    try:
        if (device / "dm/uuid").read_text("ascii").startswith("CRYPT-"):
            return True
    except (OSError, ValueError):
        pass
    below = [path for path in (device / "slaves").glob("*") if path.is_dir()]
    return bool(below) and all(_device_is((path / "dev").read_text().strip(), blocks) for path in below)
