"""`standfast stock`: where each product stands, and the events that change it."""

import time
from typing import Annotated

import typer
from pydantic import BaseModel

from standfast.cli.common import current, emit, examples, group, table, write
from standfast.operations.configuration import shop_config
from standfast.operations.opening import reading, writing
from standfast.shop.stock import Position, StockEvent, adjust, positions
from standfast.store import new_id

app = group("The shop's stock and its events.")


class StockList(BaseModel):
    """Every product of the catalogue, in its order."""

    products: list[Position]


class StockAdjusted(BaseModel):
    """What one stock event did, or with `--check` would do."""

    changed: bool
    """False when this very event was recorded before."""
    check: bool
    event_id: str
    sku: str
    delta: int
    reason: str


@app.callback(
    invoke_without_command=True,
    no_args_is_help=False,
    epilog=examples(
        "standfast stock", "standfast stock adjust vanilla 6 --reason delivery --event-id delivery-0311"
    ),
)
def stock(ctx: typer.Context) -> None:
    """The shop's stock and its events; without a command, the list."""
    if ctx.invoked_subcommand is None:
        list_(ctx)


@app.command("list", epilog=examples("standfast stock list", "standfast --json stock list"))
def list_(ctx: typer.Context) -> None:
    """Every product: on hand, on order, reorder point, needed."""
    layout = current(ctx).layout
    shop = shop_config(layout)
    with reading(layout) as connection:
        found = StockList(products=positions(connection, shop))
    rows = [[p.sku, p.on_hand, p.on_order, p.reorder_point, p.needed] for p in found.products]
    emit(ctx, found, lambda: table(["SKU", "ON HAND", "ON ORDER", "REORDER POINT", "NEEDED"], rows))


@app.command(
    "adjust",
    context_settings={"ignore_unknown_options": True},  # a delta such as -3 is no option
    epilog=examples(
        "standfast stock adjust vanilla 6 --reason delivery --event-id delivery-0311",
        "standfast stock adjust chocolate -1 --reason 'dropped a tub'",
    ),
)
def adjust_(
    ctx: typer.Context,
    sku: Annotated[str, typer.Argument(help="A sku of shop.toml.")],
    delta: Annotated[int, typer.Argument(help="Units that came in (6) or went out (-1).")],
    reason: Annotated[str, typer.Option(help="Why, in one line.")],
    event_id: Annotated[
        str | None,
        typer.Option(help="The event's identity: the same one counts once, however often it is sent."),
    ] = None,
) -> None:
    """Record one change of stock."""
    context = current(ctx)
    now = time.time()
    event = StockEvent(event_id or new_id(now), sku, delta, reason)
    shop = shop_config(context.layout)
    with (reading if context.check else writing)(context.layout) as connection:
        changed = adjust(connection, shop, event, now=now, check=context.check)
    result = StockAdjusted(
        changed=changed, check=context.check, event_id=event.id, sku=sku, delta=delta, reason=reason
    )
    told = ("would be recorded" if context.check else "recorded") if changed else "already recorded"
    emit(ctx, result, lambda: write(f"{event.id}: {sku} {delta:+d} {told}"))
