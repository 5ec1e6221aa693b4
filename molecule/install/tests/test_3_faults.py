"""Work goes on after the process is killed, stopped, and after a reboot: always shown by *new* work."""

import pytest
from evidence import canary, finished, now, properties, receipts, running, service, sessions, strangers
from target import wait_until


@pytest.fixture(scope="module", autouse=True)
def pulse(installed):
    """A request of the clock every three seconds."""
    installed.cli("schedule", "add", "pulse", "--every", "3", "--prompt", "Write the morning brief.")
    yield
    installed.cli("schedule", "remove", "pulse")


def another(host, since, pid):
    """The clock's next request after a time, finished by the process `pid`."""
    work = wait_until(
        lambda: finished(host, "schedule:pulse", since), 30, f"a scheduled request after {since} is finished"
    )[0]
    about = host.cli("health")["service"]
    assert (about["id"], about["pid"]) == (work["run"], pid)
    return work


def test_nothing_of_the_install_still_runs(installed):
    assert strangers(installed) == []
    assert sessions(installed) == []


def test_killed_it_comes_back_after_the_restart_time_and_works(installed):
    before = running(installed)
    installed.run(["kill", "-KILL", str(before.main_pid)])
    waiting = wait_until(
        lambda: (s := service(installed)).sub == "auto-restart" and s, 8, "systemd waits to restart"
    )
    # Only now: what the killed process still finished is no proof of its successor.
    since = now(installed)
    assert waiting.result == "signal"
    after = wait_until(
        lambda: (s := service(installed)).sub == "running" and s.main_pid != before.main_pid and s,
        30,
        "the service runs again",
    )
    assert after.restarts == before.restarts + 1
    began = properties(installed, "ExecMainStartTimestampMonotonic", "InactiveEnterTimestampMonotonic")
    gap = int(began["ExecMainStartTimestampMonotonic"]) - int(began["InactiveEnterTimestampMonotonic"])
    assert 10_000_000 <= gap < 20_000_000, began
    canary(installed, after.main_pid)
    another(installed, since, after.main_pid)


def test_stopped_it_stays_stopped_and_started_it_finishes_what_waited(installed):
    before = running(installed)
    installed.run(["lucy-agent", "systemctl", "stop", "lucy-agent"])
    stopped = service(installed)
    # "dead", not "auto-restart": a clean stop is no failure.
    assert (stopped.active, stopped.sub, stopped.result, stopped.exit_status) == (
        "inactive",
        "dead",
        "success",
        0,
    )
    assert "stopped: " in installed.run(["lucy-agent", "journalctl", "-n", "10", "-o", "cat"]).stdout
    waited = installed.cli("work", "add", "How is the stock?", "--session", "waited")
    assert (waited["changed"], waited["status"]) == (True, "READY")
    installed.run(["lucy-agent", "systemctl", "start", "lucy-agent"])
    after = running(installed)
    assert after.main_pid != before.main_pid
    work = wait_until(lambda: finished(installed, "waited"), 30, "the work that waited is finished")[0]
    assert work["id"] == waited["work"]
    assert work["run"] == installed.cli("health")["service"]["id"]
    canary(installed, after.main_pid)


def test_after_a_reboot_it_works_without_a_login(installed):
    marker = installed.boot_marker()
    installed.restart()
    assert installed.boot_marker() != marker
    since = now(installed)
    after = wait_until(
        lambda: (s := service(installed)).sub == "running" and s, 30, "the service is back by itself"
    )
    another(installed, since, after.main_pid)
    assert sessions(installed) == []
    assert strangers(installed) == []
    assert after.restarts == 0
    canary(installed, after.main_pid)


def test_none_of_that_made_a_receipt(installed):
    assert len(receipts(installed)) == 1
    assert installed.cli("receipt", "verify")["verified"] is True
