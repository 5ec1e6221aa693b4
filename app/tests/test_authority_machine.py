"""One state machine over claims, delegation and orders: whatever happens, in whatever order, it all holds.

No write by a stale claim; generations only rise; spent and reserved stay under the ceiling; what is reserved
is what the held orders cost; each accepted supplier receipt counts once; nothing is sent without a live
approval of its exact bytes; no money without a receipt. The store is real files, the supplier its real ledger
behind a line that loses, delays and falsifies. A transmission is three steps (SENDING committed, the request
leaves, the answer is recorded), so that anything can come in between, and a process that dies simply never
does the rest.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
from buying import FAULTS, KEY_WINDOW, POLICY, PRICES
from claims_machine import PICK, Claims, Held
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from standfast import orders
from standfast.errors import Refused
from standfast.orders import Attempt, Order, Supplier
from standfast.orders.client import Outcome
from standfast.supplier.wire import OrderRequest

SENT = {"SENDING", "UNKNOWN", "CONFIRMED", "DELIVERED"}


@dataclass(eq=False)
class Flight:
    """A transmission of this process that is not recorded yet."""

    attempt: Attempt
    supplier: Supplier
    held: Held | None
    outcome: Outcome | None = None


FAULT = st.sampled_from([*FAULTS, "drop_before_accept", "delay"])
LOOKUP_FAULT = st.sampled_from([*["none"] * 4, "error", "error", "lie", "crash"])


class Authority(Claims):
    """Claims and delegation, with proposals, approvals, sending under every fault, settling."""

    def __init__(self) -> None:
        super().__init__()
        self.shop.account.leaving = self.leaves
        self.client: Supplier | None = None
        self.turned_back = 0.0
        self.day = ""
        self.first_sent: dict[str, tuple[float, OrderRequest]] = {}
        self.flights: list[Flight] = []
        self.listed: list[Order] = []
        self.listed_at = -1

    # What must hold at the moment at which a request leaves, seen from another connection.

    def leaves(self, request: OrderRequest) -> None:
        shop = self.shop
        found = self.committed(
            "SELECT status, digest, epoch, (SELECT count(*) FROM approvals AS a WHERE a.order_id = orders.id"
            " AND a.digest = orders.digest AND a.used_at IS NOT NULL) FROM orders WHERE id = ?",
            request.operation_id,
        )
        assert found, "sent under an operation id that no order has"
        [(status, digest, epoch, live)] = found
        assert live, "sent without an approval of exactly these bytes"
        assert digest == request.digest
        assert epoch == request.epoch
        assert status in SENT | {"REJECTED"}, "a request left that no commit had announced"
        began, first = self.first_sent.setdefault(request.operation_id, (shop.time.boot, request))
        assert request == first, "other bytes under the same operation id"
        assert shop.time.boot - began - self.turned_back < KEY_WINDOW, "sent again past the key window"

    # Work and operators.

    @precondition(lambda self: self.acting())
    @rule(
        sku=st.sampled_from(["vanilla", "strawberry"]),
        quantity=st.integers(1, 9),
        goes=st.sampled_from(["draft", "approved", "approved", "sent", "sent", "sent"]),
        hours=st.sampled_from([24.0, 24.0, 0.5, 0.01]),
        fault=FAULT,
    )
    def ask_for_a_purchase(self, sku: str, quantity: int, goes: str, hours: float, fault: str) -> None:
        """A purchase from its work on, perhaps as far as the supplier."""
        held = self.take_this(self.service, self.admit())
        assert held is not None
        assert self._propose(held, sku, quantity)
        order = self.some("DRAFT")[0]
        if goes != "draft":
            self._approve(order, hours, "lucy")
        if goes == "sent":
            self._send(order, held, fault)

    def _send(self, order: Order, held: Held | None, fault: str) -> None:
        """In one go."""
        flight = self._begin(order, held)
        if flight is not None:
            self._transmit(flight, fault)
            self._settle(flight)

    @precondition(lambda self: self.held)
    @rule(
        pick=PICK,
        how=st.sampled_from(["propose", "propose", "wait", "wait, later"]),
        sku=st.sampled_from(["vanilla", "strawberry"]),
        quantity=st.integers(1, 9),
    )
    def a_claim_orders(self, pick: int, how: str, sku: str, quantity: int) -> None:
        held = self.picked_claim(pick)
        if how == "propose":
            self._propose(held, sku, quantity)
        else:
            self._wait(held, back_off=how == "wait, later")

    def child_works(self, child: Held, then: str) -> None:
        """And whatever it may, it buys nothing."""
        super().child_works(child, then)
        self._propose(child, "vanilla", 1)

    def _propose(self, held: Held, sku: str, quantity: int) -> bool:
        drafts = {one.id: one for one in self.some("DRAFT", "APPROVED")}
        made: list[Order] = []
        done = self.writes(
            held, lambda: made.append(self.propose(held, sku, quantity)), "purchase_exists", "no_purchasing"
        )
        if done:
            assert held.claim.work not in self.parents, "a child bought something"
            if made[0] != drafts.get(made[0].id) and made[0].status in {"DRAFT", "APPROVED"}:
                self.wrote(held)
        return done

    def propose(self, held: Held, sku: str, quantity: int) -> Order:
        return orders.propose(
            self.shop.connection,
            held.claim,
            sku=sku,
            quantity=quantity,
            unit_cost_cents=PRICES[sku],
            policy=POLICY,
            clock=held.clock,
            marker=self.shop.marker,
        ).order

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
        assert self.acting()
        assert told.order.status == "APPROVED"

    def approval_ends(self, pick: int, how: str) -> None:
        if how == "expire":
            orders.expire(self.shop.connection, now=self.shop.now())
        elif self.some():
            self._revoke(self.picked(pick))

    def _revoke(self, order: Order) -> None:
        try:
            told = self.shop.revoke(order)
        except Refused:
            assert order.status in {"CONFIRMED", "DELIVERED", "REJECTED"}
            return
        sent = order.status in {"SENDING", "UNKNOWN"}
        assert told.order.status == (order.status if sent else "REVOKED")

    def _canceled(self, identity: str) -> None:
        super()._canceled(identity)
        left = {one.status for one in orders.orders_of(self.shop.connection, identity)}
        assert not left & {"DRAFT", "APPROVED"}

    # Waiting for orders.

    def _wait(self, held: Held, *, back_off: bool) -> None:
        shop = self.shop

        def wait() -> None:
            orders.wait(shop.connection, held.claim, clock=held.clock, marker=shop.marker, back_off=back_off)

        if self.writes(held, wait):
            held.ended = "BLOCKED"

    @rule(sends=st.booleans(), fault=FAULT)
    def what_waited_goes_on(self, sends: bool, fault: str) -> None:
        """As a pass of the service does: wake, claim, send what the work had approved."""
        shop = self.shop
        try:
            woken = orders.wake(shop.connection, now=shop.now(), marker=shop.marker)
        except Refused as refused:
            assert not self.acting()
            self.expected(refused, "paused", "marker_disagrees")
            return
        assert self.acting() or not woken
        held = self.take_this(self.service, woken[0]) if woken else None
        if held is None or not sends:
            return
        for order in orders.orders_of(shop.connection, held.claim.work):
            if order.status == "APPROVED":
                self._send(order, held, fault)

    # Sending, in one go or in its three steps.

    @precondition(lambda self: self.some("APPROVED"))
    @rule(pick=PICK, fault=FAULT, passes=st.sampled_from([None, 0.0, 30.0, 3500.0]))
    def send(self, pick: int, fault: str, passes: float | None) -> None:
        """In one go, perhaps with a look at what became of it later."""
        order = self.picked(pick, "APPROVED")
        self._send(order, None, fault)
        if passes is not None and self.shop.show(order).status == "UNKNOWN":
            self.shop.time.passes(passes)
            self._reconcile(self.shop.show(order), "none", resend=True)

    @precondition(lambda self: self.some("APPROVED"))
    @rule(pick=PICK, of_claim=st.booleans())
    def begin(self, pick: int, of_claim: bool) -> None:
        order = self.picked(pick, "APPROVED")
        claims = [one for one in reversed(self.held) if one.claim.work == order.work]
        flight = self._begin(order, claims[0] if of_claim and claims else None)
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

    def _begin(self, order: Order, held: Held | None) -> Flight | None:
        shop, supplier = self.shop, self.connected()
        if supplier is None:
            return None
        now, epoch = (held.clock if held else shop.clock).now(), self.epoch()
        approvals = orders.approvals_of(shop.connection, order.id)
        begun: list[Attempt] = []
        refusals = ("not_approved", "approval_ended", "account_other_epoch")
        done = self.for_claim_or_service(
            held, lambda: begun.append(self.begins(order, supplier, held)), *refusals
        )
        if not done:
            return None
        [live] = [one for one in approvals if not one.revoked]
        assert live.digest == order.digest
        assert live.until > now, "sent under an approval that has ended"
        assert live.used_at is None, "an approval was used twice"
        assert self.acting()
        assert order.epoch == epoch
        return Flight(begun[0], supplier, held)

    def begins(self, order: Order, supplier: Supplier, held: Held | None) -> Attempt:
        return orders.begin(
            self.shop.connection,
            order.id,
            supplier,
            claim=held.claim if held else None,
            clock=held.clock if held else self.shop.clock,
            marker=self.shop.marker,
        )

    def _transmit(self, flight: Flight, fault: str) -> None:
        self.shop.account.fault = fault
        flight.outcome = orders.transmit(flight.supplier, flight.attempt)

    def _settle(self, flight: Flight) -> None:
        shop, held, outcome = self.shop, flight.held, flight.outcome
        assert outcome is not None
        self.for_claim_or_service(
            held,
            lambda: orders.settle(
                shop.connection,
                flight.attempt,
                outcome,
                claim=held.claim if held else None,
                clock=held.clock if held else shop.clock,
                marker=shop.marker,
            ),
        )

    def for_claim_or_service(self, held: Held | None, write: Callable[[], object], *allowed: str) -> bool:
        """``writes``, or the same without a claim: only while somebody may act at all."""
        if held is not None:
            return self.writes(held, write, *allowed)
        try:
            write()
        except Refused as refused:
            self.expected(refused, *(allowed if self.acting() else ("paused", "marker_disagrees")))
            return False
        assert self.acting()
        return True

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
            assert fault in {"none", "lie"}, "sent again after a lookup without an answer"
            assert shop.account.lookups > looked, "sent again without a lookup"

    @precondition(lambda self: self.some("SENDING") and self.acting())
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

    # Eras and deaths, for orders.

    def era_ended(self) -> None:
        super().era_ended()
        assert self.shop.money()[0] == 0, "a reservation outlived its era"
        assert self.committed("SELECT count(*) FROM approvals WHERE revoked = 0") == [(0,)]

    def resume(self) -> None:
        super().resume()
        self.shop.account.register(self.epoch(), replaces=self.shop.account.account().epoch)

    def service_dies(self) -> None:
        before = self.shop.now()
        super().service_dies()
        self.turned_back += max(0.0, before - self.shop.now())
        self.client = None
        self.flights.clear()

    def mortal_acts(self, held: Held) -> Mapping[str, Callable[[], object]]:
        supplier = self.connected()
        approved = self.some("APPROVED")
        more: dict[str, Callable[[], object]] = {"propose": lambda: self.propose(held, "vanilla", 1)}
        if supplier is not None and approved:
            more["send"] = lambda: self.begins(approved[0], supplier, held)
        return {**super().mortal_acts(held), **more}

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
        for order in self.some():
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
        changes = self.shop.connection.total_changes
        if changes != self.listed_at:  # it is asked many times between two changes
            self.listed_at, self.listed = changes, orders.list_orders(self.shop.connection, limit=10_000)
        return [one for one in self.listed if not statuses or one.status in statuses]

    def picked(self, pick: int, *statuses: str) -> Order:
        """One of them, the newest first."""
        found = self.some(*statuses)
        return found[pick % len(found)]


MANY_STEPS = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_authority_holds_whatever_happens() -> None:
    run_state_machine_as_test(Authority, settings=MANY_STEPS)


@pytest.mark.full
def test_authority_holds_whatever_happens_at_length() -> None:
    run_state_machine_as_test(Authority, settings=settings(MANY_STEPS, max_examples=1500))
