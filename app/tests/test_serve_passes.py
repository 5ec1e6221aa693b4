"""The service's passes, one by one in this process: what each finds, does, and leaves alone."""

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support import Counting, Instance, until_idle

from standfast.agent import Reply, Request, ScriptedModel, ToolCall
from standfast.authority import marker as markers
from standfast.authority import pause, replace, resume
from standfast.authority.marker import Marker
from standfast.errors import Refused, StoreBusy
from standfast.operations.backup import creating
from standfast.operations.restore.restoring import restore
from standfast.serve.service import Service
from standfast.shop.config import load
from standfast.shop.prompts import opening_messages
from standfast.shop.tools import ShopTools
from standfast.store import triggers
from standfast.work import add_schedule, cancel, observe


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance.make(tmp_path)


def test_work_is_finished_with_a_report_that_reaches_the_outbox(instance: Instance) -> None:
    work = instance.add().work
    assert instance.settle() == 1
    assert instance.status(work) == ("DONE", 1)
    (report,) = instance.reports(work)
    assert "Vanilla: 2 on hand" in report
    (delivered,) = instance.layout.outbox.iterdir()
    assert report in delivered.read_text()
    assert instance.rows("SELECT delivery FROM reports") == [("sent",)]
    ((release, finisher),) = instance.rows(
        "SELECT runs.release, work.run FROM work JOIN runs ON runs.id = work.run WHERE work.id = ?", work
    )
    assert release == "test"
    assert finisher


def test_every_message_of_the_turn_is_recorded_with_its_source(instance: Instance) -> None:
    work = instance.add().work
    instance.settle()
    messages = [json.loads(message) for _, message in instance.transcript(work)]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert {m["source"] for m in messages if m["role"] == "assistant"} == {"offline"}


def test_low_stock_becomes_a_report_once(tmp_path: Path) -> None:
    instance = Instance.make(tmp_path, low=True)
    assert instance.settle() == 2
    assert instance.settle() == 0
    work = instance.rows("SELECT id FROM work WHERE subject = 'vanilla'")
    assert len(work) == 1
    (report,) = instance.reports(work[0][0])
    assert report.startswith("Low stock: vanilla.")
    assert "6 needed" in report
    findings = [
        json.loads(m) for _, m in instance.transcript(work[0][0]) if json.loads(m)["role"] == "finding"
    ]
    assert [(f["gate"], f["tool_call_id"]) for f in findings] == [("allowed", "offline-2")]


@pytest.mark.parametrize("point", ["episodes.before_commit", "claim.before_commit", "deliver.before_commit"])
def test_what_is_refused_in_one_step_keeps_neither_the_other_steps_nor_the_next_pass(
    tmp_path: Path, point: str, caplog: pytest.LogCaptureFixture
) -> None:
    instance = Instance.make(tmp_path, low=True)
    work = instance.add().work
    refused = 0

    def refuse(reached: str) -> None:
        nonlocal refused
        if reached == point and not refused:
            refused += 1
            raise Refused("test", "no", observed="x")

    triggers.arm(refuse)
    try:
        with instance.service() as service:
            service.one_pass()
            service.one_pass()
            until_idle(service)
    finally:
        triggers.disarm()
    assert refused == 1
    assert "refused: code=test" in caplog.text
    assert instance.status(work) == ("DONE", 1)
    assert instance.rows("SELECT count(*) FROM reports WHERE delivery = 'sent'") == [(3,)]


def test_the_brief_comes_due_by_the_clock_once_for_each_slot(instance: Instance) -> None:
    with instance.store() as store:
        add_schedule(store, name="pulse", every=600, prompt="Write the brief.", now=instance.clock.wall())
    with instance.service() as service:
        until_idle(service)
        assert service.turns == 0
        instance.clock.pass_time(600)
        until_idle(service)
        assert service.turns == 1
        instance.clock.pass_time(6000)
        until_idle(service)
        assert service.turns == 2
    skipped = instance.rows("SELECT sum(items) FROM slots WHERE outcome = 'skipped'")
    assert skipped == [(9,)]


def test_the_wall_clock_set_back_an_hour_loses_and_doubles_nothing(instance: Instance) -> None:
    with instance.store() as store:
        add_schedule(store, name="pulse", every=600, prompt="Write the brief.", now=instance.clock.wall())
    with instance.service() as service:
        until_idle(service)
        instance.clock.pass_time(600)
        until_idle(service)
        instance.clock.step(-3600)
        asked = instance.add().work
        until_idle(service)
        assert service.turns == 2
        assert instance.status(asked) == ("DONE", 1)
        instance.clock.pass_time(3600)
        until_idle(service)
        assert service.turns == 2  # the slot that comes again has had its run
        instance.clock.pass_time(600)
        until_idle(service)
        assert service.turns == 3
    first, second = instance.rows("SELECT slot FROM slots ORDER BY slot")
    assert second[0] - first[0] == 600


def test_the_wall_clock_set_back_lengthens_no_lease(instance: Instance) -> None:
    instance.add()
    instance.claim(owner="another", lease=300)
    with instance.service() as service:
        instance.clock.step(-3600)
        instance.clock.pass_time(299)
        until_idle(service)
        assert service.turns == 0
        instance.clock.pass_time(2)
        until_idle(service)
        assert service.turns == 1


def test_waiting_never_calls_a_model(instance: Instance) -> None:
    instance.add()
    model = Counting()
    with instance.service(model) as service:
        until_idle(service)
        asked = model.calls
        for _ in range(50):
            instance.clock.pass_time(30)
            assert not service.one_pass()
        assert model.calls == asked


def test_a_turn_left_running_under_the_own_label_is_closed_and_lucy_is_asked_to_ask_again(
    instance: Instance,
) -> None:
    work = instance.add("How many\nof vanilla?").work
    claim = instance.claim(owner="lucy-agent")
    with instance.store() as store:
        observe(
            store,
            claim,
            '{"role": "system", "content": "x"}',
            clock=instance.clock,
            marker=instance.layout.marker,
        )
    model = Counting()
    instance.settle(model)
    assert instance.status(work) == ("CANCELED", 2)
    assert model.calls == 0
    (report,) = instance.reports(work)
    assert "How many" in report
    assert "please ask again" in report
    assert len(instance.transcript(work)) == 1


def test_the_work_of_another_label_is_left_alone_until_its_lease_has_passed(instance: Instance) -> None:
    work = instance.add().work
    instance.claim(owner="another", lease=300)
    with instance.service() as service:
        until_idle(service)
        assert instance.status(work) == ("RUNNING", 1)
        instance.clock.pass_time(299.9)
        until_idle(service)
        assert instance.status(work) == ("RUNNING", 1)
        instance.clock.pass_time(0.1)
        until_idle(service)
    assert instance.status(work) == ("DONE", 2)


def test_taken_over_work_goes_on_from_its_records(instance: Instance) -> None:
    """What is recorded is not asked again: the next step is the one after the last record."""
    work = instance.add().work
    instance.settle()
    whole = [message for _, message in instance.transcript(work)]
    for kept in range(len(whole) + 1):
        again = instance.add().work
        claim = instance.claim(owner="another", lease=10)
        with instance.store() as store:
            for message in whole[:kept]:
                observe(store, claim, message, clock=instance.clock, marker=instance.layout.marker)
        instance.clock.pass_time(11)
        model = Counting()
        instance.settle(model)
        assert instance.status(again) == ("DONE", 2)
        rows = instance.transcript(again)
        assert [message for _, message in rows] == whole
        assert [generation for generation, _ in rows] == [1] * kept + [2] * (len(whole) - kept)
        assert model.calls == sum('"role": "assistant"' in message for message in whole[kept:])
        assert len(instance.reports(again)) == 1


def test_a_finding_is_kept_once_when_its_answer_was_cut_off(tmp_path: Path) -> None:
    instance = Instance.make(tmp_path, low=True)
    work = instance.add(subject="vanilla").work
    call = ToolCall("offline-2", "record_finding", '{"text": "vanilla is low"}')
    claim = instance.claim(owner="another", lease=10)
    with instance.store() as store:
        tools = ShopTools(store, claim, load(instance.layout.shop), instance.clock, instance.layout.marker)
        assert tools.dispatcher().dispatch(call).ok
        assert tools.dispatcher().dispatch(call).ok
    assert len(instance.transcript(work)) == 1


def test_nothing_is_done_while_paused_and_all_of_it_afterwards(tmp_path: Path) -> None:
    instance = Instance.make(tmp_path, low=True)
    with instance.store() as store:
        pause(store, "stocktaking", instance.clock.now())
    work = instance.add().work
    model = Counting()
    with instance.service(model) as service:
        until_idle(service)
        assert (service.turns, model.calls) == (0, 0)
        assert instance.rows("SELECT count(*) FROM episodes") == [(0,)]
        with instance.store() as store:
            resume(store, instance.layout.marker, "done", instance.clock.now())
        until_idle(service)
        assert service.turns == 3
    assert instance.status(work) == ("DONE", 1)


def test_a_run_that_a_restore_went_past_is_on_record_there(instance: Instance) -> None:
    """Else finished work would name a run that nobody can show, and health and canaries would be refused."""
    backup = creating.create(instance.layout, creating.Request()).folder
    with instance.service() as service:
        until_idle(service)
        restore(instance.layout, backup, now=time.time(), live=True)
        until_idle(service)
        assert instance.rows("SELECT count(*) FROM runs") == [(0,)]
        with instance.store() as store:
            resume(store, instance.layout.marker, "recovered", instance.clock.now())
        work = instance.add().work
        until_idle(service)
    assert instance.status(work) == ("DONE", 1)
    (row,) = instance.rows(
        "SELECT runs.release, pid FROM runs JOIN work ON work.run = runs.id WHERE work.id = ?", work
    )
    assert row == ("test", os.getpid())


def unavailable(instance: Instance, found: Marker) -> None:
    instance.layout.marker.unlink()
    del found


def other_epoch(instance: Instance, found: Marker) -> None:
    markers.write(instance.layout.marker, Marker("f" * 32, found.host))


def other_host(instance: Instance, found: Marker) -> None:
    markers.write(instance.layout.marker, Marker(found.epoch, "0" * 64))


@pytest.mark.parametrize("broken", [unavailable, other_epoch, other_host])
def test_a_marker_that_does_not_fit_stops_all_work(
    tmp_path: Path, broken: Callable[[Instance, Marker], None]
) -> None:
    instance = Instance.make(tmp_path, low=True)
    work = instance.add().work
    found = markers.read(instance.layout.marker)
    assert found is not None
    broken(instance, found)
    with instance.service() as service:
        until_idle(service)
        assert instance.status(work) == ("READY", 0)
        assert instance.rows("SELECT * FROM episodes") == []
        markers.write(instance.layout.marker, found)
        until_idle(service)
        assert instance.status(work) == ("DONE", 1)


def test_an_era_that_ends_in_the_middle_of_a_turn_ends_the_turn(instance: Instance) -> None:
    work = instance.add().work

    def end_era(request: Request) -> None:
        if len(request.messages) > 2:
            with instance.store() as store:
                replace(store, instance.layout, "restored", instance.clock.now())

    with instance.service(Counting(end_era)) as service:
        until_idle(service)
        assert service.turns == 0
    rows = instance.transcript(work)
    assert len(rows) == 4
    assert instance.reports(work) == []
    assert instance.status(work) == ("READY", 2)
    with instance.store() as store:
        resume(store, instance.layout.marker, "recovered", instance.clock.now())
    instance.settle()
    assert instance.status(work) == ("DONE", 3)
    assert [generation for generation, _ in instance.transcript(work)] == [1, 1, 1, 1, 3]


def test_the_gate_s_decisions_are_in_the_journal_with_their_own_sentence(
    instance: Instance, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "standfast")
    call = Reply(calls=(ToolCall("first", "record_finding", '{"text": "a"}'),))
    allowed = instance.add().work
    instance.settle(ScriptedModel([call, Reply(text="done")]))
    assert f"gate allowed: work={allowed} call=first tool=record_finding" in caplog.text

    refused = instance.add().work
    recorded: list[str] = []

    def pause_once_the_call_is_recorded(point: str) -> None:
        recorded.extend([point] * (point == "observe.committed"))
        if len(recorded) == 3 and point == "observe.committed":  # system, user, the reply with its call
            with instance.store() as store:
                pause(store, "a look", instance.clock.now())

    triggers.arm(pause_once_the_call_is_recorded)
    try:
        instance.settle(ScriptedModel([call, Reply(text="done")]))
    finally:
        triggers.disarm()
    told = f"gate refused: work={refused} call=first tool=record_finding"
    assert f'{told} reason="runtime paused or replaced by restore"' in caplog.text


def test_work_canceled_in_the_middle_of_its_turn_gets_no_report(instance: Instance) -> None:
    work = instance.add().work

    def cancel_it(_request: Request) -> None:
        with instance.store() as store:
            cancel(store, work, reason="test", now=instance.clock.now())

    instance.settle(Counting(cancel_it))
    assert instance.status(work)[0] == "CANCELED"
    assert instance.reports(work) == []


def test_a_long_turn_keeps_its_lease(instance: Instance) -> None:
    work = instance.add().work
    looks = [Reply(calls=(ToolCall(f"c{n}", "list_stock", "{}"),)) for n in range(6)]
    replies = iter([*looks, Reply(text="Done.")])

    def slow(_request: Request) -> Reply:
        instance.clock.pass_time(140)
        return next(replies)

    instance.settle(ScriptedModel([slow] * 7))
    assert instance.status(work) == ("DONE", 1)


def test_a_turn_that_ends_at_a_limit_is_blocked_and_says_why(instance: Instance) -> None:
    work = instance.add("Impossible").work
    instance.settle(ScriptedModel([]))
    assert instance.status(work) == ("BLOCKED", 1)
    (report,) = instance.reports(work)
    assert "could not be finished" in report
    assert "the script has no turn left" in report
    reason = instance.rows("SELECT reason FROM work WHERE id = ?", work)
    assert reason == [("MODEL_FAILED: the script has no turn left",)]


def test_a_report_longer_than_a_report_can_be_is_cut_and_says_so(instance: Instance) -> None:
    work = instance.add().work
    instance.settle(ScriptedModel([Reply(text="caf\u00e9 " * 15_000)]))
    assert instance.status(work) == ("DONE", 1)
    (report,) = instance.reports(work)
    assert report.endswith("longer than a report can be]")
    assert len(report.encode()) <= 64 * 1024


def test_a_report_that_cannot_leave_is_kept_and_leaves_later(instance: Instance) -> None:
    instance.layout.outbox.write_text("in the way")
    instance.add()
    with instance.service() as service:
        until_idle(service)
        assert instance.rows("SELECT delivery FROM reports") == [("pending",)]
        instance.layout.outbox.unlink()
        until_idle(service)
    assert instance.rows("SELECT delivery FROM reports") == [("sent",)]
    assert len(list(instance.layout.outbox.iterdir())) == 1


def test_a_store_locked_in_the_middle_of_a_turn_costs_nothing_but_time(instance: Instance) -> None:
    work = instance.add().work
    locked = threading.Event()
    other = sqlite3.connect(instance.layout.database, autocommit=True, check_same_thread=False)

    def lock(request: Request) -> None:
        if len(request.messages) > 2 and not locked.is_set():
            locked.set()
            other.execute("BEGIN IMMEDIATE")

    model = Counting(lock)
    with instance.service(model) as service:
        service._connection.execute("PRAGMA busy_timeout = 50")
        with pytest.raises(Exception, match="lock") as caught:
            until_idle(service)
        assert caught.typename == "StoreBusy"
        assert instance.status(work) == ("RUNNING", 1)
        other.execute("ROLLBACK")
        other.close()
        until_idle(service)
        assert service.turns == 1
    assert instance.status(work) == ("DONE", 1)
    assert len(instance.transcript(work)) == 5
    assert len(instance.reports(work)) == 1


def settled(service: Service) -> bool:
    """Whether it came to rest, and not to a store that was locked."""
    try:
        until_idle(service)
    except StoreBusy:
        return False
    return True


def test_a_store_locked_after_any_commit_costs_nothing_but_time(tmp_path: Path) -> None:
    """Longer than one write waits, and shorter than two: a tool that could not write is no failed tool."""
    said: list[list[str]] = []
    locked = True
    while locked:
        (folder := tmp_path / str(len(said))).mkdir()
        instance = Instance.make(folder, low=True)
        instance.add()
        locked, left = False, len(said)
        other = sqlite3.connect(instance.layout.database, autocommit=True, check_same_thread=False)

        def lock(point: str, other: sqlite3.Connection = other) -> None:
            nonlocal locked, left
            if point.endswith(".committed") and not locked:
                left -= 1
                if locked := left < 0:
                    other.execute("BEGIN IMMEDIATE")
                    threading.Timer(0.05, other.execute, ["ROLLBACK"]).start()

        with closing(other), instance.service() as service:
            service._connection.execute("PRAGMA busy_timeout = 30")
            triggers.arm(lock)
            try:
                while not settled(service):
                    pass
            finally:
                triggers.disarm()
            while other.in_transaction:
                time.sleep(0.005)
        assert set(instance.rows("SELECT status, generation FROM work")) == {("DONE", 1)}
        said.append([body for (body,) in instance.rows("SELECT body FROM reports ORDER BY body")])
    assert len(said) > 10
    assert all(one == said[-1] for one in said)


class Died(BaseException):
    """Stands for the death of the process at a commit boundary."""


def test_a_death_at_any_commit_boundary_loses_and_doubles_nothing(tmp_path: Path) -> None:
    point = 0
    reached: set[str] = set()
    while True:
        folder = tmp_path / str(point)
        folder.mkdir()
        instance = Instance.make(folder, low=True)
        asked = instance.add().work
        count = 0

        def die(name: str, at: int = point) -> None:
            nonlocal count
            count += 1
            if count > at:
                reached.add(name)
                raise Died(name)

        triggers.arm(die)
        died = False
        try:
            instance.settle()
        except Died:
            died = True
        finally:
            triggers.disarm()
        if not died:
            break
        instance.settle()
        assert instance.settle() == 0
        work = instance.rows("SELECT id, status FROM work ORDER BY seq")
        statuses = sorted(status for _, status in work)  # at most one turn was cut off by the death
        assert statuses in (["DONE"] * 3, ["CANCELED", "DONE", "DONE"])
        assert asked in {one for one, _ in work}
        for one, _ in work:
            assert len(instance.reports(one)) == 1
            findings = [m for _, m in instance.transcript(one) if '"role": "finding"' in m]
            assert len(findings) == len(set(findings)) <= 2
        assert instance.rows("SELECT count(*) FROM episodes") == [(2,)]
        assert instance.rows("SELECT count(*) FROM reports WHERE delivery <> 'sent'") == [(0,)]
        assert len(list(instance.layout.outbox.iterdir())) == 3
        point += 3 if point > 9 else 1
    assert {"episodes", "claim", "observe", "finish", "deliver"} <= {
        name.partition(".")[0] for name in reached
    }


def test_a_changed_skill_does_not_change_a_turn_that_has_begun(instance: Instance) -> None:
    work = instance.add().work
    claim = instance.claim(owner="another", lease=10)
    opening = opening_messages(
        load(instance.layout.shop), skill="Opening: As it was.\n", prompt=claim.prompt, subject=None
    )
    with instance.store() as store:
        for message in opening:
            observe(store, claim, json.dumps(message), clock=instance.clock, marker=instance.layout.marker)
    instance.clock.pass_time(11)
    instance.settle()
    assert instance.reports(work)[0].startswith("As it was.")


def test_a_stop_in_the_middle_of_a_pass_begins_no_work(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that is not begun would be closed at the next start as if it had been interrupted."""
    work = instance.add().work
    with instance.service() as service:
        stop = service._stop

        def asked(*_: object, **__: object) -> list[object]:
            stop.requested = True
            return []

        monkeypatch.setattr("standfast.serve.service.fire_due", asked)
        service.one_pass()
    assert instance.status(work) == ("READY", 0)
