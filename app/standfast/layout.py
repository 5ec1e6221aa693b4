"""Where everything of one instance lives, and which paths are allowed at all."""

import json
import os
import re
import stat
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from standfast.errors import BadInput, Refused

DEFAULT_STATE = Path("/srv/lucy/state")
"""The state directory of the default instance."""

PRIVATE = 0o700
"""The mode of a folder that holds what is nobody else's business."""

_ALLOWED_PATH = re.compile(r"/[A-Za-z0-9_./-]+")

InstanceName = Annotated[str, StringConstraints(pattern=r"\A[a-z][a-z0-9-]{0,47}\z")]
UserName = Annotated[str, StringConstraints(pattern=r"\A[a-z_][a-z0-9_-]{0,31}\z")]


class InstanceIdentity(BaseModel):
    """The content of ``instance.json``: whose root this is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    instance: InstanceName = "lucy-agent"
    user: UserName = "lucy"
    root: str


@dataclass(frozen=True)
class Layout:
    """The paths of one instance, all derived from its state directory."""

    state: Path

    @property
    def root(self) -> Path:
        """The instance's own folder; belongs to root."""
        return self.state.parent

    @property
    def database(self) -> Path:
        """The live store. Nothing but SQLite may ever open it."""
        return self.state / "agent.sqlite"

    @cached_property
    def marker(self) -> Path:
        """The authority marker: epoch, then host identity."""
        return self.state / "agent.authority"

    @property
    def environment(self) -> Path:
        """Credentials and switches for the service, mode 0600."""
        return self.state / "agent.env"

    @property
    def shop(self) -> Path:
        """Catalogue and opening stock."""
        return self.state / "shop.toml"

    @property
    def outbox(self) -> Path:
        """One file per delivered report."""
        return self.state / "outbox"

    @property
    def writer_lock(self) -> Path:
        """Locked by the one process that may act as the service, and by a restore."""
        return self.state / "agent.lock"

    @property
    def releases(self) -> Path:
        """One folder per installed release."""
        return self.root / "releases"

    @property
    def current(self) -> Path:
        """A convenience for people: a link to the installed release."""
        return self.root / "current"

    @property
    def backups(self) -> Path:
        """One folder per backup."""
        return self.root / "backups"

    @property
    def receipts(self) -> Path:
        """One file per operation receipt."""
        return self.root / "receipts"

    @property
    def identity(self) -> Path:
        """The file that says whose root this is."""
        return self.root / "instance.json"

    def instance(self) -> InstanceIdentity:
        """The identity in ``instance.json``, or the default one when there is no such file.

        Raises Refused ``instance_unreadable`` when the file is there but is not an identity.
        """
        try:
            return InstanceIdentity.model_validate_json(self.identity.read_bytes())
        except FileNotFoundError:
            return InstanceIdentity(root=str(self.root))
        except (OSError, ValidationError) as error:
            raise Refused(
                "instance_unreadable",
                f"{self.identity} does not say whose root this is",
                observed=str(error).splitlines()[0],
                remedy="restore instance.json from the last install, or choose another root",
            ) from error


def checked_path(text: str, name: str) -> Path:
    """``text`` as an absolute path of the allowed set; raises BadInput that names ``name``.

    systemd expands ``%``, ``$`` and quotes by its own rules, so such paths are refused, not escaped.
    """
    if not _ALLOWED_PATH.fullmatch(text) or ".." in text.split("/"):
        raise BadInput(
            f"{name}: {text!r} is not allowed: a path is absolute, made of letters, digits, _ . / and -, "
            "with no .. segment"
        )
    return Path(text)


def refuse_shared(folder: Path, kind: str, *, elsewhere: str = "") -> None:
    """Raise Refused unless it is a folder, and of this user alone; OSError when there is nothing.

    The codes begin with ``kind``: ``backups_folder`` (a link, a file), ``backups_mode``, ``backups_owner``.
    """
    found = folder.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        raise Refused(
            f"{kind}_folder",
            f"{folder} is not a folder",
            observed="a link" if stat.S_ISLNK(found.st_mode) else "a file",
            remedy=f"move it away{elsewhere}",
        )
    if mode != PRIVATE:
        raise Refused(
            f"{kind}_mode",
            f"{folder} is open to other users",
            observed=f"mode {mode:04o}",
            remedy=f"chmod {PRIVATE:04o} {folder}",
        )
    if found.st_uid != os.geteuid():
        raise Refused(
            f"{kind}_owner",
            f"{folder} belongs to another user",
            observed=f"uid {found.st_uid}, running as uid {os.geteuid()}",
            remedy="run it as the service user",
        )


def running_release() -> str:
    """The id of the release whose interpreter runs this, or ``source`` outside a release."""
    manifest = Path(sys.prefix).parent / "manifest.json"
    try:
        return str(json.loads(manifest.read_bytes())["release_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return "source"
