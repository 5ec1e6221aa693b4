"""The business facts of a store: what an upgrade must leave as it was, and which rows explain a difference.

Everything is read in one transaction, through columns that every release since 0.1.0 has, so that a target's
code can read a store that it has not migrated yet. No query passes over finished work row by row.
"""

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from standfast import work
from standfast.authority import operations
from standfast.clock import rfc3339
from standfast.layout import Layout
from standfast.operations.canary import is_canary
from standfast.operations.opening import refuse_other_user
from standfast.store import look_at, open_readonly, schema_versions

_LISTED = 20
"""Rows that are named in an explanation; the rest is counted."""
_SPENT = frozenset({"CONFIRMED", "DELIVERED"})

type Counts = dict[str, int]


class Facts(BaseModel):
    """What the business consists of, at one moment. Statuses and deliveries without any row are left out."""

    model_config = ConfigDict(
        frozen=True, serialize_by_alias=True, validate_by_alias=True, validate_by_name=True
    )

    at: str
    epoch: str
    schema_versions: Annotated[Counts, Field(alias="schema")]
    """Component -> schema version; no business fact, and not in the digest."""
    orders: Counts
    """Status -> orders."""
    spent_cents: int
    reserved_cents: int
    stock: Counts
    """Sku -> units on hand."""
    work: Counts
    """Status -> items."""
    reports: Counts
    """Delivery -> reports."""
    digest: str
    """sha256 of `canonical`."""

    def business(self) -> dict[str, object]:
        """All but the moment and the schema: what must be equal."""
        return self.model_dump(exclude={"at", "schema_versions", "digest"})


class Marks(BaseModel):
    """Where the store's rows ended when facts were read: whatever lies behind was written since."""

    model_config = ConfigDict(frozen=True)

    at: float
    """Epoch seconds."""
    work: int
    reports: int
    history: int
    """Of orders."""
    open_work: dict[str, list[int]]
    """Status -> numbers of the items that may still move."""
    undelivered: dict[str, list[int]]
    """Delivery -> numbers of the reports that may still move."""
    reserved: Counts
    """Order -> cents, where any are reserved."""
    stock_events: int
    stock_at: float
    """The time of the latest stock event."""
    last_finished: float | None
    """When work was finished last."""
    runs: Counts | None = None
    """Release -> starts of the service on record, which no clock moves; None in marks of an older release."""


@dataclass(frozen=True)
class Reading:
    """Facts, and where their rows end."""

    facts: Facts
    marks: Marks


@dataclass(frozen=True)
class Comparison:
    """Facts after, and how they differ from the facts before."""

    facts: Facts
    explained: list[str]
    """Each difference that rows written since explain."""
    unexplained: list[str]
    """Each that they do not."""


def canonical(business: Mapping[str, object]) -> bytes:
    """The one text that facts have: JSON, sorted, without blanks."""
    return json.dumps(business, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def look(layout: Layout, now: float) -> Facts:
    """The facts of the live store, leaving no trace. Raises Refused as opening the store does."""
    refuse_other_user(layout)

    def found(connection: sqlite3.Connection) -> Facts:
        with _one_moment(connection):
            return read(connection, now).facts

    return look_at(layout.database, found)


def take(layout: Layout, now: float) -> Reading:
    """The facts of the live store with their marks, whatever a killed process has left beside it."""
    with closing(open_readonly(layout.database)) as connection, _one_moment(connection):
        return read(connection, now)


def compare(layout: Layout, before: Reading, now: float) -> Comparison:
    """The facts of the live store now, and every difference from `before`."""
    with closing(open_readonly(layout.database)) as connection:
        return _compared(connection, before, now)


def compare_untouched(layout: Layout, before: Reading, now: float) -> Comparison:
    """The same, leaving no trace beside the store."""
    return look_at(layout.database, lambda connection: _compared(connection, before, now))


def _compared(connection: sqlite3.Connection, before: Reading, now: float) -> Comparison:
    with _one_moment(connection):
        after = read(connection, now).facts
        explained, unexplained = _explain(connection, before, after)
    return Comparison(after, explained, unexplained)


def differences(before: Facts, after: Facts) -> list[str]:
    """How the business facts differ when nothing may have been written in between."""
    own, other = before.business(), after.business()
    return [f"{name}: {own[name]} before, {other[name]} after" for name in own if own[name] != other[name]]


@contextmanager
def _one_moment(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def read(connection: sqlite3.Connection, now: float) -> Reading:
    """The facts as the caller's transaction sees them."""
    open_work = _numbers(
        connection,
        "SELECT status, seq FROM work WHERE status = 'READY' OR status = 'RUNNING' OR status = 'BLOCKED'",
    )
    undelivered = _numbers(connection, "SELECT delivery, seq FROM reports WHERE delivery <> 'sent'")
    reserved = dict(connection.execute("SELECT id, reserved_cents FROM orders WHERE reserved_cents > 0"))
    business: dict[str, object] = {
        "epoch": operations(connection).epoch,
        "orders": dict(connection.execute("SELECT status, count(*) FROM orders GROUP BY status ORDER BY 1")),
        "spent_cents": _number(
            connection, "SELECT coalesce(sum(spent_cents), 0) FROM orders WHERE spent_day IS NOT NULL"
        ),
        "reserved_cents": sum(reserved.values()),
        "stock": dict(connection.execute("SELECT sku, sum(delta) FROM stock_events GROUP BY sku ORDER BY 1")),
        "work": _work(connection, open_work),
        "reports": _rest(connection, "reports", undelivered, "sent"),
    }
    facts = Facts.model_validate(
        {
            "at": rfc3339(now),
            "schema_versions": schema_versions(connection),
            "digest": hashlib.sha256(canonical(business)).hexdigest(),
            **business,
        }
    )
    return Reading(facts, _marks(connection, now, open_work, undelivered, reserved))


def _marks(
    connection: sqlite3.Connection,
    now: float,
    open_work: dict[str, list[int]],
    undelivered: dict[str, list[int]],
    reserved: Counts,
) -> Marks:
    events, latest = connection.execute("SELECT count(*), coalesce(max(at), 0) FROM stock_events").fetchone()
    done = work.latest_done(connection)
    return Marks(
        at=now,
        work=_last(connection, "work"),
        reports=_last(connection, "reports"),
        history=_last(connection, "order_history"),
        open_work=open_work,
        undelivered=undelivered,
        reserved=reserved,
        stock_events=events,
        stock_at=latest,
        last_finished=None if done is None else done.finished_at,
        runs=dict(connection.execute("SELECT release, count(*) FROM runs GROUP BY release")),
    )


def _work(connection: sqlite3.Connection, open_work: dict[str, list[int]]) -> Counts:
    """All are counted, whatever their highest number is: that none is missing is one of the facts."""
    aside = dict(
        connection.execute(
            "SELECT status, count(*) FROM work WHERE status = 'CANCELED' OR status = 'REJECTED'"
            " GROUP BY status"
        )
    )
    found = {status: len(numbers) for status, numbers in open_work.items()} | aside
    return _sorted(found | {"DONE": _number(connection, "SELECT count(*) FROM work") - sum(found.values())})


def _rest(connection: sqlite3.Connection, table: str, parts: dict[str, list[int]], rest: str) -> Counts:
    found = {name: len(numbers) for name, numbers in parts.items()}
    everything = _number(connection, f"SELECT count(*) FROM {table}")  # noqa: S608 - this file's own names
    return _sorted(found | {rest: everything - sum(found.values())})


def _sorted(counts: Counts) -> Counts:
    return {name: counts[name] for name in sorted(counts) if counts[name]}


def _numbers(connection: sqlite3.Connection, query: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, number in connection.execute(query):
        found.setdefault(name, []).append(number)
    return found


def _last(connection: sqlite3.Connection, table: str) -> int:
    return _number(connection, f"SELECT coalesce(max(seq), 0) FROM {table}")  # noqa: S608 - as above


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])


def _explain(connection: sqlite3.Connection, before: Reading, after: Facts) -> tuple[list[str], list[str]]:
    """What rows behind the marks say must have changed, against what did."""
    marks = before.marks
    explained: list[str] = []
    unexplained: list[str] = []
    if after.epoch != before.facts.epoch:
        unexplained.append(f"epoch: {before.facts.epoch} before, {after.epoch} after")
    orders = _order_moves(connection, marks)
    stock, strange = _stock_moves(connection, marks)
    unexplained += strange
    for name, own, other, moves in (
        ("orders", before.facts.orders, after.orders, orders.statuses),
        ("spent_cents", {"": before.facts.spent_cents}, {"": after.spent_cents}, {"": orders.spent}),
        (
            "reserved_cents",
            {"": before.facts.reserved_cents},
            {"": after.reserved_cents},
            {"": orders.reserved},
        ),
        ("stock", before.facts.stock, after.stock, stock),
        ("work", before.facts.work, after.work, _work_moves(connection, marks)),
        ("reports", before.facts.reports, after.reports, _report_moves(connection, marks)),
    ):
        for key in sorted(own.keys() | other.keys() | moves.keys()):
            seen, told = other.get(key, 0) - own.get(key, 0), moves.get(key, 0)
            label = f"{name} {key}".rstrip()
            if seen != told:
                unexplained.append(f"{label}: {seen:+d}, of which rows written since explain {told:+d}")
            elif seen:
                explained.append(f"{label}: {seen:+d}")
    return [*explained, *orders.told, *_finished_since(connection, marks)], unexplained


@dataclass(frozen=True)
class _OrderMoves:
    statuses: Counts
    spent: int
    reserved: int
    told: list[str]


def _order_moves(connection: sqlite3.Connection, marks: Marks) -> _OrderMoves:
    """By the orders' own history: from the status before the mark to the present one."""
    rows = connection.execute(
        "SELECT id, status, spent_cents, reserved_cents, quantity * unit_cost_cents,"
        " (SELECT status FROM order_history WHERE order_id = orders.id AND seq <= :mark"
        "  ORDER BY seq DESC LIMIT 1),"
        " (SELECT status FROM order_history WHERE order_id = orders.id ORDER BY seq DESC LIMIT 1)"
        " FROM orders WHERE id IN (SELECT order_id FROM order_history WHERE seq > :mark)",
        {"mark": marks.history},
    ).fetchall()
    statuses: Counter[str] = Counter()
    spent = reserved = 0
    told = []
    for order, status, spends, reserves, costs, was, said in rows:
        if said != status:  # its history does not tell of what it is now: that explains nothing
            continue
        statuses[status] += 1
        if was is not None:
            statuses[was] -= 1
        spent += spends - (costs if was in _SPENT else 0)
        reserved += reserves - marks.reserved.get(order, 0)
        told.append(f"order {order}: {was or 'new'} -> {status}")
    return _OrderMoves(dict(statuses), spent, reserved, _shortened(told, "orders"))


def _stock_moves(connection: sqlite3.Connection, marks: Marks) -> tuple[Counts, list[str]]:
    """By events later than the latest one before. A clock that was set back leaves some unexplained."""
    moves: Counter[str] = Counter()
    new = 0
    for sku, delta, events in connection.execute(
        "SELECT sku, sum(delta), count(*) FROM stock_events WHERE at > ? GROUP BY sku", (marks.stock_at,)
    ):
        moves[sku] += delta
        new += events
    events = _number(connection, "SELECT count(*) FROM stock_events")
    if events - marks.stock_events == new:
        return dict(moves), []
    told = f"stock events: {events - marks.stock_events:+d}, of which {new} are later than the mark"
    return dict(moves), [told]


def _work_moves(connection: sqlite3.Connection, marks: Marks) -> Counts:
    moves: Counter[str] = Counter()
    for status, items in connection.execute(
        "SELECT status, count(*) FROM work WHERE seq > ? GROUP BY status", (marks.work,)
    ):
        moves[status] += items
    known = {number: status for status, numbers in marks.open_work.items() for number in numbers}
    for number, status in _present(connection, "work", "status", known):
        moves[known[number]] -= 1
        moves[status] += 1
    # DONE work with delegated work still open may be canceled.
    for number, finished_at in connection.execute(
        "SELECT seq, finished_at FROM work WHERE status = 'CANCELED' AND seq <= ?", (marks.work,)
    ):
        if finished_at is not None and finished_at > marks.at and number not in known:
            moves["DONE"] -= 1
            moves["CANCELED"] += 1
    return dict(moves)


def _report_moves(connection: sqlite3.Connection, marks: Marks) -> Counts:
    moves: Counter[str] = Counter()
    for delivery, reports in connection.execute(
        "SELECT delivery, count(*) FROM reports WHERE seq > ? GROUP BY delivery", (marks.reports,)
    ):
        moves[delivery] += reports
    known = {number: delivery for delivery, numbers in marks.undelivered.items() for number in numbers}
    for number, delivery in _present(connection, "reports", "delivery", known):
        moves[known[number]] -= 1
        moves[delivery] += 1
    return dict(moves)


def _present(
    connection: sqlite3.Connection, table: str, column: str, numbers: Iterable[int]
) -> list[tuple[int, str]]:
    return connection.execute(
        f"SELECT seq, {column} FROM {table} WHERE seq IN (SELECT value FROM json_each(?))",  # noqa: S608 - this file's own names
        (json.dumps(list(numbers)),),
    ).fetchall()


def _finished_since(connection: sqlite3.Connection, marks: Marks) -> list[str]:
    rows = connection.execute(
        "SELECT DISTINCT work.id, work.session, work.status FROM reports CROSS JOIN work"
        " ON work.id = reports.work WHERE reports.seq > ? ORDER BY reports.seq",
        (marks.reports,),
    ).fetchall()
    told = [
        f"work {work}{' (canary)' if is_canary(session) else ''}: {status}" for work, session, status in rows
    ]
    return _shortened(told, "items of work")


def _shortened(told: list[str], what: str) -> list[str]:
    if len(told) <= _LISTED:
        return told
    return [*told[:_LISTED], f"and {len(told) - _LISTED} more {what}"]


def first_finished(layout: Layout, marks: Marks, release: str) -> float | None:
    """When a process of `release` finished its first work since the marks; None when none did.

    Only work that was open then, or came later: whoever was at work before had been stopped.
    """
    was_open = [number for numbers in marks.open_work.values() for number in numbers]
    with closing(open_readonly(layout.database)) as connection:
        row = connection.execute(
            "SELECT min(work.finished_at) FROM reports CROSS JOIN work ON work.id = reports.work"
            " WHERE reports.seq > ? AND work.status = 'DONE'"
            " AND (work.seq > ? OR work.seq IN (SELECT value FROM json_each(?)))"
            " AND work.run IN (SELECT id FROM runs WHERE release = ?)",
            (marks.reports, marks.work, json.dumps(was_open), release),
        ).fetchone()
    return None if row[0] is None else float(row[0])


def was_started(layout: Layout, marks: Marks, release: str) -> bool:
    """Whether a process of `release` has begun to serve this store since."""
    with closing(open_readonly(layout.database)) as connection:
        starts = [
            float(at)
            for (at,) in connection.execute("SELECT started_at FROM runs WHERE release = ?", (release,))
        ]
    if marks.runs is None:  # written by an older release: all that there is to go by is the clock
        return any(at >= marks.at for at in starts)
    return len(starts) > marks.runs.get(release, 0)
