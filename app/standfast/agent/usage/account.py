"""Booking and settling calls.

Booking is a write for a claim: it goes through the fence, in the transaction that also checks every ceiling,
before the call is made. Settling is not: that money was spent is a fact, whatever has become of the claim in
the meantime. It knows nothing of a claim, and can write one thing only: what one booked call came to.
"""

import logging
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from standfast.agent.asking import AllowanceSpent
from standfast.agent.model import Request, Spent, Usage
from standfast.agent.usage.allowance import (
    FREE,
    MICROCENTS,
    Ceilings,
    Prices,
    estimate,
    whole_cents,
)
from standfast.agent.usage.reading import Counted, counted, current_day, of_work
from standfast.authority import Claim, FencedNow, fenced
from standfast.clock import Clock
from standfast.store import immediate, new_id

log = logging.getLogger(__name__)

_OUTCOMES: dict[Spent, str] = {"nothing sent": "not sent", "nothing": "refused", "unknown": "unclear"}


def book(
    connection: sqlite3.Connection,
    claim: Claim,
    *,
    source: str,
    most: Usage,
    prices: Prices = FREE,
    ceilings: Ceilings,
    clock: Clock,
    marker: Path,
) -> str:
    """Book one call that may use ``most``, under every ceiling; its id. One fenced transaction.

    Raises AllowanceSpent when a ceiling has no room (only that it stopped a call is then recorded),
    StaleClaim and StoreBusy.
    """
    wanted = _Wanted(claim, source, most, prices.cost(most))
    with fenced(connection, claim, clock, marker, "usage.book") as now:
        refusal = _no_room(connection, wanted, ceilings, now)
        if refusal is None:
            return _insert(connection, wanted, now)
        if refusal.of_day is not None:
            _record_stop(connection, refusal.of_day, refusal.ceiling, now)
    raise AllowanceSpent(refusal.sentence)


def settle(
    connection: sqlite3.Connection, call: str, usage: Usage, *, prices: Prices = FREE, now: float
) -> bool:
    """Record what a booked call used; False when this account holds no such call, or it was settled before.

    Not fenced, and on purpose: see the top of this module.
    """
    return _close(connection, call, "answered", usage=usage, cost=prices.cost(usage), now=now)


def failed(connection: sqlite3.Connection, call: str, spent: Spent, *, now: float) -> bool:
    """Record that a booked call gave no usable reply; what is unknown stays booked in full. As ``settle``."""
    if spent == "unknown":
        with immediate(connection, "usage.failed"):
            changed = connection.execute(
                "UPDATE usage_calls SET outcome = 'unclear', settled_at = ?"
                " WHERE id = ? AND outcome = 'booked'",
                (now, call),
            )
            return changed.rowcount == 1
    return _close(connection, call, _OUTCOMES[spent], usage=Usage(), cost=0, now=now)


def set_up(
    connection: sqlite3.Connection, *, source: str, prices: Prices | None, ceilings: Ceilings, now: float
) -> bool:
    """Record what the service works with, for those who only read; False when it is already so."""
    row = (
        source,
        ceilings.daily_calls,
        ceilings.daily_tokens,
        ceilings.daily_cents,
        ceilings.work_cents,
        int(prices is not None),
    )
    columns = "source, daily_calls, daily_tokens, daily_cents, work_cents, priced"
    query = f"SELECT {columns} FROM usage_setup"  # noqa: S608 - this function's own columns
    if connection.execute(query).fetchone() == row:
        return False
    with immediate(connection, "usage.set_up"):
        connection.execute("INSERT OR REPLACE INTO usage_setup VALUES (1, ?, ?, ?, ?, ?, ?, ?)", (*row, now))
    return True


@dataclass(frozen=True, slots=True)
class Account:
    """The meter of one claim's turn: books and settles in the store."""

    connection: sqlite3.Connection
    claim: Claim
    source: str
    prices: Prices
    ceilings: Ceilings
    clock: Clock
    marker: Path

    def book(self, request: Request) -> "BookedCall":
        """See Meter."""
        call = book(
            self.connection,
            self.claim,
            source=self.source,
            most=estimate(request),
            prices=self.prices,
            ceilings=self.ceilings,
            clock=self.clock,
            marker=self.marker,
        )
        return BookedCall(self, call)


@dataclass(frozen=True, slots=True)
class BookedCall:
    """One call that was booked."""

    account: Account
    id: str

    def settle(self, usage: Usage) -> None:
        """See Booking."""
        account = self.account
        now = account.clock.now()
        self._said(settle(account.connection, self.id, usage, prices=account.prices, now=now))

    def failed(self, spent: Spent) -> None:
        """See Booking."""
        account = self.account
        self._said(failed(account.connection, self.id, spent, now=account.clock.now()))

    def _said(self, recorded: bool) -> None:
        if not recorded:
            log.error("usage not recorded, the booked call is not in this store: call=%s", self.id)


@dataclass(frozen=True, slots=True)
class _Wanted:
    claim: Claim
    source: str
    most: Usage
    cost: int
    """Microcents."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    ceiling: str
    sentence: str
    of_day: str | None
    """The day whose ceiling it is; None for a work item's own."""


def _no_room(
    connection: sqlite3.Connection, wanted: _Wanted, ceilings: Ceilings, now: FencedNow
) -> _Refusal | None:
    """The first limit that the call would pass, or None."""
    day = current_day(connection, now)
    used = counted(connection, day)
    for one in _of_day(ceilings, used, wanted):
        if one.limit is None:
            continue
        if one.unknown:
            sentence = f"nobody has stated how many {one.unit} of {day} (UTC) were lost when the era ended"
            return _Refusal("loss", f"{sentence}; see `standfast usage`", day)
        if one.used + one.more > one.limit:
            return _Refusal(one.name, one.sentence(day), day)
    return _no_room_for_work(connection, wanted, ceilings)


@dataclass(frozen=True, slots=True)
class _Ceiling:
    name: str
    unit: str
    limit: int | None
    used: int
    more: int
    unknown: bool
    """Whether what the end of an era lost of it is not stated."""
    scale: int = 1
    """How many of the numbers make one of the unit."""

    def sentence(self, day: str) -> str:
        limit, used, more = (-(-n // self.scale) for n in (self.limit or 0, self.used, self.more))
        return (
            f"the ceiling of {limit} {self.unit} for {day} (UTC): {used} used or booked, and the next model"
            f" call may take {more}"
        )


def _of_day(ceilings: Ceilings, used: Counted, wanted: _Wanted) -> tuple[_Ceiling, ...]:
    lost, most = used.loss_unknown, wanted.most
    tokens = most.input_tokens + most.output_tokens
    cents = None if ceilings.daily_cents is None else ceilings.daily_cents * MICROCENTS
    return (
        _Ceiling("daily_calls", "model calls", ceilings.daily_calls, used.calls, 1, lost.calls),
        _Ceiling("daily_tokens", "tokens", ceilings.daily_tokens, used.tokens, tokens, lost.tokens),
        _Ceiling(
            "daily_cents", "cents", cents, used.cost_microcents, wanted.cost, lost.cents, scale=MICROCENTS
        ),
    )


def _no_room_for_work(connection: sqlite3.Connection, wanted: _Wanted, ceilings: Ceilings) -> _Refusal | None:
    if ceilings.work_cents is None:
        return None
    used = of_work(connection, wanted.claim.work).cost_microcents
    if used + wanted.cost <= ceilings.work_cents * MICROCENTS:
        return None
    sentence = (
        f"this request's limit of {ceilings.work_cents} cents: {whole_cents(used)} used or booked, and the"
        f" next model call may cost {whole_cents(wanted.cost)}"
    )
    return _Refusal("work_cents", sentence, None)


def _insert(connection: sqlite3.Connection, wanted: _Wanted, now: FencedNow) -> str:
    call = new_id(now)
    claim, most = wanted.claim, wanted.most
    connection.execute(
        "INSERT INTO usage_calls (id, work, generation, epoch, day, source, outcome, input_tokens,"
        " cached_tokens, output_tokens, cost_microcents, booked_at)"
        " VALUES (?, ?, ?, ?, ?, ?, 'booked', ?, ?, ?, ?, ?)",
        (
            call,
            claim.work,
            claim.generation,
            claim.epoch,
            current_day(connection, now),
            wanted.source,
            most.input_tokens,
            most.cached_tokens,
            most.output_tokens,
            wanted.cost,
            now,
        ),
    )
    return call


def _record_stop(connection: sqlite3.Connection, day: str, ceiling: str, now: FencedNow) -> None:
    connection.execute(
        "INSERT INTO usage_stops VALUES (?, ?, 1, ?, ?)"
        " ON CONFLICT DO UPDATE SET times = times + 1, last_at = excluded.last_at",
        (day, ceiling, now, now),
    )


def _close(
    connection: sqlite3.Connection, call: str, outcome: str, *, usage: Usage, cost: int, now: float
) -> bool:
    with immediate(connection, "usage.settle"):
        changed = connection.execute(
            "UPDATE usage_calls SET outcome = ?, input_tokens = ?, cached_tokens = ?, output_tokens = ?,"
            " cost_microcents = ?, settled_at = ? WHERE id = ? AND outcome = 'booked'",
            (outcome, usage.input_tokens, usage.cached_tokens, usage.output_tokens, cost, now, call),
        )
        return changed.rowcount == 1
