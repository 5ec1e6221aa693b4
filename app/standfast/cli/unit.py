"""`standfast unit`: the systemd units of this release."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from standfast.cli.common import current, emit, examples, group, write
from standfast.errors import BadInput
from standfast.operations.jobs import Job, Sending, describe_job
from standfast.operations.unit import MAX_UNIT, compare, describe, read_unit

app = group("The systemd units of this release.")


@app.command(
    epilog=examples(
        "standfast unit",
        "standfast unit --compare ~/.config/systemd/user/lucy-agent.service",
        "standfast --json unit --instance lucy-agent",
        "standfast unit --job backup --part timer --on-calendar '*-*-* 02:00:00 UTC'",
    )
)
def unit(
    ctx: typer.Context,
    *,
    instance: Annotated[
        str | None, typer.Option(metavar="NAME", help="Instance name [default: the root's own].")
    ] = None,
    compare_with: Annotated[
        str | None,
        typer.Option("--compare", metavar="FILE", help="Refused (exit 3) where lines differ; - reads stdin."),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What a timer starts instead of the service: backup or rehearse."),
    ] = None,
    part: Annotated[str, typer.Option(metavar="PART", help="Of a timer: service or timer.")] = "service",
    on_calendar: Annotated[
        str | None,
        typer.Option(metavar="EXPR", help="Of a timer [default: daily 03:15, rehearsals Sunday 04:15, UTC]."),
    ] = None,
    keep: Annotated[int, typer.Option(help="Of the timer for backups: as of `backup prune`.")] = Job.keep,
    days: Annotated[int, typer.Option(help="Of the timer for backups: as of `backup prune`.")] = Job.days,
    with_: Annotated[
        str, typer.Option("--with", metavar="KINDS", help="Of the timer for backups: as of `backup create`.")
    ] = "",
    copy: Annotated[
        str, typer.Option(metavar="KINDS", help="Of the timer for backups: as of `backup create`.")
    ] = "",
    send_to: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Of the timer for backups: the repository of `backup send`."),
    ] = None,
    password_file: Annotated[
        str, typer.Option(metavar="FILE", help="With --send-to: as of `backup send`.")
    ] = "",
    send_keep: Annotated[int, typer.Option(help="With --send-to: --keep of `backup send`.")] = Sending.keep,
    send_days: Annotated[int, typer.Option(help="With --send-to: --days of `backup send`.")] = Sending.days,
) -> None:
    """Print the unit text of the release that runs this, or compare a file with it."""
    layout = current(ctx).layout
    if job is None:
        if on_calendar is not None:
            raise BadInput("--on-calendar belongs to a timer: name it with --job and --part timer")
        described = describe(layout, instance)
    else:
        sending = None if send_to is None else Sending(send_to, password_file, send_keep, send_days)
        wanted = Job(job, on_calendar, keep, days, told=with_, copied=copy, sending=sending)
        described = describe_job(layout, instance, wanted, part)
    if compare_with is None:
        emit(ctx, described, lambda: write(described.text.removesuffix("\n")))
        return
    found = sys.stdin.buffer.read(MAX_UNIT + 1) if compare_with == "-" else read_unit(Path(compare_with))
    same = compare(described, found, compare_with)
    emit(ctx, same, lambda: write(f"{same.name} is what release {same.release} writes"))
