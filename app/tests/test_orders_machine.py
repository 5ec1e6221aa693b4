"""A state machine over the life of orders: whatever happens, in whatever order, the money adds up.

The supplier is its real ledger behind a line that loses, delays and falsifies. A transmission is three steps
(SENDING committed, the request leaves, the answer is recorded), so that anything can come in between, and a
process that dies simply never does the rest.
"""

import shutil
import tempfile
from pathlib import Path

from buying import FAULTS, KEY_WINDOW, POLICY, Buying
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, precondition, rule
from world import HOST

from standfast import authority, orders, work
from standfast.authority import Claim
from standfast.errors import Refused
from standfast.orders import Order, Supplier
from standfast.supplier.wire import OrderRequest

HELD = {"APPROVED", "SENDING", "UNKNOWN"}
SENT = {"SENDING", "UNKNOWN", "CONFIRMED", "DELIVERED"}


class Orders(RuleBasedStateMachine):
    """Proposals, approvals, sending under every fault, settling, eras, clocks, deaths."""

    claims = Bundle("claims")
    drafts = Bundle("drafts")
    attempts = Bundle("attempts")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="sf-orders-"))
        self.shop = Buying(self.folder)
        self.shop.connection.execute("PRAGMA synchronous = OFF")
        self.shop.account.leaving = self.leaves
        self.client: Supplier | None = None
        self.turned_back = 0.0
        self.first_sent: dict[str, tuple[float, OrderRequest]] = {}
        self.refused_for_ever: set[str] = set()

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

    @rule(target=claims)
    def new_work(self) -> object:
        return multiple() if self.paused() else self.shop.claimed()

    @rule(
        target=drafts,
        claim=claims,
        sku=st.sampled_from(["vanilla", "strawberry"]),
        quantity=st.integers(1, 9),
    )
    def propose(self, claim: Claim, sku: str, quantity: int) -> object:
        try:
            return self.shop.propose(claim, sku, quantity)
        except Refused as refused:
            return self.expected(refused, "stale_claim", "purchase_exists")

    @rule(
        order=drafts, hours=st.sampled_from([0.01, 0.5, 24.0]), operator=st.sampled_from(["lucy", "mallory"])
    )
    def approve(self, order: Order, hours: float, operator: str) -> None:
        before = self.shop.show(order)
        try:
            told = self.shop.approve(order, hours=hours, operator=operator)
        except Refused:
            assert self.shop.show(order) == before
            return
        assert operator == "lucy"
        assert told.order.status == "APPROVED"

    @rule(order=drafts)
    def revoke(self, order: Order) -> None:
        before = self.shop.show(order).status
        try:
            told = self.shop.revoke(order)
        except Refused:
            assert before in {"CONFIRMED", "DELIVERED", "REJECTED"}
            return
        assert told.order.status == (before if before in {"SENDING", "UNKNOWN"} else "REVOKED")

    @rule(claim=claims)
    def cancel(self, claim: Claim) -> None:
        work.cancel(self.shop.connection, claim.work, reason="no", now=self.shop.now())
        left = {one.status for one in orders.orders_of(self.shop.connection, claim.work)}
        assert not left & {"DRAFT", "APPROVED"}

    @rule()
    def expire(self) -> None:
        orders.expire(self.shop.connection, now=self.shop.now())

    # The three steps of a transmission.

    @rule(target=attempts, order=drafts, of_claim=st.booleans())
    def begin(self, order: Order, of_claim: bool) -> object:
        shop = self.shop
        claim = self.claim_of(order) if of_claim else None
        supplier = self.connected()
        if supplier is None:
            return multiple()
        live = orders.live_approval(shop.connection, shop.show(order), shop.now())
        try:
            attempt = orders.begin(
                shop.connection, order.id, supplier, claim=claim, clock=shop.clock, marker=shop.marker
            )
        except Refused:
            return multiple()
        assert live is not None, "SENDING without a live approval"
        assert live.used_at is None, "an approval was used twice"
        return [attempt, supplier, None, claim]

    @rule(step=attempts, fault=st.sampled_from(FAULTS))
    def transmit(self, step: list[object], fault: str) -> None:
        attempt, supplier, outcome, _ = step
        assert isinstance(attempt, orders.Attempt)
        assert isinstance(supplier, Supplier)
        if outcome is None:
            self.shop.account.fault = fault
            step[2] = orders.transmit(supplier, attempt)

    @rule(step=attempts)
    def settle(self, step: list[object]) -> None:
        attempt, _, outcome, claim = step
        assert isinstance(attempt, orders.Attempt)
        assert claim is None or isinstance(claim, Claim)
        if outcome is None:
            return
        shop = self.shop
        try:
            orders.settle(
                shop.connection,
                attempt,
                outcome,  # type: ignore[arg-type]  # what transmit returned
                claim=claim,
                clock=shop.clock,
                marker=shop.marker,
            )
        except Refused as refused:
            self.expected(refused, "stale_claim", "paused")

    @rule(order=drafts, fault=st.sampled_from(FAULTS))
    def send(self, order: Order, fault: str) -> None:
        shop, supplier = self.shop, self.connected()
        if supplier is None:
            return
        shop.account.fault = fault
        try:
            orders.send(shop.connection, order.id, supplier, claim=None, clock=shop.clock, marker=shop.marker)
        except Refused:
            shop.account.fault = "none"

    @rule(order=drafts, fault=st.sampled_from(FAULTS), resend=st.booleans())
    def reconcile(self, order: Order, fault: str, resend: bool) -> None:
        shop, supplier = self.shop, self.connected()
        if supplier is None:
            return
        shop.account.fault = fault
        looked, sent = shop.account.lookups, len(shop.account.sent)
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
            assert shop.account.lookups > looked, "sent again without a lookup"

    @rule()
    def give_up(self) -> None:
        if not self.paused():
            orders.give_up_waiting(self.shop.connection, clock=self.shop.clock, marker=self.shop.marker)

    @rule(order=drafts)
    def resolve(self, order: Order) -> None:
        shop = self.shop
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

    @rule(order=drafts)
    def deliver(self, order: Order) -> None:
        shop = self.shop
        before = shop.show(order).status
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
        assert before in {"CONFIRMED", "DELIVERED"}

    @rule()
    def what_was_held_back_arrives(self) -> None:
        self.shop.account.arrive()

    # Eras, clocks, deaths.

    @rule()
    def era_ends(self) -> None:
        shop = self.shop
        authority.replace(shop.connection, shop.layout, "restored", shop.now(), HOST)
        assert shop.money()[0] == 0

    @precondition(lambda self: self.paused())
    @rule()
    def resume_after_inspection(self) -> None:
        shop = self.shop
        epoch = authority.operations(shop.connection).epoch
        shop.account.register(epoch, replaces=shop.account.account().epoch)
        authority.resume(shop.connection, shop.marker, "inspected", shop.now())

    @rule(seconds=st.sampled_from([1.0, 59.0, 121.0, 301.0, 1800.0, 86400.0]))
    def time_passes(self, seconds: float) -> None:
        self.shop.time.passes(seconds)

    @rule(seconds=st.sampled_from([-86400.0, -300.0, -1.0, 300.0, 86400.0]))
    def the_wall_clock_is_set(self, seconds: float) -> None:
        self.shop.time.wall += seconds

    @rule()
    def the_process_dies_and_starts_again(self) -> None:
        shop = self.shop
        before = shop.now()
        shop.clock = shop.time.clock()
        self.turned_back += max(0.0, before - shop.now())
        self.client = None

    # What always holds.

    @invariant()
    def the_money_adds_up(self) -> None:
        shop = self.shop
        reserved, spent = shop.money()
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
                seen.add(order.receipt_id)
            else:
                assert order.spent_cents == 0
            if order.id in receipts:
                assert order.status in SENT, "the supplier accepted what is recorded as never accepted"
        spent = self.shop.connection.execute("SELECT total(spent_cents) FROM orders").fetchone()[0]
        assert spent == sum(one.total_cents for one in receipts.values() if one.receipt_id in seen)

    def expected(self, refused: Refused, *codes: str) -> object:
        assert refused.code in codes
        return multiple()

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

    def claim_of(self, order: Order) -> Claim | None:
        row = self.shop.connection.execute(
            "SELECT id, owner, generation, epoch, role, session, subject, prompt FROM work"
            " WHERE id = ? AND owner IS NOT NULL AND epoch IS NOT NULL",
            (order.work,),
        ).fetchone()
        return None if row is None else Claim(*row)


TestOrders = Orders.TestCase
TestOrders.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
