"""A real `serve` process: readiness, watchdog, stops, kills, locks and invalid configurations."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from serving import PATIENCE
from support import Instance, Process, eventually

from standfast.shop.config import sample
from standfast.work import add_schedule


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance.make(tmp_path)


def done(instance: Instance, work: str) -> bool:
    return instance.status(work)[0] == "DONE"


def test_it_says_ready_works_pings_and_stops(instance: Instance) -> None:
    with Process(instance, WATCHDOG_USEC="120000000", INVOCATION_ID="abc123").ready() as service:
        work = instance.add().work
        began = time.monotonic()
        eventually(lambda: done(instance, work))
        assert time.monotonic() - began < PATIENCE
        eventually(lambda: service.messages().count("WATCHDOG=1") >= 5)  # passes, model calls, tool steps
        assert service.told[0] == "READY=1"
        assert "STATUS=working" in service.told
        began = time.monotonic()
        assert service.terminate() == 0
        assert time.monotonic() - began < PATIENCE
        assert service.messages().count("STOPPING=1") == 1
        ((pid, invocation),) = instance.rows(
            "SELECT pid, invocation FROM work JOIN runs ON runs.id = work.run WHERE work.id = ?", work
        )
        assert (pid, invocation) == (service.process.pid, "abc123")


def test_no_watchdog_no_pings(instance: Instance) -> None:
    with Process(instance).ready() as service:
        work = instance.add().work
        eventually(lambda: done(instance, work))
        service.terminate()
        assert "WATCHDOG=1" not in service.messages()


def test_a_second_service_on_one_state_is_refused_and_the_first_goes_on(instance: Instance) -> None:
    with Process(instance).ready() as first, Process(instance) as second:
        assert second.wait() == 3
        assert "another process acts for this state directory" in second.log
        assert str(first.process.pid) in second.log
        assert "READY=1" not in second.messages()
        work = instance.add().work
        eventually(lambda: done(instance, work))


def test_a_turn_that_takes_too_long_after_sigterm_leaves_whole_records_and_the_next_start_closes_it(
    instance: Instance, tmp_path: Path
) -> None:
    work = instance.add("A question").work
    (tmp_path / "more").touch()
    (tmp_path / "hurry").touch()
    with Process(instance, pausing=tmp_path).ready() as service:
        eventually((tmp_path / "in-call").exists)
        service.process.terminate()
        eventually(lambda: "STOPPING=1" in service.messages())
        (tmp_path / "go-on").touch()
        assert service.wait() == 0
    assert instance.status(work) == ("RUNNING", 1)
    assert instance.reports(work) == []
    before = instance.transcript(work)
    assert all(json.loads(message) for _, message in before)
    with Process(instance).ready() as again:
        eventually(lambda: instance.reports(work) != [])
        again.terminate()
    assert instance.status(work) == ("CANCELED", 2)
    assert instance.transcript(work) == before
    (report,) = instance.reports(work)
    assert "please ask again" in report


@pytest.mark.parametrize("more", [False, True], ids=["the answer", "another step"])
def test_sigterm_in_the_middle_of_a_turn_still_finishes_that_work_and_no_other(
    instance: Instance, tmp_path: Path, more: bool
) -> None:
    """Whether only the answer is on its way or another step comes first: an upgrade cuts no work short."""
    if more:
        (tmp_path / "more").touch()
    work = instance.add().work
    waiting = instance.add(session="elsewhere").work
    with Process(instance, pausing=tmp_path).ready() as service:
        eventually((tmp_path / "in-call").exists)
        service.process.terminate()
        eventually(lambda: "STOPPING=1" in service.messages())
        (tmp_path / "go-on").touch()
        assert service.wait() == 0
    assert instance.status(work) == ("DONE", 1)
    assert instance.status(waiting) == ("READY", 0)


def test_sigkill_in_the_middle_of_a_turn_loses_and_doubles_nothing(
    instance: Instance, tmp_path: Path
) -> None:
    cut = instance.add("A question").work
    waiting = instance.add("Another one", session="elsewhere").work
    with Process(instance, pausing=tmp_path).ready() as service:
        eventually((tmp_path / "in-call").exists)
        service.kill()
    assert instance.status(cut) == ("RUNNING", 1)
    assert instance.status(waiting) == ("READY", 0)
    with Process(instance).ready() as again:
        eventually(lambda: instance.reports(cut) != [] and done(instance, waiting))
        again.terminate()
    assert instance.status(cut) == ("CANCELED", 2)
    assert instance.status(waiting) == ("DONE", 1)
    assert [len(instance.reports(work)) for work in (cut, waiting)] == [1, 1]
    assert instance.rows("PRAGMA integrity_check") == [("ok",)]


def test_a_database_locked_for_three_seconds_by_another_process(instance: Instance, tmp_path: Path) -> None:
    work = instance.add().work
    locker = (
        "import sqlite3, sys, time\n"
        "c = sqlite3.connect(sys.argv[1], autocommit=True)\n"
        "c.execute('BEGIN IMMEDIATE'); print('locked', flush=True); time.sleep(3); c.execute('COMMIT')\n"
    )
    with Process(instance, pausing=tmp_path).ready() as service:
        eventually((tmp_path / "in-call").exists)
        with subprocess.Popen(
            [sys.executable, "-c", locker, str(instance.layout.database)], stdout=subprocess.PIPE
        ) as other:
            assert other.stdout is not None
            other.stdout.readline()
            (tmp_path / "go-on").touch()
            time.sleep(0.5)
            assert instance.status(work) == ("RUNNING", 1)
            other.wait()
        eventually(lambda: done(instance, work))
        assert service.terminate() == 0
    assert instance.status(work) == ("DONE", 1)
    assert instance.reports(work) == ["The stock was read."]
    assert len(instance.transcript(work)) == 5


def test_a_store_that_stays_locked_is_waited_for_without_watchdog_pings(instance: Instance) -> None:
    with Process(instance, WATCHDOG_USEC="120000000").ready() as service:
        eventually(lambda: "WATCHDOG=1" in service.messages())
        with instance.store() as store:
            add_schedule(store, name="pulse", every=1, prompt="look", now=time.time())
            store.execute("BEGIN IMMEDIATE")
            eventually(lambda: "pass failed" in service.log)
            pings = service.messages().count("WATCHDOG=1")
            slots = instance.rows("SELECT count(*) FROM slots")
            eventually(lambda: service.log.count("pass failed") > 1)
            assert service.messages().count("WATCHDOG=1") == pings
            assert instance.rows("SELECT count(*) FROM slots") == slots
            store.execute("ROLLBACK")
        eventually(lambda: instance.rows("SELECT count(*) FROM slots") > slots)
        eventually(lambda: service.messages().count("WATCHDOG=1") > pings)
        assert service.terminate() == 0


@pytest.mark.parametrize(
    ("old", "new", "environment", "named"),
    [
        ("reorder_point = 6", "reorder_point = -6", {}, "shop.toml: product.2.reorder_point"),
        ("[shop]", "[shop", {}, "shop.toml: not TOML"),
        ("tool_calls", "tool_callz", {}, "shop.toml: limits.tool_callz: unknown field"),
        ("", "", {"STANDFAST_MODEL": "hunter2"}, "STANDFAST_MODEL"),
        ("", "", {"STANDFAST_LOG": "hunter2"}, "STANDFAST_LOG"),
        ("", "", {"WATCHDOG_USEC": "80000000"}, "shop.toml: limits.call_seconds"),
    ],
)
def test_an_invalid_configuration_is_exit_78_with_the_field_and_nothing_touched(
    instance: Instance, old: str, new: str, environment: dict[str, str], named: str
) -> None:
    text = instance.layout.shop.read_text().replace(old, new, 1)
    instance.layout.shop.write_text(text)
    work = instance.add().work
    with Process(instance, pausing=None, **environment) as service:
        assert service.wait() == 78
        assert named in service.log
        assert "Traceback" not in service.log
        assert "hunter2" not in service.log
        assert service.messages() == []
    assert instance.layout.shop.read_text() == text
    assert instance.status(work) == ("READY", 0)
    assert instance.rows("SELECT * FROM runs") == []


def test_a_missing_shop_toml_is_exit_78_and_the_service_works_once_it_is_back(instance: Instance) -> None:
    work = instance.add().work
    instance.layout.shop.unlink()
    with Process(instance) as service:
        assert service.wait() == 78
        assert "shop.toml cannot be read" in service.log
    instance.layout.shop.write_text(sample())
    with Process(instance).ready():
        eventually(lambda: done(instance, work))


def test_a_newer_store_is_refused_and_stays_byte_for_byte(instance: Instance) -> None:
    with instance.store() as store:
        store.execute("UPDATE meta SET version = 99 WHERE component = 'work'")
    before = instance.layout.database.read_bytes()
    with Process(instance) as service:
        assert service.wait() == 3
        assert "newer release" in service.log
        assert "READY=1" not in service.messages()
    assert instance.layout.database.read_bytes() == before


def test_a_state_without_a_store_is_refused(tmp_path: Path) -> None:
    instance = Instance.make(tmp_path)
    for path in instance.layout.state.glob("agent.sqlite*"):
        path.unlink()
    with Process(instance) as service:
        assert service.wait() == 3
        assert "standfast init" in service.log


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a state directory of another user")
def test_another_user_s_state_is_refused(instance: Instance) -> None:
    os.chown(instance.layout.state, 65534, 65534)
    with Process(instance) as service:
        assert service.wait() == 3
        assert "belongs to another user" in service.log


def test_the_log_is_one_plain_line_per_event_and_holds_neither_prompt_nor_secret(instance: Instance) -> None:
    work = instance.add("A private question\nwith two lines", subject="two\nlines").work
    with Process(instance, SUPPLIER_TOKEN="hunter2", JOURNAL_STREAM="1:2").ready() as service:
        eventually(lambda: done(instance, work))
        service.terminate()
        lines = service.log.splitlines()
        assert all(line.startswith("<") and line[2] == ">" and line.isprintable() for line in lines)
        assert any(f"work ended: work={work} generation=1 status=COMPLETED" in line for line in lines)
        assert any('subject="two\\\\nlines"' in line or "two\\nlines" in line for line in lines)
        assert "private" not in service.log
        assert "hunter2" not in service.log


def test_check_says_whether_the_configuration_is_valid_and_starts_nothing(instance: Instance) -> None:
    command = [
        sys.executable,
        "-m",
        "standfast",
        "--state",
        str(instance.layout.state),
        "--check",
        "--json",
        "serve",
    ]
    assert json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["check"] is True
    instance.layout.shop.write_text("[shop]\n")
    assert subprocess.run(command, capture_output=True, check=False).returncode == 78
    assert instance.rows("SELECT * FROM runs") == []
