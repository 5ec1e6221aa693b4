"""What the ledger promises for ever: one receipt for an operation, no epoch revived, no row changed."""

import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from supplying import epoch, order

from standfast.errors import Refused
from standfast.store import Component, open_store
from standfast.supplier.ledger import LEDGER, Denied, Ledger
from standfast.supplier.wire import EpochRegistration, ErrorCode, OrderRequest, SupplierReceipt

NOW = 1_800_000_000.0
WINDOW = 100


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger.open(tmp_path / "ledger", NOW, WINDOW)
    register(made, 1)
    yield made
    made.close()


def register(ledger: Ledger, number: int, replaces: int | None = None) -> str | None:
    wanted = EpochRegistration(epoch=epoch(number), replaces=None if replaces is None else epoch(replaces))
    return ledger.register(wanted, NOW).epoch


def code(action: object, *args: object, **kwargs: object) -> ErrorCode:
    assert callable(action)
    with pytest.raises(Denied) as denied:
        action(*args, **kwargs)
    return denied.value.code


def request(operation: int = 1, **changed: object) -> OrderRequest:
    return OrderRequest(**order(operation, **changed))


def test_a_new_account_has_no_epoch_and_keeps_its_name(tmp_path: Path) -> None:
    first = Ledger.open(tmp_path / "ledger", NOW)
    account = first.account()
    assert (account.epoch, account.accepted, account.key_window_seconds) == (None, 0, 86_400)
    assert first.written
    first.close()
    again = Ledger.open(tmp_path / "ledger", NOW + 5)
    assert again.account() == account
    assert not again.written
    assert (tmp_path / "ledger").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "ledger" / LEDGER).stat().st_mode & 0o777 == 0o600
    again.close()


def test_the_agent_s_store_is_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    agent = Component("work", (("CREATE TABLE work (id TEXT) STRICT",),))
    open_store(tmp_path / "ledger" / LEDGER, (agent,), create=True).close()
    with pytest.raises(Refused) as refused:
        Ledger.open(tmp_path / "ledger", NOW)
    assert refused.value.code == "store_newer"


@pytest.mark.parametrize(
    ("number", "replaces", "expected"),
    [
        (2, 1, epoch(2)),
        (1, None, epoch(1)),  # repeated
        (1, 9, epoch(1)),  # a repeated replacement, whose answer was lost
        (2, None, "epoch_registered"),
        (2, 9, "epoch_registered"),
    ],
)
def test_an_epoch_replaces_only_the_current_one(
    ledger: Ledger, number: int, replaces: int | None, expected: str
) -> None:
    try:
        found = register(ledger, number, replaces)
    except Denied as denied:
        found = denied.code
        assert ledger.account().epoch == epoch(1)
    assert found == expected


def test_an_account_without_an_epoch_has_none_to_replace(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger", NOW)
    assert code(register, ledger, 2, 1) == "epoch_absent"
    assert ledger.account().epoch is None
    ledger.close()


@pytest.mark.parametrize("replaces", [None, 1, 2, 9])
def test_a_retired_epoch_never_comes_back(ledger: Ledger, replaces: int | None) -> None:
    register(ledger, 2, 1)
    assert code(register, ledger, 1, replaces) == "epoch_retired"
    assert ledger.account().epoch == epoch(2)


def test_the_schema_itself_keeps_what_is_promised(ledger: Ledger, tmp_path: Path) -> None:
    ledger.order(request(), NOW)
    register(ledger, 2, 1)
    raw = sqlite3.connect(tmp_path / "ledger" / LEDGER, autocommit=True)
    for statement in (
        "UPDATE epochs SET retired_at = NULL",
        "UPDATE epochs SET epoch = 'x' WHERE retired_at IS NULL",
        "DELETE FROM epochs",
        "INSERT INTO epochs VALUES ('x', 0, NULL)",
        "UPDATE receipts SET quantity = 1",
        "DELETE FROM receipts",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            raw.execute(statement)
    raw.close()


def test_the_same_intent_is_accepted_once(ledger: Ledger) -> None:
    receipt, new = ledger.order(request(), NOW)
    assert new
    assert receipt.total_cents == 12 * 150
    assert receipt.accepted_at == "2027-01-15T08:00:00.000Z"
    assert ledger.order(request(), NOW + 50) == (receipt, False)
    assert ledger.lookup(request().operation_id) == receipt


@pytest.mark.parametrize(
    "changed",
    [
        {"target": "other"},
        {"sku": "tea"},
        {"quantity": 13},
        {"unit_cost_cents": 151},
        {"currency": "USD"},
        {"digest": "e" * 64},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_other_bytes_under_the_same_id_conflict(ledger: Ledger, changed: dict[str, Any]) -> None:
    receipt, _ = ledger.order(request(), NOW)
    assert code(ledger.order, request(**changed), NOW) == "operation_conflict"
    assert ledger.export(0, 10).receipts == (receipt,)


def test_an_order_of_another_epoch_is_refused_even_when_it_is_known(ledger: Ledger) -> None:
    receipt, _ = ledger.order(request(), NOW)
    register(ledger, 2, 1)
    for operation in (1, 2):
        assert code(ledger.order, request(operation), NOW) == "stale_epoch"
    # Under the present epoch the same intent is known, not bought again.
    assert ledger.order(request(epoch=epoch(2)), NOW) == (receipt, False)
    assert ledger.account().accepted == 1


def test_an_account_without_an_epoch_takes_no_order(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger", NOW)
    assert code(ledger.order, request(), NOW) == "stale_epoch"
    ledger.close()


def test_past_the_key_window_an_operation_is_only_looked_up(ledger: Ledger) -> None:
    receipt, _ = ledger.order(request(), NOW)
    assert ledger.order(request(), NOW + WINDOW) == (receipt, False)
    assert code(ledger.order, request(), NOW + WINDOW + 1) == "key_expired"
    assert code(ledger.order, request(sku="tea"), NOW + WINDOW + 1) == "operation_conflict"
    assert ledger.lookup(request().operation_id) == receipt
    assert ledger.account().accepted == 1


def test_a_refusal_is_kept(ledger: Ledger, tmp_path: Path) -> None:
    assert code(ledger.order, request(), NOW, refuse="no") == "refused"
    again = Ledger.open(tmp_path / "ledger", NOW)
    with pytest.raises(Denied) as denied:
        again.order(request(), NOW)
    assert (denied.value.code, denied.value.reason) == ("refused", "no")
    assert code(again.lookup, request().operation_id) == "unknown_operation"
    again.close()


def test_what_was_accepted_can_not_be_refused_any_more(ledger: Ledger) -> None:
    receipt, _ = ledger.order(request(), NOW)
    assert ledger.order(request(), NOW, refuse="no") == (receipt, False)


def test_the_export_is_whole_at_every_page_length(ledger: Ledger) -> None:
    wanted = [ledger.order(request(number), NOW)[0] for number in range(7)]
    for limit in (1, 3, 6, 7, 8):
        found: list[SupplierReceipt] = []
        after: int | None = 0
        while after is not None:
            page = ledger.export(after, limit)
            assert 0 < len(page.receipts) <= limit
            found += page.receipts
            after = page.next
        assert found == wanted


class Accounts(RuleBasedStateMachine):
    """Any order of registrations, orders, refusals and restarts, against a few sets."""

    numbers = st.integers(1, 4)
    operations = st.integers(1, 5)

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.now = NOW
        self.ledger = Ledger.open(Path(self.folder.name) / "ledger", self.now, WINDOW)
        self.current: int | None = None
        self.retired: set[int | None] = set()
        self.accepted: dict[int, SupplierReceipt] = {}
        self.accepted_at: dict[int, float] = {}
        self.refused: set[int] = set()

    @rule(number=numbers, replaces=st.none() | numbers)
    def register(self, number: int, replaces: int | None) -> None:
        if number in self.retired:
            assert code(register, self.ledger, number, replaces) == "epoch_retired"
        elif self.current not in {number, replaces}:
            expected = "epoch_registered" if self.current else "epoch_absent"
            assert code(register, self.ledger, number, replaces) == expected
        else:
            assert register(self.ledger, number, replaces) == epoch(number)
            self.retired |= {self.current} - {number, None}
            self.current = number

    @rule(
        operation=operations, number=numbers, sku=st.sampled_from(["tea", "oat-milk"]), refuse=st.booleans()
    )
    def order(self, operation: int, number: int, sku: str, *, refuse: bool) -> None:
        wanted = request(operation, epoch=epoch(number), sku=sku)
        known = self.accepted.get(operation)
        reason = "no" if refuse else None
        expected = self.refusal(operation, number, sku, refuse=refuse)
        if expected is not None:
            assert code(self.ledger.order, wanted, self.now, refuse=reason) == expected
            return
        receipt, new = self.ledger.order(wanted, self.now, refuse=reason)
        assert (receipt.sku, receipt.epoch) == ((sku, epoch(number)) if new else (sku, receipt.epoch))
        assert new == (known is None)
        assert receipt == (known or receipt)
        if new:
            self.accepted[operation] = receipt
            self.accepted_at[operation] = self.now

    def refusal(self, operation: int, number: int, sku: str, *, refuse: bool) -> ErrorCode | None:
        """The rules once more, written for the model."""
        if number != self.current:
            return "stale_epoch"
        if operation in self.accepted:
            if self.accepted[operation].sku != sku:
                return "operation_conflict"
            return "key_expired" if self.now - self.accepted_at[operation] > WINDOW else None
        if refuse:
            self.refused.add(operation)
        return "refused" if operation in self.refused else None

    @precondition(lambda self: self.accepted)
    @rule(seconds=st.sampled_from([1.0, WINDOW / 2, WINDOW * 2.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def restart(self) -> None:
        self.ledger.close()
        self.ledger = Ledger.open(Path(self.folder.name) / "ledger", self.now, WINDOW)

    @invariant()
    def the_ledger_agrees(self) -> None:
        account = self.ledger.account()
        assert account.epoch == (None if self.current is None else epoch(self.current))
        receipts = self.ledger.export(0, 100).receipts
        assert [receipt.sequence for receipt in receipts] == list(range(1, account.accepted + 1))
        assert {receipt.operation_id: receipt for receipt in receipts} == {
            receipt.operation_id: receipt for receipt in self.accepted.values()
        }
        assert len(receipts) == len(self.accepted)

    def teardown(self) -> None:
        self.ledger.close()
        self.folder.cleanup()


Accounts.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestAccounts = Accounts.TestCase
