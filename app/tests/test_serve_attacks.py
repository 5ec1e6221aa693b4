"""A running service in bad company: real processes while the world around them is pulled away."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from supplying import Supplier, epoch, supplier
from support import Instance, Process, eventually
from test_orders_service import holding_the_lock
from world import dump

from standfast import orders
from standfast.authority import marker as markers
from standfast.authority.marker import Marker
from standfast.cli import main as cli
from standfast.operations.health import Health, look
from standfast.work import add_schedule

DAY = 86_400.0

type Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Supplier]:
    (tmp_path / "supplier").mkdir()
    with supplier(tmp_path / "supplier") as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path) -> Instance:
    """Low on vanilla and strawberry."""
    return Instance.make(tmp_path, low=True)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(instance: Instance, *words: str) -> tuple[int, dict[str, Any]]:
        code = cli.main(["--json", "--state", str(instance.layout.state), *words])
        return code, json.loads(capsys.readouterr().out)

    return call


def drafts(instance: Instance) -> dict[str, orders.Order]:
    """Both, once the service has proposed them."""
    eventually(lambda: len(instance.rows("SELECT 1 FROM orders WHERE status = 'DRAFT'")) == 2)
    with instance.store() as store:
        return {one.sku: one for one in orders.list_orders(store)}


def status(instance: Instance, order: orders.Order) -> str:
    [(found,)] = instance.rows("SELECT status FROM orders WHERE id = ?", order.id)
    return str(found)


def health(instance: Instance) -> Health:
    return look(instance.layout, time.time())


def told(instance: Instance, rule: str) -> str:
    return "".join(one.observed for one in health(instance).attention if one.rule == rule)


# The supplier.


@contextmanager
def in_mid_send(shop: Instance, account: Supplier, run: Run) -> Iterator[orders.Order]:
    """A running service, and its approved order whose answer the supplier holds back for some seconds."""
    with Process(shop, pausing=None, **account.taken_over_by(shop.epoch())).ready():
        order = drafts(shop)["vanilla"]
        account.fault("delay", seconds=5)
        assert run(shop, "order", "approve", order.digest, "--operator", "lucy")[0] == 0
        eventually(lambda: status(shop, order) == "SENDING")
        yield order


def test_work_canceled_in_mid_send_is_settled_as_soon_as_the_supplier_answers(
    shop: Instance, account: Supplier, run: Run
) -> None:
    with in_mid_send(shop, account, run) as order:
        code, canceled = run(shop, "work", "cancel", str(order.work))
        assert (code, canceled["orders_sent"]) == (0, [order.id])
        shown = run(shop, "order", "show", order.id)[1]
        assert (shown["order"]["status"], shown["asked_about_at"] is None) == ("SENDING", False)
        eventually(lambda: status(shop, order) == "CONFIRMED")
        assert health(shop).spending.spent_cents == order.total_cents
    assert len(account.receipts()) == 1


def test_an_account_that_a_newer_epoch_took_gets_nothing_and_health_says_so(
    shop: Instance, account: Supplier, run: Run
) -> None:
    environment = account.taken_over_by(shop.epoch())
    with Process(shop, pausing=None, **environment).ready():
        found = drafts(shop)
        account.taken_over_by(epoch(9))
        order = found["vanilla"]
        assert run(shop, "order", "approve", order.digest, "--operator", "lucy")[0] == 0
        eventually(lambda: "belongs to another epoch" in told(shop, "supplier_failing"))
        # Not refused by the supplier, nor on its way: still to be sent, if ever this copy is to go on.
        assert status(shop, order) == "APPROVED"
        assert run(shop, "health")[0] == 4
        shop.layout.environment.write_text("".join(f'{k}="{v}"\n' for k, v in environment.items()))
        code, by_hand = run(shop, "order", "send", order.id)
        assert (code, by_hand["refused"]["code"]) == (3, "account_other_epoch")
    with Process(shop, pausing=None, **environment).ready():  # finds it so before there is anything to send
        eventually(lambda: "belongs to another epoch" in told(shop, "supplier_failing"))
    assert account.receipts() == []


def test_an_account_that_is_taken_in_mid_send_refuses_once_and_health_says_why(
    shop: Instance, account: Supplier, run: Run
) -> None:
    with in_mid_send(shop, account, run) as order:
        account.taken_over_by(epoch(9))
        eventually(lambda: status(shop, order) == "REJECTED")
        shown = run(shop, "order", "show", order.id)[1]["order"]
        assert "stale_epoch" in shown["note"]
        assert (shown["attempts"], shown["reserved_cents"], shown["spent_cents"]) == (1, 0, 0)
        eventually(lambda: "belongs to another epoch" in told(shop, "supplier_failing"))
    assert account.receipts() == []


# The clock.


@pytest.mark.parametrize("step", [-DAY, DAY])
def test_a_clock_that_is_set_by_a_day_lengthens_no_lease_and_neither_loses_nor_doubles(
    tmp_path: Path, step: float
) -> None:
    instance = Instance.make(tmp_path)
    with instance.store() as store:
        add_schedule(store, name="pulse", every=7200, prompt="Write the brief.", now=time.time())
    held = instance.add("Mine?", session="held").work
    assert instance.claim(owner="another", lease=15.0).work == held
    [(until,)] = instance.rows("SELECT lease_until FROM work WHERE id = ?", held)
    begun = instance.add("Now?", session="begun").work
    with Process(instance, pausing=tmp_path).ready():
        eventually((tmp_path / "in-call").exists)
        set_clock(tmp_path, step)
        later = instance.add("And later?", session="later").work
        (tmp_path / "go-on").touch()
        eventually(lambda: instance.status(later)[0] == "DONE")
        eventually(lambda: instance.status(begun)[0] == "DONE")
        # Back: the claim went on within its lease. Forward: it had passed, and the work was claimed again.
        assert instance.status(begun)[1] == (1 if step < 0 else 2)
        assert [len(instance.reports(work)) for work in (begun, later)] == [1, 1]

        # Another's lease ends when it would have, or, forward, at once: it is never longer, nor taken away.
        if step < 0:
            assert instance.status(held) == ("RUNNING", 1) or time.time() >= until
            eventually(lambda: time.time() > until)
            instance.add("And then?", session="then")
        eventually(lambda: instance.status(held) == ("DONE", 2))

        # A slot that came by a clock set forward does not come again when that is put right.
        slots = len(fired(instance))
        assert slots == (0 if step < 0 else 1)
        for seconds in (0.0, DAY, -DAY, DAY):
            set_clock(tmp_path, seconds)
            asked = instance.add(f"At {seconds}?", session=f"at {seconds}").work
            eventually(lambda work=asked: instance.status(work)[0] == "DONE")  # type: ignore[misc]
            slots = max(slots, int(seconds == DAY))
            eventually(lambda wanted=slots: len(fired(instance)) == wanted)  # type: ignore[misc]
    assert len(fired(instance)) == 1
    assert instance.rows("PRAGMA integrity_check") == [("ok",)]


def set_clock(folder: Path, step: float) -> None:
    beside = folder / "step.new"
    beside.write_text(str(step))
    beside.rename(folder / "step")


def fired(instance: Instance) -> list[Any]:
    return instance.rows("SELECT slot FROM slots WHERE outcome = 'fired'")


# The marker.


def removed(marker: Path) -> None:
    marker.unlink()


def replaced(marker: Path) -> None:
    markers.write(marker, Marker("f" * 32, markers.host_identity()))


def unreadable(marker: Path) -> None:
    marker.unlink()
    marker.mkdir()


@pytest.mark.parametrize("attack", [removed, replaced, unreadable])
def test_a_marker_that_goes_while_work_is_running_stops_every_write_until_it_is_back(
    tmp_path: Path, attack: Callable[[Path], None]
) -> None:
    instance = Instance.make(tmp_path)
    marker = instance.layout.marker
    kept = markers.read(marker)
    assert kept is not None
    work = instance.add("Now?").work
    with Process(instance, pausing=tmp_path).ready() as process:
        eventually((tmp_path / "in-call").exists)
        attack(marker)
        with instance.store() as store:
            before = dump(store)
        (tmp_path / "go-on").touch()
        eventually(lambda: "status=AUTHORITY_LOST" in process.log)
        with instance.store() as store:
            assert dump(store) == before
        waiting = instance.add("And later?", session="later").work
        eventually(lambda: "not working: " in process.log)
        assert instance.status(waiting) == ("READY", 0)
        assert "does not name the database's epoch" in told(instance, "marker_disagrees")

        if marker.is_dir():
            marker.rmdir()
        markers.write(marker, kept)
        instance.add("Are you there?", session="third")  # by itself it looks again within a minute
        eventually(lambda: instance.status(waiting)[0] == "DONE")
        assert told(instance, "marker_disagrees") == ""
        set_clock(tmp_path, 301.0)  # what was begun is taken up again once its lease has passed
        instance.add("And now?", session="fourth")
        eventually(lambda: instance.status(work) == ("DONE", 2))
        assert process.terminate() == 0
    assert [len(instance.reports(one)) for one in (work, waiting)] == [1, 1]


# Two operators.


OPERATORS = ("lucy", "mia")


def proposed(instance: Instance, account: Supplier) -> orders.Order:
    """A draft of a service that has stopped; two operators may decide."""
    text = instance.layout.shop.read_text()
    assert text.count('allowed = ["lucy"]') == 1
    instance.layout.shop.write_text(text.replace('allowed = ["lucy"]', 'allowed = ["lucy", "mia"]'))
    environment = account.taken_over_by(instance.epoch())
    with Process(instance, pausing=None, **environment).ready() as process:
        order = drafts(instance)["vanilla"]
        assert process.terminate() == 0
    instance.layout.environment.write_text("".join(f'{k}="{v}"\n' for k, v in environment.items()))
    return order


def at_once(instance: Instance, *commands: tuple[str, ...]) -> list[tuple[int, dict[str, Any]]]:
    """Commands in processes of their own that all wait for the store's write lock, then get it."""
    answers: list[tuple[int, dict[str, Any]]] = []
    base = [sys.executable, "-m", "standfast", "--json", "--state", str(instance.layout.state)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    with holding_the_lock(instance.layout):
        processes = [
            subprocess.Popen([*base, *words], stdout=subprocess.PIPE, text=True, env=environment)
            for words in commands
        ]
        for process in processes:
            eventually(lambda pid=process.pid: has_open(pid, instance.layout.database))  # type: ignore[misc]
    for process in processes:
        out, _ = process.communicate(timeout=60)
        answers.append((process.returncode, json.loads(out)))
    return answers


def has_open(pid: int, file: Path) -> bool:
    return any(os.path.realpath(one) == str(file.resolve()) for one in Path(f"/proc/{pid}/fd").iterdir())


def test_of_two_operators_who_approve_at_once_one_approves_and_the_money_is_reserved_once(
    shop: Instance, account: Supplier
) -> None:
    order = proposed(shop, account)
    answers = at_once(shop, *[("order", "approve", order.digest, "--operator", who) for who in OPERATORS])
    assert [code for code, _ in answers] == [0, 0]
    assert sorted(said["changed"] for _, said in answers) == [False, True]
    [(operator,)] = shop.rows("SELECT operator FROM approvals")
    assert [who for who, (_, said) in zip(OPERATORS, answers, strict=True) if said["changed"]] == [operator]
    assert {said["operator"] for _, said in answers} == {operator}, "whose approval it is"
    assert health(shop).spending.reserved_cents == order.total_cents


def test_of_an_approval_and_a_revocation_at_once_the_revocation_is_what_stays(
    shop: Instance, account: Supplier
) -> None:
    order = proposed(shop, account)
    approval, revocation = at_once(
        shop,
        ("order", "approve", order.digest, "--operator", "lucy"),
        ("order", "revoke", order.id, "--operator", "mia"),
    )
    assert (revocation[0], revocation[1]["changed"], revocation[1]["recalled"]) == (0, True, True)
    if approval[0]:  # it came second
        assert (approval[0], approval[1]["refused"]["code"]) == (3, "not_a_draft")
        assert approval[1]["refused"]["observed"] == f"order {order.id} is REVOKED"
    assert status(shop, order) == "REVOKED"
    assert health(shop).spending.reserved_cents == 0
    assert shop.rows("SELECT 1 FROM approvals WHERE revoked = 0") == []


def test_of_two_operators_who_revoke_at_once_one_revokes(shop: Instance, account: Supplier) -> None:
    order = proposed(shop, account)
    answers = at_once(shop, *[("order", "revoke", order.id, "--operator", who) for who in OPERATORS])
    assert [code for code, _ in answers] == [0, 0]
    assert sorted(said["changed"] for _, said in answers) == [False, True]
    assert (
        len(shop.rows("SELECT 1 FROM order_history WHERE order_id = ? AND status = 'REVOKED'", order.id)) == 1
    )


def test_of_two_operators_who_resolve_at_once_the_receipt_counts_once(
    shop: Instance, account: Supplier, run: Run, tmp_path: Path
) -> None:
    order = proposed(shop, account)
    assert run(shop, "order", "approve", order.digest, "--operator", "lucy")[0] == 0
    account.fault("drop_after_accept")
    assert run(shop, "order", "send", order.id)[1]["order"]["status"] == "UNKNOWN"
    receipt = tmp_path / "receipt.json"
    receipt.write_text(json.dumps(account.receipts()[0]))
    resolve = ("order", "resolve", order.id, "--receipt", str(receipt), "--operator")
    answers = at_once(shop, *[(*resolve, who) for who in OPERATORS])
    assert [code for code, _ in answers] == [0, 0]
    assert sorted(said["changed"] for _, said in answers) == [False, True]
    spending = health(shop).spending
    assert (spending.reserved_cents, spending.spent_cents) == (0, order.total_cents)
    assert len(account.receipts()) == 1
