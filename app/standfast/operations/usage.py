"""What model calls used: the published figures, read from the account in one transaction."""

import sqlite3

from pydantic import BaseModel

from standfast.agent import usage
from standfast.agent.usage import Counted
from standfast.clock import rfc3339


class UsageFigures(BaseModel):
    """What some calls used. A call whose use is not known counts with the most it may have used."""

    calls: int
    unknown_calls: int
    """Calls, among them, that are on their way or ended without a usable reply."""
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    lost_tokens: int
    """Stated after the end of an era, where input and output are not told apart."""
    cents: int | None
    """Rounded up; null while no prices are configured."""


class UsageOfDay(BaseModel):
    """One UTC day."""

    day: str
    figures: UsageFigures
    unstated: list[str]
    """Figures (`calls`, `tokens`, `cents`) of which the end of an era lost an unknown part on this day."""


class UsageOfWork(BaseModel):
    """One work item."""

    work: str
    figures: UsageFigures


class UsageOfEpoch(BaseModel):
    """One era."""

    epoch: str
    figures: UsageFigures


class UsageCeilings(BaseModel):
    """The most that may be used, as the service works with them; null: no limit. A day is a UTC day."""

    daily_calls: int | None
    daily_tokens: int | None
    daily_cents: int | None
    work_cents: int | None


class UsageStop(BaseModel):
    """A ceiling that refused model calls today."""

    ceiling: str
    """`daily_calls`, `daily_tokens`, `daily_cents`, or `loss`: a figure of the day that nobody stated."""
    times: int
    first_at: str
    last_at: str


class UsageLoss(BaseModel):
    """What the end of an era may have lost of today's account."""

    since: str | None
    """When the last call that is known came to its end; null when none is."""
    marked_at: str
    calls: int | None
    tokens: int | None
    cents: int | None
    """What was stated; null: unknown."""


class UsageToday(BaseModel):
    """Which model answers, and what its calls used today."""

    model: str | None
    """`offline`, or `live:` and the model's name; null before the service's first start."""
    today: UsageOfDay
    ceilings: UsageCeilings | None
    """null before the service's first start."""
    stops: list[UsageStop]
    last_call: str | None
    """How the last call ended: `answered`, `refused`, `not sent`, `unclear`, or `booked` while it goes on."""
    last_call_at: str | None


class UsageShown(BaseModel):
    """The usage account: today, and the newest days, eras and work items that have calls."""

    now: UsageToday
    losses: list[UsageLoss]
    days: list[UsageOfDay]
    epochs: list[UsageOfEpoch]
    work: list[UsageOfWork]


def figures(counted: Counted, *, priced: bool) -> UsageFigures:
    """The published form."""
    return UsageFigures(
        calls=counted.calls,
        unknown_calls=counted.unknown_calls,
        input_tokens=counted.input_tokens,
        cached_tokens=counted.cached_tokens,
        output_tokens=counted.output_tokens,
        lost_tokens=counted.lost_tokens,
        cents=counted.cents if priced or counted.cost_microcents else None,
    )


def today(connection: sqlite3.Connection, now: float) -> UsageToday:
    """Today's figures, ceilings and stops."""
    setup = usage.setup(connection)
    day = usage.current_day(connection, now)
    last = usage.last_call(connection)
    return UsageToday(
        model=setup.source if setup else None,
        today=_of_day(day, usage.counted(connection, day), priced=_priced(setup)),
        ceilings=_ceilings(setup),
        stops=[
            UsageStop(
                ceiling=stop.ceiling,
                times=stop.times,
                first_at=rfc3339(stop.first_at),
                last_at=rfc3339(stop.last_at),
            )
            for stop in usage.stops_of(connection, day)
        ],
        last_call=last.outcome if last else None,
        last_call_at=rfc3339(last.at) if last else None,
    )


def show(connection: sqlite3.Connection, now: float, *, limit: int) -> UsageShown:
    """The whole account, at most ``limit`` of each kind."""
    priced = _priced(usage.setup(connection))
    told = today(connection, now)
    return UsageShown(
        now=told,
        losses=[_loss(loss) for loss in usage.losses_of(connection, told.today.day)],
        days=[_of_day(day, used, priced=priced) for day, used in usage.by_day(connection, limit)],
        epochs=[
            UsageOfEpoch(epoch=epoch, figures=figures(used, priced=priced))
            for epoch, used in usage.by_epoch(connection, limit)
        ],
        work=[
            UsageOfWork(work=work, figures=figures(used, priced=priced))
            for work, used in usage.by_work(connection, limit)
        ],
    )


def of_work(connection: sqlite3.Connection, work: str) -> UsageFigures:
    """What one work item used; all zero for one that only the offline planner answered."""
    return figures(usage.of_work(connection, work), priced=_priced(usage.setup(connection)))


def _priced(setup: usage.Setup | None) -> bool:
    return setup is not None and setup.priced


def _of_day(day: str, counted: Counted, *, priced: bool) -> UsageOfDay:
    unknown = counted.loss_unknown
    names = (("calls", unknown.calls), ("tokens", unknown.tokens), ("cents", unknown.cents))
    return UsageOfDay(
        day=day, figures=figures(counted, priced=priced), unstated=[name for name, is_so in names if is_so]
    )


def _ceilings(setup: usage.Setup | None) -> UsageCeilings | None:
    if setup is None:
        return None
    given = setup.ceilings
    return UsageCeilings(
        daily_calls=given.daily_calls,
        daily_tokens=given.daily_tokens,
        daily_cents=given.daily_cents,
        work_cents=given.work_cents,
    )


def _loss(loss: usage.Loss) -> UsageLoss:
    return UsageLoss(
        since=None if loss.since is None else rfc3339(loss.since),
        marked_at=rfc3339(loss.marked_at),
        calls=loss.calls,
        tokens=loss.tokens,
        cents=loss.cents,
    )
