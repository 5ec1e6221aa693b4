"""`standfast init`: make an instance's store, or complete it."""

import time

import typer

from standfast.cli.common import current, emit, examples, group, write
from standfast.operations.initialise import initialise_instance

app = group("Make an instance's store from its shop.toml.")


@app.command(epilog=examples("standfast init", "standfast --check --json init"))
def init(ctx: typer.Context) -> None:
    """Make what is missing: shop.toml, store, opening stock, skill, schedule, marker. Repairs nothing.

    Safe to repeat: it then adds new products of shop.toml and makes the schedule of the brief agree with it.
    """
    context = current(ctx)
    result = initialise_instance(context.layout, now=time.time(), check=context.check)

    def render() -> None:
        for line in result.done:
            write(f"would be done: {line}" if result.check else line)
        if not result.done:
            write("already so")

    emit(ctx, result, render)
