"""Files that are either wholly there or not there at all, also after a power failure.

The order is always: temporary file in the same folder, data, fsync, publish, fsync of the folder. The
temporary file never has more permissions than the published one.
"""

import os
import secrets
from pathlib import Path

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace ``path`` by ``data`` atomically; an earlier file stays whole until then."""
    temporary = _temporary(path, data, mode)
    try:
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def create_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Publish ``data`` as a new file; raises FileExistsError, leaving it alone, when ``path`` is taken."""
    temporary = _temporary(path, data, mode)
    try:
        os.link(temporary, path)
    finally:
        temporary.unlink()
    sync_folder(path.parent)


def create_folder(path: Path, mode: int = 0o700) -> None:
    """Make a new folder and its name durable; FileExistsError when ``path`` is taken, by a link too."""
    path.mkdir(mode)
    try:
        path.chmod(mode)  # whatever the umask took away
        sync_folder(path.parent)
    except BaseException:
        path.rmdir()
        raise


def create_empty(path: Path, mode: int = 0o600) -> None:
    """A new empty file for a writer that fills it by name; FileExistsError when ``path`` is taken."""
    descriptor = os.open(path, _CREATE, mode)
    try:
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make what ``path`` holds durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(partial: Path, path: Path) -> None:
    """Give a finished, synced file of the same folder its name; FileExistsError when ``path`` is taken."""
    os.link(partial, path)
    partial.unlink()
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` as durable as the files behind them."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary(path: Path, data: bytes, mode: int) -> Path:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, _CREATE, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)  # whatever the umask took away
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary
