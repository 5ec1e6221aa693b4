"""Claim and finish jobs, one contestant per process: ours, a hand-written loop, other queues on SQLite.

    python bench_queue.py NAME FOLDER

Reads lines from standard input: `put N` stores N jobs, `run N` claims and finishes N of them; each is
answered by a line of JSON: {"seconds": wall time, "cpu": CPU seconds of this process}. Everyone writes
to a database of its own in FOLDER, in WAL mode at synchronous=FULL, with the same 200-byte request and, where
it keeps results at all, the same 200-byte report. Imports nothing of the harness: it runs in .venv-bench too.
"""

from __future__ import annotations

import importlib
import json
import os
import sqlite3
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

REQUEST = "Which products fall under their reorder point this week? ".ljust(200, ".")
REPORT = "Vanilla is two tubs under its point; order six. ".ljust(200, ".")
MESSAGE = '{"role": "assistant", "content": "Vanilla is two tubs under its point."}'.ljust(200)
LEASE = 300.0
APPENDED = 4096 + 24
"""One WAL frame: a page and its header."""


class Contestant(Protocol):
    """Something that stores jobs, and claims and finishes them."""

    def put(self, count: int) -> None:
        """Store jobs; durability and speed do not matter here."""

    def run(self, count: int) -> None:
        """Claim and finish jobs, durably, one after the other."""


class Ours:
    """The product as the service runs it: every component's schema, marker file, fence, report, run."""

    def __init__(self, folder: Path) -> None:
        from standfast import authority, work  # noqa: PLC0415 - .venv-bench holds only the other queues
        from standfast.clock import Clock  # noqa: PLC0415
        from standfast.layout import Layout  # noqa: PLC0415
        from standfast.operations.schema import COMPONENTS  # noqa: PLC0415
        from standfast.store import immediate, open_store  # noqa: PLC0415

        self.authority, self.work, self.immediate = authority, work, immediate
        self.clock = Clock()
        layout = Layout(folder / "state")
        layout.state.mkdir(mode=0o700)
        self.marker = layout.marker
        self.connection = open_store(layout.database, COMPONENTS, create=True)
        authority.initialise(self.connection, layout, self.clock.now())
        self.run_id = work.start_run(
            self.connection, release="source", pid=os.getpid(), invocation="", now=self.clock.now()
        )
        self.stored = 0

    def put(self, count: int) -> None:
        with self.immediate(self.connection):
            for number in range(self.stored, self.stored + count):
                request = self.work.Request(
                    origin=f"bench-{number}", session=f"session-{number}", prompt=REQUEST
                )
                self.work.admit_within(self.connection, request, now=self.clock.now(), limits=None)
        self.stored += count
        settle(self.connection)

    def run(self, count: int) -> None:
        for _ in range(count):
            claim = self.authority.claim_next(
                self.connection, owner="bench", now=self.clock.now(), marker=self.marker, lease=LEASE
            )
            assert claim is not None
            self.work.finish(
                self.connection,
                claim,
                "DONE",
                clock=self.clock,
                marker=self.marker,
                report=REPORT,
                run=self.run_id,
            )


class OursChained(Ours):
    """The product's `finish_and_claim`: one commit for each job instead of two."""

    def run(self, count: int) -> None:
        claim = self.authority.claim_next(
            self.connection, owner="bench", now=self.clock.now(), marker=self.marker, lease=LEASE
        )
        for left in range(count, 0, -1):
            assert claim is not None
            arguments: dict[str, Any] = {
                "clock": self.clock,
                "marker": self.marker,
                "report": REPORT,
                "run": self.run_id,
            }
            if left == 1:
                self.work.finish(self.connection, claim, "DONE", **arguments)
            else:
                _, claim = self.work.finish_and_claim(self.connection, claim, "DONE", **arguments)


class OurTurn(Ours):
    """Claim, two observed messages, finish: the four commits of the shortest turn."""

    def run(self, count: int) -> None:
        for _ in range(count):
            claim = self.authority.claim_next(
                self.connection, owner="bench", now=self.clock.now(), marker=self.marker, lease=LEASE
            )
            assert claim is not None
            for _ in range(2):
                self.work.observe(self.connection, claim, MESSAGE, clock=self.clock, marker=self.marker)
            self.work.finish(
                self.connection,
                claim,
                "DONE",
                clock=self.clock,
                marker=self.marker,
                report=REPORT,
                run=self.run_id,
            )


RAW_SCHEMA = (
    "CREATE TABLE control (id INTEGER PRIMARY KEY, epoch TEXT NOT NULL, paused INTEGER NOT NULL)",
    """CREATE TABLE jobs (
        seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, session TEXT NOT NULL, prompt TEXT NOT NULL,
        status TEXT NOT NULL, owner TEXT, generation INTEGER NOT NULL DEFAULT 0, epoch TEXT, claimed_at REAL,
        lease_until REAL, admitted_at REAL NOT NULL, finished_at REAL)""",
    "CREATE INDEX jobs_open ON jobs (status, seq) WHERE status = 'READY' OR status = 'RUNNING'",
    """CREATE TABLE reports (
        seq INTEGER PRIMARY KEY, id TEXT NOT NULL, job TEXT NOT NULL, generation INTEGER NOT NULL,
        body TEXT NOT NULL,
        delivery TEXT NOT NULL, created_at REAL NOT NULL)""",
    "CREATE UNIQUE INDEX reports_id ON reports (id)",
    "CREATE INDEX reports_open ON reports (delivery, seq) WHERE delivery <> 'sent'",
)
RAW_CONTROL = "SELECT epoch, paused FROM control WHERE id = 1"
RAW_CLAIM = """
UPDATE jobs SET status = 'RUNNING', owner = ?, generation = generation + 1, epoch = ?, claimed_at = ?,
                lease_until = ?
 WHERE seq = (SELECT min(seq) FROM jobs WHERE status = 'READY')
RETURNING id, generation, session, prompt
"""
RAW_FINISH = """
UPDATE jobs SET status = 'DONE', lease_until = NULL, finished_at = ?
 WHERE id = ? AND status = 'RUNNING' AND owner = ? AND generation = ? AND epoch = ? AND lease_until > ?
"""
RAW_CURRENT = (
    "SELECT 1 FROM jobs WHERE id = ? AND status = 'RUNNING' AND owner = ? AND generation = ? AND epoch = ?"
    " AND lease_until > ?"
)
RAW_OBSERVE = "INSERT INTO transcript (job, generation, message, written_at) VALUES (?, ?, ?, ?)"
RAW_REPORT = (
    "INSERT INTO reports (id, job, generation, body, delivery, created_at) VALUES (?, ?, ?, ?, 'pending', ?)"
)


class Raw:
    """A fenced loop written by hand, inlined: no functions and no checks but the fence itself."""

    schema: tuple[str, ...] = RAW_SCHEMA
    messages = 0

    def __init__(self, folder: Path) -> None:
        self.connection = sqlite3.connect(folder / "raw.sqlite", isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        for statement in self.schema:
            self.connection.execute(statement)
        self.epoch = os.urandom(16).hex()
        self.connection.execute("INSERT INTO control VALUES (1, ?, 0)", (self.epoch,))
        self.stored = 0

    def put(self, count: int) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        for number in range(self.stored, self.stored + count):
            self.connection.execute(
                "INSERT INTO jobs (id, session, prompt, status, admitted_at) VALUES (?, ?, ?, 'READY', ?)",
                (f"{number:024x}", f"session-{number}", REQUEST, time.time()),
            )
        self.connection.execute("COMMIT")
        self.stored += count
        settle(self.connection)

    def run(self, count: int) -> None:
        execute, own = self.connection.execute, self.epoch
        for _ in range(count):
            execute("BEGIN IMMEDIATE")
            epoch, paused = execute(RAW_CONTROL).fetchone()
            assert not paused
            assert epoch == own
            now = time.time()
            job, generation, _session, _prompt = execute(
                RAW_CLAIM, ("bench", own, now, now + LEASE)
            ).fetchone()
            execute("COMMIT")
            for _ in range(self.messages):
                execute("BEGIN IMMEDIATE")
                epoch, paused = execute(RAW_CONTROL).fetchone()
                assert not paused
                assert epoch == own
                now = time.time()
                assert execute(RAW_CURRENT, (job, "bench", generation, own, now)).fetchone()
                execute(RAW_OBSERVE, (job, generation, MESSAGE, now))
                execute("COMMIT")
            execute("BEGIN IMMEDIATE")
            epoch, paused = execute(RAW_CONTROL).fetchone()
            assert not paused
            assert epoch == own
            now = time.time()
            done = execute(RAW_FINISH, (now, job, "bench", generation, own, now))
            assert done.rowcount == 1
            execute(RAW_REPORT, (os.urandom(12).hex(), job, generation, REPORT, now))
            execute("COMMIT")


class RawChained(Raw):
    """The same loop with one commit for each job: its ending and the next claim together."""

    def run(self, count: int) -> None:
        execute, own = self.connection.execute, self.epoch
        held: tuple[str, int] | None = None
        for left in range(count, -1, -1):
            execute("BEGIN IMMEDIATE")
            epoch, paused = execute(RAW_CONTROL).fetchone()
            assert not paused
            assert epoch == own
            now = time.time()
            if held is not None:
                job, generation = held
                done = execute(RAW_FINISH, (now, job, "bench", generation, own, now))
                assert done.rowcount == 1
                execute(RAW_REPORT, (os.urandom(12).hex(), job, generation, REPORT, now))
            if left:
                job, generation, _session, _prompt = execute(
                    RAW_CLAIM, ("bench", own, now, now + LEASE)
                ).fetchone()
                held = job, generation
            execute("COMMIT")


class RawTurn(Raw):
    """The same loop with two messages of a transcript between claim and finish, a commit each."""

    schema = (
        *RAW_SCHEMA,
        """CREATE TABLE transcript (
            seq INTEGER PRIMARY KEY, job TEXT NOT NULL, generation INTEGER NOT NULL, message TEXT NOT NULL,
            written_at REAL NOT NULL)""",
        "CREATE INDEX transcript_job ON transcript (job, seq)",
    )
    messages = 2


class RawBare(Raw):
    """The same loop with a report that nobody can find again: no index on it at all."""

    schema = RAW_SCHEMA[:-2]


class Huey:
    """SqliteStorage: dequeue (a DELETE), then put_data, which stores the result."""

    def __init__(self, folder: Path) -> None:
        storage = importlib.import_module("huey.storage").SqliteStorage
        self.queue = storage(filename=str(folder / "huey.sqlite"), fsync=True)
        self.stored = self.taken = 0

    def put(self, count: int) -> None:
        with relaxed(self.queue.conn):
            for _ in range(count):
                self.queue.enqueue(REQUEST.encode())
        settle(self.queue.conn)

    def run(self, count: int) -> None:
        for _ in range(count):
            assert self.queue.dequeue() is not None
            self.taken += 1
            self.queue.put_data(f"job-{self.taken}", REPORT.encode())


class LiteQueue:
    """pop, then done under its claim id; it stores no result."""

    def __init__(self, folder: Path) -> None:
        self.queue = importlib.import_module("litequeue").LiteQueue(folder / "litequeue.sqlite")
        self.queue.conn.execute("PRAGMA synchronous = FULL")

    def put(self, count: int) -> None:
        with relaxed(self.queue.conn):
            for _ in range(count):
                self.queue.put(REQUEST)
        settle(self.queue.conn)

    def run(self, count: int) -> None:
        for _ in range(count):
            message = self.queue.pop()
            assert self.queue.done(message.message_id, claim_id=message.claim_id)


class PersistQueue:
    """SQLiteAckQueue: get, then ack; it stores no result."""

    def __init__(self, folder: Path) -> None:
        queue = importlib.import_module("persistqueue").SQLiteAckQueue
        self.queue = queue(str(folder / "persist-queue"), multithreading=True)
        for connection in self._connections():
            connection.execute("PRAGMA synchronous = FULL")

    def _connections(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        return self.queue._getter, self.queue._putter  # noqa: SLF001 - the only way to its durability

    def put(self, count: int) -> None:
        with relaxed(self._connections()[1]):
            for _ in range(count):
                self.queue.put(REQUEST)
        settle(self._connections()[1])

    def run(self, count: int) -> None:
        for _ in range(count):
            item = self.queue.get(block=False, raw=True)
            self.queue.ack(id=item["pqid"])


class Append:
    """Append one WAL frame to a file and fdatasync, twice for each job; nothing else."""

    def __init__(self, folder: Path) -> None:
        self.descriptor = os.open(folder / "file", os.O_WRONLY | os.O_CREAT, 0o600)

    def put(self, count: int) -> None:  # noqa: ARG002 - it needs no jobs
        os.ftruncate(self.descriptor, 0)
        os.lseek(self.descriptor, 0, os.SEEK_SET)

    def run(self, count: int) -> None:
        frame = bytes(APPENDED)
        for _ in range(2 * count):
            os.write(self.descriptor, frame)
            os.fdatasync(self.descriptor)


class Overwrite(Append):
    """The same into space that the file has already, as a WAL in steady use does: nothing else to sync."""

    def put(self, count: int) -> None:
        os.ftruncate(self.descriptor, 0)
        os.write(self.descriptor, bytes(2 * count * APPENDED))
        os.fsync(self.descriptor)
        os.lseek(self.descriptor, 0, os.SEEK_SET)


class relaxed:  # noqa: N801 - used as a `with` word
    """Without syncing, so that filling a queue does not take minutes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def __enter__(self) -> None:
        self.connection.execute("PRAGMA synchronous = OFF")

    def __exit__(self, *_: object) -> None:
        self.connection.execute("PRAGMA synchronous = FULL")


def settle(connection: sqlite3.Connection) -> None:
    """Bring the WAL into the database, so that every timed run starts with an empty one."""
    connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()


CONTESTANTS: dict[str, Callable[[Path], Contestant]] = {
    "standfast": Ours,
    "standfast-chained": OursChained,
    "standfast-turn": OurTurn,
    "raw-turn": RawTurn,
    "raw": Raw,
    "raw-chained": RawChained,
    "raw-bare": RawBare,
    "huey": Huey,
    "litequeue": LiteQueue,
    "persist-queue": PersistQueue,
    "append": Append,
    "overwrite": Overwrite,
}


def main(arguments: list[str]) -> None:
    """Serve `put` and `run` until the end of standard input."""
    name, folder = arguments
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    contestant = CONTESTANTS[name](place)
    for line in sys.stdin:
        verb, count = line.split()
        cpu, began = time.process_time(), time.perf_counter()
        {"put": contestant.put, "run": contestant.run}[verb](int(count))
        taken = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
        print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
