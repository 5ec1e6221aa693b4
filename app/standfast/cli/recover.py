"""`standfast recover`: apply a reviewed plan once, and the help in filling one in."""

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from standfast.cli.common import current, emit, examples, facts, group, note, printable, table, write
from standfast.cli.keeping import KeepsReceipt, kept
from standfast.operations.purchasing import supplier_account
from standfast.operations.recovery.applying import Recovered, Reviewed
from standfast.operations.recovery.applying import recover as apply_plan
from standfast.operations.recovery.questions import (
    Edited,
    edit,
    recorded_deliveries,
    refuse_without_terminal,
)

app = group(
    "Apply a reviewed plan in one transaction and resume; the same plan again changes nothing.\n\n\b\n"
    "Everything is checked first: the bytes against the digest, the operator, the pause and its epoch, the\n"
    "age of the observation, the supplier's receipts, every count and every delivery.\n"
    "--check shows all that would change. Paths are absolute: the operator's command runs elsewhere."
)
app.info.no_args_is_help = False


@app.callback(
    invoke_without_command=True,
    epilog=examples(
        "standfast recover edit-plan /srv/lucy/state/plan.json",
        "standfast --check recover --plan /srv/lucy/state/plan.json --digest 3f0c... --operator lucy",
        "standfast recover --plan /srv/lucy/state/plan.json --digest 3f0c... --operator lucy",
    ),
)
def recover(
    ctx: typer.Context,
    plan: Annotated[Path | None, typer.Option(metavar="FILE", help="The plan, with every answer.")] = None,
    digest: Annotated[
        str | None, typer.Option(metavar="SHA256", help="Of the plan as it was reviewed.")
    ] = None,
    operator: Annotated[
        str | None, typer.Option(help="Who says so; one of [operators] in shop.toml.")
    ] = None,
    receipt: KeepsReceipt = True,
) -> None:
    if ctx.invoked_subcommand is not None:
        return
    if plan is None or digest is None or operator is None:
        ctx.fail("Missing option: --plan, --digest and --operator belong together.")
    context = current(ctx)
    asked = Reviewed(path=plan, digest=digest, operator=operator)
    with ExitStack() as opened:
        found = kept(
            context,
            "recover",
            lambda: apply_plan(
                context.layout,
                lambda: opened.enter_context(supplier_account(context.layout)),
                asked,
                now=time.time(),
                check=context.check,
            ),
            receipt=receipt,
        )
    emit(ctx, found, lambda: _render(found))


@app.command("edit-plan", epilog=examples("standfast recover edit-plan /srv/lucy/state/plan.json"))
def edit_plan(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `account inspect` wrote.")],
) -> None:
    """Ask for each product's count and each delivery at this terminal, and print the plan's digest.

    The answers and the time at which they ended are written when all are given; Ctrl-C leaves the file alone.
    """
    context = current(ctx)
    if not context.check:
        refuse_without_terminal(terminal=sys.stdin.isatty())
    recorded = recorded_deliveries(context.layout)
    found = edit(file, _Terminal(), time.time, recorded=recorded, check=context.check)
    emit(ctx, found, lambda: _render_edited(found))


class _Terminal:
    """Asks on stderr, so that `--json` prints one object on stdout."""

    def number(self, question: str, present: int | None, most: int) -> int:
        while True:
            found: int = typer.prompt(printable(question), default=present, type=int, err=True)
            if 0 <= found <= most:
                return found
            note(f"a whole number from 0 to {most}")

    def yes(self, question: str, present: bool | None) -> bool:
        lines = [printable(line) for line in question.splitlines()]
        return typer.confirm("\n".join(lines), default=present, err=True)


def _render(found: Recovered) -> None:
    if found.duplicate:
        write(f"{found.status}: this plan was applied before; nothing was changed")
        return
    for one in found.changes:
        write(printable(one.what))
        write(f"  - {printable(one.before)}")
        write(f"  + {printable(one.after)}")
    write()
    facts(
        [
            ("orders", f"{found.orders} accepted by the supplier, {len(found.imported)} unknown here before"),
            ("spent", f"{found.spent_cents} cents"),
            ("revoked", len(found.revoked)),
            ("interrupted", len(found.interrupted)),
        ]
    )
    write("nothing was changed; without --check operations resume" if found.check else "ACTIVE")


def _render_edited(found: Edited) -> None:
    if found.check:
        table(["WOULD ASK"], [[one] for one in found.unanswered] or [["nothing that is not answered yet"]])
        return
    facts([("plan", found.plan), ("observed", found.observed_at), ("digest", found.digest)])
