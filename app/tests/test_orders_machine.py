"""A state machine over the life of orders: whatever happens, in whatever order, the money adds up.

The supplier is its real ledger behind a line that loses, delays and falsifies. A transmission is three steps
(SENDING committed, the request leaves, the answer is recorded), so that anything can come in between, and a
process that dies simply never does the rest.
"""

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from buying import FAULTS, KEY_WINDOW, POLICY, Buying
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from world import HOST

from standfast import authority, orders, work
from standfast.authority import Claim
from standfast.errors import Refused
from standfast.orders import Attempt, Order, Supplier
from standfast.orders.client import Outcome
from standfast.supplier.wire import OrderRequest

SENT = {"SENDING", "UNKNOWN", "CONFIRMED", "DELIVERED"}


@dataclass
class Flight:
    """A transmission of this process that is not recorded yet."""

    attempt: Attempt
    supplier: Supplier
    claim: Claim | None
    outcome: Outcome | None = None


PICK = st.integers(0, 7)
FAULT = st.sampled_from([*FAULTS, "drop_before_accept", "delay"])
LOOKUP_FAULT = st.sampled_from([*["none"] * 4, "error", "error", "lie", "crash"])


class Orders(RuleBasedStateMachine):
    """Proposals, approvals, sending under every fault, settling, eras, clocks, deaths."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="sf-orders-"))
        self.shop = Buying(self.folder)
        self.shop.connection.execute("PRAGMA synchronous = OFF")
        self.shop.account.leaving = self.leaves
        self.client: Supplier | None = None
        self.turned_back = 0.0
        self.day = ""
        self.first_sent: dict[str, tuple[float, OrderRequest]] = {}
        self.claims: list[Claim] = []
        self.flights: list[Flight] = []

    def teardown(self) -> None:
        self.shop.close()
        shutil.rmtree(self.folder)

    # What must hold at the moment at which a request leaves, seen from another connection.

    def leaves(self, request: OrderRequest) -> None:
        shop = self.shop
        [(status, digest, epoch, live)] = shop.elsewhere(
            "SELECT status, digest, epoch, (SELECT count(*) FROM approvals AS a WHERE a.order_id = orders.id"
            " AND a.digest = orders.digest AND a.used_at IS NOT NULL) FROM orders WHERE id = ?",
            request.operation_id,
        )
        assert live, "sent without an approval of exactly these bytes"
        assert digest == request.digest
        assert epoch == request.epoch
        assert status in SENT | {"REJECTED"}, "a request left that no commit had announced"
        began, first = self.first_sent.setdefault(request.operation_id, (shop.time.boot, request))
        assert request == first, "other bytes under the same operation id"
        assert shop.time.boot - began - self.turned_back < KEY_WINDOW, "sent again past the key window"

    # Work and operators.

    @precondition(lambda self: not self.paused())
    @rule(
        sku=st.sampled_from(["vanilla", "strawberry"]),
        quantity=st.integers(1, 9),
        approved=st.sampled_from([True, True, False]),
        hours=st.sampled_from([24.0, 24.0, 0.5, 0.01]),
    )
    def ask_for_a_purchase(self, sku: str, quantity: int, approved: bool, hours: float) -> None:
        self.claims.append(self.shop.claimed())
        draft = self.shop.propose(self.claims[-1], sku, quantity)
        if approved:
            self._approve(draft, hours, "lucy")

    @precondition(lambda self: self.claims)
    @rule(pick=PICK, sku=st.sampled_from(["vanilla", "strawberry"]), quantity=st.integers(1, 9))
    def propose_more(self, pick: int, sku: str, quantity: int) -> None:
        claim = self.claims[-1 - pick % len(self.claims)]
        current = authority.operations(self.shop.connection)
        try:
            self.shop.propose(claim, sku, quantity)
        except Refused as refused:
            self.expected(refused, "stale_claim", "purchase_exists")
            return
        assert claim.epoch == current.epoch
        assert not current.paused

    @precondition(lambda self: self.some("DRAFT"))
    @rule(
        pick=PICK,
        hours=st.sampled_from([24.0, 24.0, 0.5, 0.01]),
        operator=st.sampled_from(["lucy", "lucy", "lucy", "mallory"]),
    )
    def approve(self, pick: int, hours: float, operator: str) -> None:
        self._approve(self.picked(pick, "DRAFT"), hours, operator)

    def _approve(self, order: Order, hours: float, operator: str) -> None:
        try:
            told = self.shop.approve(order, hours=hours, operator=operator)
        except Refused:
            assert self.shop.show(order) == order
            return
        assert operator == "lucy"
        assert told.order.status == "APPROVED"

    @precondition(lambda self: self.some())
    @rule(pick=PICK, how=st.sampled_from(["revoke", "cancel", "expire", "era", "era, not resumed"]))
    def authority_ends(self, pick: int, how: str) -> None:
        """One rule for all of it, so that most of a run is purchases."""
        if how == "revoke":
            self._revoke(self.picked(pick))
        elif how == "cancel":
            self._cancel(self.picked(pick))
        elif how == "expire":
            orders.expire(self.shop.connection, now=self.shop.now())
        elif not self.paused():
            self._era_ends(resumed=how == "era")

    def _revoke(self, order: Order) -> None:
        try:
            told = self.shop.revoke(order)
        except Refused:
            assert order.status in {"CONFIRMED", "DELIVERED", "REJECTED"}
            return
        sent = order.status in {"SENDING", "UNKNOWN"}
        assert told.order.status == (order.status if sent else "REVOKED")

    def _cancel(self, order: Order) -> None:
        work_id = order.work
        assert work_id is not None
        work.cancel(self.shop.connection, work_id, reason="no", now=self.shop.now())
        left = {one.status for one in orders.orders_of(self.shop.connection, work_id)}
        assert not left & {"DRAFT", "APPROVED"}

    # Sending, in one go or in its three steps.

    @precondition(lambda self: self.some("APPROVED"))
    @rule(pick=PICK, fault=FAULT, passes=st.sampled_from([None, 0.0, 30.0, 3500.0]))
    def send(self, pick: int, fault: str, passes: float | None) -> None:
        """In one go, perhaps with a look at what became of it later."""
        flight = self._begin(pick, of_claim=False)
        if flight is not None:
            self._transmit(flight, fault)
            self._settle(flight)
            order = self.shop.show(flight.attempt.order)
            if passes is not None and order.status == "UNKNOWN":
                self.shop.time.passes(passes)
                self._reconcile(order, "none", resend=True)

    @precondition(lambda self: self.some("APPROVED"))
    @rule(pick=PICK, of_claim=st.booleans())
    def begin(self, pick: int, of_claim: bool) -> None:
        flight = self._begin(pick, of_claim=of_claim)
        if flight is not None:
            self.flights.append(flight)

    @precondition(lambda self: any(one.outcome is None for one in self.flights))
    @rule(fault=FAULT)
    def transmit(self, fault: str) -> None:
        self._transmit(next(one for one in self.flights if one.outcome is None), fault)

    @precondition(lambda self: any(one.outcome is not None for one in self.flights))
    @rule()
    def settle(self) -> None:
        flight = next(one for one in self.flights if one.outcome is not None)
        self.flights.remove(flight)
        self._settle(flight)

    def _begin(self, pick: int, *, of_claim: bool) -> Flight | None:
        shop, supplier, order = self.shop, self.connected(), self.picked(pick, "APPROVED")
        if supplier is None:
            return None
        claim = next((one for one in self.claims if one.work == order.work), None) if of_claim else None
        now, control = shop.now(), authority.operations(shop.connection)
        approvals = orders.approvals_of(shop.connection, order.id)
        try:
            attempt = orders.begin(
                shop.connection, order.id, supplier, claim=claim, clock=shop.clock, marker=shop.marker
            )
        except Refused:
            return None
        [live] = [one for one in approvals if not one.revoked]
        assert live.digest == order.digest
        assert live.until > now, "sent under an approval that has ended"
        assert live.used_at is None, "an approval was used twice"
        assert not control.paused
        assert order.epoch == control.epoch
        return Flight(attempt, supplier, claim)

    def _transmit(self, flight: Flight, fault: str) -> None:
        self.shop.account.fault = fault
        flight.outcome = orders.transmit(flight.supplier, flight.attempt)

    def _settle(self, flight: Flight) -> None:
        shop = self.shop
        assert flight.outcome is not None
        try:
            orders.settle(
                shop.connection,
                flight.attempt,
                flight.outcome,
                claim=flight.claim,
                clock=shop.clock,
                marker=shop.marker,
            )
        except Refused as refused:
            self.expected(refused, "stale_claim", "paused")

    @precondition(lambda self: self.some("UNKNOWN"))
    @rule(pick=PICK, fault=LOOKUP_FAULT, resend=st.sampled_from([True, True, False]))
    def reconcile(self, pick: int, fault: str, resend: bool) -> None:
        self._reconcile(self.picked(pick, "UNKNOWN"), fault, resend=resend)

    def _reconcile(self, order: Order, fault: str, *, resend: bool) -> None:
        shop, supplier = self.shop, self.connected()
        if supplier is None:
            return
        shop.account.fault = fault
        looked, sent, now = shop.account.lookups, len(shop.account.sent), shop.now()
        live = orders.live_approval(shop.connection, order, now)
        try:
            orders.reconcile(
                shop.connection,
                order.id,
                supplier,
                clock=shop.clock,
                marker=shop.marker,
                resend=resend,
            )
        except Refused:
            shop.account.fault = "none"
        if len(shop.account.sent) > sent:
            assert resend
            assert live is not None, "sent again without a live approval"
            assert fault == "none", "sent again after a lookup without an answer"
            assert shop.account.lookups > looked, "sent again without a lookup"

    @precondition(lambda self: self.some("SENDING") and not self.paused())
    @rule(later=st.sampled_from([0.0, 120.0]))
    def give_up(self, later: float) -> None:
        self.shop.time.passes(later)
        orders.give_up_waiting(self.shop.connection, clock=self.shop.clock, marker=self.shop.marker)
        if later:
            assert not [one for one in self.some("SENDING") if one.epoch == self.epoch()]

    @precondition(lambda self: self.some("UNKNOWN"))
    @rule(pick=PICK)
    def resolve(self, pick: int) -> None:
        shop, order = self.shop, self.picked(pick, "UNKNOWN")
        for receipt in shop.receipts():
            try:
                orders.resolve(
                    shop.connection,
                    order.id,
                    receipt,
                    operator="lucy",
                    policy=POLICY,
                    now=shop.now(),
                    marker=shop.marker,
                )
            except Refused:
                continue
            assert receipt.operation_id == order.id

    @precondition(lambda self: self.some())
    @rule(pick=PICK)
    def deliver(self, pick: int) -> None:
        shop, order = self.shop, self.picked(pick)
        try:
            orders.deliver(
                shop.connection,
                order.id,
                operator="lucy",
                policy=POLICY,
                into_stock=lambda *_: None,
                now=shop.now(),
            )
        except Refused:
            return
        assert order.status in {"CONFIRMED", "DELIVERED"}

    @precondition(lambda self: self.shop.account.late)
    @rule()
    def what_was_held_back_arrives(self) -> None:
        self.shop.account.arrive()

    # Eras, clocks, deaths.

    def _era_ends(self, *, resumed: bool) -> None:
        shop = self.shop
        authority.replace(shop.connection, shop.layout, "restored", shop.now(), HOST)
        assert shop.money()[0] == 0
        live = shop.connection.execute("SELECT count(*) FROM approvals WHERE revoked = 0").fetchone()[0]
        assert live == 0
        if resumed:
            self.resume_after_inspection()

    @precondition(lambda self: self.paused())
    @rule()
    def resume_after_inspection(self) -> None:
        shop = self.shop
        shop.account.register(self.epoch(), replaces=shop.account.account().epoch)
        authority.resume(shop.connection, shop.marker, "inspected", shop.now())

    @rule(
        how=st.sampled_from(["passes", "passes", "is set", "dies"]),
        seconds=st.sampled_from([1.0, 301.0, 1800.0, 3500.0, -1.0, -300.0, 86400.0, -86400.0]),
    )
    def time_and_death(self, how: str, seconds: float) -> None:
        if how == "passes":
            self.shop.time.passes(abs(seconds))
        elif how == "is set":
            self.shop.time.wall += seconds
        else:
            self._process_dies_and_starts_again()

    def _process_dies_and_starts_again(self) -> None:
        shop = self.shop
        before = shop.now()
        shop.clock = shop.time.clock()
        self.turned_back += max(0.0, before - shop.now())
        self.client = None
        self.flights.clear()

    # What always holds.

    @invariant()
    def the_money_adds_up(self) -> None:
        shop = self.shop
        reserved, spent = shop.money()
        day = orders.spending(shop.connection, shop.now()).day
        booked = shop.connection.execute("SELECT day FROM spending").fetchone()
        assert booked is None or day >= booked[0] >= self.day, "a day came back"
        self.day = booked[0] if booked else ""
        assert reserved + spent <= POLICY.ceiling_cents
        held = shop.connection.execute(
            "SELECT total(quantity * unit_cost_cents) FROM orders WHERE status IN ('APPROVED', 'SENDING',"
            " 'UNKNOWN') AND epoch = (SELECT epoch FROM operations)"
        ).fetchone()[0]
        assert reserved == held

    @invariant()
    def no_money_without_a_receipt_and_each_receipt_counts_once(self) -> None:
        receipts = {one.operation_id: one for one in self.shop.receipts()}
        seen = set()
        for order in orders.list_orders(self.shop.connection, limit=10_000):
            if order.status in {"CONFIRMED", "DELIVERED"}:
                receipt = receipts[order.id]
                assert order.receipt_id == receipt.receipt_id
                assert order.spent_cents == receipt.total_cents
                assert order.digest == receipt.digest
                assert json.loads(order.receipt or "") == receipt.model_dump()
                seen.add(order.receipt_id)
            else:
                assert order.spent_cents == 0
            if order.id in receipts:
                assert order.status in SENT, "the supplier accepted what is recorded as never accepted"
        spent = self.shop.connection.execute("SELECT total(spent_cents) FROM orders").fetchone()[0]
        assert spent == sum(one.total_cents for one in receipts.values() if one.receipt_id in seen)

    def expected(self, refused: Refused, *codes: str) -> None:
        assert refused.code in codes

    def epoch(self) -> str:
        return authority.operations(self.shop.connection).epoch

    def paused(self) -> bool:
        return authority.operations(self.shop.connection).paused

    def connected(self) -> Supplier | None:
        """The client as a process keeps it: built once, kept although the era may have ended."""
        if self.client is None:
            try:
                self.client = self.shop.supplier()
            except Refused:
                return None
        return self.client

    def some(self, *statuses: str) -> list[Order]:
        """The orders in any of these statuses; all, when none is named."""
        listed = orders.list_orders(self.shop.connection, limit=10_000)
        return [one for one in listed if not statuses or one.status in statuses]

    def picked(self, pick: int, *statuses: str) -> Order:
        """One of them, the newest first."""
        found = self.some(*statuses)
        return found[pick % len(found)]


MANY_STEPS = settings(
    max_examples=50,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_orders_add_up_whatever_happens() -> None:
    run_state_machine_as_test(Orders, settings=MANY_STEPS)


@pytest.mark.full
def test_orders_add_up_whatever_happens_at_length() -> None:
    run_state_machine_as_test(Orders, settings=settings(MANY_STEPS, max_examples=1500))
