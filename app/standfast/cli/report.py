"""`standfast report`: what finished work has to say, and whether it was delivered."""

from typing import Annotated

import typer
from pydantic import BaseModel

from standfast.cli.common import current, emit, examples, facts, group, printable, table, write
from standfast.clock import rfc3339
from standfast.operations.opening import reading
from standfast.work import Report, list_reports, show_report

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
