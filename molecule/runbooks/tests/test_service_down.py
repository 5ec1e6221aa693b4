"""Each branch of service-down: the fault first, then the branch as printed, then its proof by new work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from runbook import BlockFailed
from target import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from runbook import Executor
    from target import Controller, Host, UnitState

UNIT = "lucy-agent.service"
STATE = "/srv/lucy/state"
SITE = "/srv/lucy/current/venv/lib/python3.13/site-packages"
FAST_WATCHDOG = "/home/lucy/.config/systemd/user/lucy-agent.service.d/fast.conf"


def unit(down: Host) -> UnitState:
    return down.user_service("lucy", UNIT)


def ctl(down: Host, verb: str) -> None:
    """Ask for a start or a stop; whether it works is what the page looks at."""
    down.run(["lucy-agent", "systemctl", verb, "lucy-agent"], check=False)


@pytest.fixture(scope="module")
def down(hosts: dict[str, Host], controller: Controller) -> Host:
    controller.write_inventory("yours", {"down": {"ansible_user": "admin"}})
    host = hosts["down"]
    wait_until(lambda: unit(host).active == "active", 30, "the installed service is active")
    return host


@pytest.fixture
def page(down: Host, runbook: Callable[[str, Host], Executor]) -> Executor:
    return runbook("service-down", down)


def test_the_way_to_a_branch(page: Executor) -> None:
    page.run("Preconditions", "Diagnosis", "Rollback point", "Act: keep what is there")


def test_somebody_was_here_before(page: Executor) -> None:
    with pytest.raises(BlockFailed, match="/root/service-down"):
        page.run("Rollback point")


def test_stopped_by_an_operator(down: Host, page: Executor) -> None:
    ctl(down, "stop")
    page.run("Act: stopped by an operator", "Verify")


def test_invalid_shop(down: Host, page: Executor) -> None:
    down.run(f"sed -i '0,/^reorder_point = .*/s//reorder_point = \"eight\"/' {STATE}/shop.toml")
    ctl(down, "restart")
    wait_until(lambda: unit(down).active == "failed", 30, "the service refuses its configuration")
    assert unit(down).exit_status == 78
    page.run("Act: invalid shop.toml", "Verify")


def test_environment_of_another_owner(down: Host, page: Executor) -> None:
    down.run(f"chown root:root {STATE}/agent.env && chmod 0644 {STATE}/agent.env")
    ctl(down, "restart")
    page.run("Act: agent.env with a wrong owner or mode", "Verify")


def test_environment_missing(down: Host, page: Executor) -> None:
    down.run(f"rm {STATE}/agent.env")
    ctl(down, "restart")
    page.run("Act: agent.env missing", "Verify")


def test_crash_loop_of_a_changed_release(down: Host, page: Executor) -> None:
    down.run(f"rm -r {SITE}/cronsim")
    ctl(down, "restart")
    wait_until(lambda: unit(down).sub == "auto-restart", 30, "systemd waits to start it again")
    page.run("Act: crash loop", "Verify")


def test_watchdog(down: Host, page: Executor) -> None:
    # A call may take at most half of the watchdog's time.
    down.run(f"sed -i 's/^call_seconds = .*/call_seconds = 2/' {STATE}/shop.toml")
    down.as_user("lucy", f"mkdir -p {FAST_WATCHDOG.rpartition('/')[0]}")
    down.as_user("lucy", f"printf '[Service]\\nWatchdogSec=6\\n' > {FAST_WATCHDOG}")
    down.as_user("lucy", "systemctl --user daemon-reload")
    ctl(down, "restart")
    wait_until(lambda: unit(down).active == "active", 30, "it runs under the short watchdog")
    hung = unit(down).main_pid
    down.run(f"kill -STOP {hung}")
    wait_until(lambda: unit(down).main_pid not in (0, hung), 30, "systemd starts it again")
    page.run("Act: watchdog", "Verify")
    down.as_user("lucy", f"rm -r {FAST_WATCHDOG.rpartition('/')[0]} && systemctl --user daemon-reload")


def test_user_manager_gone(down: Host, page: Executor) -> None:
    down.run("loginctl disable-linger lucy && systemctl stop user@$(id -u lucy).service")
    page.run("Act: user manager gone", "Verify")


def test_volatile_journal(down: Host, page: Executor) -> None:
    down.outside("umount", "--lazy", "/var/log/journal")
    down.run("rmdir /var/log/journal && systemctl restart systemd-journald")
    page.run("Act: volatile journal")
    assert "/var/log/journal" in down.run("journalctl --header").stdout


def test_disk_full(down: Host, page: Executor) -> None:
    ctl(down, "stop")
    down.mount_small_disk(STATE, 120)
    ctl(down, "start")
    down.run(f"head -c 60M /dev/zero > {STATE}/somebody-elses-file")
    with pytest.raises(BlockFailed, match="exit 1"):
        page.run("Diagnosis")
    page.run("Act: disk full")
    down.run(f"rm {STATE}/somebody-elses-file")
    page.run("Verify")


def test_rollback(page: Executor) -> None:
    page.run("Rollback")
