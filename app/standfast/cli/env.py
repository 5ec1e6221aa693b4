"""`standfast env`: the operator's environment file. Keys may be shown; values never."""

import sys
from typing import Annotated

import typer

from standfast.cli.common import EXIT_ATTENTION, current, emit, examples, facts, group, table, write
from standfast.operations import environment

app = group("The operator's environment file: written from pairs, checked, compared. Values are never shown.")


def _pairs() -> dict[str, str]:
    return environment.read_pairs(sys.stdin.buffer.read(environment.MAX_PAIRS + 1))


@app.command(
    "write",
    epilog=examples(
        "standfast env write < pairs.json", "standfast --check --json env write --adopt < pairs.json"
    ),
)
def write_(
    ctx: typer.Context,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Replace a file that was written or edited by hand.")
    ] = False,
) -> None:
    """Make the file say exactly the pairs of the JSON object on stdin."""
    context = current(ctx)
    result = environment.write(context.layout, _pairs(), adopt=adopt, check=context.check)
    told = {(True, True): "would change", (True, False): "changed"}.get((result.changed, result.check))
    emit(ctx, result, lambda: write(f"{result.file}: {told or 'already so'} ({len(result.names)} names)"))


@app.command(epilog=examples("standfast env check", "standfast --json env check"))
def check(ctx: typer.Context) -> None:
    """Look at the file as systemd will: type, mode, owner, every line. Exit 4 when something is wrong."""
    found = environment.check(current(ctx).layout)

    def render() -> None:
        facts(
            [
                ("file", found.file),
                ("written by", {True: "standfast env write", False: "hand", None: "-"}[found.generated]),
                ("edited since", {True: "yes", False: "no", None: "-"}[found.edited]),
                ("names", " ".join(found.names) or "none"),
            ]
        )
        if found.problems:
            write()
            table(["LINE", "PROBLEM"], [[told.line or "-", told.problem] for told in found.problems])

    emit(ctx, found, render)
    if not found.ok:
        raise typer.Exit(EXIT_ATTENTION)


@app.command(
    epilog=examples(
        "systemd-run --user --wait --pipe --quiet --collect -p EnvironmentFile=FILE "
        "PYTHON -I -m standfast env compare < pairs.json"
    )
)
def compare(ctx: typer.Context) -> None:
    """Prove the file through systemd: refused (exit 3) unless this process was given the pairs on stdin."""
    result = environment.compare(_pairs())
    emit(ctx, result, lambda: write("same"))
