"""`standfast preflight`: what an upgrade to this release would meet."""

from pathlib import Path
from typing import Annotated

import typer

from standfast.cli.common import EXIT_ATTENTION, EXIT_REFUSED, current, emit, examples, group, table, write
from standfast.operations.preflight.looking import preflight as look
from standfast.operations.preflight.result import Check, Preflight
from standfast.operations.preflight.seen import Request
from standfast.serve.settings import load

app = group("What an upgrade to this release would meet.")

_EXITS = {"pass": 0, "attention": EXIT_ATTENTION, "refuse": EXIT_REFUSED}


@app.command(
    epilog=examples(
        "releases/RELEASE/venv/bin/python -I -m standfast --state /srv/lucy/state preflight",
        "standfast --json preflight --stopped",
    )
)
def preflight(
    ctx: typer.Context,
    *,
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Root's record of what worked [default: the instance's own]."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The release that should look [default: the one that does]."),
    ] = None,
    online: Annotated[
        bool, typer.Option("--online/--stopped", help="Whether the service is expected to work meanwhile.")
    ] = True,
    run_id: Annotated[
        str, typer.Option("--run-id", metavar="ID", help="The run that may hold the deploy lock.")
    ] = "",
) -> None:
    """Look at the live state with the code of this release; changes nothing, and the service works on.

    Exit 0 when everything passes, 4 when something asks for attention, 3 when an upgrade would be refused.
    Migrations are tried on a copy below backups/, which is gone afterwards.
    """
    found = look(
        current(ctx).layout, Request(folder=folder, record=record, online=online, run_id=run_id), load
    )
    emit(ctx, found, lambda: _render(found))
    if _EXITS[found.outcome]:
        raise typer.Exit(_EXITS[found.outcome])


def _render(found: Preflight) -> None:
    write(f"PREFLIGHT {found.outcome}: {found.current or 'nothing'} -> {found.target}")
    table(
        ["OUTCOME", "CHECK", "OBSERVED"],
        [[check.outcome, check.name, _told(check)] for check in found.checks],
    )


def _told(check: Check) -> str:
    return f"{check.observed}. To do: {check.remedy}" if check.remedy else check.observed
