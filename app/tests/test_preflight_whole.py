"""A whole preflight: migrations tried on a copy, and a state directory that stays as it was, always."""

import json
import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from backing import made, names
from support import Instance, Process
from test_looking import busy_writer, held_open, traces
from test_preflight import instance, places

from standfast.authority import pause
from standfast.cli import main as cli
from standfast.errors import Refused
from standfast.operations import schema as schemas
from standfast.operations.backup.folders import scratch
from standfast.operations.backup.listing import listing
from standfast.operations.preflight import looking
from standfast.operations.preflight.looking import preflight
from standfast.operations.preflight.rehearsing import SCRATCH
from standfast.operations.preflight.result import Check, Preflight
from standfast.operations.preflight.seen import Places, Request
from standfast.operations.schema import COMPONENTS
from standfast.serve.settings import load
from standfast.store import Component, open_store, triggers

__all__ = ["instance", "places"]

NAMED = (
    *("target_proven", "python", "sqlite", "authority_contract", "rollback_floor", "unfinished"),
    *("deploy_lock", "file_system", "disk", "backups_folder", "lingering", "user_manager", "manager_stop"),
    *("journal", "identity", "ownership", "unit", "environment_file", "shop", "settings", "schema"),
    *("migration", "marker", "not_paused", "recovery", "service", "running_work", "uncertain_orders"),
    *("uncertain_reports", "rehearsed_backup", "clock", "health"),
)
"""What an operator is told of, in this order; scripts and pages rely on the names."""
BEFORE = looking.BEFORE
RECORD = Path("none.json")
ADDED = ("CREATE TABLE later (id INTEGER PRIMARY KEY) STRICT", "INSERT INTO later VALUES (1)")


def migrate_with(monkeypatch: pytest.MonkeyPatch, *steps: str) -> None:
    """From here on this code is that of a release with one migration more."""
    last = COMPONENTS[-1]
    later = Component(last.name, (*last.migrations, steps), last.on_epoch_end)
    monkeypatch.setattr(schemas, "COMPONENTS", (*COMPONENTS[:-1], later))


@pytest.fixture(autouse=True)
def no_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks that need an installed release or a user's manager are left out: this is a checkout."""
    monkeypatch.setattr(looking, "BEFORE", ())


def look(instance: Instance, places: Places, *, online: bool = False) -> Preflight:
    request = Request(record=instance.layout.root / RECORD, online=online)
    return preflight(instance.layout, request, load, places)


def rows(found: Preflight) -> dict[str, Check]:
    return {check.name: check for check in found.checks}


def rehearsed(instance: Instance) -> None:
    from standfast.operations.backup.rehearsing import rehearse  # noqa: PLC0415

    made(instance)
    rehearse(instance.layout, None)


def left(instance: Instance) -> list[str]:
    return [name for name in names(instance.layout.backups) if name == SCRATCH]


def test_every_check_has_its_row_and_what_does_not_pass_has_a_remedy(
    instance: Instance, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "BEFORE", BEFORE)
    found = look(instance, places)
    assert tuple(check.name for check in found.checks) == NAMED
    assert rows(found)["target_proven"].outcome == "refuse", "a checkout is no release"
    assert all(check.observed for check in found.checks)
    assert [check.name for check in found.checks if bool(check.remedy) == (check.outcome == "pass")] == []


def test_without_a_migration_nothing_is_copied(instance: Instance, places: Places) -> None:
    rehearsed(instance)
    before = traces(instance.layout.root)
    found = look(instance, places)
    assert (found.ok, found.outcome, found.migrations, found.rehearsal) == (True, "pass", {}, None)
    assert rows(found)["migration"].observed == "none is needed"
    assert traces(instance.layout.root) == before


def test_migrations_are_tried_on_a_copy_beside_a_service_that_works(
    instance: Instance, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed(instance)
    instance.add("How is the stock?")
    instance.settle()
    with Process(instance) as process:
        process.ready()
        migrate_with(monkeypatch, *ADDED)
        found = look(instance, places, online=True)
        assert found.outcome == "pass", [check for check in found.checks if check.outcome != "pass"]
        assert process.terminate() == 0
    last = COMPONENTS[-1]
    assert found.migrations == {last.name: (last.version, last.version + 1)}
    assert found.rehearsal is not None
    assert found.rehearsal.ok
    assert found.rehearsal.problems == []
    assert found.rehearsal.facts_after == found.rehearsal.facts_before
    assert found.rehearsal.rows > 0
    assert found.rehearsal.bytes > 100_000
    assert 0 < found.rehearsal.seconds < 60
    assert instance.rows("SELECT version FROM meta WHERE component = ?", last.name) == [(last.version,)]
    assert left(instance) == []


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((*ADDED, "CREATE TABLE later (id INTEGER)"), "the migrations failed and were undone: table later"),
        (
            ("INSERT INTO stock_events SELECT 'more', sku, 1, reason, at FROM stock_events LIMIT 1",),
            "stock: ",
        ),
        (("DROP TABLE slots",), "slots: 0 rows before, no table after"),
        (("DELETE FROM schedules",), "schedules: 2 rows before, 0 after"),
        (("UPDATE work SET status = 'CANCELED' WHERE status = 'READY'",), "work: {'READY': 1} before"),
        (
            ("CREATE TABLE later (work TEXT REFERENCES work (id)) STRICT", "INSERT INTO later VALUES ('no')"),
            "the migrations failed and were undone: FOREIGN KEY constraint failed",
        ),
    ],
)
def test_a_migration_that_fails_or_changes_a_fact_is_refused(
    instance: Instance,
    places: Places,
    monkeypatch: pytest.MonkeyPatch,
    steps: tuple[str, ...],
    said: str,
) -> None:
    instance.add("How is the stock?")
    with instance.store() as store:
        store.execute("INSERT INTO schedules VALUES ('s', 60, NULL, NULL, 'agent', 's', 'x', 'p', 0, 0, 0)")
    migrate_with(monkeypatch, *steps)
    with held_open(instance.layout.database):
        before = traces(instance.layout.state)
        found = look(instance, places)
        assert traces(instance.layout.state) == before
    assert found.outcome == "refuse"
    assert rows(found)["migration"].outcome == "refuse"
    assert said in rows(found)["migration"].observed
    assert found.rehearsal is not None
    assert not found.rehearsal.ok
    assert left(instance) == []


def test_a_reference_to_nothing_is_found_on_the_copy(
    instance: Instance, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    with instance.store() as store:
        store.execute("PRAGMA foreign_keys = OFF")
        store.execute("INSERT INTO transcript VALUES (1, 'no such work', 1, 'x', 0)")
    migrate_with(monkeypatch, *ADDED)
    before = traces(instance.layout.state)
    found = rows(look(instance, places))["migration"]
    assert (found.outcome, "refers to work" in found.observed) == ("refuse", True)
    assert traces(instance.layout.state) == before


def test_a_store_that_is_newer_is_refused_and_nothing_is_tried(instance: Instance, places: Places) -> None:
    last = COMPONENTS[-1]
    newer = (*COMPONENTS[:-1], Component(last.name, (*last.migrations, ADDED)))
    open_store(instance.layout.database, newer).close()
    before = traces(instance.layout.root)
    found = look(instance, places)
    assert [(name, check.outcome) for name, check in rows(found).items()] == [("schema", "refuse")]
    assert (found.migrations, found.rehearsal) == ({}, None)
    assert traces(instance.layout.root) == before


def test_a_store_that_is_none_is_told_beside_everything_else(instance: Instance, places: Places) -> None:
    instance.layout.database.write_bytes(b"x" * 4096)
    before = traces(instance.layout.root)
    found = look(instance, places)
    assert [(name, check.outcome) for name, check in rows(found).items()] == [("store", "refuse")]
    assert traces(instance.layout.root) == before


@pytest.mark.parametrize("outcome", ["pass", "attention", "refuse"])
@pytest.mark.parametrize("steps", [(), ADDED])
def test_no_byte_and_no_time_of_the_state_changes(
    instance: Instance,
    places: Places,
    monkeypatch: pytest.MonkeyPatch,
    outcome: str,
    steps: tuple[str, ...],
) -> None:
    if outcome == "pass":
        rehearsed(instance)
    if outcome == "refuse":
        with instance.store() as store:
            pause(store, "cut short", time.time())
    if steps:
        migrate_with(monkeypatch, *steps)
    for hold in (nullcontext(), held_open(instance.layout.database)):
        with hold:
            before = traces(instance.layout.state)
            assert look(instance, places).outcome == outcome
            assert traces(instance.layout.state) == before


def in_a_child(instance: Instance, places: Places, point: str, number: int) -> int:
    """Look in a fork that sends itself a signal at a point; its exit code, or minus what killed it."""
    child = os.fork()
    if child == 0:  # pragma: no cover - the parent sees what came of it
        code = 99
        try:
            triggers.arm(lambda reached: os.kill(os.getpid(), number) if reached == point else None)
            look(instance, places)
        except KeyboardInterrupt:
            code = 130
        except Refused as refused:
            code = 3 if refused.code == "canceled" else 98
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


POINTS = ("backup.step", "backup.copied", "preflight.copied", "migrate.before_commit", "preflight.migrated")


@pytest.mark.parametrize("point", POINTS)
def test_killed_in_the_middle_it_leaves_the_state_alone_and_the_next_one_cleans(
    instance: Instance, places: Places, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    rehearsed(instance)
    migrate_with(monkeypatch, *ADDED)
    with held_open(instance.layout.database):
        before = traces(instance.layout.state)
        assert in_a_child(instance, places, point, signal.SIGKILL) == -signal.SIGKILL
        assert traces(instance.layout.state) == before
        assert left(instance) == [SCRATCH]
        told = listing(instance.layout, time.time())
        assert told.junk == [SCRATCH]
        assert len(told.backups) == 1
        assert look(instance, places).outcome == "pass"
        assert left(instance) == []
        assert traces(instance.layout.state) == before


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing(
    instance: Instance, places: Places, monkeypatch: pytest.MonkeyPatch, point: str, number: int
) -> None:
    migrate_with(monkeypatch, *ADDED)
    before = traces(instance.layout.state)
    code = in_a_child(instance, places, point, number)
    assert traces(instance.layout.state) == before
    if point.startswith("backup."):
        assert code == 3
    else:
        assert code == (130 if number == signal.SIGINT else -signal.SIGTERM)
    assert left(instance) == ([SCRATCH] if code == -signal.SIGTERM else [])


def test_beside_a_writer_at_full_speed_nothing_is_lost(
    instance: Instance, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate_with(monkeypatch, *ADDED)
    with busy_writer(instance.layout.database) as commits:
        found = [look(instance, places) for _ in range(3)]
    for one in found:
        assert one.rehearsal is not None
        assert one.rehearsal.ok, one.rehearsal.problems
    assert commits[0] > len(found), "the writer was never held up"
    assert instance.rows("SELECT count(*), max(a) FROM pairs") == [(commits[0], commits[0] - 1)]
    assert instance.rows("PRAGMA integrity_check") == [("ok",)]


def test_two_at_once_do_not_meet(instance: Instance, places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate_with(monkeypatch, *ADDED)
    with scratch(instance.layout.backups, SCRATCH):
        found = rows(look(instance, places))["migration"]
    assert found.outcome == "refuse"
    assert "another preflight of this instance is running" in found.observed


def test_without_room_for_the_copy_nothing_is_tried(
    instance: Instance, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate_with(monkeypatch, *ADDED)
    instance.layout.backups.chmod(0o755)
    found = look(instance, places)
    assert rows(found)["migration"].outcome == "refuse"
    assert "open to other users" in rows(found)["migration"].observed
    assert found.rehearsal is None


def test_another_release_than_the_one_that_looks_is_refused(instance: Instance, places: Places) -> None:
    with pytest.raises(Refused) as refused:
        preflight(instance.layout, Request(folder=instance.layout.releases / "other"), load, places)
    assert refused.value.code == "release_elsewhere"


def test_the_command_prints_one_object_and_the_exit_code_says_the_outcome(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--state", str(instance.layout.state), "--json", "preflight", "--stopped"]

    def told() -> tuple[int, str]:
        code = cli.main([*words, "--record", str(instance.layout.root / RECORD)])
        found = Preflight.model_validate(json.loads(capsys.readouterr().out))
        return code, found.outcome

    assert told() == (4, "attention"), "no backup was rehearsed"
    rehearsed(instance)
    capsys.readouterr()
    assert told() == (0, "pass")
    with instance.store() as store:
        pause(store, "cut short", time.time())
    assert told() == (3, "refuse")
    assert cli.main([word for word in words if word != "--json"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("PREFLIGHT refuse: old -> ")
    assert "refuse   not_paused" in out
    assert ". To do: " in out
