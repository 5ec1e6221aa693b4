"""Looking at a live store leaves its folder as it was, to the byte and the nanosecond."""

import hashlib
import multiprocessing
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from serving import PATIENCE
from support import COMPONENTS, Instance

from standfast.errors import Refused
from standfast.store import Store, look_at, open_readonly, open_store, schema_versions


def traces(folder: Path) -> dict[str, tuple[object, ...]]:
    """Of the folder and everything in it: mode, owner, size, inode, time of change, content."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        facts = (status.st_mode, status.st_uid, status.st_size, status.st_ino, status.st_mtime_ns, digest)
        found[str(path.relative_to(folder))] = facts
    return found


def products(store: Store) -> int:
    return int(store.execute("SELECT count(*) FROM stock_events").fetchone()[0])


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance.make(tmp_path)


def test_a_store_that_nobody_has_open(instance: Instance) -> None:
    before = traces(instance.layout.state)
    assert "agent.sqlite-wal" not in before
    assert look_at(instance.layout.database, products) > 0
    assert traces(instance.layout.state) == before
    with closing(open_readonly(instance.layout.database)) as plainly:
        products(plainly)
    assert traces(instance.layout.state) != before, "this is what opening it plainly does"


def test_a_store_that_is_open_is_read_with_what_is_only_in_its_log(instance: Instance) -> None:
    with held_open(instance.layout.database):
        before = traces(instance.layout.state)
        assert look_at(instance.layout.database, products) > 0
        assert look_at(instance.layout.database, lambda found: "extra" in str(tables(found)))
        assert traces(instance.layout.state) == before
        with closing(open_readonly(instance.layout.database)) as plainly:
            products(plainly)
        assert traces(instance.layout.state) != before, "this is what opening it plainly does"


@contextmanager
def held_open(path: Path) -> Iterator[None]:
    """Another process that has it open, with a table that is only in the log so far."""
    forked = multiprocessing.get_context("fork")
    ready, stop = forked.Event(), forked.Event()
    process = forked.Process(target=hold_open, args=(path, ready, stop))
    process.start()
    assert ready.wait(20)
    try:
        yield
    finally:
        stop.set()
        process.join(20)


def hold_open(path: Path, ready: Event, stop: Event) -> None:
    with closing(open_store(path, COMPONENTS)) as store:
        store.execute("CREATE TABLE extra (x INTEGER) STRICT")
        ready.set()
        stop.wait(60)


def tables(store: Store) -> list[tuple[str]]:
    return store.execute("SELECT name FROM sqlite_schema").fetchall()


def killed_while_open(path: Path) -> None:
    child = os.fork()
    if child == 0:  # pragma: no cover - it kills itself
        store = open_store(path, COMPONENTS)
        store.execute("CREATE TABLE extra (x INTEGER) STRICT")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_what_a_killed_service_left_is_read_and_stays(instance: Instance) -> None:
    killed_while_open(instance.layout.database)
    before = traces(instance.layout.state)
    assert "agent.sqlite-wal" in before
    assert look_at(instance.layout.database, lambda found: "extra" in str(tables(found)))
    assert traces(instance.layout.state) == before


def test_a_log_without_its_index_is_refused_not_read_stale(instance: Instance) -> None:
    killed_while_open(instance.layout.database)
    instance.layout.database.with_name("agent.sqlite-shm").unlink()
    before = traces(instance.layout.state)
    with pytest.raises(Refused) as refused:
        look_at(instance.layout.database, products)
    assert refused.value.code == "store_unsettled"
    assert traces(instance.layout.state) == before


def test_what_is_no_store_is_refused_at_once(tmp_path: Path) -> None:
    began = time.monotonic()
    for content, code in ((None, "store_absent"), (b"x" * 4096, "store_foreign"), (b"", "store_absent")):
        path = tmp_path / "agent.sqlite"
        if content is not None:
            path.write_bytes(content)
        before = traces(tmp_path)
        with pytest.raises(Refused) as refused:
            look_at(path, schema_versions)
        assert refused.value.code == code
        assert traces(tmp_path) == before
    assert time.monotonic() - began < PATIENCE


def test_a_service_that_starts_meanwhile_makes_it_look_again(instance: Instance) -> None:
    """A plain file that somebody opens is no plain file any more: what was read of it counts for nothing."""
    opened: list[Store] = []

    def look(store: Store) -> bool:
        found = "extra" in str(tables(store))
        if not opened:
            opened.append(open_store(instance.layout.database, COMPONENTS))
            opened[0].execute("CREATE TABLE extra (x INTEGER) STRICT")
        return found

    assert look_at(instance.layout.database, look) is True
    opened[0].close()


def test_its_reader_may_not_write(instance: Instance) -> None:
    def writing(store: Store) -> None:
        store.execute("DELETE FROM stock_events")

    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        look_at(instance.layout.database, writing)
    with held_open(instance.layout.database), pytest.raises(sqlite3.OperationalError, match="readonly"):
        look_at(instance.layout.database, writing)


def write_at_full_speed(path: Path, stop: Event, done: "multiprocessing.Queue[int]") -> None:
    store = open_store(path, COMPONENTS)
    store.execute("CREATE TABLE IF NOT EXISTS pairs (a INTEGER, b INTEGER) STRICT")
    number = 0
    while not stop.is_set():
        store.execute("BEGIN IMMEDIATE")
        store.execute("INSERT INTO pairs VALUES (?, ?)", (number, number))
        store.execute("COMMIT")
        number += 1
    done.put(number)


@contextmanager
def busy_writer(path: Path) -> Iterator[list[int]]:
    """A process that commits without a pause; afterwards the list holds how often it did."""
    forked = multiprocessing.get_context("fork")
    stop, done = forked.Event(), forked.Queue()
    process = forked.Process(target=write_at_full_speed, args=(path, stop, done))
    process.start()
    commits: list[int] = []
    try:
        yield commits
    finally:
        stop.set()
        commits.append(done.get(timeout=20))
        process.join(20)


def test_beside_a_writer_at_full_speed_every_look_is_whole_and_nothing_is_lost(instance: Instance) -> None:
    def pairs(store: Store) -> tuple[int, int]:
        if "pairs" not in str(tables(store)):
            return 0, 0
        store.execute("BEGIN")
        first = store.execute("SELECT count(*), max(b) FROM pairs").fetchone()
        time.sleep(0.01)
        assert store.execute("SELECT count(*), max(b) FROM pairs").fetchone() == first
        store.execute("ROLLBACK")
        return first[0], first[1] or 0

    seen: list[tuple[int, int]] = []
    with busy_writer(instance.layout.database) as commits:
        until = time.monotonic() + PATIENCE
        while len(seen) < 100 or seen[-1][0] <= 50:
            seen.append(look_at(instance.layout.database, pairs))
            assert time.monotonic() < until
    assert all(count in {0, last + 1} for count, last in seen)
    assert seen == sorted(seen)
    assert look_at(instance.layout.database, pairs)[0] == commits[0]
    with instance.store() as store:
        assert store.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_a_copied_folder_is_looked_at_like_any(instance: Instance, tmp_path: Path) -> None:
    killed_while_open(instance.layout.database)
    shutil.copytree(instance.layout.state, tmp_path / "copy")
    assert look_at(tmp_path / "copy/agent.sqlite", lambda found: "extra" in str(tables(found)))
