"""`standfast report`: what finished work has to say, and whether it was delivered."""

from typing import Annotated

import typer
from pydantic import BaseModel

from standfast.cli.common import current, emit, examples, facts, group, printable, table, write
from standfast.clock import rfc3339
from standfast.errors import BadInput
from standfast.operations.configuration import shop_config
from standfast.operations.opening import reading, writing
from standfast.work import Report, list_reports, resolve_delivery, show_report

app = group("Reports that finished work has left.")


class ReportEntry(BaseModel):
    """One report."""

    id: str
    work: str
    generation: int
    delivery: str
    """`pending`, `sending`, `sent` or `unknown`."""
    note: str
    created_at: str
    delivered_at: str | None
    body: str

    @classmethod
    def of(cls, report: Report) -> "ReportEntry":
        """The published form."""
        return cls(
            id=report.id,
            work=report.work,
            generation=report.generation,
            delivery=report.delivery,
            note=report.note,
            created_at=rfc3339(report.created_at),
            delivered_at=None if report.delivered_at is None else rfc3339(report.delivered_at),
            body=report.body,
        )


class ReportResolved(BaseModel):
    """What an operator's word made of a report, or with `--check` would make."""

    changed: bool
    check: bool
    report: ReportEntry
    resend: bool
    """False: it counts as sent."""


class ReportList(BaseModel):
    """Reports, newest first."""

    reports: list[ReportEntry]


@app.command(
    "list",
    epilog=examples("standfast report list", "standfast --json report list --work 01a2288440b4c45e921433fb"),
)
def list_(
    ctx: typer.Context,
    work: Annotated[str | None, typer.Option(metavar="ID", help="Only those of one work item.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 20,
) -> None:
    """The newest reports first."""
    with reading(current(ctx).layout) as connection:
        found = ReportList(
            reports=[ReportEntry.of(one) for one in list_reports(connection, work=work, limit=limit)]
        )
    rows = [[r.id, r.created_at, r.delivery, r.body.partition("\n")[0][:60]] for r in found.reports]
    emit(ctx, found, lambda: table(["REPORT", "WRITTEN", "DELIVERY", "FIRST LINE"], rows))


@app.command(epilog=examples("standfast report show 01a228840fb0ef5a4147666b"))
def show(ctx: typer.Context, report: Annotated[str, typer.Argument(help="A report's id.")]) -> None:
    """One whole report."""
    with reading(current(ctx).layout) as connection:
        shown = ReportEntry.of(show_report(connection, report))

    def render() -> None:
        facts(
            [
                ("report", shown.id),
                ("work", f"{shown.work}, generation {shown.generation}"),
                ("written", shown.created_at),
                ("delivery", f"{shown.delivery} {shown.delivered_at or ''} {shown.note}"),
            ]
        )
        write()
        for line in shown.body.splitlines():
            write(printable(line))

    emit(ctx, shown, render)


@app.command(
    epilog=examples(
        "standfast report resolve 01a228840fb0ef5a4147666b --sent",
        "standfast report resolve 01a228840fb0ef5a4147666b --resend --may-arrive-twice",
    )
)
def resolve(
    ctx: typer.Context,
    report: Annotated[str, typer.Argument(help="A report's id.")],
    *,
    sent: Annotated[bool, typer.Option("--sent", help="It arrived.")] = False,
    resend: Annotated[bool, typer.Option("--resend", help="Send it again.")] = False,
    may_arrive_twice: Annotated[
        bool, typer.Option("--may-arrive-twice", help="With --resend: a second one does no harm.")
    ] = False,
) -> None:
    """Settle a report of which nobody knows whether it arrived, or let a refused one be tried again.

    Look first whether it is there: its id is at its end. Sending an uncertain report again needs
    --may-arrive-twice, unless the channel gives one effect per report (`standfast channel show`).
    """
    if sent == resend:
        raise BadInput("say either --sent or --resend")
    context = current(ctx)
    idempotent = shop_config(context.layout).channel.idempotent
    with writing(context.layout) as connection:
        told = resolve_delivery(
            connection, report, arrived=sent, twice=may_arrive_twice or idempotent, check=context.check
        )
    result = ReportResolved(
        changed=told.changed, check=context.check, report=ReportEntry.of(told.report), resend=resend
    )
    done = "counts as sent" if sent else "will be sent again"
    would = " (not done: --check)" if context.check else "" if told.changed else " already"
    emit(ctx, result, lambda: write(f"report {report}: {done}{would}"))
