"""Health says what is, whoever asks, and touches nothing."""

import hashlib
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from serving import PATIENCE, instance, service
from support import HandClock

from standfast import orders, work
from standfast.authority import claim_next, marker, pause
from standfast.cli import main as cli
from standfast.clock import Clock
from standfast.errors import Refused
from standfast.layout import Layout
from standfast.operations import attention, health
from standfast.operations.health import Health, look
from standfast.operations.schema import COMPONENTS, understood
from standfast.store import Store, immediate, open_store

NOW = 1_790_000_000.0


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return instance(tmp_path, now=NOW - 10_000)


def opened(layout: Layout) -> closing[Store]:
    return closing(open_store(layout.database, COMPONENTS))


def rules(found: Health) -> set[str]:
    assert found.ok == (not found.attention)
    return {str(told.rule) for told in found.attention} - {"service_down"}


def ask(layout: Layout, at: float) -> str:
    with opened(layout) as connection:
        return work.admit(connection, origin=f"t:{at}", session=f"s:{at}", prompt="?", now=at).work


def test_a_new_instance_is_well_but_for_its_service(layout: Layout) -> None:
    found = look(layout, NOW)
    assert rules(found) == set()
    assert [told.observed for told in found.attention] == ["the service has never started on this store"]
    assert found.schema_versions == found.understood_versions == understood()
    assert (found.paused, found.marker_agrees, found.release) == (False, True, "source")
    assert set(found.work) == set(health.STATUSES)
    assert (found.last_finished, found.last_backup, found.service) == (None, None, None)
    assert (found.uncertain_orders, found.uncertain_reports, found.pending_approvals) == (0, 0, 0)
    assert "there is no backup yet" in found.notes


def test_a_running_service_that_finishes_work_is_well(layout: Layout) -> None:
    with service(layout) as process:
        wanted = ask(layout, time.time())
        until = time.monotonic() + PATIENCE
        while (found := look(layout, time.time())).work["READY"] + found.work["RUNNING"]:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert found.ok, found.attention
        assert found.service is not None
        assert (found.service.pid, found.service.alive) == (process.pid, True)
        assert found.last_finished is not None
        assert found.last_finished.run is not None
        assert found.last_finished.run.pid == process.pid
        assert found.last_finished.age_seconds < PATIENCE
        with opened(layout) as connection:
            assert work.show_work(connection, wanted).status == "DONE"
    gone = look(layout, time.time())
    assert gone.service is not None
    assert gone.service.alive is False
    assert [told.rule for told in gone.attention] == ["service_down"]


@pytest.mark.parametrize("words", [["standfast", "health"], ["serve"]])
def test_a_pid_that_another_program_took_over_is_not_the_service(layout: Layout, words: list[str]) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()", *words], stdin=subprocess.PIPE)
    try:
        with opened(layout) as connection:
            work.start_run(connection, release="r", pid=other.pid, invocation="", now=NOW)
        found = look(layout, NOW)
    finally:
        other.communicate(b"\n")
    assert found.service is not None
    assert found.service.alive is False


@pytest.mark.parametrize(("blocked", "expected"), [(86_400, set()), (86_401, {"blocked_old"})])
def test_work_left_blocked_for_a_day_is_attention_unless_it_waits_for_an_order(
    layout: Layout, blocked: float, expected: set[str]
) -> None:
    then = HandClock(NOW - blocked)
    for before in (1, 2):
        ask(layout, then.now() - before)
    with opened(layout) as connection:
        for waits in (True, False):
            claim = claim_next(connection, owner="w", now=then.now(), marker=layout.marker)
            assert claim is not None
            if waits:
                orders.wait(connection, claim, clock=then, marker=layout.marker)
            else:
                work.finish(connection, claim, "BLOCKED", clock=then, marker=layout.marker)
    found = look(layout, NOW)
    assert rules(found) == expected
    assert all("1 BLOCKED" in told.observed for told in found.attention if told.rule == "blocked_old")


def test_the_service_of_another_instance_is_not_this_one_s(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "another").mkdir()
    with service(instance(tmp_path / "another")) as process:
        with opened(layout) as connection:
            work.start_run(connection, release="r", pid=process.pid, invocation="", now=NOW)
        found = look(layout, NOW)
    assert found.service is not None
    assert found.service.alive is False


def test_pause_is_attention_and_waiting_work_is_then_expected(layout: Layout) -> None:
    ask(layout, NOW - 5_000)
    with opened(layout) as connection:
        pause(connection, "stock-taking", NOW)
    found = look(layout, NOW)
    assert rules(found) == {"paused"}
    assert "stock-taking" in found.attention[0].observed


@pytest.mark.parametrize(("waited", "expected"), [(900, set()), (901, {"ready_old"})])
def test_old_ready_work_is_attention(layout: Layout, waited: float, expected: set[str]) -> None:
    ask(layout, NOW - waited)
    found = look(layout, NOW)
    assert rules(found) == expected
    assert found.oldest_ready_seconds == waited


@pytest.mark.parametrize(("held", "expected"), [(1800, set()), (1801, {"running_old"})])
def test_old_running_work_is_attention(layout: Layout, held: float, expected: set[str]) -> None:
    ask(layout, NOW - held)
    with opened(layout) as connection:
        assert claim_next(connection, owner="w", now=NOW - held, marker=layout.marker)
    found = look(layout, NOW)
    assert rules(found) == expected
    assert found.oldest_running_seconds == held


def test_a_marker_that_disagrees_or_is_gone_is_attention(layout: Layout) -> None:
    present = marker.read(layout.marker)
    assert present is not None
    marker.write(layout.marker, marker.Marker(epoch="f" * 32, host=present.host))
    assert rules(look(layout, NOW)) == {"marker_disagrees"}
    layout.marker.unlink()
    found = look(layout, NOW)
    assert rules(found) == {"marker_disagrees"}
    assert not found.marker_agrees


def test_another_hosts_state_is_attention(layout: Layout) -> None:
    present = marker.read(layout.marker)
    assert present is not None
    marker.write(layout.marker, marker.Marker(epoch=present.epoch, host="0" * 64))
    assert rules(look(layout, NOW)) == {"other_host"}


@pytest.mark.parametrize("delivery", ["sending", "unknown"])
def test_a_report_that_may_have_arrived_is_attention(layout: Layout, delivery: str) -> None:
    ask(layout, NOW)
    with opened(layout) as connection:
        clock = Clock(wall=lambda: NOW)
        claim = claim_next(connection, owner="w", now=NOW, marker=layout.marker)
        assert claim is not None
        work.finish(connection, claim, "DONE", clock=clock, marker=layout.marker, report="done")
        assert rules(look(layout, NOW)) == set(), "a pending report is on its way"
        with immediate(connection):
            connection.execute("UPDATE reports SET delivery = ?", (delivery,))
    # Every report is sending for a moment: counted at once, it needs attention only when it stays so.
    just_now = look(layout, NOW + attention.SENDING_SECONDS)
    assert rules(just_now) == (set() if delivery == "sending" else {"uncertain_reports"})
    assert just_now.uncertain_reports == 1
    found = look(layout, NOW + attention.SENDING_SECONDS + 1)
    assert rules(found) == {"uncertain_reports"}
    assert found.uncertain_reports == 1
    assert found.last_finished is not None
    assert found.last_finished.run is None


def raise_schema(layout: Layout, component: str, version: int) -> None:
    with opened(layout) as connection, immediate(connection):
        connection.execute("UPDATE meta SET version = ? WHERE component = ?", (version, component))


def test_a_newer_store_is_attention(layout: Layout) -> None:
    raise_schema(layout, "shop", 99)
    found = look(layout, NOW)
    assert rules(found) == {"store_newer"}
    assert found.schema_versions["shop"] == 99


def test_a_schema_that_this_release_cannot_read_is_refused_by_name(layout: Layout) -> None:
    with opened(layout) as connection, immediate(connection):
        connection.execute("ALTER TABLE reports RENAME TO letters")
        connection.execute("UPDATE meta SET version = 99 WHERE component = 'work'")
    with pytest.raises(Refused) as caught:
        look(layout, NOW)
    assert caught.value.code == "schema_differs"


def test_a_state_that_does_not_exist_is_refused_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--state", f"{tmp_path}/none/state", "health"]) == 3
    told = capsys.readouterr()
    assert "standfast init" in told.err
    assert told.out == ""
    assert not list(tmp_path.iterdir())


def test_it_answers_while_another_process_holds_the_write_lock(layout: Layout) -> None:
    with closing(sqlite3.connect(layout.database, autocommit=True)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO runs VALUES ('x', 'r', 1, '', 1.0)")
        assert look(layout, NOW).service is None
        writer.execute("ROLLBACK")


def fingerprint(layout: Layout) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in layout.state.iterdir()
        if path.is_file() and path.suffix not in {".sqlite-shm", ".sqlite-wal"}
    }


def test_it_changes_nothing(layout: Layout) -> None:
    before = fingerprint(layout)
    look(layout, NOW)
    assert fingerprint(layout) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_another_user_is_refused_before_the_store_is_opened(layout: Layout) -> None:
    os.chown(layout.state, 65534, 65534)
    for path in layout.state.glob("agent.sqlite-*"):
        path.unlink()
    with pytest.raises(Refused) as caught:
        look(layout, NOW)
    assert caught.value.code == "other_user"
    assert not list(layout.state.glob("agent.sqlite-*"))


@pytest.mark.parametrize(
    ("version", "defect"),
    [
        ((3, 6, 23), False),
        ((3, 7, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), False),
    ],
)
def test_a_sqlite_with_the_known_defect_is_a_note(version: tuple[int, int, int], defect: bool) -> None:
    assert (health.sqlite_facts(version).note is not None) is defect


def test_the_table_says_it_to_a_person(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    ask(layout, time.time() - 5_000)
    with opened(layout) as connection:
        pause(connection, "stock\x1b[2Jtaking", time.time())
    assert cli.main(["--state", str(layout.state), "health"]) == 4
    out = capsys.readouterr().out
    assert "ATTENTION" in out
    assert "PAUSED" in out
    assert "READY 1" in out
    assert "\x1b" not in out


def test_a_look_loads_only_what_it_asks(layout: Layout) -> None:
    """It runs every minute on every host: the loop, the shop and the schedules are for others."""
    unasked = ("agent.loop", "agent.tools", "shop.config", "orders.sending", "work.schedules", "supplier")
    script = (
        "import sys; from standfast.cli.main import main; main(sys.argv[2:]);"
        "print([name for name in sys.argv[1].split() if name in sys.modules])"
    )
    names = " ".join([*(f"standfast.{name}" for name in unasked), "cronsim", "httpx"])
    command = [sys.executable, "-c", script, names, "--state", str(layout.state), "health"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "service_down" in ran.stdout, ran
    assert ran.stdout.splitlines()[-1] == "[]", ran
