"""`standfast serve`: the service itself, as systemd starts it."""

import os

import typer
from pydantic import BaseModel

from standfast.cli.common import current, emit, examples, group, write
from standfast.notify import Notifier
from standfast.serve import serve as run
from standfast.serve.settings import load

app = group("Run the agent (systemd starts this).")


class ServeResult(BaseModel):
    """What `serve` did until it was told to stop; with `--check`, that its configuration is valid."""

    changed: bool
    check: bool
    run: str | None
    passes: int
    turns: int


@app.command(epilog=examples("standfast serve", "standfast --check serve"))
def serve(ctx: typer.Context) -> None:
    """Work until SIGTERM: schedules, low stock, requests, reports. One process for each state directory.

    An invalid shop.toml or environment ends it with exit 78 and the field's name, before anything is opened;
    `--check` says only whether they are valid. After SIGTERM a turn in hand has 20 s to come to its end.
    """
    context = current(ctx)
    if context.check:
        load(context.layout, os.environ, Notifier(dict(os.environ)).watchdog_seconds)
        checked = ServeResult(changed=False, check=True, run=None, passes=0, turns=0)
        emit(ctx, checked, lambda: write("the configuration is valid"))
        return
    served = run(context.layout)
    result = ServeResult(
        changed=served.turns > 0, check=False, run=served.run, passes=served.passes, turns=served.turns
    )
    emit(ctx, result, lambda: None)
