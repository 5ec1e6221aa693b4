"""`standfast unit`: the systemd unit of this release."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from standfast.cli.common import current, emit, examples, group, write
from standfast.operations.unit import MAX_UNIT, compare, describe, read_unit

app = group("The systemd unit of this release.")


@app.command(
    epilog=examples(
        "standfast unit",
        "standfast unit --compare ~/.config/systemd/user/lucy-agent.service",
        "standfast --json unit --instance lucy-agent",
    )
)
def unit(
    ctx: typer.Context,
    instance: Annotated[
        str | None, typer.Option(metavar="NAME", help="Instance name [default: the root's own].")
    ] = None,
    compare_with: Annotated[
        str | None,
        typer.Option("--compare", metavar="FILE", help="Refused (exit 3) where lines differ; - reads stdin."),
    ] = None,
) -> None:
    """Print the unit text of the release that runs this, or compare a file with it."""
    described = describe(current(ctx).layout, instance)
    if compare_with is None:
        emit(ctx, described, lambda: write(described.text.removesuffix("\n")))
        return
    found = sys.stdin.buffer.read(MAX_UNIT + 1) if compare_with == "-" else read_unit(Path(compare_with))
    same = compare(described, found, compare_with)
    emit(ctx, same, lambda: write(f"{same.name} is what release {same.release} writes"))
