"""`standfast order`: what would be bought, its approval, and what became of it."""

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, ValidationError

from standfast import orders
from standfast.cli.common import (
    EXIT_ATTENTION,
    current,
    emit,
    examples,
    facts,
    group,
    printable,
    table,
    write,
)
from standfast.clock import Clock, rfc3339
from standfast.errors import BadInput
from standfast.operations.configuration import shop_config
from standfast.operations.opening import reading, writing
from standfast.operations.purchasing import refuse_amnesia, supplier_account
from standfast.orders import Approval, Order, Step
from standfast.shop.stock import receive
from standfast.supplier.wire import SupplierReceipt

_RECEIPT_BYTES = 64 * 1024
_EXAMPLE = "6f1d0f3a92d04ac7b8e0c951"
_DIGEST = "d34c5bd9f0a1...(64 hex digits)"

app = group("Orders: list, show, approve, revoke, send, resolve, deliver.")

OrderId = Annotated[str, typer.Argument(metavar="ORDER", help="An order's id.")]
Operator = Annotated[str, typer.Option(help="Who says so; one of [operators] in shop.toml.")]


class OrderEntry(BaseModel):
    """One order as it stands."""

    id: str
    """Also the operation id that the supplier knows."""
    work: str | None
    status: str
    note: str
    sku: str
    quantity: int
    unit_cost_cents: int
    total_cents: int
    currency: str
    target: str
    """From whom."""
    digest: str
    """What an approval takes."""
    epoch: str
    reserved_cents: int
    spent_cents: int
    attempts: int
    """How often it was sent."""
    receipt_id: str | None
    proposed_at: str
    changed_at: str

    @classmethod
    def of(cls, order: Order) -> "OrderEntry":
        """The published form."""
        return cls(
            id=order.id,
            work=order.work,
            status=order.status,
            note=order.note,
            sku=order.sku,
            quantity=order.quantity,
            unit_cost_cents=order.unit_cost_cents,
            total_cents=order.total_cents,
            currency=order.currency,
            target=order.target,
            digest=order.digest,
            epoch=order.epoch,
            reserved_cents=order.reserved_cents,
            spent_cents=order.spent_cents,
            attempts=order.attempts,
            receipt_id=order.receipt_id,
            proposed_at=rfc3339(order.proposed_at),
            changed_at=rfc3339(order.changed_at),
        )


class ApprovalEntry(BaseModel):
    """One approval of an order's exact bytes."""

    operator: str
    automatic: bool
    """By the policy's allowance."""
    approved_at: str
    until: str
    used_at: str | None
    revoked: bool
    live: bool
    """Whether it lets the order be sent now, or sent again."""

    @classmethod
    def of(cls, approval: Approval, now: float) -> "ApprovalEntry":
        """The published form at ``now``."""
        return cls(
            operator=approval.operator,
            automatic=approval.automatic,
            approved_at=rfc3339(approval.approved_at),
            until=rfc3339(approval.until),
            used_at=None if approval.used_at is None else rfc3339(approval.used_at),
            revoked=approval.revoked,
            live=not approval.revoked and approval.until > now,
        )


class OrderStep(BaseModel):
    """One status that the order came to."""

    status: str
    note: str
    at: str

    @classmethod
    def of(cls, step: Step) -> "OrderStep":
        """The published form."""
        return cls(status=step.status, note=step.note, at=rfc3339(step.at))


class OrderShown(BaseModel):
    """One order with everything that is known of it."""

    order: OrderEntry
    canonical: str
    """The exact bytes that the digest covers, after the target and a newline."""
    approvals: list[ApprovalEntry]
    history: list[OrderStep]
    receipt: SupplierReceipt | None
    refused_receipt: SupplierReceipt | None
    """A supplier receipt that does not match this order; a person must look into it."""
    asked_about_at: str | None
    """When the service asks the supplier what became of it, if no answer settles it before."""
    also_open: list[OrderEntry]
    """Other open orders of the same product."""


class OrderList(BaseModel):
    """Orders, newest first."""

    orders: list[OrderEntry]


class OrderApproved(BaseModel):
    """What an approval did, or with `--check` would do."""

    changed: bool
    check: bool
    order: OrderEntry
    operator: str
    until: str


class OrderRevoked(BaseModel):
    """What a revocation did, or with `--check` would do."""

    changed: bool
    check: bool
    order: OrderEntry
    recalled: bool
    """False when it was sent before: that cannot be recalled, it is only never sent again."""


class OrderSent(BaseModel):
    """What sending came to, or with `--check` that it could be sent now."""

    changed: bool
    check: bool
    order: OrderEntry


class OrderResolved(BaseModel):
    """What became of an uncertain order."""

    changed: bool
    check: bool
    order: OrderEntry


class OrderDelivered(BaseModel):
    """That a delivery was recorded."""

    changed: bool
    check: bool
    order: OrderEntry


@app.command("list", epilog=examples("standfast order list", "standfast --json order list --status DRAFT"))
def list_(
    ctx: typer.Context,
    status: Annotated[str | None, typer.Option(help="Only those of one status.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 20,
) -> None:
    """The newest orders first."""
    with reading(current(ctx).layout) as connection:
        found = OrderList(
            orders=[OrderEntry.of(one) for one in orders.list_orders(connection, status=status, limit=limit)]
        )
    rows = [[o.id, o.status, o.sku, o.quantity, _money(o), o.target, o.changed_at] for o in found.orders]
    emit(ctx, found, lambda: table(["ORDER", "STATUS", "SKU", "UNITS", "TOTAL", "FROM", "SINCE"], rows))


@app.command(epilog=examples(f"standfast order show {_EXAMPLE}"))
def show(ctx: typer.Context, order: OrderId) -> None:
    """What will be bought, for how much, from whom, until when, and the digest to type."""
    now = time.time()
    with reading(current(ctx).layout) as connection:
        found = orders.show_order(connection, order)
        also = [o for o in orders.open_orders(connection) if o.sku == found.sku and o.id != found.id]
        shown = OrderShown(
            order=OrderEntry.of(found),
            canonical=found.intent.canonical.decode(),
            approvals=[ApprovalEntry.of(one, now) for one in orders.approvals_of(connection, order)],
            history=[OrderStep.of(one) for one in orders.history_of(connection, order)],
            receipt=_kept(found.receipt),
            refused_receipt=_kept(found.refused_receipt),
            asked_about_at=None if (asked := orders.asked_about_at(found)) is None else rfc3339(asked),
            also_open=[OrderEntry.of(one) for one in also],
        )
    emit(ctx, shown, lambda: _render(shown))


@app.command(
    epilog=examples(
        f"standfast order approve {_DIGEST} --operator lucy",
        f"standfast order approve {_DIGEST} --operator lucy --until 2026-03-01T18:00:00Z",
    )
)
def approve(
    ctx: typer.Context,
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help="Exactly as `order show` prints it.")],
    *,
    operator: Operator,
    hours: Annotated[float, typer.Option(help="For so many hours from now; at most 24.")] = 4.0,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Or until a time, RFC 3339.")] = None,
    order: Annotated[str | None, typer.Option(metavar="ORDER", help="Which, if several match.")] = None,
) -> None:
    """Let exactly these bytes be sent once; reserves the money. The service then sends the order."""
    context = current(ctx)
    now = time.time()
    end = now + hours * 3600 if until is None else _time(until)
    policy = shop_config(context.layout).policy
    with (reading if context.check else writing)(context.layout) as connection:
        told = orders.approve(
            connection,
            digest,
            operator=operator,
            until=end,
            policy=policy,
            now=now,
            marker=context.layout.marker,
            order=order,
            check=context.check,
        )
    result = OrderApproved(
        changed=told.changed,
        check=context.check,
        order=OrderEntry.of(told.order),
        operator=told.approval.operator,
        until=rfc3339(told.approval.until),
    )
    done = ("would be approved" if context.check else "approved") if told.changed else "is approved already"
    emit(ctx, result, lambda: write(f"order {_said(result.order)}: {done} until {result.until}"))


@app.command(epilog=examples(f"standfast order revoke {_EXAMPLE} --operator lucy --reason 'too many'"))
def revoke(
    ctx: typer.Context,
    order: OrderId,
    operator: Operator,
    reason: Annotated[str, typer.Option(help="Why, in one line.")] = "",
) -> None:
    """Take a draft or an approval back. What was already sent cannot be recalled; it is never sent again."""
    context = current(ctx)
    policy = shop_config(context.layout).policy
    with (reading if context.check else writing)(context.layout) as connection:
        told = orders.revoke(
            connection,
            order,
            operator=operator,
            policy=policy,
            now=time.time(),
            reason=printable(reason),
            check=context.check,
        )
    result = OrderRevoked(
        changed=told.changed, check=context.check, order=OrderEntry.of(told.order), recalled=told.recalled
    )
    done = ("would be revoked" if context.check else "revoked") if told.changed else "was revoked already"
    late = "" if told.recalled else "; it was sent before and cannot be recalled, only never sent again"
    emit(ctx, result, lambda: write(f"order {_said(result.order)}: {done}{late}"))


@app.command(epilog=examples(f"standfast order send {_EXAMPLE}", f"standfast --check order send {_EXAMPLE}"))
def send(ctx: typer.Context, order: OrderId) -> None:
    """Send one approved order now, as the service would. Exit 4 when it was not accepted for certain."""
    context = current(ctx)
    layout = context.layout
    with supplier_account(layout) as account, (reading if context.check else writing)(layout) as connection:
        if not context.check:
            orders.expire(connection, now=time.time())
        found = orders.show_order(connection, order)
        orders.sendable(connection, order, found.epoch, now=time.time(), marker=layout.marker)
        refuse_amnesia(connection, layout, account, now=time.time(), check=context.check)
        if not context.check:
            supplier = orders.connect(connection, account, layout.marker)
            found = orders.send(connection, order, supplier, claim=None, clock=Clock(), marker=layout.marker)
    result = OrderSent(changed=True, check=context.check, order=OrderEntry.of(found))
    done = "could be sent now" if context.check else f"{found.status}: {found.note}"
    emit(ctx, result, lambda: write(f"order {_said(result.order)}: {done}"))
    if not context.check and found.status != "CONFIRMED":
        raise typer.Exit(EXIT_ATTENTION)


@app.command(
    epilog=examples(
        f"standfast order resolve {_EXAMPLE} --operator lucy",
        f"standfast order resolve {_EXAMPLE} --operator lucy --receipt receipt.json",
    )
)
def resolve(
    ctx: typer.Context,
    order: OrderId,
    operator: Operator,
    receipt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The supplier's own receipt, as JSON.")
    ] = None,
) -> None:
    """Settle an UNKNOWN order by a receipt that you bring, or by asking the supplier. Sends nothing.

    Exit 4 when it stays uncertain: that the supplier does not know it proves nothing.
    """
    context = current(ctx)
    layout = context.layout
    policy = shop_config(layout).policy
    policy.refuse_unless_operator(operator)
    evidence = None if receipt is None else _read_receipt(receipt)
    with (reading if context.check else writing)(layout) as connection:
        before = orders.show_order(connection, order)
        if evidence is not None:
            told = orders.resolve(
                connection,
                order,
                evidence,
                operator=operator,
                policy=policy,
                now=time.time(),
                marker=layout.marker,
                check=context.check,
            )
            after, changed = told.order, told.changed
        elif context.check:
            after, changed = before, before.status == "UNKNOWN"
        else:
            with supplier_account(layout) as account:
                refuse_amnesia(connection, layout, account, now=time.time())
                supplier = orders.connect(connection, account, layout.marker)
                after = orders.reconcile(
                    connection, order, supplier, clock=Clock(), marker=layout.marker, resend=False
                ).order
            changed = after != before
    result = OrderResolved(changed=changed, check=context.check, order=OrderEntry.of(after))
    told_so = "would be asked about or settled" if context.check else f"{after.status}: {after.note}"
    emit(ctx, result, lambda: write(f"order {_said(result.order)}: {told_so}"))
    if not context.check and after.status in {"UNKNOWN", "SENDING"}:
        raise typer.Exit(EXIT_ATTENTION)


@app.command(epilog=examples(f"standfast order deliver {_EXAMPLE} --operator lucy"))
def deliver(ctx: typer.Context, order: OrderId, operator: Operator) -> None:
    """Record that a confirmed order's goods are here; counts them into the stock, once."""
    context = current(ctx)
    policy = shop_config(context.layout).policy
    with (reading if context.check else writing)(context.layout) as connection:
        told = orders.deliver(
            connection,
            order,
            operator=operator,
            policy=policy,
            into_stock=receive,
            now=time.time(),
            check=context.check,
        )
    result = OrderDelivered(changed=told.changed, check=context.check, order=OrderEntry.of(told.order))
    done = ("would be recorded" if context.check else "recorded") if told.changed else "recorded before"
    emit(ctx, result, lambda: write(f"order {_said(result.order)}: delivery {done}"))


def _render(shown: OrderShown) -> None:
    order = shown.order
    live = [one for one in shown.approvals if one.live]
    facts(
        [
            ("order", order.id),
            ("status", f"{order.status}{': ' + order.note if order.note else ''}"),
            ("buys", f"{order.quantity} of {order.sku}, {order.unit_cost_cents} cents each"),
            ("for", _money(order)),
            ("from", order.target),
            ("until", ", ".join(f"{one.until} ({one.operator})" for one in live) or "not approved"),
            ("digest", order.digest),
            ("exact bytes", shown.canonical),
            ("asked by", f"work {order.work}" if order.work else "no work; the supplier's receipt only"),
            ("money", f"{order.reserved_cents} cents reserved, {order.spent_cents} spent"),
            ("sent", f"{order.attempts} times"),
        ]
    )
    if shown.asked_about_at is not None:
        write(f"if no answer settles it before, the service asks the supplier at {shown.asked_about_at}")
    for name, receipt in (("receipt", shown.receipt), ("REFUSED RECEIPT", shown.refused_receipt)):
        if receipt is not None:
            write(f"{name}: {printable(receipt.model_dump_json())}")
    for other in shown.also_open:
        write(f"also open: order {_said(other)}, {other.status}")
    write()
    table(["AT", "STATUS", "NOTE"], [[one.at, one.status, one.note] for one in shown.history])
    if order.status == "DRAFT":
        write()
        write(f"to approve it: standfast order approve {order.digest} --operator NAME")


def _money(order: OrderEntry) -> str:
    return orders.money(order.total_cents, order.currency)


def _said(order: OrderEntry) -> str:
    return f"{order.id} ({order.quantity} of {order.sku}, {_money(order)}, {order.target})"


def _kept(text: str | None) -> SupplierReceipt | None:
    return None if text is None else SupplierReceipt.model_validate_json(text)


def _time(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise BadInput(f"until: {text!r} is not an RFC 3339 time such as 2026-03-01T18:00:00Z")
    return found.timestamp()


def _read_receipt(path: Path) -> SupplierReceipt:
    try:
        with path.open("rb") as file:
            data = file.read(_RECEIPT_BYTES + 1)
    except OSError as error:
        raise BadInput(f"receipt: {path} cannot be read: {error.strerror}") from error
    try:
        return SupplierReceipt.model_validate_json(data)
    except ValidationError as error:
        fields = ", ".join(".".join(map(str, one["loc"])) or "the whole" for one in error.errors())
        raise BadInput(f"receipt: {path} is not a supplier receipt: {fields}") from error
