"""A disk that fills up, two controllers at once, and a controller that dies at any task of the first install.

A small lock time stands for the usual five minutes.
"""

import concurrent.futures
import json
import os
import time

import pytest
from evidence import LOCK, canary, freed, good, receipts, running
from faults import half_made_in_use, sentence
from freezing import SHORT
from target import wait_until

# Where the sampled tier kills a run, the next one and the third; the full tier kills one at every task.
TELLING = (
    "Build | The wheels of the archive are installed, and no others",
    "Build | It is proven and sealed",
    "Canary | New work was finished by the running service",
)


@pytest.fixture(scope="module")
def small(hosts):
    """A host on which preflight was told that 24 MB on a disk are enough."""
    hosts["small"].run(["tee", "/root/mountinfo"], stdin="1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")
    return hosts["small"]


ENOUGH = {"host_free_mb": 1, "host_mountinfo": "/root/mountinfo"}


def test_a_disk_that_fills_up_leaves_nothing_half_made(small, play):
    done = play(small, ENOUGH)
    assert done.rc != 0
    assert "No space left on device" in done.output
    assert small.run("ls -A /srv/lucy/releases").stdout == ""
    assert not small.testinfra.file("/srv/lucy/current").exists
    assert not small.testinfra.file("/home/lucy/.config/systemd/user/lucy-agent.service").exists
    assert [name[:8] for name in receipts(small)] == ["pending-"]
    assert not small.testinfra.file(LOCK).exists


@pytest.fixture(scope="module")
def first(small, play, refused):
    """With room again: a first controller installs, a second one comes while it is at work."""
    small.outside("mount", "-o", "remount,size=400m", "/srv")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        run = pool.submit(play, small, {**ENOUGH, "host_holder": "first@office"})
        lock = wait_until(
            lambda: (text := small.run(f"cat {LOCK}", check=False).stdout) and json.loads(text),
            60,
            "the first one's lock",
        )
        second = play(small, {**ENOUGH, "host_holder": "second@home"})
        assert not run.done()
        return run.result(), second, lock


def test_a_second_controller_is_told_who_is_at_work_since_when(first):
    _, second, lock = first
    assert second.rc != 0
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(lock["since"]))
    assert f"lock: held by first@office (run {lock['run_id']}) since {since}, expires in " in sentence(second)
    assert "wait for that run to end" in sentence(second)


def test_the_first_controller_ends_well(small, first):
    good(first[0])
    state = wait_until(lambda: running(small), 10, "the service runs")
    assert state.restarts == 0
    canary(small, state.main_pid)


def test_the_run_without_room_is_in_the_chain(small, first):
    """It was kept on the host until there was a release that could record it."""
    failed, done = receipts(small).values()
    assert (failed["verdict"], done["verdict"]) == ("failed", "done")
    assert failed["stopped_at"].startswith("Build | ")
    assert small.cli("receipt", "verify")["verified"] is True


def points(tasks):
    """For each bare host the tasks at which its controllers die, one after the other.

    By number on a fresh host, where each run has the same ones; else by name, because a run that goes on from
    what a dead one has finished leaves tasks out.
    """
    if os.environ.get("STANDFAST_FULL"):
        return [(number,) for number in range(1, len(tasks) + 1)]
    return [TELLING]


def dies(host, play, at):
    """A run ends at the task `at` (its number or its name). The lock that it left, or None."""
    died = play(host, SHORT, kill_at=at)
    assert died.killed, f"it never came to {at}: {died.output[-2000:]}"
    assert half_made_in_use(host) == ""
    lock = freed(host)
    assert half_made_in_use(host) == ""
    return lock


def is_run_again(host, play, lock):
    """One more run converges; `lock` is what the dead one left."""
    good(play(host, SHORT))
    assert half_made_in_use(host) == ""
    (release,) = host.run("ls -A /srv/lucy/releases").stdout.split()
    assert host.run(["readlink", "/srv/lucy/current"]).stdout.strip() == f"releases/{release}"
    assert not host.testinfra.file(LOCK).exists
    last = list(receipts(host).values())[-1]
    assert (last["verdict"], last["canary"]["run"]["pid"]) == ("done", running(host).main_pid)
    noted = [check["observed"] for check in last["checks"] if check["name"] == "lock"]
    assert (lock is None) or f"took over the expired lock of run {lock['run_id']}" in noted[-1]
    assert host.cli("receipt", "verify")["verified"] is True


def test_a_controller_that_dies_at_a_task_is_run_again(first, bare, play):
    """With its workers, as by SIGKILL to its process group; the task on the host goes on to its end."""
    tasks, failures = first[0].tasks, []
    for numbers in points(tasks):
        bare.renew()
        try:
            lock = None
            for at in numbers:
                lock = dies(bare, play, at)
            is_run_again(bare, play, lock)
        except AssertionError as failure:  # all of them, so that one run says which tasks are wrong
            failures.append(f"{numbers}: {failure}")
    assert not failures, "\n".join(failures)
