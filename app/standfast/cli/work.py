"""`standfast work`: requests to the agent, and what became of them."""

import json
import time
from contextlib import suppress
from typing import Annotated

import typer
from pydantic import BaseModel, JsonValue

from standfast.cli.common import current, emit, examples, facts, group, printable, table, write
from standfast.clock import rfc3339
from standfast.operations.configuration import shop_config
from standfast.operations.opening import reading, writing
from standfast.operations.usage import UsageFigures, of_work
from standfast.orders import Order, asked_about_at, orders_of
from standfast.shop.tools import sources_of
from standfast.store import new_id
from standfast.work import (
    Limits,
    Request,
    TranscriptRow,
    WorkItem,
    admit,
    cancel,
    children_of,
    foresee,
    list_reports,
    list_work,
    refuse_rejected,
    refuse_reserved,
    show_work,
    transcript,
)

app = group("Requests: add, list, show, cancel.")


class WorkEntry(BaseModel):
    """One work item as it stands."""

    id: str
    status: str
    """`READY`, `RUNNING`, `BLOCKED`, `DONE`, `CANCELED` or `REJECTED`."""
    reason: str
    role: str
    session: str
    subject: str
    prompt: str
    generation: int
    owner: str | None
    admitted_at: str
    claimed_at: str | None
    lease_until: str | None
    finished_at: str | None
    run: str | None
    """The service run that finished it."""
    epoch: str | None
    """The era in which it was last claimed."""
    interrupted_epoch: str | None
    """The era whose beginning interrupted it."""
    parent: str | None
    """The work that delegated it."""
    deadline: str | None
    """Delegated work writes nothing from then on."""

    @classmethod
    def of(cls, item: WorkItem) -> "WorkEntry":
        """The published form."""
        return cls(
            id=item.id,
            status=item.status,
            reason=item.reason,
            role=item.role,
            session=item.session,
            subject=item.subject,
            prompt=item.prompt,
            generation=item.generation,
            owner=item.owner,
            admitted_at=rfc3339(item.admitted_at),
            claimed_at=_time(item.claimed_at),
            lease_until=_time(item.lease_until),
            finished_at=_time(item.finished_at),
            run=item.run,
            epoch=item.epoch,
            interrupted_epoch=item.interrupted_epoch,
            parent=item.parent,
            deadline=_time(item.deadline),
        )


class WorkList(BaseModel):
    """Work, newest first."""

    work: list[WorkEntry]


class TranscriptEntry(BaseModel):
    """One recorded message of a turn."""

    generation: int
    written_at: str
    message: JsonValue

    @classmethod
    def of(cls, row: TranscriptRow) -> "TranscriptEntry":
        """The published form; a message that is not JSON is shown as text."""
        message: JsonValue = row.message
        with suppress(ValueError):
            message = json.loads(row.message)
        return cls(generation=row.generation, written_at=rfc3339(row.written_at), message=message)


class WorkShown(BaseModel):
    """One work item with its record."""

    work: WorkEntry
    children: list[WorkEntry]
    """What it has delegated, oldest first."""
    reports: list[str]
    """Ids, newest first."""
    sources: list[str]
    """Who answered in its turns: `offline`, or `live:` and the model's name."""
    usage: UsageFigures
    """What its live model calls used; the offline planner uses nothing."""
    transcript: list[TranscriptEntry]


class WorkAdded(BaseModel):
    """What became of a request, or with `--check` would become of it."""

    changed: bool
    """False when the same request was there before."""
    check: bool
    work: str | None
    """null for new work under `--check`."""
    status: str
    reason: str
    origin: str


class WorkCanceled(BaseModel):
    """What a cancellation did, or with `--check` would do."""

    changed: bool
    check: bool
    work: str
    status_before: str
    children: int
    """Delegated items that were canceled with it."""
    orders_revoked: list[str]
    """Drafts and approvals that end with it; what they reserved is free again."""
    orders_sent: list[str]
    """Orders that were sent before: a cancellation cannot recall them."""


@app.command(
    epilog=examples(
        "standfast work add 'How is the stock?'",
        "standfast work add 'What do we need?' --subject vanilla --origin phone-2026-03-11",
    )
)
def add(
    ctx: typer.Context,
    prompt: Annotated[str, typer.Argument(help="What is asked.")],
    subject: Annotated[str, typer.Option(help="What it is about: a sku narrows the answer.")] = "",
    session: Annotated[str, typer.Option(help="The conversation that it belongs to.")] = "operator",
    origin: Annotated[
        str | None, typer.Option(help="Your own key for it: the same one is the same request.")
    ] = None,
) -> None:
    """Ask the agent for something. Past a limit it is refused (exit 3), and on record as REJECTED work."""
    context = current(ctx)
    now = time.time()
    refuse_reserved(origin or "")
    request = Request(
        origin=origin or f"cli:{new_id(now)}", session=session, prompt=prompt, subject=subject, role="agent"
    )
    intake = shop_config(context.layout).intake
    limits = Limits(daily=intake.daily, pending=intake.pending)
    if context.check:
        with reading(context.layout) as connection:
            admission = foresee(connection, request, now=now, limits=limits)
    else:
        with writing(context.layout) as connection:
            admission = admit(
                connection,
                origin=request.origin,
                session=session,
                prompt=prompt,
                subject=subject,
                now=now,
                limits=limits,
            )
    refuse_rejected(admission)
    result = WorkAdded(
        changed=admission.created,
        check=context.check,
        work=admission.work or None,
        status=admission.status,
        reason=admission.reason,
        origin=request.origin,
    )
    emit(ctx, result, lambda: write(f"work {result.work or '(not added)'} {result.status}"))


@app.command("list", epilog=examples("standfast work list", "standfast --json work list --status READY"))
def list_(
    ctx: typer.Context,
    status: Annotated[str | None, typer.Option(help="Only those of one status.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 20,
) -> None:
    """The newest work first."""
    with reading(current(ctx).layout) as connection:
        found = WorkList(
            work=[WorkEntry.of(one) for one in list_work(connection, status=status, limit=limit)]
        )
    rows = [[w.id, w.status, w.generation, w.admitted_at, w.session, w.prompt[:40]] for w in found.work]
    emit(ctx, found, lambda: table(["WORK", "STATUS", "GEN", "ADMITTED", "SESSION", "PROMPT"], rows))


@app.command(epilog=examples("standfast work show 01a228840fa62d97d3688555"))
def show(ctx: typer.Context, work: Annotated[str, typer.Argument(help="A work item's id.")]) -> None:
    """One work item, message by message, with the generation that wrote each."""
    with reading(current(ctx).layout) as connection:
        shown = WorkShown(
            work=WorkEntry.of(show_work(connection, work)),
            children=[WorkEntry.of(child) for child in children_of(connection, work)],
            reports=[report.id for report in list_reports(connection, work=work)],
            sources=sources_of(connection, work),
            usage=of_work(connection, work),
            transcript=[TranscriptEntry.of(row) for row in transcript(connection, work)],
        )

    def render() -> None:
        fields = [(name.replace("_", " "), value) for name, value in shown.work.model_dump().items()]
        children = [("child", f"{child.id} {child.status}") for child in shown.children]
        reports = [("report", report) for report in shown.reports]
        used = shown.usage
        answered = [("answered by", source) for source in shown.sources]
        if used.calls:
            tokens = f"{used.input_tokens} input and {used.output_tokens} output tokens"
            cents = "" if used.cents is None else f", {used.cents} cents"
            answered.append(("usage", f"{used.calls} calls, {tokens}{cents}; {used.unknown_calls} unknown"))
        told = [*fields, *children, *reports, *answered]
        facts([(name, value) for name, value in told if value not in {None, ""}])
        for entry in shown.transcript:
            write(f"[{entry.generation}] {printable(json.dumps(entry.message, ensure_ascii=False))}")

    emit(ctx, shown, render)


@app.command(
    "cancel", epilog=examples("standfast work cancel 01a228840fa62d97d3688555 --reason 'asked twice'")
)
def cancel_(
    ctx: typer.Context,
    work: Annotated[str, typer.Argument(help="A work item's id.")],
    reason: Annotated[str, typer.Option(help="Why, in one line.")] = "canceled by the operator",
) -> None:
    """Cancel work: its claim is refused from then on. What was already sent cannot be recalled."""
    context = current(ctx)
    with (reading if context.check else writing)(context.layout) as connection:
        before = {order.id for order in orders_of(connection, work) if order.status in {"DRAFT", "APPROVED"}}
        canceled = cancel(connection, work, reason=reason, now=time.time(), check=context.check)
        after = orders_of(connection, work)
    ended = {"DRAFT", "APPROVED", "REVOKED"} if context.check else {"REVOKED"}
    result = WorkCanceled(
        changed=canceled.changed,
        check=context.check,
        work=work,
        status_before=canceled.status_before,
        children=canceled.children,
        orders_revoked=[order.id for order in after if order.id in before and order.status in ended],
        orders_sent=[order.id for order in after if order.attempts and order.status != "REJECTED"],
    )
    told = ("would be canceled" if context.check else "canceled") if result.changed else "was canceled before"

    def render() -> None:
        write(f"work {work} ({result.status_before}): {told}")
        for order in result.orders_revoked:
            write(f"order {order}: {'would be revoked' if context.check else 'revoked'}")
        for sent in (one for one in after if one.id in result.orders_sent):
            write(f"order {sent.id}: was sent before and cannot be recalled{_still_open(sent)}")

    emit(ctx, result, render)


def _still_open(order: Order) -> str:
    asked = asked_about_at(order)
    if asked is None:
        return f"; it is {order.status}: `standfast order show {order.id}`"
    return f"; it is {order.status} until the supplier answers, and is asked about at {rfc3339(asked)}"


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(seconds)
