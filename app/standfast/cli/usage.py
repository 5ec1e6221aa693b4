"""`standfast usage`: what model calls used, and the ceilings under which they are made."""

import time
from typing import Annotated

import typer
from pydantic import BaseModel

from standfast.agent.usage import state_loss
from standfast.cli.common import current, emit, examples, facts, group, table, write
from standfast.errors import BadInput
from standfast.operations.opening import reading, writing
from standfast.operations.usage import UsageCeilings, UsageFigures, UsageShown, UsageToday, show
from standfast.store import immediate

app = group("What model calls used, and their ceilings.")


class UsageLossStated(BaseModel):
    """What a statement of a loss did, or with `--check` would do."""

    changed: bool
    """False when none of its figures was unknown."""
    check: bool
    day: str
    """The UTC day against whose ceilings it counts."""
    calls: int | None
    tokens: int | None
    cents: int | None


@app.callback(
    invoke_without_command=True,
    no_args_is_help=False,
    epilog=examples("standfast usage", "standfast --json usage --limit 30"),
)
def usage(
    ctx: typer.Context,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="At most so many days, eras and work items.")
    ] = 7,
) -> None:
    """What model calls used: today under its ceilings, and the newest days, eras and work; changes nothing.

    \b
    A call is booked with the most it may use before it is made, and settled with what it used. One whose
    end nobody saw stays counted in full (UNKNOWN). The offline planner costs nothing and is not counted.
    """
    if ctx.invoked_subcommand is not None:
        return
    with reading(current(ctx).layout) as connection:
        connection.execute("BEGIN")  # one snapshot for all that is said
        found = show(connection, time.time(), limit=limit)
    emit(ctx, found, lambda: _render(found))


@app.command(
    epilog=examples(
        "standfast usage lost --calls 0", "standfast usage lost --calls 12 --tokens 60000 --cents 9"
    )
)
def lost(
    ctx: typer.Context,
    calls: Annotated[int | None, typer.Option(min=0, help="Model calls; 0: nothing was lost.")] = None,
    tokens: Annotated[int | None, typer.Option(min=0, help="Input and output tokens together.")] = None,
    cents: Annotated[int | None, typer.Option(min=0, help="Their cost, rounded up.")] = None,
) -> None:
    """State what the end of an era (restore, adoption) lost of today's account: see your provider's figures.

    What nobody states is unknown, and a ceiling on it refuses every live call for the rest of the UTC day.
    """
    context = current(ctx)
    if calls is tokens is cents is None:
        raise BadInput("lost: give at least one of --calls, --tokens and --cents")
    now = time.time()
    if context.check:
        with reading(context.layout) as connection:
            stated = state_loss(connection, calls=calls, cents=cents, tokens=tokens, now=now, check=True)
    else:
        with writing(context.layout) as connection, immediate(connection, "usage.lost"):
            stated = state_loss(connection, calls=calls, cents=cents, tokens=tokens, now=now)
    result = UsageLossStated(
        changed=stated.changed,
        check=context.check,
        day=stated.day,
        calls=calls,
        tokens=tokens,
        cents=cents,
    )
    told = ("would be stated" if context.check else "stated") if result.changed else "nothing was unknown"
    emit(ctx, result, lambda: write(f"loss of {result.day} (UTC): {told}"))


_COLUMNS = ["CALLS", "UNKNOWN", "INPUT", "CACHED", "OUTPUT", "LOST", "CENTS"]


def _row(told: UsageFigures) -> list[object]:
    return [
        told.calls,
        told.unknown_calls,
        told.input_tokens,
        told.cached_tokens,
        told.output_tokens,
        told.lost_tokens,
        "-" if told.cents is None else told.cents,
    ]


def _render(found: UsageShown) -> None:
    facts(_today(found.now))
    for loss in found.losses:
        figures = [
            f"{name} {'unknown' if value is None else value}"
            for name, value in (("calls", loss.calls), ("tokens", loss.tokens), ("cents", loss.cents))
        ]
        write(f"lost at the era's end of {loss.marked_at}: {', '.join(figures)}")
    if found.days:
        write()
        table(["DAY", *_COLUMNS], [[one.day, *_row(one.figures)] for one in found.days])
    if found.epochs:
        write()
        table(["EPOCH", *_COLUMNS], [[one.epoch, *_row(one.figures)] for one in found.epochs])
    if found.work:
        write()
        table(["WORK", *_COLUMNS], [[one.work, *_row(one.figures)] for one in found.work])


def _today(told: UsageToday) -> list[tuple[str, object]]:
    used = told.today.figures
    ceilings = told.ceilings or UsageCeilings(
        daily_calls=None, daily_tokens=None, daily_cents=None, work_cents=None
    )
    tokens = used.input_tokens + used.output_tokens + used.lost_tokens
    rows: list[tuple[str, object]] = [
        ("model", told.model or "not known before the service's first start"),
        ("day", f"{told.today.day} (UTC)"),
        ("calls", _under(used.calls, ceilings.daily_calls)),
        ("tokens", _under(tokens, ceilings.daily_tokens)),
        ("cents", _under(used.cents, ceilings.daily_cents)),
        ("cents for one request", _limit(ceilings.work_cents)),
        ("last call", f"{told.last_call}, {told.last_call_at}" if told.last_call else "none"),
    ]
    if told.today.unstated:
        rows.append(("unstated loss", f"{', '.join(told.today.unstated)}: see `standfast usage lost`"))
    return rows + [
        ("stopped", f"{stop.times} calls refused by {stop.ceiling}, last {stop.last_at}")
        for stop in told.stops
    ]


def _under(used: int | None, ceiling: int | None) -> str:
    shown = "unknown, no prices in shop.toml" if used is None else str(used)
    return shown if ceiling is None else f"{shown} of {ceiling}"


def _limit(ceiling: int | None) -> str:
    return "no limit" if ceiling is None else f"at most {ceiling}"
