"""What a command on the controller answers, asked once in a run however many hosts need the answer.

The hosts of a batch are worked on by processes of their own. What they share is the folder that
ansible-playbook keeps for one run, private and removed at its end: the first process asks and writes the
answer there, and the others wait for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = """
name: asked_once
short_description: The exit code and the words of a command on the controller
options:
  _terms:
    description: The command and its arguments; no shell reads them.
    type: list
    elements: str
    required: true
"""

NOT_FOUND = 127
"""Exit code of what could not be started, as a shell has it."""


def asked_once(argv: list[str], folder: Path) -> dict[str, Any]:
    """Its ``rc``, ``stdout`` and ``stderr``: the same for everybody who asks the same with this folder."""
    question = hashlib.sha256(json.dumps(argv).encode()).hexdigest()
    with (folder / f"asked-{question}.json").open("a+") as kept:
        fcntl.flock(kept, fcntl.LOCK_EX)
        kept.seek(0)
        try:
            answer: dict[str, Any] = json.loads(kept.read())
        except ValueError:  # nobody has asked yet, or who did had no room for the whole answer
            answer = _ask(argv)
            kept.truncate(0)
            kept.write(json.dumps(answer))
            kept.flush()
        return answer


def _ask(argv: list[str]) -> dict[str, Any]:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        return {"rc": NOT_FOUND, "stdout": "", "stderr": str(error)}
    return {"rc": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


class LookupModule(LookupBase):  # type: ignore[misc] # ansible-core has no types
    """`lookup('asked_once', command, argument, ...)`."""

    def run(self, terms: list[Any], **_: Any) -> list[dict[str, Any]]:
        """One answer; AnsibleError when there is no room for it."""
        folder = Path(constants.DEFAULT_LOCAL_TMP)
        try:
            return [asked_once([str(term) for term in terms], folder)]
        except OSError as error:
            raise AnsibleError(f"the controller's temporary folder {folder}: {error}") from error
