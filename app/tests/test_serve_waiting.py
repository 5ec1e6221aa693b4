"""Waiting: what ends it, and what it asks the store until then."""

import errno
import fcntl
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support import Instance, Process, eventually

from standfast.authority import pause
from standfast.serve.waiting import Stop, data_version, until_something_happens
from standfast.work import add_schedule


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance.make(tmp_path)


@pytest.fixture
def stop(instance: Instance) -> Iterator[Stop]:
    stop = Stop()
    with stop.listening(lambda: None, instance.layout.state):
        yield stop


def wait(instance: Instance, stop: Stop, *, longest: float, poll: float) -> tuple[float, int]:
    """How many seconds it took, and how often the store was asked."""
    asked: list[str] = []
    with closing(sqlite3.connect(instance.layout.database, autocommit=True)) as connection:
        seen = data_version(connection)
        connection.set_trace_callback(asked.append)
        began = time.monotonic()
        until_something_happens(connection, stop, seen=seen, longest=longest, poll=poll)
        return time.monotonic() - began, len(asked)


def commit_soon(instance: Instance) -> threading.Thread:
    thread = threading.Timer(0.3, instance.add)
    thread.start()
    return thread


def test_a_commit_ends_the_wait_although_nobody_polls(instance: Instance, stop: Stop) -> None:
    thread = commit_soon(instance)
    taken, asked = wait(instance, stop, longest=60, poll=60)
    thread.join()
    assert 0.2 < taken < 20
    assert asked > 1


def test_nothing_is_asked_while_nothing_is_written(instance: Instance, stop: Stop) -> None:
    taken, asked = wait(instance, stop, longest=1.0, poll=0.05)
    assert taken >= 1.0
    assert asked == 2  # before and after


def test_a_write_that_is_not_committed_yet_is_looked_for_again(instance: Instance, stop: Stop) -> None:
    """The bytes of a commit are seen before it is one."""
    (instance.layout.state / "beside").write_text("")
    early = threading.Timer(0.1, lambda: (instance.layout.state / "beside").write_text("not a commit"))
    early.start()
    thread = commit_soon(instance)
    taken, asked = wait(instance, stop, longest=60, poll=0.5)
    thread.join()
    assert taken < 20
    assert asked > 3


def test_where_nothing_tells_of_writes_the_store_is_asked_every_poll(
    instance: Instance, stop: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EINVAL, "no such thing")

    monkeypatch.setattr(fcntl, "fcntl", refused)
    thread = commit_soon(instance)
    taken, asked = wait(instance, stop, longest=60, poll=0.05)
    thread.join()
    assert taken < 20
    assert asked > 3


def test_only_a_stop_cuts_a_plain_wait_short(instance: Instance, stop: Stop) -> None:
    """A pause between two attempts is kept, whatever is written meanwhile."""
    assert stop.watch()
    instance.add()
    began = time.monotonic()
    stop.wait(0.5)
    assert time.monotonic() - began >= 0.5
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    stop.wait(60)
    assert time.monotonic() - began < 20


def test_a_slot_comes_due_in_its_time_and_costs_nothing_while_paused(instance: Instance) -> None:
    with Process(instance, WATCHDOG_USEC="120000000").ready() as service:
        with instance.store() as store:
            add_schedule(store, name="pulse", every=2, prompt="Write the brief.", now=time.time())
        eventually(lambda: instance.rows("SELECT count(*) FROM slots") != [(0,)], seconds=10)
        with instance.store() as store:
            pause(store, "for the test", time.time())
        eventually(lambda: "not working: paused" in service.log)
        passes = service.messages().count("WATCHDOG=1")
        time.sleep(3)
        assert service.messages().count("WATCHDOG=1") - passes < 5
        assert service.terminate() == 0
