"""A shop that buys: a real store, a real supplier's ledger, and a line between them that tests can cut."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from world import HOST, START, Time

from standfast import authority, orders, work
from standfast.authority import Claim
from standfast.layout import Layout
from standfast.orders import Absent, Accepted, Declined, Order, Policy, Supplier, Unclear
from standfast.store import Store, immediate, open_store
from standfast.supplier.ledger import Denied, Ledger
from standfast.supplier.wire import Account, EpochRegistration, OrderRequest, SupplierReceipt
from standfast.work import channels

COMPONENTS = (authority.COMPONENT, work.COMPONENT, channels.COMPONENT, orders.COMPONENT)
PRICES = {"vanilla": 300, "strawberry": 200}
POLICY = Policy(currency="EUR", target="supplier", ceiling_cents=5000, operators=("lucy",))
FAULTS = ("none", "drop_before_accept", "drop_after_accept", "delay", "error", "refuse", "lie", "crash")
KEY_WINDOW = 3600.0


@dataclass
class LedgerAccount:
    """The supplier's real ledger, reached over a line that loses, delays and falsifies what it is told to."""

    ledger: Ledger
    now: Callable[[], float]
    fault: str = "none"
    leaving: Callable[[OrderRequest], None] = lambda _request: None
    sent: list[OrderRequest] = field(default_factory=list)
    late: list[OrderRequest] = field(default_factory=list)
    lookups: int = 0

    def account(self) -> Account:
        return self.ledger.account()

    def register(self, epoch: str, replaces: str | None = None) -> Account:
        return self.ledger.register(EpochRegistration(epoch=epoch, replaces=replaces), self.now())

    def submit(self, request: OrderRequest) -> Accepted | Declined | Unclear:
        self.leaving(request)
        self.sent.append(request)
        fault, self.fault = self.fault, "none"
        if fault in {"drop_before_accept", "error"}:
            return Unclear(fault)
        if fault == "delay":
            self.late.append(request)
            return Unclear(fault)
        try:
            receipt, _ = self.ledger.order(request, self.now(), refuse="no" if fault == "refuse" else None)
        except Denied as denied:
            return Declined(denied.reason, final=denied.code == "refused")
        if fault == "drop_after_accept":
            return Unclear(fault)
        if fault == "crash":
            raise RuntimeError(fault)
        return Accepted(_lied(receipt) if fault == "lie" else receipt)

    def lookup(self, operation: str) -> Accepted | Absent | Unclear:
        self.lookups += 1
        fault, self.fault = self.fault, "none"
        if fault in {"error", "drop_before_accept", "drop_after_accept", "delay"}:
            return Unclear(fault)
        if fault == "crash":
            raise RuntimeError(fault)
        try:
            receipt = self.ledger.lookup(operation)
        except Denied:
            return Absent()
        return Accepted(_lied(receipt) if fault == "lie" else receipt)

    def receipts(self, after: int = 0) -> Iterator[SupplierReceipt]:
        yield from self.ledger.export(after, 10_000).receipts

    def arrive(self) -> None:
        """Whatever was held back arrives now."""
        for request in self.late:
            try:
                self.ledger.order(request, self.now())
            except Denied:
                continue
        self.late.clear()


def _lied(receipt: SupplierReceipt) -> SupplierReceipt:
    return receipt.model_copy(update={"quantity": receipt.quantity + 1})


@dataclass
class Buying:
    """One initialised instance and its supplier."""

    root: Path
    policy: Policy = POLICY
    time: Time = field(default_factory=Time)

    def __post_init__(self) -> None:
        self.layout = Layout(self.root / "state")
        self.layout.state.mkdir(mode=0o700, exist_ok=True)
        self.connection: Store = open_store(self.layout.database, COMPONENTS, create=True)
        self.clock = self.time.clock()
        self.marker = self.layout.marker
        authority.initialise(self.connection, self.layout, self.now(), HOST)
        self.ledger = Ledger.open(self.root / "ledger", START, KEY_WINDOW)
        self.account = LedgerAccount(self.ledger, lambda: START + self.time.boot)

    def close(self) -> None:
        self.connection.close()
        self.ledger.close()

    def now(self) -> float:
        return self.clock.now()

    def supplier(self) -> Supplier:
        return orders.connect(self.connection, self.account, self.marker)

    def claimed(self, role: str = "agent") -> Claim:
        count = self.connection.execute("SELECT count(*) FROM work").fetchone()[0]
        request = work.Request(origin=f"o{count}", session=f"s{count}", prompt="buy", role=role)
        now = self.now()
        with immediate(self.connection):
            admitted = work.admit_within(self.connection, request, now=now, limits=None).work
        while claim := authority.claim_next(self.connection, owner="worker", now=now, marker=self.marker):
            if claim.work == admitted:  # older work whose lease has passed is claimed first
                return claim
        raise AssertionError("the new work was not to be claimed")

    def propose(self, claim: Claim, sku: str = "vanilla", quantity: int = 6) -> Order:
        return orders.propose(
            self.connection,
            claim,
            sku=sku,
            quantity=quantity,
            unit_cost_cents=PRICES[sku],
            policy=self.policy,
            clock=self.clock,
            marker=self.marker,
        ).order

    def approve(
        self, order: Order, *, hours: float = 1.0, operator: str = "lucy", digest: str | None = None
    ) -> orders.Approved:
        now = self.now()
        return orders.approve(
            self.connection,
            digest or order.digest,
            operator=operator,
            until=now + hours * 3600,
            policy=self.policy,
            now=now,
            marker=self.marker,
            order=order.id,
        )

    def approved(self, sku: str = "vanilla", quantity: int = 6) -> tuple[Claim, Order]:
        claim = self.claimed()
        return claim, self.approve(self.propose(claim, sku, quantity)).order

    def revoke(self, order: Order) -> orders.Revoked:
        return orders.revoke(self.connection, order.id, operator="lucy", policy=self.policy, now=self.now())

    def send(self, order: Order, claim: Claim | None = None, fault: str = "none") -> Order:
        supplier = self.supplier()
        self.account.fault = fault
        return orders.send(
            self.connection, order.id, supplier, claim=claim, clock=self.clock, marker=self.marker
        )

    def unknown(self, fault: str = "drop_after_accept") -> Order:
        claim, order = self.approved()
        sent = self.send(order, claim, fault)
        assert sent.status == "UNKNOWN"
        return sent

    def reconcile(self, order: Order, fault: str = "none", *, resend: bool = True) -> orders.Reconciled:
        supplier = self.supplier()
        self.account.fault = fault
        return orders.reconcile(
            self.connection, order.id, supplier, clock=self.clock, marker=self.marker, resend=resend
        )

    def show(self, order: Order) -> Order:
        return orders.show_order(self.connection, order.id)

    def money(self) -> tuple[int, int]:
        """Reserved and spent today."""
        found = orders.spending(self.connection, self.now())
        return found.reserved_cents, found.spent_cents

    def receipts(self) -> list[SupplierReceipt]:
        return list(self.account.receipts())

    def elsewhere(self, query: str, *values: object) -> list[tuple[object, ...]]:
        """What another connection reads: what is committed."""
        with closing(sqlite3.connect(self.layout.database, autocommit=True)) as connection:
            return connection.execute(query, values).fetchall()
