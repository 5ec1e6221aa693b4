"""Recovery: one reviewed plan, applied once, in one transaction, or not at all.

Everything is checked before anything changes, and once more inside the transaction, where no other process
can come between: what it does there is exactly what was foreseen there.
"""

import math
import sqlite3
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from standfast import orders, work
from standfast.agent.usage import state_loss
from standfast.authority import resume_within
from standfast.clock import rfc3339
from standfast.errors import Refused
from standfast.layout import Layout
from standfast.operations.configuration import shop_config
from standfast.operations.opening import reading, writing
from standfast.operations.recovery import plan as plans
from standfast.operations.recovery.eras import awaiting, record_event
from standfast.operations.recovery.inspecting import interrupted, products, reference
from standfast.operations.recovery.plan import LostUsage, Plan
from standfast.orders import OrderEffect, SupplierAccount
from standfast.receipts.model import Check
from standfast.shop import prompts, stock
from standfast.shop.config import ShopConfig
from standfast.shop.stock import StockEvent
from standfast.store import immediate, triggers
from standfast.supplier.wire import SupplierReceipt

_REASON = "interrupted by a restore"
_TOLD = 10
_SHOWN = 12


class Counted(BaseModel):
    """One product: what the records said, and what was counted."""

    sku: str
    recorded: int
    counted: int


class Interrupted(BaseModel):
    """What became of one interrupted work item."""

    work: str
    outcome: Literal["report", "requeue"]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is otherwise afterwards."""

    what: str
    before: str
    after: str


class Recovered(BaseModel):
    """What a recovery did, or with `--check` would do."""

    changed: bool
    check: bool
    status: Literal["ACTIVE", "PAUSED"]
    """ACTIVE: the plan was applied, now or before; PAUSED: `--check` has changed nothing."""
    duplicate: bool
    """True when this very plan was applied before; then nothing was changed now."""
    digest: str
    epoch: str
    orders: int
    """Operations that the supplier accepted, and that are recorded as such."""
    spent_cents: int
    """What they cost, each once."""
    imported: list[str]
    """Of those, the ones that only the supplier remembered."""
    revoked: list[str]
    """Uncertain orders that the fenced account never accepted."""
    stock: list[Counted]
    """The products whose count differs from the records."""
    interrupted: list[Interrupted]
    usage: Literal["unknown"] | LostUsage
    changes: list[Change] = []
    """Everything that is otherwise, in words; left out of a duplicate's answer."""
    receipt: str | None = None
    """The operation receipt's file; null when the caller keeps one, and when nothing was changed."""

    def seen(self) -> list[Check]:
        """What the operation's receipt says."""
        told = (
            f"{self.status}; {self.orders} orders, {self.spent_cents} cents spent,"
            f" {len(self.imported)} unknown here before, {len(self.revoked)} revoked;"
            f" {len(self.stock)} products corrected; {len(self.interrupted)} interrupted items settled"
        )
        return [
            Check(name="plan", outcome="pass", observed=self.digest),
            Check(name="recover", outcome="pass", observed=told),
        ]


@dataclass(frozen=True, slots=True)
class Reviewed:
    """A plan that an operator asks to apply."""

    path: Path
    digest: str
    """What was reviewed: the sha256 of the plan's bytes."""
    operator: str


type Reach = Callable[[], SupplierAccount]
"""Opens the supplier's account; not called before the plan itself has passed."""


def recover(layout: Layout, reach: Reach, asked: Reviewed, *, now: float, check: bool = False) -> Recovered:
    """Apply the plan: exactly these bytes, for this operator, in the era that it is for, at ``now``.

    Raises BadInput for a plan that is none or not complete; Refused, with nothing changed, in this order:
    ``digest_differs``, ``operator_unknown``, ``not_paused``, ``not_awaiting_recovery``, ``marker_disagrees``,
    ``other_epoch``, ``observed_ahead``, ``observed_long_ago``, ``account_other_epoch``,
    ``receipts_invalid``, ``receipts_changed``, ``products_differ``, ``interrupted_differs``, and what
    ``orders.foresee_orders`` refuses; SupplierUnavailable. A plan that was applied before is a duplicate,
    whatever the pause or the clock says.
    """
    data = plans.read(asked.path)
    _refuse_other_bytes(data, asked.digest)
    shop = shop_config(layout)
    shop.policy.refuse_unless_operator(asked.operator)
    with reading(layout) as connection:
        if earlier := _applied(connection, asked.digest):
            return earlier
        plan = plans.parse(data)
        _refuse_untimely(connection, layout, plan, now, shop)
    receipts = _receipts(reach(), plan)
    triggers.reach("recover.supplier_answered")
    case = _Case(asked, data, plan, shop, receipts, now)
    if check:
        with reading(layout) as connection:
            return _foreseen(connection, layout, case).told(check=True)
    with writing(layout) as connection, immediate(connection, "recover"):
        if earlier := _applied(connection, asked.digest):  # another process was faster with the same plan
            return earlier
        return _apply(connection, layout, case)


@dataclass(frozen=True, slots=True)
class _Case:
    """What is to be applied, all of it checked by itself."""

    asked: Reviewed
    data: bytes
    plan: Plan
    shop: ShopConfig
    receipts: Sequence[SupplierReceipt]
    now: float


@dataclass(frozen=True, slots=True)
class _Foreseen:
    """What applying it comes to."""

    case: _Case
    effects: list[OrderEffect]
    counted: list[Counted]
    prompts: dict[str, str]
    """Interrupted work: id -> prompt."""

    def told(self, *, check: bool) -> Recovered:
        plan = self.case.plan
        return Recovered(
            changed=True,
            check=check,
            status="PAUSED" if check else "ACTIVE",
            duplicate=False,
            digest=self.case.asked.digest,
            epoch=plan.authority,
            orders=len(self.case.receipts),
            spent_cents=sum(receipt.total_cents for receipt in self.case.receipts),
            imported=[one.operation for one in self.effects if one.what == "import"],
            revoked=[one.operation for one in self.effects if one.what == "revoke"],
            stock=self.counted,
            interrupted=[Interrupted(work=one, outcome=plan.interrupted[one]) for one in self.prompts],
            usage=plan.usage,
            changes=self._changes(),
        )

    def _changes(self) -> list[Change]:
        found = [
            Change(
                what=f"order {one.operation}: {one.quantity} of {one.sku}",
                before=one.before,
                after=f"{one.after}, {one.cents} cents spent",
            )
            for one in self.effects
            if one.what != "keep"
        ]
        found += [
            Change(what=f"stock of {one.sku}", before=str(one.recorded), after=str(one.counted))
            for one in self.counted
        ]
        for item in self.prompts:
            report = self.case.plan.interrupted[item] == "report"
            after = "CANCELED, reported as interrupted" if report else "READY, done again"
            found.append(Change(what=f"work {item}", before="READY, interrupted", after=after))
        return [*found, Change(what="operations", before="paused", after="active")]


def _refuse_other_bytes(data: bytes, digest: str) -> None:
    seen = plans.digest(data)
    if seen != plans.checked_digest(digest):
        raise Refused(
            "digest_differs",
            "the plan is not the one that was reviewed",
            observed=f"its digest is {seen}",
            remedy="review it once more, and give the digest of exactly these bytes",
        )


def _applied(connection: sqlite3.Connection, digest: str) -> Recovered | None:
    row = connection.execute("SELECT result FROM recoveries WHERE digest = ?", (digest,)).fetchone()
    if row is None:
        return None
    told = Recovered.model_validate_json(row[0])
    return told.model_copy(update={"changed": False, "check": False, "duplicate": True})


def _refuse_untimely(
    connection: sqlite3.Connection, layout: Layout, plan: Plan, now: float, shop: ShopConfig
) -> None:
    control = awaiting(connection, layout.marker)
    if plan.authority != control.epoch:
        raise Refused(
            "other_epoch",
            "the plan is for another epoch",
            observed=f"plan {plan.authority}, store {control.epoch}",
            remedy="inspect the account again: `standfast account inspect`",
        )
    age = now - plan.observed
    if not math.isfinite(age) or age < 0:
        raise Refused(
            "observed_ahead",
            "the plan's observation lies in the future",
            observed=f"observed {plan.observed_at}, now {rfc3339(now)}",
            remedy="set the host's clock right, or look again and correct observed_at",
        )
    if age > shop.recovery.observation_seconds:
        raise Refused(
            "observed_long_ago",
            "the plan's observation is too old: what was counted may have been sold since",
            observed=f"observed {plan.observed_at}, {age:.0f} s ago"
            f" (limit {shop.recovery.observation_seconds} s)",
            remedy="look again: `standfast recover edit-plan` asks for everything and states the time",
        )


def _receipts(account: SupplierAccount, plan: Plan) -> list[SupplierReceipt]:
    """What the account accepted, when it is still fenced and what the plan says it is."""
    found = account.account()
    if found.epoch != plan.authority:
        raise Refused(
            "account_other_epoch",
            "the supplier's account is not fenced for this epoch",
            observed=f"account {found.account} has epoch {found.epoch}, the plan is for {plan.authority}",
            remedy="another copy may be acting: find out which one is to go on, then inspect the account",
        )
    receipts = list(account.receipts())
    orders.refuse_invalid(receipts)
    planned = {operation: one.reference for operation, one in plan.deliveries.items()}
    differ = {}
    for receipt in receipts:
        before, present = planned.pop(receipt.operation_id, "not there"), reference(receipt)
        if present != before:
            differ[receipt.operation_id] = f"{present}; plan: {before}"
    differ |= {operation: f"not accepted; plan: {before}" for operation, before in planned.items()}
    if differ:
        raise Refused(
            "receipts_changed",
            "the supplier's receipts are not those of the inspection",
            observed=[f"operation {one}: {told}" for one, told in sorted(differ.items())[:_TOLD]],
            remedy="inspect the account again: `standfast account inspect`",
        )
    return receipts


def _foreseen(connection: sqlite3.Connection, layout: Layout, case: _Case) -> _Foreseen:
    """What the plan comes to in the store as it is now; raises as ``recover``. Writes nothing."""
    _refuse_untimely(connection, layout, case.plan, case.now, case.shop)
    expected = products(connection, case.shop, case.receipts)
    _refuse_different("products_differ", "products to count", expected, case.plan.inventory.keys())
    case.plan.refuse_unanswered()
    waiting = interrupted(connection)
    _refuse_different("interrupted_differs", "interrupted work", waiting.keys(), case.plan.interrupted.keys())
    received = {operation: bool(one.received) for operation, one in case.plan.deliveries.items()}
    recorded = stock.on_hand(connection)
    counted = [
        Counted(sku=sku, recorded=recorded.get(sku, 0), counted=one.on_hand)
        for sku, one in sorted(case.plan.inventory.items())
        if one.on_hand is not None and one.on_hand != recorded.get(sku, 0)
    ]
    effects = orders.foresee_orders(connection, case.receipts, received)
    return _Foreseen(case, effects, counted, waiting)


def _refuse_different(code: str, what: str, wanted: AbstractSet[str], given: AbstractSet[str]) -> None:
    if wanted != given:
        raise Refused(
            code,
            f"the plan does not name exactly the {what}",
            observed=[
                *(f"lacks {one}" for one in sorted(wanted - given)[:_TOLD]),
                *(f"does not belong: {one}" for one in sorted(given - wanted)[:_TOLD]),
            ],
            remedy="inspect the account again: `standfast account inspect`",
        )


def _apply(connection: sqlite3.Connection, layout: Layout, case: _Case) -> Recovered:
    """Inside the one transaction."""
    foreseen = _foreseen(connection, layout, case)
    plan, asked, now = case.plan, case.asked, case.now
    orders.apply_effects(connection, foreseen.effects, operator=asked.operator, now=now)
    triggers.reach("recover.orders")
    for one in foreseen.counted:
        event = StockEvent(
            f"recovery:{asked.digest}:{one.sku}",
            one.sku,
            one.counted - one.recorded,
            f"counted in the recovery by {asked.operator}",
        )
        stock.insert(connection, event, now=now)
    triggers.reach("recover.stock")
    if isinstance(plan.usage, LostUsage):
        lost = plan.usage
        state_loss(connection, calls=lost.calls, cents=lost.cents, tokens=lost.tokens, now=now)
    for item, prompt in foreseen.prompts.items():
        if plan.interrupted[item] == "report":
            lines = [orders.told(one) for one in orders.orders_of(connection, item)]
            report = prompts.interrupted_by_restore(prompt, lines)
            work.end_interrupted(connection, item, report=report, reason=_REASON, now=now)
    triggers.reach("recover.work")
    told = foreseen.told(check=False)
    result = told.model_dump_json(exclude={"changes", "receipt"})
    connection.execute(
        "INSERT INTO recoveries VALUES (?, ?, CAST(? AS TEXT), ?, ?, ?)",
        (asked.digest, plan.authority, case.data, asked.operator, now, result),
    )
    detail = {"digest": asked.digest, "operator": asked.operator, "orders": told.orders}
    record_event(connection, "operations.recovered", plan.authority, detail, now)
    triggers.reach("recover.recorded")
    reason = f"recovered by {asked.operator} with the plan {asked.digest[:_SHOWN]}"
    resume_within(connection, layout.marker, reason, now)
    triggers.reach("recover.resumed")
    return told
