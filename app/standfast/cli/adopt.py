"""`standfast adopt`: take over a state directory on this host."""

import time
from typing import Annotated

import typer

from standfast.cli.common import current, emit, examples, group, printable, write
from standfast.operations import adopting

app = group("Take over a state directory that its marker does not vouch for here.")


@app.command(
    epilog=examples(
        "standfast --check adopt --reason 'moved to the new host'",
        "standfast adopt --reason 'the marker was lost'",
    )
)
def adopt(
    ctx: typer.Context,
    reason: Annotated[str, typer.Option(help="Why this copy is the one to go on, in one line.")],
) -> None:
    """Begin a new epoch here, paused: for another host's state, a lost marker, or an end cut short.

    \b
    Old claims, approvals and reservations end. What was sent stays sent: recover the account before resuming.
    Refused while the service runs, and when marker, store and host agree. Leave every other copy stopped.
    """
    context = current(ctx)
    result = adopting.adopt(context.layout, reason=reason, now=time.time(), check=context.check)

    def render() -> None:
        for line in result.why:
            write(printable(line))
        if result.check:
            write("would be adopted: a new epoch, paused")
        else:
            write(f"adopted: epoch {result.epoch}, paused")

    emit(ctx, result, render)
