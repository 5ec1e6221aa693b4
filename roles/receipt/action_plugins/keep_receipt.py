"""Keep a receipt on the controller: whole or not at all, for its owner alone.

Every run keeps one for each host; through ansible's own file and copy that is three programs and a second.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

OPTIONS = {
    "folder": {"type": "path", "required": True},
    "name": {"type": "str", "required": True},
    "receipt": {"type": "dict", "required": True},
}


class ActionModule(ActionBase):  # type: ignore[misc] # ansible-core has no types
    """Options: `folder` (0700, made when it is not there), `name` of the file (0600), `receipt`."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """`dest` is the file; a folder that cannot be written to is a failure of the task."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(OPTIONS)
        path = Path(options["folder"]) / options["name"]
        try:
            keep(path, options["receipt"])
        except OSError as error:
            return {"failed": True, "msg": f"the receipt could not be kept on the controller: {error}"}
        return {"changed": True, "dest": str(path)}


def keep(path: Path, receipt: dict[str, Any]) -> None:
    """Write it as JSON for people; an earlier file stays whole until then."""
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(receipt, file, indent=2, sort_keys=True)
            file.write("\n")
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
