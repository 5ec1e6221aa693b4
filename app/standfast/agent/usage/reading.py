"""Reading the usage account. Every query is flat in the calls of other days and other work."""

import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime

from standfast.agent.usage.allowance import Ceilings, whole_cents


@dataclass(frozen=True, slots=True)
class Unknown:
    """Which figures of a day nobody has stated since an era ended on it."""

    calls: bool = False
    tokens: bool = False
    cents: bool = False

    def __bool__(self) -> bool:
        return self.calls or self.tokens or self.cents


@dataclass(frozen=True, slots=True)
class Counted:
    """What some calls used. A call that is not settled counts with the most it may have used."""

    calls: int
    unknown_calls: int
    """Calls, among them, whose use is not known: still on their way, or ended without a usable reply."""
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost_microcents: int
    lost_tokens: int = 0
    """Stated after the end of an era, where nobody knows input from output."""
    loss_unknown: Unknown = Unknown()

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens + self.lost_tokens

    @property
    def cents(self) -> int:
        """Rounded up."""
        return whole_cents(self.cost_microcents)


@dataclass(frozen=True, slots=True)
class Loss:
    """What the end of an era may have lost of the account."""

    day: str
    """The UTC day against whose ceilings it counts."""
    since: float | None
    """When the last call that is known came to its end; None when none is."""
    marked_at: float
    calls: int | None
    tokens: int | None
    cents: int | None
    """What an operator stated; None: unknown."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A ceiling that refused calls on a day."""

    ceiling: str
    """``daily_calls``, ``daily_tokens``, ``daily_cents``, or ``loss``: a figure that nobody stated."""
    times: int
    first_at: float
    last_at: float


@dataclass(frozen=True, slots=True)
class Setup:
    """What the service works with since it last started."""

    source: str
    ceilings: Ceilings
    priced: bool
    """Whether prices are configured; without them a cost of 0 says nothing."""
    set_at: float
    """When that last changed, epoch seconds."""


@dataclass(frozen=True, slots=True)
class LastCall:
    """How the call that was booked last has ended so far."""

    outcome: str
    """``booked`` while it goes on, ``answered``, ``refused``, ``not sent`` or ``unclear``."""
    at: float
    """Epoch seconds."""


_SUMS = (
    "coalesce(sum(calls), 0), coalesce(sum(unknown_calls), 0), coalesce(sum(input_tokens), 0),"
    " coalesce(sum(cached_tokens), 0), coalesce(sum(output_tokens), 0), coalesce(sum(cost_microcents), 0)"
)
_SUMS_OF_CALLS = (
    "coalesce(sum(outcome <> 'not sent'), 0), coalesce(sum(outcome IN ('booked', 'unclear')), 0),"
    " coalesce(sum(input_tokens), 0), coalesce(sum(cached_tokens), 0), coalesce(sum(output_tokens), 0),"
    " coalesce(sum(cost_microcents), 0)"
)


def current_day(connection: sqlite3.Connection, now: float) -> str:
    """The UTC day, ``2026-03-01``; never before the last on which a call was booked or a loss marked."""
    row = connection.execute(
        "SELECT max((SELECT coalesce(max(day), '') FROM usage_days),"
        " (SELECT coalesce(max(day), '') FROM usage_losses))"
    ).fetchone()
    return max(str(row[0]), datetime.fromtimestamp(now, UTC).date().isoformat())


def counted(connection: sqlite3.Connection, day: str) -> Counted:
    """What counts against a day's ceilings: its calls, and what was lost of it as far as it is stated."""
    sums = connection.execute(f"SELECT {_SUMS} FROM usage_days WHERE day = ?", (day,)).fetchone()  # noqa: S608
    losses = losses_of(connection, day)
    calls, unknown, input_tokens, cached, output, cost = sums
    return Counted(
        calls=calls + sum(loss.calls or 0 for loss in losses),
        unknown_calls=unknown,
        input_tokens=input_tokens,
        cached_tokens=cached,
        output_tokens=output,
        cost_microcents=cost + sum((loss.cents or 0) * 1_000_000 for loss in losses),
        lost_tokens=sum(loss.tokens or 0 for loss in losses),
        loss_unknown=Unknown(
            calls=any(loss.calls is None for loss in losses),
            tokens=any(loss.tokens is None for loss in losses),
            cents=any(loss.cents is None for loss in losses),
        ),
    )


def by_day(connection: sqlite3.Connection, limit: int) -> list[tuple[str, Counted]]:
    """The newest days first, of those that have calls or a loss."""
    rows = connection.execute(
        "SELECT day FROM usage_days UNION SELECT day FROM usage_losses ORDER BY day DESC LIMIT ?", (limit,)
    ).fetchall()
    return [(day, counted(connection, day)) for (day,) in rows]


def by_epoch(connection: sqlite3.Connection, limit: int) -> list[tuple[str, Counted]]:
    """The newest eras first, of those that have calls."""
    rows = connection.execute(
        f"SELECT epoch, {_SUMS} FROM usage_days GROUP BY epoch ORDER BY max(day) DESC LIMIT ?",  # noqa: S608
        (limit,),
    )
    return [(row[0], Counted(*row[1:])) for row in rows.fetchall()]


def by_work(connection: sqlite3.Connection, limit: int) -> list[tuple[str, Counted]]:
    """The work whose calls are the newest, first."""
    rows = connection.execute(
        "SELECT work FROM (SELECT work, seq FROM usage_calls ORDER BY seq DESC LIMIT ?)"
        " GROUP BY work ORDER BY max(seq) DESC LIMIT ?",
        (limit * 50, limit),
    ).fetchall()
    return [(work, of_work(connection, work)) for (work,) in rows]


def of_work(connection: sqlite3.Connection, work: str) -> Counted:
    """What one work item used."""
    query = f"SELECT {_SUMS_OF_CALLS} FROM usage_calls WHERE work = ?"  # noqa: S608 - constants
    return Counted(*connection.execute(query, (work,)).fetchone())


def last_call(connection: sqlite3.Connection) -> LastCall | None:
    """The call that was booked last, or None before the first."""
    row = connection.execute(
        "SELECT outcome, coalesce(settled_at, booked_at) FROM usage_calls ORDER BY seq DESC LIMIT 1"
    ).fetchone()
    return None if row is None else LastCall(*row)


def losses_of(connection: sqlite3.Connection, day: str) -> list[Loss]:
    """What the ends of eras on that day may have lost, oldest first."""
    rows = connection.execute(
        "SELECT day, since, marked_at, calls, tokens, cents FROM usage_losses WHERE day = ? ORDER BY seq",
        (day,),
    )
    return [Loss(*row) for row in rows.fetchall()]


def stops_of(connection: sqlite3.Connection, day: str) -> list[Stop]:
    """The ceilings that refused calls on that day."""
    rows = connection.execute(
        "SELECT ceiling, times, first_at, last_at FROM usage_stops WHERE day = ? ORDER BY ceiling", (day,)
    )
    return [Stop(*row) for row in rows.fetchall()]


def stops_now(connection: sqlite3.Connection, day: str) -> list[Stop]:
    """Those of ``stops_of`` that still hold: not once the ceilings were changed, or the loss was stated."""
    known = setup(connection)
    lost = counted(connection, day).loss_unknown
    return [
        stop
        for stop in stops_of(connection, day)
        if (lost if stop.ceiling == "loss" else known is None or stop.last_at >= known.set_at)
    ]


def setup(connection: sqlite3.Connection) -> Setup | None:
    """What the service works with; None before its first start."""
    row = connection.execute(
        "SELECT source, daily_calls, daily_tokens, daily_cents, work_cents, priced, set_at FROM usage_setup"
    ).fetchone()
    return None if row is None else Setup(row[0], Ceilings(*row[1:5]), bool(row[5]), row[6])
