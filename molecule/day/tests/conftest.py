"""What the day needs besides its hosts: the account, and a worker of the old era that lives through it."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from account import Account, address_for
from old_worker import OldWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from target import Host


@pytest.fixture(scope="session")
def token() -> str:
    return f"CANARY{secrets.token_hex(20)}"


@pytest.fixture(scope="session")
def account(hosts: dict[str, Host], agent: Host) -> Account:
    return Account(hosts["supplier"], address_for(agent))


@pytest.fixture(scope="session")
def old_worker(agent: Host) -> Generator[Callable[[], OldWorker]]:
    """Started when it is first asked for; the same one from then on."""
    started: list[OldWorker] = []

    def worker() -> OldWorker:
        if not started:
            started.append(OldWorker(agent.container))
        return started[0]

    yield worker
    for one in started:
        one.end()


@pytest.fixture(scope="session")
def noted() -> dict[str, Any]:
    """What one test of the day tells the later ones."""
    return {}


def books(host: Host) -> str:
    """Everything that a refusal must leave as it is."""
    health = host.run(["lucy-agent", "--json", "health"], check=False).stdout
    kept = {name: json.loads(health)[name] for name in ("paused", "epoch", "reason")}
    seen = [host.cli(*words) for words in (("order", "list"), ("stock", "list"), ("work", "list"))]
    return json.dumps([kept, seen], sort_keys=True)
