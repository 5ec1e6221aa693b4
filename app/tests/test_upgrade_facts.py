"""Business facts: what they count, that nothing else changes their digest, and what explains a difference."""

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from buying import Buying
from support import COMPONENTS, HandClock, Instance

from standfast.cli import main as cli
from standfast.operations.upgrade import facts
from standfast.operations.upgrade.facts import Comparison, Reading
from standfast.store import immediate, open_store
from standfast.work import cancel


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    instance = Instance.make(tmp_path)
    instance.add("one")
    with instance.service() as service:
        while service.one_pass():
            pass
    return instance


def take(instance: Instance) -> Reading:
    return facts.take(instance.layout, time.time())


def compare(instance: Instance, before: Reading) -> Comparison:
    return facts.compare(instance.layout, before, time.time())


def write(instance: Instance, *statements: str) -> None:
    """Behind the back of every rule."""
    with closing(sqlite3.connect(instance.layout.database, autocommit=True)) as connection:
        for (trigger,) in connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'trigger'"
        ).fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
        for statement in statements:
            connection.execute(statement)


def test_the_facts_are_those_of_the_store(instance: Instance) -> None:
    instance.add("two")
    found = take(instance).facts
    assert found.work == {"DONE": 1, "READY": 1}
    assert found.reports == {"sent": 1}
    assert found.stock == {"chocolate": 9, "strawberry": 1, "vanilla": 2}
    assert (found.orders, found.spent_cents, found.reserved_cents) == ({}, 0, 0)
    assert found.schema_versions["work"] == 3


def test_the_digest_is_of_the_business_alone(instance: Instance) -> None:
    first, later = (facts.take(instance.layout, now).facts for now in (1.0, 2.0))
    assert first.at != later.at
    assert first.digest == later.digest
    write(instance, "UPDATE meta SET version = version + 1", "CREATE TABLE notes (x)")
    assert facts.take(instance.layout, 3.0).facts.digest == first.digest
    assert facts.differences(first, facts.take(instance.layout, 3.0).facts) == []


def test_the_command_shows_them_and_leaves_no_trace(
    instance: Instance, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted((path.name, path.stat().st_mtime_ns) for path in instance.layout.state.iterdir())
    assert cli.main(["--json", "--state", str(instance.layout.state), "facts"]) == 0
    assert sorted((path.name, path.stat().st_mtime_ns) for path in instance.layout.state.iterdir()) == before
    assert json.loads(capsys.readouterr().out)["digest"] == take(instance).facts.digest


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE stock_events SET delta = delta + 1 WHERE sku = 'vanilla'", "stock"),
        ("DELETE FROM stock_events WHERE sku = 'vanilla'", "stock"),
        ("UPDATE work SET status = 'CANCELED' WHERE status = 'DONE'", "work"),
        ("DELETE FROM reports", "reports"),
        ("UPDATE operations SET epoch = 'another'", "epoch"),
    ],
)
def test_what_no_row_explains_is_a_difference(instance: Instance, statement: str, told: str) -> None:
    before = take(instance)
    write(instance, statement)
    found = compare(instance, before)
    assert found.unexplained
    assert all(line.startswith(told) for line in found.unexplained)
    assert facts.differences(before.facts, found.facts)[0].startswith(told)


def test_an_event_that_is_dated_back_explains_nothing(instance: Instance) -> None:
    before = take(instance)
    write(instance, "INSERT INTO stock_events VALUES ('x', 'vanilla', 5, 'found', 1.0)")
    assert (
        "stock vanilla: +5, of which rows written since explain +0" in compare(instance, before).unexplained
    )


def test_work_and_its_report_explain_themselves(instance: Instance) -> None:
    instance.add("waits")
    before = take(instance)
    instance.add("two")
    with instance.service() as service:
        while service.one_pass():
            pass
    found = compare(instance, before)
    assert found.unexplained == []
    assert found.explained[:3] == ["work DONE: +2", "work READY: -1", "reports sent: +2"]
    assert found.facts.work == {"DONE": 3}


def test_work_that_was_canceled_since_is_explained(instance: Instance) -> None:
    waits = instance.add("waits").work
    assert waits is not None
    before = take(instance)
    with instance.store() as connection:
        cancel(connection, waits, reason="a test", now=time.time())
    found = compare(instance, before)
    assert (found.unexplained, found.facts.work) == ([], {"CANCELED": 1, "DONE": 1})


def test_stock_that_was_counted_since_is_explained(instance: Instance) -> None:
    before = take(instance)
    with instance.store() as connection, immediate(connection):
        connection.execute(
            "INSERT INTO stock_events VALUES ('count:1', 'vanilla', -1, 'broken', ?)", (time.time() + 1,)
        )
    found = compare(instance, before)
    assert (found.unexplained, found.explained) == ([], ["stock vanilla: -1"])


def test_orders_are_explained_by_their_own_history(tmp_path: Path) -> None:
    """One is new, one is sent under its reservation, and one was reserved and is revoked."""
    shop = Buying(tmp_path)
    open_store(shop.layout.database, COMPONENTS).close()
    with closing(shop):
        claim, sent = shop.approved(quantity=2)
        _, revoked = shop.approved(quantity=3)
        before = facts.take(shop.layout, shop.now())
        assert before.facts.orders == {"APPROVED": 2}
        assert before.facts.reserved_cents == sent.total_cents + revoked.total_cents
        shop.send(sent, claim)
        shop.revoke(revoked)
        shop.propose(shop.claimed(), quantity=4)
        found = facts.compare(shop.layout, before, shop.now())
        assert found.unexplained == []
        assert found.facts.orders == {"CONFIRMED": 1, "DRAFT": 1, "REVOKED": 1}
        assert (found.facts.reserved_cents, found.facts.spent_cents) == (0, sent.total_cents)
        assert f"order {sent.id}: APPROVED -> CONFIRMED" in found.explained
        later = facts.take(shop.layout, shop.now())
        shop.connection.execute("DROP TRIGGER orders_changed")
        shop.connection.execute("DROP TRIGGER orders_rules")
        shop.connection.execute("UPDATE orders SET status = 'REVOKED' WHERE status = 'DRAFT'")
        assert facts.compare(shop.layout, later, shop.now()).unexplained == [
            "orders DRAFT: -1, of which rows written since explain +0",
            "orders REVOKED: +1, of which rows written since explain +0",
        ]


def works(instance: Instance) -> tuple[str, str]:
    """Something is done by a new start of the service; the release that did it, and the work."""
    work = instance.add("again").work
    assert work is not None
    with instance.service() as service:
        while service.one_pass():
            pass
    [(release,)] = instance.rows(
        "SELECT release FROM runs JOIN work ON work.run = runs.id WHERE work.id = ?", work
    )
    return str(release), work


def another_clock(instance: Instance, seconds: float) -> Instance:
    """As new processes see it once the wall clock was set; within one, time never goes back."""
    return Instance(instance.layout, HandClock(instance.clock.now() + seconds))


@pytest.mark.parametrize("set_by", [-86400.0, 0.0, 86400.0], ids=["back", "not", "forward"])
def test_who_began_to_serve_since_is_known_whatever_the_clock_was_set_to(
    instance: Instance, set_by: float
) -> None:
    """The clock is set between the marks and what comes then."""
    release, _ = works(instance)
    instance.clock.pass_time(1)
    marks = facts.take(instance.layout, instance.clock.now()).marks
    instance = another_clock(instance, set_by)
    assert not facts.was_started(instance.layout, marks, release)
    assert facts.first_finished(instance.layout, marks, release) is None
    _, work = works(instance)
    assert facts.was_started(instance.layout, marks, release)
    [(finished_at,)] = instance.rows("SELECT finished_at FROM work WHERE id = ?", work)
    assert facts.first_finished(instance.layout, marks, release) == finished_at
    assert not facts.was_started(instance.layout, marks, "another")
    assert facts.first_finished(instance.layout, marks, "another") is None


def test_a_start_that_the_clock_has_put_into_the_future_is_no_new_one(instance: Instance) -> None:
    release, _ = works(another_clock(instance, 86400))
    marks = facts.take(instance.layout, instance.clock.now()).marks
    assert not facts.was_started(instance.layout, marks, release)
    assert facts.first_finished(instance.layout, marks, release) is None


def test_marks_of_an_older_release_go_by_the_clock(instance: Instance) -> None:
    release, _ = works(instance)
    instance.clock.pass_time(1)
    written = facts.take(instance.layout, instance.clock.now()).marks.model_dump(exclude={"runs"})
    marks = facts.Marks.model_validate(written)
    assert not facts.was_started(instance.layout, marks, release)
    works(instance)
    assert facts.was_started(instance.layout, marks, release)


def plan(rows: list[tuple[object, ...]]) -> str:
    return " ".join(str(row[-1]) for row in rows)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT status, seq FROM work WHERE status = 'READY' OR status = 'RUNNING' OR status = 'BLOCKED'",
        "SELECT status, count(*) FROM work WHERE status = 'CANCELED' OR status = 'REJECTED' GROUP BY status",
        "SELECT delivery, seq FROM reports WHERE delivery <> 'sent'",
        "SELECT count(*) FROM work",
        "SELECT count(*) FROM reports",
    ],
)
def test_no_query_reads_finished_rows_one_by_one(instance: Instance, query: str) -> None:
    found = plan(instance.rows(f"EXPLAIN QUERY PLAN {query}"))
    assert "INDEX" in found, found
