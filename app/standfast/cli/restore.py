"""`standfast restore`: a backup becomes the state, under a new epoch and paused."""

import time
from typing import Annotated

import typer

from standfast.cli.common import current, emit, examples, facts, group, write
from standfast.cli.keeping import KeepsReceipt, kept
from standfast.cli.progress import progress
from standfast.operations.restore import restoring
from standfast.operations.restore.restoring import RestoreResult

app = group("Take up a backup: a new epoch, paused.")


@app.command(
    epilog=examples(
        "standfast --check restore 000007-20260301T060000Z-source",
        "standfast restore 000007-20260301T060000Z-source",
        "standfast restore /mnt/vault/monday",
        "standfast restore 000007-20260301T060000Z-source --newer-aside",
    )
)
def restore(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="FROM", help="A backup's name or folder.")],
    live: Annotated[bool, typer.Option("--live", help="Also while the service runs.")] = False,
    newer_aside: Annotated[
        bool,
        typer.Option("--newer-aside", help="Also over a newer release's state, which is kept as evidence."),
    ] = False,
    receipt: KeepsReceipt = True,
) -> None:
    """Verify a backup, keep the present state as another, and copy it into the same file, paused.

    \b
    Claims, leases, approvals and reservations of the backup end; what was sent stays sent. Nothing resumes
    by itself, and no option does: next come `account inspect` and `recover`.
    If it is cut short, the store is the old one or the new, paused one: run the same restore again.
    """
    context = current(ctx)
    found = kept(
        context,
        "restore",
        lambda: restoring.restore(
            context.layout,
            source,
            now=time.time(),
            live=live,
            newer_aside=newer_aside,
            check=context.check,
            report=progress(),
        ),
        receipt=receipt,
    )
    emit(ctx, found, lambda: _render(found))


def _render(found: RestoreResult) -> None:
    if not found.changed:
        write(f"restored from this backup before, and still paused: epoch {found.epoch}")
        return
    facts(
        [
            ("from", f"{found.source}, sha256 {found.source_sha256}"),
            ("epoch before", found.epoch_before or f"lost: {found.lost}"),
            ("epoch", f"{found.epoch}, paused" if found.epoch else "a new one, paused"),
            (
                "kept",
                found.safety_backup
                or found.evidence
                or ("the present state, as a new backup" if found.check else "nothing was there"),
            ),
            ("interrupted", ", ".join(found.interrupted) or "no work"),
            ("revoked", ", ".join(found.revoked_orders) or "no order"),
        ]
    )
    if found.check:
        write("nothing was changed; without --check the present state is backed up and replaced")
        return
    if not found.checkpointed:
        write("a reader of the old state kept the write-ahead log from being emptied; it is later")
    write("next: standfast account inspect --operator NAME --out FILE")
