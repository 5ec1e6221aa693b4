"""The canary proves that the running service finishes new work, and otherwise says what it left behind."""

import json
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from serving import PATIENCE, instance, service
from support import Instance, Process, eventually

from standfast import work
from standfast.authority import claim_next, marker, pause
from standfast.clock import Clock
from standfast.errors import Refused
from standfast.layout import Layout
from standfast.operations import canary
from standfast.operations.canary import CanaryFailed, Expectation
from standfast.operations.health import look
from standfast.operations.schema import COMPONENTS
from standfast.store import Store, immediate, open_store


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return instance(tmp_path)


def opened(layout: Layout) -> closing[Store]:
    return closing(open_store(layout.database, COMPONENTS))


def items(layout: Layout) -> list[work.WorkItem]:
    with opened(layout) as connection:
        return [item for item in work.list_work(connection) if item.session.startswith("canary")]


def take(layout: Layout, owner: str = "somebody") -> Any:
    with opened(layout) as connection:
        return claim_next(connection, owner=owner, now=Clock().now(), marker=layout.marker)


def test_the_running_service_finishes_it_with_a_report(layout: Layout) -> None:
    with opened(layout) as connection:  # another canary, stuck with a worker that is gone
        work.admit(connection, origin="canary:old", session="canary", prompt="?", now=Clock().now())
    assert take(layout, "stuck") is not None
    with service(layout) as process:
        result = canary.run(layout, timeout=PATIENCE, expect=Expectation(pid=process.pid, release="source"))
        assert (result.changed, result.check, result.generation) == (True, False, 1)
        assert result.run is not None
        assert (result.run.pid, result.run.release) == (process.pid, "source")
        assert result.seconds is not None
        with opened(layout) as connection:
            item = work.show_work(connection, str(result.work))
            assert (item.status, item.run) == ("DONE", result.run.id)
            report = work.show_report(connection, str(result.report))
            assert report.work == result.work
            assert report.body.startswith("This is a canary")
            assert "Lucy" not in report.body
            assert "Vanilla: 2 on hand" in report.body
        again = canary.run(layout, timeout=PATIENCE)
        assert again.work != result.work, "every canary is new work"
        for expect in (Expectation(pid=process.pid + 1), Expectation(release="another")):
            with pytest.raises(CanaryFailed) as caught:
                canary.run(layout, timeout=PATIENCE, expect=expect)
            assert caught.value.code == "finished_by_other"
            assert str(process.pid) in caught.value.observed


def test_the_command_prints_what_a_receipt_needs(layout: Layout) -> None:
    with service(layout) as process:
        told = subprocess.run(
            [sys.executable, "-I", "-m", "standfast", "--json", "--state", str(layout.state), "canary"],
            capture_output=True,
            text=True,
            check=True,
        )
    found = json.loads(told.stdout)
    assert {"work", "generation", "seconds", "run"} <= set(found)
    assert found["run"]["pid"] == process.pid


def test_without_a_service_it_takes_its_request_back(layout: Layout) -> None:
    with pytest.raises(CanaryFailed) as caught:
        canary.run(layout, timeout=0.05)
    assert caught.value.code == "canary_timeout"
    assert "was never claimed and has been canceled" in str(caught.value)
    assert "never started" in caught.value.observed
    assert [item.status for item in items(layout)] == ["CANCELED"]


def test_what_a_worker_has_claimed_is_left_to_it(layout: Layout) -> None:
    def claimed(_seconds: float) -> None:
        take(layout)

    with pytest.raises(CanaryFailed) as caught:
        canary.run(layout, timeout=0.3, sleep=claimed)
    assert "RUNNING and was left to the service" in str(caught.value)
    assert [item.status for item in items(layout)] == ["RUNNING"]


def test_an_interruption_takes_the_request_back(layout: Layout) -> None:
    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        canary.run(layout, sleep=interrupted)
    assert [item.status for item in items(layout)] == ["CANCELED"]


@pytest.mark.parametrize(("status", "report"), [("BLOCKED", None), ("BLOCKED", "stuck"), ("CANCELED", "no")])
def test_an_end_that_is_not_done_is_no_proof(layout: Layout, status: Any, report: str | None) -> None:
    def end(_seconds: float) -> None:
        claim = take(layout)
        with opened(layout) as connection:
            work.finish(
                connection, claim, status, clock=Clock(), marker=layout.marker, report=report, run="r"
            )

    with pytest.raises(CanaryFailed) as caught:
        canary.run(layout, sleep=end)
    assert caught.value.code == "canary_not_done"
    assert status in str(caught.value)


def test_a_process_that_dies_in_the_turn_is_no_proof(tmp_path: Path) -> None:
    """The next process ends that turn with a report; what it ended is not what was asked."""
    died = Instance.make(tmp_path)
    layout = died.layout
    before = look(layout, Clock().now()).last_finished
    with Process(died, pausing=tmp_path).ready() as first, ExitStack() as later:

        def die_and_start_again(_seconds: float) -> None:
            if first.process.poll() is None:
                eventually((tmp_path / "in-call").exists)
                first.kill()
                later.enter_context(Process(died).ready())

        with pytest.raises(CanaryFailed) as caught:
            canary.run(layout, timeout=PATIENCE, sleep=die_and_start_again)
        assert caught.value.code == "canary_not_done"
        assert "interrupted" in caught.value.observed
    [item] = items(layout)
    assert len(died.reports(item.id)) == 1
    assert look(layout, Clock().now()).last_finished == before


def test_work_done_only_by_a_second_claim_is_no_proof(layout: Layout) -> None:
    def claimed_twice(_seconds: float) -> None:
        take(layout)
        with opened(layout) as connection:
            later = Clock().now() + 301
            claim = claim_next(connection, owner="other", now=later, marker=layout.marker)
            assert claim is not None
            clock = Clock()
            run = work.start_run(connection, release="r", pid=1, invocation="", now=later)
            work.finish(connection, claim, "DONE", clock=clock, marker=layout.marker, report="x", run=run)

    with pytest.raises(CanaryFailed) as caught:
        canary.run(layout, sleep=claimed_twice)
    assert "generation 2" in str(caught.value)


def refused(layout: Layout) -> str:
    with pytest.raises(Refused) as caught:
        canary.run(layout, timeout=0.05)
    assert items(layout) == [], "a refusal asks for nothing"
    return caught.value.code


def test_it_is_refused_while_paused(layout: Layout) -> None:
    with opened(layout) as connection:
        pause(connection, "stock-taking", 1.0)
    assert refused(layout) == "paused"


def test_it_is_refused_while_the_marker_disagrees(layout: Layout) -> None:
    marker.write(layout.marker, marker.Marker(epoch="f" * 32, host="h"))
    assert refused(layout) == "marker_disagrees"


def test_it_never_moves_the_schema(layout: Layout) -> None:
    with opened(layout) as connection, immediate(connection):
        connection.execute("DELETE FROM meta WHERE component = 'shop'")
    before = layout.database.read_bytes()
    with pytest.raises(Refused) as caught:
        canary.run(layout, timeout=0.05)
    assert caught.value.code == "schema_differs"
    assert layout.database.read_bytes() == before


def test_check_asks_for_nothing(layout: Layout) -> None:
    result = canary.run(layout, check=True)
    assert (result.changed, result.check, result.work) == (True, True, None)
    assert items(layout) == []


def test_a_state_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        canary.run(Layout(tmp_path / "none" / "state"))
    assert caught.value.code == "store_absent"
    assert not list(tmp_path.iterdir())
