"""The host is installed once, from the page; each test looks at what that left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from evidence import listing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from runbook import Executor
    from target import Controller, Host


@dataclass(frozen=True)
class DryRun:
    """What `--check --diff` on a bare host did to the host and to the controller."""

    before: set[str]
    after: set[str]
    copies: list[Path]


def seen(host: Host) -> set[str]:
    """All files of the host, its units and who lingers or is logged in."""
    units = host.run(
        "systemctl list-units --all --plain --no-legend --type=service,slice | awk '{print $1, $3}'"
    )
    users = host.run("loginctl list-users --no-legend; ls /var/lib/systemd/linger")
    return listing(host, "/") | set(units.stdout.splitlines()) | set(users.stdout.splitlines())


@pytest.fixture(scope="session")
def page(agent: Host, controller: Controller, runbook: Callable[[str, Host], Executor]) -> Executor:
    controller.write_inventory("yours", {"agent": {}})
    return runbook("install", agent)


@pytest.fixture(scope="session")
def dry_run(agent: Host, controller: Controller, page: Executor) -> DryRun:
    """The page up to its act: the preconditions, and the playbook with --check --diff."""
    page.run("Preconditions")
    before = seen(agent)
    page.run("Diagnosis", "Rollback point")
    return DryRun(before, seen(agent), list((controller.folder / "receipts").rglob("*.json")))


@pytest.fixture(scope="session")
def installed(agent: Host, dry_run: DryRun, page: Executor) -> Host:
    """The host after the page's act."""
    page.run("Act")
    return agent
