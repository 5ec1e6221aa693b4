"""What a backup meets: writers, readers, locks, full disks, signals, kills. Each with its exact outcome."""

import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from backing import enlarge, made, names
from support import Instance, eventually

from standfast.cli import main as cli
from standfast.errors import Refused, StoreBusy
from standfast.operations.backup import folders, snapshot
from standfast.operations.backup.creating import Request, create
from standfast.operations.backup.limits import Guard, Limits, Progress
from standfast.operations.backup.listing import listing
from standfast.operations.backup.manifest import read_manifest
from standfast.operations.backup.verifying import verify
from standfast.operations.health import look
from standfast.store import triggers

POINTS = (
    "backup.folder",
    "backup.partial",
    "backup.step",
    "backup.copied",
    "backup.sealed",
    "backup.checked",
    "backup.companions",
    "backup.synced",
    "backup.published",
    "backup.described",
    "backup.finished",
)
WRITING = POINTS[: POINTS.index("backup.published") + 1]
"""After these points there is still something to be written."""


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    yield Instance.make(tmp_path)
    triggers.disarm()


@contextmanager
def at(point: str, action: Callable[[], object]) -> Iterator[None]:
    """Do something when the code comes to a point for the first time."""
    reached: list[str] = []

    def arm(seen: str) -> None:
        if seen == point and not reached:
            reached.append(seen)
            action()

    triggers.arm(arm)
    try:
        yield
    finally:
        triggers.disarm()
    assert reached, f"{point} was never reached"


def refused(instance: Instance, **wanted: object) -> str:
    with pytest.raises(Refused) as caught:
        made(instance, **wanted)
    return caught.value.code


def nothing_half_made(instance: Instance, *backups: str) -> None:
    """Only these whole backups are there, and the store goes on."""
    home = instance.layout.backups
    assert set(names(home)) - folders.OWN_FILES == set(backups)
    for name in backups:
        assert verify(home / name, record=False).ok
    instance.add("the store goes on")
    assert instance.rows("PRAGMA integrity_check") == [("ok",)]


# --- writers and readers ---

WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], autocommit=True, timeout=30)
connection.execute("PRAGMA synchronous = NORMAL")
print("ready", flush=True)
for number in range(10**9):
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO runs VALUES (?, 'r', 1, '', 1.0)", (f"run-{number}",))
    connection.execute("UPDATE stock_events SET delta = delta WHERE sku = 'vanilla'")
    connection.execute("INSERT INTO transcript (work, generation, message, written_at) SELECT id, 1, ?, 1.0"
                       " FROM work LIMIT 1", (f"message of run-{number}",))
    connection.execute("COMMIT")
"""


@contextmanager
def busy_writer(instance: Instance) -> Iterator[None]:
    """Another process that commits as fast as it can: a run and a message, always together."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(instance.layout.database)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def committed(instance: Instance) -> int:
    return int(instance.rows("SELECT count(*) FROM runs")[0][0])


def test_a_busy_writer_neither_stops_nor_restarts_nor_tears_it(instance: Instance) -> None:
    instance.add()
    enlarge(instance, 24)
    remaining: list[int] = []

    def slowly(seen: Progress) -> None:
        if seen.phase == "copy":
            remaining.append(seen.total - seen.done)
            time.sleep(0.02)  # the writer commits between any two steps

    with busy_writer(instance):
        eventually(lambda: committed(instance) > 0)
        before = committed(instance)
        done = create(instance.layout, Request.of(limits=Limits(deadline=60)), report=slowly)
        after = committed(instance)
    assert after - before > 5, "the writer wrote meanwhile"
    assert len(remaining) > 5
    assert all(later < earlier for earlier, later in pairwise(remaining))
    assert remaining[-1] == 0
    assert done.backup is not None
    rows = read_manifest(Path(done.backup.path)).rows
    assert before <= rows["runs"] < after, "the snapshot is of the moment at which it began"
    assert rows["runs"] == rows["transcript"], "what was committed together is there together"
    assert verify(Path(done.backup.path)).ok


def test_rows_that_only_the_write_ahead_log_holds_are_in_it(instance: Instance) -> None:
    with instance.store() as store:
        store.execute("PRAGMA wal_autocheckpoint = 0")
        store.execute("INSERT INTO runs VALUES ('only-in-the-log', 'r', 1, '', 1.0)")
        entry = made(instance)
    with snapshot.sealed(Path(entry.path) / folders.SNAPSHOT) as copy:
        assert copy.execute("SELECT id FROM runs").fetchall() == [("only-in-the-log",)]


def test_a_writer_that_never_commits_keeps_nobody_from_reading(instance: Instance) -> None:
    with instance.store() as store:
        store.execute("BEGIN IMMEDIATE")
        store.execute("INSERT INTO runs VALUES ('never', 'r', 1, '', 1.0)")
        entry = made(instance, limits=Limits(deadline=30))
        store.execute("ROLLBACK")
    assert read_manifest(Path(entry.path)).rows["runs"] == 0


def test_a_store_that_is_locked_to_readers_ends_in_a_typed_time_out(instance: Instance) -> None:
    kept = made(instance).name
    with closing(sqlite3.connect(instance.layout.database, autocommit=True)) as holder:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        holder.execute("INSERT INTO runs VALUES ('x', 'r', 1, '', 1.0)")
        began = time.monotonic()
        with pytest.raises(StoreBusy):
            made(instance, limits=Limits(deadline=1))
        assert time.monotonic() - began < 15
    nothing_half_made(instance, kept)


def test_a_lock_that_comes_later_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    """A database in rollback mode: there a writer can shut readers out at any moment."""
    live, target = tmp_path / "live.sqlite", tmp_path / "target.sqlite"
    target.touch()
    with closing(sqlite3.connect(live, autocommit=True, check_same_thread=False)) as writer:
        writer.execute("CREATE TABLE a (b)")
        with closing(sqlite3.connect(live, autocommit=True)) as source:
            source.execute("SELECT * FROM a").fetchall()
            writer.execute("BEGIN EXCLUSIVE")
            released = threading.Timer(8, writer.execute, ("ROLLBACK",))  # no test waits for ever
            released.start()
            guard = Guard(Limits(deadline=0.6, floor=0), live=live, target=tmp_path)
            began = time.monotonic()
            with pytest.raises(Refused) as caught:
                snapshot.copy_database(source, target, guard)
            assert caught.value.code == "backup_deadline"
            assert 0.5 < time.monotonic() - began < 5
            released.cancel()
            assert not source.in_transaction


def test_a_deadline_that_passes_in_the_middle_removes_what_was_made(instance: Instance) -> None:
    kept = made(instance).name
    enlarge(instance, 12)

    def slowly(_: Progress) -> None:
        time.sleep(0.2)

    began = time.monotonic()
    with pytest.raises(Refused) as caught:
        create(instance.layout, Request.of(limits=Limits(deadline=0.5)), report=slowly)
    assert caught.value.code == "backup_deadline"
    assert time.monotonic() - began < 5
    nothing_half_made(instance, kept)
    found = look(instance.layout, time.time())
    assert [told.rule for told in found.attention if told.rule.startswith("backup")] == ["backup_failed"]


def test_a_log_that_grows_too_far_ends_it(instance: Instance) -> None:
    """The copy, like any reader, keeps the log from starting over: the cap protects the live disk."""
    enlarge(instance, 12)
    with instance.store() as store:

        def write() -> None:
            for number in range(100):
                store.execute(
                    "INSERT INTO runs VALUES (?, ?, 1, '', 1.0)", (f"{time.monotonic()}-{number}", "x" * 9000)
                )

        with at("backup.step", write):
            assert refused(instance, limits=Limits(wal_cap=300_000)) == "backup_wal"
        nothing_half_made(instance)
        with at("backup.step", write):
            name = made(instance, limits=Limits(wal_cap=100_000_000)).name
    nothing_half_made(instance, name)


def test_a_reader_that_pins_the_log_is_no_hindrance_below_the_cap(instance: Instance) -> None:
    with closing(sqlite3.connect(instance.layout.database, autocommit=True)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM work").fetchone()
        instance.add("after the reader began")
        entry = made(instance)
        assert reader.execute("SELECT count(*) FROM work").fetchone() == (0,)
    assert read_manifest(Path(entry.path)).rows["work"] == 1


# --- full disks ---


@contextmanager
def no_file_may_grow() -> Iterator[Callable[[], None]]:
    """Gives what makes every further write fail as on a full disk (EFBIG), for anybody, without a mount."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("point", WRITING)
def test_a_disk_that_is_full_from_a_step_on_leaves_nothing_half_made(instance: Instance, point: str) -> None:
    kept = made(instance).name
    enlarge(instance, 8)
    with no_file_may_grow() as full, at(point, full):
        assert refused(instance) == "backup_no_space"
    nothing_half_made(instance, kept)


def test_a_disk_that_is_full_from_the_beginning_is_a_refusal(instance: Instance) -> None:
    kept = made(instance).name
    with no_file_may_grow() as full:
        full()
        assert refused(instance) == "backup_no_space"
    nothing_half_made(instance, kept)


def test_too_little_space_is_seen_before_anything_is_made(instance: Instance) -> None:
    instance.layout.backups.mkdir(mode=0o700)
    assert refused(instance, limits=Limits(floor=1 << 60)) == "backup_no_space"
    assert names(instance.layout.backups) == []


def test_the_floor_is_kept_while_it_goes(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    enlarge(instance, 8)
    free = os.statvfs(instance.layout.root)

    def less() -> None:
        scarce = os.statvfs_result((*tuple(free)[:4], 1, *tuple(free)[5:]))
        monkeypatch.setattr(os, "statvfs", lambda _: scarce)

    with at("backup.step", less):
        assert refused(instance) == "backup_no_space"
    monkeypatch.undo()
    nothing_half_made(instance)


# --- signals and kills ---


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("point", ["backup.folder", "backup.step", "backup.sealed", "backup.synced"])
def test_a_signal_cancels_it(instance: Instance, number: signal.Signals, point: str) -> None:
    kept = made(instance).name
    enlarge(instance, 8)
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with at(point, lambda: os.kill(os.getpid(), number)):
        assert refused(instance) == "canceled"
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    nothing_half_made(instance, kept)


def killed(instance: Instance, point: str | None, after: float = 0.0) -> bool:
    """Make a backup in a process that dies at a point, or after a time; whether it died before its end."""
    child = os.fork()
    if child == 0:
        try:
            if point is not None:
                triggers.arm(lambda seen: os.kill(os.getpid(), signal.SIGKILL) if seen == point else None)
            create(instance.layout, Request.of())
            os._exit(0)
        finally:
            os._exit(1)
    if point is None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status) == signal.SIGKILL
    assert os.WEXITSTATUS(status) == 0, "the backup failed by itself"
    return False


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_leaves_a_whole_backup_or_a_left_over_that_the_next_run_removes(
    instance: Instance, point: str
) -> None:
    first = made(instance).name
    enlarge(instance, 8)
    assert killed(instance, point)
    found = listing(instance.layout, time.time())
    whole = [one.name for one in found.backups]
    described = point in {"backup.described", "backup.finished"}
    assert len(whole) == (2 if described else 1)
    assert len(found.junk) == (0 if described else 1)
    for name in whole:
        assert verify(instance.layout.backups / name, record=False).ok
    instance.add("writes go on at once")
    done = create(instance.layout, Request.of())
    assert done.cleaned == found.junk
    assert done.backup is not None
    assert done.backup.sequence == 3, "a number that was given out is not given out again"
    nothing_half_made(instance, *whole, done.backup.name)
    assert first in whole


def test_a_kill_while_cleaning_up_leaves_what_can_be_cleaned_up(instance: Instance) -> None:
    """The mark goes last, so that a folder in the middle of its removal is still known as a left-over."""
    assert killed(instance, "backup.published")
    [cut] = listing(instance.layout, time.time()).junk
    folder = instance.layout.backups / cut
    assert len(names(folder)) == 3
    for _ in range(2):  # one more of the two other parts is gone after each kill
        child = os.fork()
        if child == 0:
            triggers.arm(lambda point: os._exit(9) if point == "backup.discard" else None)
            create(instance.layout, Request.of())
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert folders.MAKING in names(folder)
    assert names(folder) == [folders.MAKING]
    assert create(instance.layout, Request.of()).cleaned == [cut]
    assert not folder.exists()


def test_what_a_kill_leaves_of_a_small_file_is_cleaned_up_too(instance: Instance) -> None:
    assert killed(instance, "backup.described")
    [whole] = instance.layout.backups.glob("000001-*")
    strays = [instance.layout.backups / f".{name}.0a1b.tmp" for name in (folders.SEQUENCE, folders.FAILED)]
    strays.append(whole / f".{folders.MANIFEST}.0a1b.tmp")
    for stray in strays:
        stray.touch()
    made(instance)
    assert [stray for stray in strays if stray.exists()] == []
    assert listing(instance.layout, time.time()).junk == []
    assert folders.MAKING not in names(whole)


def test_kills_at_any_moment(instance: Instance) -> None:
    kill_again_and_again(instance, 6)


@pytest.mark.full
def test_sixty_kills_at_any_moment(instance: Instance) -> None:
    kill_again_and_again(instance, 60)


def kill_again_and_again(instance: Instance, times: int) -> None:
    enlarge(instance, 16)
    made(instance)
    began = time.monotonic()
    made(instance)
    length = time.monotonic() - began
    chance = random.Random(20260301)
    done = 0
    with busy_writer(instance):
        for _ in range(3 * times):
            done += killed(instance, None, chance.uniform(0, 1.2 * length))
            for one in listing(instance.layout, time.time()).backups[:2]:
                assert verify(Path(one.path), record=False).ok
            before = committed(instance)
            eventually(lambda before=before: committed(instance) > before)  # type: ignore[misc]
            if done == times:
                break
    assert done == times, "the others came too late"
    entry = made(instance)
    assert listing(instance.layout, time.time()).junk == []
    assert verify(Path(entry.path)).ok


# --- exclusion, places, locks ---


def test_one_at_a_time(instance: Instance) -> None:
    instance.layout.backups.mkdir(mode=0o700)
    with folders.alone(instance.layout.backups):
        assert refused(instance) == "backup_running"
    nothing_half_made(instance)


def locks_of(pid: int) -> list[str]:
    return sorted(
        line.partition(":")[2] for line in Path("/proc/locks").read_text().splitlines() if f" {pid} " in line
    )


def test_the_locks_of_a_process_with_the_store_open_stay(instance: Instance) -> None:
    """Opening and closing the live file by other means than SQLite would drop them."""
    from standfast.operations.backup.rehearsing import rehearse  # noqa: PLC0415
    from standfast.operations.backup.retention import prune  # noqa: PLC0415

    instance.layout.receipts.mkdir(mode=0o700)
    with instance.store() as store:
        store.execute("BEGIN IMMEDIATE")
        store.execute("INSERT INTO runs VALUES ('mine', 'r', 1, '', 1.0)")
        before = locks_of(os.getpid())
        assert any("POSIX" in line for line in before)
        for path in (
            lambda: made(
                instance, told=["env", "reports", "receipts", "units"], copied=["reports", "skills"]
            ),
            lambda: made(instance, to=str(instance.layout.root / "elsewhere")),
            lambda: listing(instance.layout, time.time()),
            lambda: look(instance.layout, time.time()),
            lambda: verify(Path(listing(instance.layout, time.time()).backups[0].path)),
            lambda: rehearse(instance.layout, None),
            lambda: prune(instance.layout, now=time.time(), keep=1),
        ):
            path()
            assert locks_of(os.getpid()) == before
        store.execute("COMMIT")
    assert instance.rows("SELECT id FROM runs") == [("mine",)]


@pytest.mark.parametrize("temporary", ["/dev/shm", "/nonexistent"])
def test_temporary_files_elsewhere_or_nowhere_do_not_matter(
    instance: Instance, temporary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", temporary)
    monkeypatch.setenv("SQLITE_TMPDIR", temporary)
    done = subprocess.run(
        [sys.executable, "-m", "standfast", "--state", str(instance.layout.state), "backup", "create"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    nothing_half_made(instance, listing(instance.layout, time.time()).backups[0].name)


def test_a_failure_never_prunes_and_says_so_in_its_exit_code(
    instance: Instance, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = [made(instance).name for _ in range(3)]
    call = ["--json", "--state", str(instance.layout.state), "backup", "create"]
    assert cli.main([*call, "--floor", str(1 << 60)]) == 3
    assert '"changed":false' in capsys.readouterr().out
    nothing_half_made(instance, *kept)
