"""Opening and writing the store: all or nothing, typed errors, and never a byte changed by a refusal."""

import hashlib
import os
import signal
import sqlite3
import stat
import time
from contextlib import closing
from pathlib import Path

import pytest
from world import COMPONENTS, World, child, dump, start
from world_child import next_version

from standfast import work
from standfast.errors import Refused, StoreBusy
from standfast.layout import Layout
from standfast.store import Component, immediate, open_readonly, open_store, schema_versions, triggers


def digest(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def database_locks(pid: int, database: Path) -> list[str]:
    inode = f":{database.stat().st_ino}"
    lines = Path("/proc/locks").read_text().splitlines()
    return [line.split(": ", 1)[1] for line in lines if f" {pid} " in line and f"{inode} " in line]


def test_the_rules_of_a_connection(world: World) -> None:
    names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "application_id")
    values = [world.connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
    assert values == ["wal", 2, 1, 5000, 0x53464153]
    tables = world.connection.execute("SELECT name, strict FROM pragma_table_list WHERE schema = 'main'")
    assert {name for name, strict in tables if not strict and not name.startswith("sqlite_")} == set()
    assert schema_versions(world.connection) == {"authority": 3, "work": 3, "channel": 1}


def test_a_new_store_is_private_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        connection = open_store(tmp_path / "agent.sqlite", COMPONENTS, create=True)
        with immediate(connection):
            connection.execute("INSERT INTO runs VALUES ('r', 'x', 1, '', 0)")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        connection.close()
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o600}
    assert len(modes) == 3


def test_a_folder_name_with_special_characters_is_one_file(tmp_path: Path) -> None:
    folder = tmp_path / "a?mode=memory&x#%41"
    folder.mkdir()
    open_store(folder / "agent.sqlite", COMPONENTS, create=True).close()
    assert [path.name for path in folder.iterdir()] == ["agent.sqlite"]
    open_readonly(folder / "agent.sqlite").close()


class TestRefusals:
    def test_a_missing_store_is_not_made_in_passing(self, tmp_path: Path) -> None:
        for attempt in (lambda p: open_store(p, COMPONENTS), open_readonly):
            with pytest.raises(Refused) as refused:
                attempt(tmp_path / "agent.sqlite")
            assert refused.value.code == "store_absent"
        assert list(tmp_path.iterdir()) == []

    def test_an_empty_store_is_not_filled_in_passing(self, tmp_path: Path) -> None:
        path = tmp_path / "agent.sqlite"
        path.touch()
        with pytest.raises(Refused) as refused:
            open_store(path, COMPONENTS)
        assert refused.value.code == "store_absent"
        assert path.read_bytes() == b""

    @pytest.mark.parametrize(
        "content", [b"garbage" * 1000, b"SQLite format 3\0" + b"x" * 5000, b"garbage", b"x"]
    )
    @pytest.mark.parametrize("create", [False, True])
    def test_garbage_is_refused_unchanged(self, tmp_path: Path, content: bytes, create: bool) -> None:
        path = tmp_path / "agent.sqlite"
        path.write_bytes(content)
        with pytest.raises(Refused) as refused:
            open_store(path, COMPONENTS, create=create)
        assert refused.value.code == "store_foreign"
        assert digest(tmp_path) == {"agent.sqlite": hashlib.sha256(content).hexdigest()}

    @pytest.mark.parametrize("application", [0, 7])
    def test_another_applications_database_is_refused_unchanged(
        self, tmp_path: Path, application: int
    ) -> None:
        path = tmp_path / "agent.sqlite"
        other = sqlite3.connect(path)
        other.execute(f"PRAGMA application_id = {application}")
        other.execute("CREATE TABLE theirs (x)")
        other.close()
        before = digest(tmp_path)
        with pytest.raises(Refused) as refused:
            open_store(path, COMPONENTS, create=True)
        assert refused.value.code == "store_foreign"
        assert digest(tmp_path) == before

    @pytest.mark.parametrize("change", ["version", "component"])
    @pytest.mark.parametrize("wal", [False, True])
    def test_a_newer_store_is_refused_byte_for_byte_unchanged(
        self, world: World, change: str, wal: bool
    ) -> None:
        world.admit()
        statement = {
            "version": "UPDATE meta SET version = 4 WHERE component = 'work'",
            "component": "INSERT INTO meta VALUES ('orders', 1)",
        }[change]
        with immediate(world.connection):
            world.connection.execute(statement)
        if wal:  # what the last writer left in the log, as after a crash
            world.connection.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)
        world.connection.close()
        files = ("agent.sqlite", "agent.sqlite-wal") if wal else ("agent.sqlite",)
        before = {name: digest(world.layout.state)[name] for name in files}
        with pytest.raises(Refused) as refused:
            open_store(world.layout.database, COMPONENTS, create=True)
        assert refused.value.code == "store_newer"
        assert {"version": "work 4", "component": "orders 1"}[change] in refused.value.observed[0]
        after = digest(world.layout.state)
        assert {name: after[name] for name in files} == before
        readable = open_readonly(world.layout.database)
        assert schema_versions(readable)["authority"] == 3
        readable.close()

    def test_read_only_cannot_write(self, world: World) -> None:
        reader = open_readonly(world.layout.database)
        with pytest.raises(sqlite3.OperationalError, match="readonly"), immediate(reader):
            reader.execute("DELETE FROM runs")
        reader.close()


class TestTransactions:
    def test_transactions_do_not_nest(self, world: World) -> None:
        before = world.dump()

        def nested() -> None:
            with immediate(world.connection):
                world.connection.execute("INSERT INTO runs VALUES ('r', 'x', 1, '', 0)")
                with immediate(world.connection):
                    pass

        with pytest.raises(RuntimeError, match="do not nest"):
            nested()
        assert not world.connection.in_transaction
        assert world.dump() == before

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
    def test_any_exception_rolls_back(self, world: World, error: type[BaseException]) -> None:
        before = world.dump()

        def failing() -> None:
            with immediate(world.connection):
                world.connection.execute("INSERT INTO runs VALUES ('r', 'x', 1, '', 0)")
                raise error

        with pytest.raises(error):
            failing()
        assert world.dump() == before
        assert not world.connection.in_transaction

    def test_a_lock_held_for_3_s_is_waited_for(self, world: World) -> None:
        with start("hold", world.layout.state, 3) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            begun = time.monotonic()
            world.admit()
            assert time.monotonic() - begun > 2
            holder.wait(10)
        assert world.connection.execute("SELECT count(*) FROM work").fetchone() == (1,)

    def test_a_lock_held_past_the_bound_is_a_typed_error_and_nothing_is_lost(self, world: World) -> None:
        claim = world.claimed()
        before = world.dump()
        world.connection.execute("PRAGMA busy_timeout = 200")
        with start("hold", world.layout.state, 30) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()
            with pytest.raises(StoreBusy):
                world.observe(claim)
            assert world.dump() == before
            holder.kill()
        world.observe(claim)

    def test_the_fence_reads_the_time_after_the_lock_was_won(self, world: World) -> None:
        """A lease that ends while the write lock is waited for is an ended lease."""
        claim = world.claimed(lease=60)
        seen: list[str] = []
        real = world.clock.now

        def now() -> float:
            seen.append("in transaction" if world.connection.in_transaction else "before")
            return real()

        world.clock.now = now  # type: ignore[method-assign]
        world.observe(claim)
        assert seen == ["in transaction"]


class TestMigrations:
    def test_failing_after_each_statement_changes_nothing_and_a_retry_works(self, world: World) -> None:
        world.finish(world.claimed(), "report")
        before = world.dump()
        world.connection.close()
        for failing in range(1, 4):
            reached: list[str] = []

            def fail(point: str, reached: list[str] = reached, failing: int = failing) -> None:
                reached.append(point)
                if reached.count("migrate.statement") == failing:
                    raise OSError("pulled the plug")

            triggers.arm(fail)
            with pytest.raises(OSError, match="pulled"):
                open_store(world.layout.database, next_version())
            triggers.disarm()
            reader = open_readonly(world.layout.database)
            assert dump(reader) == before
            reader.close()
        world.connection = open_store(world.layout.database, next_version())
        assert schema_versions(world.connection) == {"authority": 3, "work": 3, "channel": 2}
        assert world.connection.execute("SELECT count(*) FROM reports").fetchone() == (1,)

    @pytest.mark.parametrize("statement", [1, 2, 3])
    def test_sigkill_in_a_migration_changes_nothing(self, world: World, statement: int) -> None:
        world.admit()
        before = world.dump()
        killed = child("die_migrating", world.layout.state, statement, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert world.dump() == before
        open_store(world.layout.database, next_version()).close()

    def test_counts_and_reports_of_a_store_from_before_they_became_cheaper(self, tmp_path: Path) -> None:
        """authority 1 and work 2: counts kept for every ending, reports with ids of their own."""
        path = tmp_path / "agent.sqlite"
        before = {"authority": 1, "work": 2}
        earlier = tuple(Component(one.name, one.migrations[: before[one.name]]) for one in COMPONENTS[:2])
        statuses = ("DONE", "DONE", "CANCELED", "READY", "REJECTED")
        identities = [f"{number:024x}" for number in range(len(statuses))]
        with closing(open_store(path, earlier, create=True)) as older:
            older.executemany(
                "INSERT INTO work (id, role, session, subject, prompt, status, admitted_at, finished_at)"
                " VALUES (?, 'agent', 's', '', 'p', ?, 1, 2)",
                zip(identities, statuses, strict=True),
            )
            older.executemany(
                "INSERT INTO reports (id, work, generation, body, delivery, created_at)"
                " VALUES (?, ?, 1, 'said', 'pending', 2)",
                [("a" * 24, identities[0]), ("b" * 24, identities[1]), ("c" * 24, identities[2])],
            )
        with closing(open_store(path, COMPONENTS)) as store:
            assert work.counts(store) == {
                "DONE": 2, "CANCELED": 1, "READY": 1, "REJECTED": 1, "RUNNING": 0, "BLOCKED": 0,
            }  # fmt: skip
            latest = work.latest_done(store)
            assert latest is not None
            assert latest.work == identities[1]
            store.execute(
                "INSERT INTO reports (id, work, generation, body, delivery, created_at)"
                " VALUES (? || '00000000', ?, 1, 'said again', 'pending', 3)",
                (identities[0], identities[0]),
            )
            found = work.list_reports(store, work=identities[0])
            assert [report.id for report in found] == [identities[0] + "00000000", "a" * 24]
            assert [report.id for report in work.list_reports(store, work=identities[2])] == ["c" * 24]

    def test_what_a_status_can_be_is_checked_without_building_a_table_for_it(self, world: World) -> None:
        for table, column in (("work", "status"), ("reports", "delivery")):
            text = world.connection.execute(
                "SELECT sql FROM sqlite_schema WHERE name = ?", (table,)
            ).fetchone()[0]
            assert f"{column} IN (" not in text
        claim = world.claimed()
        world.finish(claim)
        for statement in ("UPDATE work SET status = 'done'", "UPDATE reports SET delivery = ''"):
            with pytest.raises(sqlite3.IntegrityError, match="CHECK constraint"):
                world.connection.execute(statement)
        with pytest.raises(sqlite3.OperationalError, match="may not be modified"):
            world.connection.execute("UPDATE sqlite_schema SET sql = ''")

    def test_a_migration_cannot_drop_what_others_refer_to(self, world: World) -> None:
        world.finish(world.claimed(), "report")
        before = world.dump()
        last = COMPONENTS[-1]
        worse = Component(last.name, (*last.migrations, ("DROP TABLE work",)))
        with pytest.raises(sqlite3.DatabaseError):
            open_store(world.layout.database, (*COMPONENTS[:-1], worse))
        assert world.dump() == before

    def test_a_damaged_store_is_not_migrated(self, world: World) -> None:
        world.connection.execute("PRAGMA foreign_keys = OFF")
        with immediate(world.connection):
            world.connection.execute("INSERT INTO transcript VALUES (1, 'no such work', 1, 'x', 0)")
        before = world.dump()
        with pytest.raises(Refused) as refused:
            open_store(world.layout.database, next_version())
        assert refused.value.code == "store_damaged"
        assert world.dump() == before

    def test_opening_again_writes_nothing(self, world: World) -> None:
        version = world.connection.execute("PRAGMA data_version").fetchone()
        open_store(world.layout.database, COMPONENTS, create=True).close()
        assert world.connection.execute("PRAGMA data_version").fetchone() == version


def test_8_processes_open_a_new_file(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    processes = [start("new", state) for _ in range(8)]
    results = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, results
    assert sorted(out.strip() for out, _ in results) == ["False"] * 7 + ["True"]
    world = World(Layout(state))
    assert world.epoch() == world.marker.read_text().split("\n")[0]
    assert world.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    world.connection.close()


def test_no_other_opening_of_the_live_file_drops_the_locks_of_sqlite(world: World) -> None:
    """Opening and closing the database by other means in this process would make SQLite's locks vanish."""
    reader = open_readonly(world.layout.database)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM work").fetchone()
    locks = database_locks(os.getpid(), world.layout.database)
    assert locks
    open_store(world.layout.database, COMPONENTS, create=True).close()
    open_readonly(world.layout.database).close()
    claim = world.claimed()
    world.observe(claim)
    world.finish(claim, "report")
    assert database_locks(os.getpid(), world.layout.database) == locks
    reader.close()
