"""`standfast schedule`: work that comes due by the clock."""

import time
from typing import Annotated

import typer
from pydantic import BaseModel

from standfast.cli.common import current, emit, examples, group, table, write
from standfast.clock import rfc3339
from standfast.operations.opening import reading, writing
from standfast.work import Schedule, add_schedule, list_schedules, remove_schedule

app = group("Work that comes due by the clock.")


class ScheduleEntry(BaseModel):
    """One schedule: either every so many seconds, or a cron line in a time zone."""

    name: str
    every: int | None
    cron: str | None
    zone: str | None
    session: str
    subject: str
    prompt: str
    next_slot: str

    @classmethod
    def of(cls, schedule: Schedule) -> "ScheduleEntry":
        """The published form."""
        return cls(
            name=schedule.name,
            every=schedule.every,
            cron=schedule.cron,
            zone=schedule.zone,
            session=schedule.session,
            subject=schedule.subject,
            prompt=schedule.prompt,
            next_slot=rfc3339(schedule.next_slot),
        )

    @property
    def told(self) -> str:
        """When it is due, in a few words."""
        return f"every {self.every} s" if self.every is not None else f"{self.cron} ({self.zone})"


class ScheduleList(BaseModel):
    """Every schedule, by name."""

    schedules: list[ScheduleEntry]


class ScheduleAdded(BaseModel):
    """What `schedule add` did, or with `--check` would do."""

    changed: bool
    check: bool
    schedule: ScheduleEntry


class ScheduleRemoved(BaseModel):
    """What `schedule remove` did, or with `--check` would do."""

    changed: bool
    check: bool
    name: str


@app.command(
    epilog=examples(
        "standfast schedule add noon --cron '0 12 * * *' --zone Europe/Paris --prompt 'How is the stock?'",
        "standfast schedule add pulse --every 3600 --prompt 'Write the morning brief.'",
    )
)
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and dashes.")],
    *,
    prompt: Annotated[str, typer.Option(help="What is asked at each slot.")],
    every: Annotated[int | None, typer.Option(metavar="SECONDS", help="A fixed interval.")] = None,
    cron: Annotated[str | None, typer.Option(metavar="LINE", help="Five cron fields.")] = None,
    zone: Annotated[str | None, typer.Option(help="The IANA time zone of --cron.")] = None,
    subject: Annotated[str, typer.Option(help="What it is about: a sku narrows the answer.")] = "",
) -> None:
    """Add a schedule: either --every, or --cron with --zone."""
    context = current(ctx)
    with (reading if context.check else writing)(context.layout) as connection:
        schedule, changed = add_schedule(
            connection,
            name=name,
            prompt=prompt,
            every=every,
            cron=cron,
            zone=zone,
            subject=subject,
            now=time.time(),
            check=context.check,
        )
    result = ScheduleAdded(changed=changed, check=context.check, schedule=ScheduleEntry.of(schedule))
    told = ("would be added" if context.check else "added") if changed else "already there"
    due = f"{result.schedule.told}, next {result.schedule.next_slot}"
    emit(ctx, result, lambda: write(f"schedule {name} {told}: {due}"))


@app.command("list", epilog=examples("standfast schedule list"))
def list_(ctx: typer.Context) -> None:
    """Every schedule and when it is due next."""
    with reading(current(ctx).layout) as connection:
        found = ScheduleList(schedules=[ScheduleEntry.of(one) for one in list_schedules(connection)])
    rows = [[one.name, one.told, one.next_slot, one.prompt[:40]] for one in found.schedules]
    emit(ctx, found, lambda: table(["SCHEDULE", "DUE", "NEXT", "PROMPT"], rows))


@app.command(epilog=examples("standfast schedule remove noon"))
def remove(ctx: typer.Context, name: Annotated[str, typer.Argument(help="A schedule's name.")]) -> None:
    """Remove a schedule; the work it started goes on. The brief of shop.toml comes back with `init`."""
    context = current(ctx)
    if context.check:
        with reading(context.layout) as connection:
            changed = any(one.name == name for one in list_schedules(connection))
    else:
        with writing(context.layout) as connection:
            changed = remove_schedule(connection, name)
    result = ScheduleRemoved(changed=changed, check=context.check, name=name)
    told = ("would be removed" if context.check else "removed") if changed else "not there"
    emit(ctx, result, lambda: write(f"schedule {name}: {told}"))
