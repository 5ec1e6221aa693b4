"""Reach a host in a container, with pipelining: as SSH does, without an SSH server."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError, AnsibleFileNotFound
from ansible.module_utils.common.text.converters import to_bytes, to_text
from ansible.plugins.connection import ConnectionBase, ensure_connect

DOCUMENTATION = """
name: standfast_podman
short_description: Run tasks in a running podman container, pipelined
description:
  - Runs each command through the container's OCI runtime, which takes a fraction of C(podman exec).
  - A container that does not run, or stops meanwhile, is unreachable, as a host would be.
options:
  remote_addr:
    description: Name of the container.
    default: inventory_hostname
    vars:
      - name: inventory_hostname
      - name: ansible_host
  remote_user:
    description: Login inside the container; root when empty.
    vars:
      - name: ansible_user
  pipelining:
    description: Send modules on standard input instead of copying them first.
    type: boolean
    default: true
    vars:
      - name: ansible_pipelining
"""


class Connection(ConnectionBase):
    """One container, addressed by name."""

    transport = "standfast_podman"
    has_pipelining = True

    def _connect(self) -> Connection:
        """Nothing is asked here: every task has a connection of its own, and its command finds out."""
        self._connected = True
        return self

    def close(self) -> None:
        self._connected = False

    def _exec(self, argv: list[str], **streams: Any) -> subprocess.CompletedProcess[bytes]:
        if "input" not in streams:
            streams.setdefault("stdin", subprocess.DEVNULL)
        streams.setdefault("stdout", subprocess.PIPE)
        command = [to_bytes(word) for word in (*self._entering(), *argv)]
        done = subprocess.run(command, stderr=subprocess.PIPE, check=False, **streams)
        if done.returncode != 0 and not self._runs():
            raise AnsibleConnectionFailure(f"no answer from this host: {to_text(done.stderr).strip()}")
        return done

    def _entering(self) -> list[str]:
        """The words before a command. A login by name needs podman, which looks it up in the host."""
        name, login = self.get_option("remote_addr"), self.get_option("remote_user")
        if login and login != "root":
            return ["podman", "--log-level=error", "exec", "--interactive", "--user", login, name]
        try:
            runtime, known_as = (Path(os.environ["STANDFAST_INSIDE"]) / name).read_text().split()
        except FileNotFoundError:
            raise AnsibleConnectionFailure(f"there is no host {name}") from None
        return [runtime, "exec", known_as]

    def _runs(self) -> bool:
        asked = ["podman", "container", "inspect", "--format", "{{.State.Running}}"]
        told = subprocess.run(
            [*asked, self.get_option("remote_addr")],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        return told.stdout.strip() == b"true"

    @ensure_connect
    def exec_command(
        self, cmd: str, in_data: bytes | None = None, sudoable: bool = True
    ) -> tuple[int, bytes, bytes]:
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        done = self._exec(shlex.split(to_text(cmd)), **({} if in_data is None else {"input": in_data}))
        return done.returncode, done.stdout, done.stderr

    @ensure_connect
    def put_file(self, in_path: str, out_path: str) -> None:
        super().put_file(in_path, out_path)
        source = Path(to_text(in_path))
        if not source.exists():
            raise AnsibleFileNotFound(f"no such file on the controller: {source}")
        with source.open("rb") as stream:
            done = self._exec(["sh", "-c", 'cat > "$1"', "sh", to_text(out_path)], stdin=stream)
        if done.returncode != 0:
            raise AnsibleError(f"could not write {to_text(out_path)}: {to_text(done.stderr).strip()}")

    @ensure_connect
    def fetch_file(self, in_path: str, out_path: str) -> None:
        super().fetch_file(in_path, out_path)
        with Path(to_text(out_path)).open("wb") as stream:
            done = self._exec(["cat", "--", to_text(in_path)], stdout=stream)
        if done.returncode != 0:
            raise AnsibleError(f"could not read {to_text(in_path)}: {to_text(done.stderr).strip()}")
