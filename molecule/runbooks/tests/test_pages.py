"""install, status, add-an-instance, uninstall: a host from bare to bare. Tests build on the ones before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from runbook import BlockFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from runbook import Executor
    from target import Controller, Host


@pytest.fixture(scope="module")
def fresh(hosts: dict[str, Host], controller: Controller) -> Host:
    controller.write_inventory("yours", {"fresh": {"ansible_user": "admin"}})
    second = {"instance_name": "rosa-agent", "instance_user": "rosa", "instance_root": "/srv/rosa"}
    controller.write_inventory("second", {"fresh": {"ansible_user": "admin"}}, second)
    return hosts["fresh"]


def test_status_of_a_host_without_an_instance_stops_at_its_precondition(
    fresh: Host, runbook: Callable[[str, Host], Executor]
) -> None:
    with pytest.raises(BlockFailed, match="lucy-agent"):
        runbook("status", fresh).run("Preconditions")


def test_install(fresh: Host, runbook: Callable[[str, Host], Executor]) -> None:
    runbook("install", fresh).run("Preconditions", "Diagnosis", "Rollback point", "Act", "Verify")


def test_status(fresh: Host, runbook: Callable[[str, Host], Executor]) -> None:
    runbook("status", fresh).run()


def test_preflight_beside_a_service_that_works(fresh: Host, runbook: Callable[[str, Host], Executor]) -> None:
    before = fresh.user_service("lucy", "lucy-agent.service")
    runbook("preflight", fresh).run()
    assert fresh.user_service("lucy", "lucy-agent.service") == before


def test_preflight_stops_at_an_edited_unit_and_shows_the_line(
    fresh: Host, runbook: Callable[[str, Host], Executor]
) -> None:
    unit = "/home/lucy/.config/systemd/user/lucy-agent.service"
    before = fresh.user_service("lucy", "lucy-agent.service")
    fresh.run(f"cp -p {unit} /root/unit && printf 'MemoryMax=1G\\n' >> {unit}")
    try:
        with pytest.raises(BlockFailed, match="-MemoryMax=1G"):
            runbook("preflight", fresh).run("Act")
    finally:
        fresh.run(f"cp -p /root/unit {unit}")
    assert fresh.user_service("lucy", "lucy-agent.service") == before


def test_add_an_instance_and_take_it_off_again(fresh: Host, runbook: Callable[[str, Host], Executor]) -> None:
    before = fresh.user_service("lucy", "lucy-agent.service")
    runbook("add-an-instance", fresh).run()
    assert fresh.user_service("lucy", "lucy-agent.service") == before


def test_uninstall_and_its_rollback(fresh: Host, runbook: Callable[[str, Host], Executor]) -> None:
    page = runbook("uninstall", fresh)
    page.run("Preconditions", "Diagnosis", "Rollback point", "Act", "Verify")
    page.run("Rollback")
    assert fresh.user_service("lucy", "lucy-agent.service").active == "active"


def test_rollback_of_an_install(fresh: Host, runbook: Callable[[str, Host], Executor]) -> None:
    runbook("install", fresh).run("Rollback")
    assert not fresh.testinfra.file("/usr/local/bin/lucy-agent").exists
    assert fresh.testinfra.file("/srv/lucy/state/agent.sqlite").exists
