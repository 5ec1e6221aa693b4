"""Fixtures of the scenarios' tests. A failed test shows the journals of the hosts it used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from archives import manifest_of
from hosts import Group
from runbook import Executor, load
from target import Controller, Host
from traffic import Operator

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


@pytest.fixture(scope="session")
def scenario() -> str:
    return os.environ["MOLECULE_SCENARIO_NAME"]


@pytest.fixture(scope="session")
def hosts(scenario: str) -> dict[str, Host]:
    """The scenario's hosts by name."""
    group = Group(scenario)
    return {name: Host(group, name) for name in group.names()}


@pytest.fixture(scope="session")
def agent(hosts: dict[str, Host]) -> Host:
    """The host called `agent`."""
    return hosts["agent"]


@pytest.fixture(scope="session")
def controller(scenario: str) -> Controller:
    """A fresh folder as an operator has it, with the release archive under test."""
    archive = os.environ.get("STANDFAST_RELEASE_ARCHIVE")
    folder = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "controller"
    return Controller(folder, Group(scenario), Path(archive) if archive else None)


@pytest.fixture(scope="session")
def runbook(scenario: str, controller: Controller) -> Callable[[str, Host], Executor]:
    """`runbook("install", agent).run("Preconditions", "Act")` runs blocks of a page as they are printed."""

    def executor(page: str, host: Host) -> Executor:
        return Executor(load(page), host, controller, scenario)

    return executor


@pytest.fixture(scope="session")
def releases(archives: dict[str, Path]) -> dict[str, str]:
    """By the names of the scenario's archives: the ids of their releases."""
    return {name: manifest_of(path).release_id for name, path in archives.items()}


@pytest.fixture(scope="session")
def operator(host: Host) -> Generator[Operator]:
    """Adds work to the scenario's host, from where it is first asked for to the end."""
    one = Operator(host)
    one.begin("till")
    yield one
    one.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.failed:
        known: dict[str, Host] = getattr(item, "funcargs", {}).get("hosts", {})
        for name, host in known.items():
            report.sections.append((f"journal of {name}", host.journal()))
    return report
