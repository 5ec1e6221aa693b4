"""The supplier's account in a scenario: put on its host, given to the agent, asked as its owner would."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evidence import good

if TYPE_CHECKING:
    from collections.abc import Mapping

    from target import Controller, Host

PORT = 8440
URL = f"http://supplier.test:{PORT}"

# Asks the supplier on its own host, as root, with the token that is there: it is no argument of any command.
ASK = """
import json, pathlib, sys, urllib.request
address, method, path, body = sys.argv[1:]
token = pathlib.Path("/srv/supplier/token").read_text().strip()
headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
request = urllib.request.Request(address + path, body.encode() or None, headers, method=method)
print(urllib.request.urlopen(request, timeout=10).read().decode())
"""


@dataclass(frozen=True)
class Account:
    """The account on one host, at an address that the agent's host knows."""

    supplier: Host
    address: str

    def ask(self, method: str, path: str, body: str = "") -> dict[str, Any]:
        words = ["python3", "-I", "-c", ASK, f"http://{self.address}:{PORT}", method, path, body]
        answer: dict[str, Any] = json.loads(self.supplier.run(words).stdout)
        return answer

    def receipts(self) -> list[dict[str, Any]]:
        """Everything that was accepted."""
        return list(self.ask("GET", "/receipts")["receipts"])


def address_for(agent: Host) -> str:
    """The supplier's address on the network, as the agent's host knows it."""
    return agent.run(["getent", "ahostsv4", "supplier.test"]).stdout.split()[0]


def put_in_place(controller: Controller, address: str, token: str) -> None:
    """The supplier stand-in on its own host, through its playbook; its inventory is `supplier`."""
    archive = Path(os.environ["STANDFAST_SUPPLIER_ARCHIVE"])
    shutil.copy2(archive, controller.folder / "dist" / archive.name)
    file = controller.folder / "supplier-token"
    file.write_text(token + "\n")
    file.chmod(0o600)
    variables = {
        "release_archive": f"dist/{archive.name}",
        "supplier_token_file": str(file),
        "supplier_listen": address,
        "supplier_faults": True,
    }
    controller.write_inventory("supplier", {"supplier": {}}, variables, group="suppliers")
    play = controller.playbook("supplier", "--diff", inventory="supplier")
    good(play)
    assert token not in play.output


def give(
    controller: Controller,
    token: str,
    variables: Mapping[str, Any] | None = None,
) -> None:
    """The account's address and token to the agent, through its install; its inventory is `yours`."""
    file = controller.folder / "agent-env.yml"
    file.write_text(json.dumps({"STANDFAST_SUPPLIER_URL": URL, "STANDFAST_SUPPLIER_TOKEN": token}))
    file.chmod(0o600)
    controller.write_inventory("yours", {"agent": {}}, {"state_env_file": str(file), **(variables or {})})
    play = controller.playbook("install", "--diff")
    good(play)
    assert token not in play.output
