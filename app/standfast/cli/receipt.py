"""`standfast receipt`: operation receipts."""

import sys
import time
from typing import Annotated

import typer

from standfast.cli.common import EXIT_ATTENTION, current, emit, examples, group, note, table, write
from standfast.layout import running_release
from standfast.receipts import chain, page, recorder

app = group("Operation receipts: what each operation did, chained by digest.")


@app.command(
    epilog=examples("standfast receipt record < draft.json", "standfast --check receipt record < d.json")
)
def record(ctx: typer.Context) -> None:
    """Keep the draft on stdin as the next receipt, after any that earlier failed runs left pending."""
    context = current(ctx)
    draft = recorder.read_draft(sys.stdin.buffer.read(recorder.MAX_DRAFT + 1))
    kept = recorder.record(
        context.layout.receipts, draft, release=running_release(), now=time.time(), check=context.check
    )
    for told in kept.not_adopted:
        note(f"standfast: not adopted: {told}")
    done = "already recorded as" if not kept.changed else "would record" if kept.check else "recorded"
    emit(ctx, kept, lambda: write(f"{done} {kept.file}"))


@app.command("list", epilog=examples("standfast receipt list", "standfast --json receipt list"))
def list_(ctx: typer.Context) -> None:
    """List the receipts, newest first."""
    found = chain.listing(current(ctx).layout.receipts)

    def render() -> None:
        table(
            ["RECEIPT", "STARTED", "OPERATION", "VERDICT", "SECONDS", "BEFORE", "AFTER", "STOPPED AT"],
            [
                [
                    line.sequence,
                    line.started_at,
                    line.operation,
                    line.verdict,
                    f"{line.seconds:.1f}",
                    line.release_before or "-",
                    line.release_after or "-",
                    line.stopped_at or "-",
                ]
                for line in found.receipts
            ],
        )
        for name in found.pending:
            write(f"pending: {name}")

    emit(ctx, found, render)


@app.command(
    epilog=examples("standfast receipt show", "standfast receipt show 3", "standfast receipt show copy.json")
)
def show(
    ctx: typer.Context,
    which: Annotated[
        str | None, typer.Argument(metavar="[N|FILE]", help="A sequence number or a file [default: newest].")
    ] = None,
) -> None:
    """Show one receipt as the page a person reads."""
    receipt = chain.find(current(ctx).layout.receipts, which)

    emit(ctx, receipt, lambda: page.show(receipt))


@app.command(epilog=examples("standfast receipt verify", "standfast --json receipt verify"))
def verify(ctx: typer.Context) -> None:
    """Check the whole chain: missing, edited, reordered and forked receipts are named. Exit 4 if any."""
    checked = chain.verify(current(ctx).layout.receipts)

    def render() -> None:
        if checked.differences:
            table(
                ["FILE", "PROBLEM", "DETAIL"],
                [[found.file, found.problem, found.detail] for found in checked.differences],
            )
        else:
            write(f"whole: {checked.receipts} receipts, newest digest {checked.newest or 'none'}")

    emit(ctx, checked, render)
    if not checked.verified:
        raise typer.Exit(EXIT_ATTENTION)
