"""`standfast account`: the supplier's account, as only an operator of a paused instance may touch it."""

import time
from pathlib import Path
from typing import Annotated

import typer

from standfast.cli.common import current, emit, examples, facts, group, printable, table, write
from standfast.cli.keeping import KeepsReceipt, kept
from standfast.operations.purchasing import supplier_account
from standfast.operations.recovery.inspecting import Inspected, Inspection
from standfast.operations.recovery.inspecting import inspect as inspect_account

app = group("The supplier's account after a restore: inspect.")


@app.callback()
def _account() -> None:
    """The supplier's account after a restore: inspect."""


@app.command(
    epilog=examples(
        "standfast account inspect --operator lucy --out /srv/lucy/state/plan.json",
        "standfast --check account inspect --operator lucy --out /srv/lucy/state/plan.json",
    )
)
def inspect(
    ctx: typer.Context,
    operator: Annotated[str, typer.Option(help="Who inspects; one of [operators] in shop.toml.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The plan to write; never replaced.")],
    receipt: KeepsReceipt = True,
) -> None:
    """Fence the account, read all that it accepted, and write a plan to fill in.

    \b
    Only while paused after a restore, an adoption or amnesia. From here on the account refuses every client
    of an earlier epoch. What arrived and what is in stock no supplier can tell: the plan asks you.
    """
    context = current(ctx)
    wanted = Inspection(operator=operator, out=out.absolute(), now=time.time())
    with supplier_account(context.layout) as account:
        found = kept(
            context,
            "inspect",
            lambda: inspect_account(context.layout, account, wanted, check=context.check),
            receipt=receipt,
        )
    emit(ctx, found, lambda: _render(found))


def _render(found: Inspected) -> None:
    fenced = "would be fenced" if found.check else "fenced"
    facts(
        [
            ("account", found.account),
            ("epoch", f"{found.epoch}, {fenced if found.rotated else 'fenced before'}"),
            ("receipts", f"{found.receipts}, {found.accepted_cents} cents in all"),
            ("never accepted", ", ".join(found.uncertain_here) or "none of the uncertain orders"),
            ("interrupted", ", ".join(found.interrupted) or "nothing"),
        ]
    )
    if found.unknown_here:
        write()
        rows = [[one.operation, one.reference] for one in found.unknown_here]
        table(["NOT SENT BY THESE RECORDS", "RECEIPT"], rows)
    write()
    if found.plan is None:
        write("would write a plan to fill in")
        return
    write(f"plan to fill in: {printable(found.plan)}")
    write(f"next: standfast recover edit-plan {printable(found.plan)}")
