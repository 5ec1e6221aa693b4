"""Schedules: one work item per slot, in one transaction with the slot.

Slots that passed while nothing could run coalesce: the newest one fires, the others are recorded as skipped.
Nothing fires while paused.
"""

import re
import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import astuple, dataclass
from itertools import islice, takewhile

from standfast.authority import operations
from standfast.errors import BadInput, Refused
from standfast.store import immediate
from standfast.work import cron as crons
from standfast.work.intake import Request, admit_within

SHORTEST_INTERVAL = 1
LONGEST_INTERVAL = 366 * 86400
"""Bounds of ``every``, in seconds."""
SKIPPED_ROWS = 100
"""Skipped slots recorded one by one; more than that become one row with their range and number."""

_COUNTED = 10_000
_NAME = re.compile(r"[a-z][a-z0-9-]{0,47}")
# When too many slots passed to walk through them all, the newest is looked for this many days back.
_LOOK_BACK_DAYS = (2, 32, 400, 3000)


@dataclass(frozen=True)
class Schedule:
    """One schedule: either ``every`` seconds, or ``cron`` in ``zone``."""

    name: str
    every: int | None
    cron: str | None
    zone: str | None
    role: str
    session: str
    subject: str
    prompt: str
    anchor: int
    """Where the slots of an interval are counted from, epoch seconds."""
    next_slot: int
    """When it fires next, epoch seconds."""


@dataclass(frozen=True)
class Slot:
    """What became of one slot, or of a range of skipped ones."""

    schedule: str
    slot: int
    """Epoch seconds; the first of a range."""
    until: int
    """The last of a range; else the same as ``slot``."""
    items: int | None
    """How many slots the row stands for; None when a range was too long to count."""
    outcome: str
    """``fired`` or ``skipped``."""
    work: str | None
    """The work item of a fired slot."""
    recorded_at: float


@dataclass(frozen=True)
class Fired:
    """A slot that has just become work."""

    schedule: str
    slot: int
    work: str | None
    """None when the slot could not become work and is recorded as skipped."""
    skipped: int | None
    """How many earlier slots were skipped; None when too many to count."""
    reason: str = ""
    """Why there is no work."""


def add_schedule(
    connection: sqlite3.Connection,
    *,
    name: str,
    prompt: str,
    now: float,
    every: int | None = None,
    cron: str | None = None,
    zone: str | None = None,
    subject: str = "",
    role: str = "agent",
    session: str | None = None,
    replacing: bool = False,
    check: bool = False,
) -> tuple[Schedule, bool]:
    """Add a schedule; its first slot lies after ``now``. The second value is False when it was there already.

    Exactly one of ``every`` (whole seconds) and ``cron`` (five fields, with an IANA ``zone``). Its work
    belongs to the session ``schedule:NAME`` unless told otherwise. Raises BadInput, and Refused
    ``schedule_exists`` when the name has another definition, unless ``replacing`` that. ``check`` writes
    nothing.
    """
    if not _NAME.fullmatch(name):
        raise BadInput(f"name: {name!r} is not of the form {_NAME.pattern}")
    request = Request(
        origin=f"schedule:{name}:",
        session=session or f"schedule:{name}",
        prompt=prompt,
        subject=subject,
        role=role,
    )
    first = _first_slot(every, cron, zone, now)
    wanted = (every, cron, zone, request.role, request.session, request.subject, request.prompt)
    with nullcontext() if check else immediate(connection, "add_schedule"):
        present = _find(connection, name)
        if present is not None:
            if astuple(present)[1:-2] == wanted:
                return present, False
            if not replacing:
                raise Refused(
                    "schedule_exists",
                    f"there is another schedule {name}",
                    observed=f"every {present.every} s" if present.every else f"cron {present.cron!r}",
                    remedy="remove it first, or choose another name",
                )
        schedule = Schedule(name, *wanted, anchor=int(now), next_slot=first)
        if check:
            return schedule, True
        connection.execute("DELETE FROM schedules WHERE name = ?", (name,))
        connection.execute(
            "INSERT INTO schedules VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (name, *wanted, schedule.anchor, schedule.next_slot, now),
        )
    return schedule, True


def remove_schedule(connection: sqlite3.Connection, name: str) -> bool:
    """Remove a schedule; its slots stay on record, its work goes on. False when there is none."""
    with immediate(connection, "remove_schedule"):
        return connection.execute("DELETE FROM schedules WHERE name = ?", (name,)).rowcount > 0


def list_schedules(connection: sqlite3.Connection) -> list[Schedule]:
    """Every schedule, by name."""
    rows = connection.execute(
        "SELECT name, every, cron, zone, role, session, subject, prompt, anchor, next_slot FROM schedules"
        " ORDER BY name"
    )
    return [Schedule(*row) for row in rows]


def list_slots(connection: sqlite3.Connection, schedule: str, *, limit: int = 50) -> list[Slot]:
    """The newest recorded slots of one schedule first."""
    rows = connection.execute(
        "SELECT schedule, slot, until, items, outcome, work, recorded_at FROM slots WHERE schedule = ?"
        " ORDER BY slot DESC LIMIT ?",
        (schedule, limit),
    )
    return [Slot(*row) for row in rows]


def fire_due(connection: sqlite3.Connection, *, now: float) -> list[Fired]:
    """Turn every schedule whose slot has come into work, one transaction each; several processes may try.

    Nothing while paused.
    """
    due = connection.execute("SELECT name FROM schedules WHERE next_slot <= ? ORDER BY next_slot", (now,))
    fired = (_fire(connection, row[0], now) for row in due.fetchall())
    return [one for one in fired if one is not None]


def _fire(connection: sqlite3.Connection, name: str, now: float) -> Fired | None:
    with immediate(connection, "fire"):
        schedule = _find(connection, name)
        if schedule is None or schedule.next_slot > now or operations(connection).paused:
            return None  # removed, fired by another process, or not to be fired now
        due = _due(schedule, now)
        connection.execute("UPDATE schedules SET next_slot = ? WHERE name = ?", (due.following, name))
        if connection.execute(
            "SELECT 1 FROM slots WHERE schedule = ? AND slot = ?", (name, due.newest)
        ).fetchone():
            return None  # added again under the same name after the clock was set back
        work, reason = _admit(connection, _request(schedule, due.newest), now)
        outcome = "skipped" if work is None else "fired"
        rows = [*due.skipped, Slot(name, due.newest, due.newest, 1, outcome, work, now)]
        connection.executemany(
            "INSERT INTO slots VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", map(astuple, rows)
        )
    return Fired(schedule=name, slot=due.newest, work=work, skipped=due.number, reason=reason)


def _admit(connection: sqlite3.Connection, request: Request, now: float) -> tuple[str | None, str]:
    """The slot's work, or why there is none: one slot that cannot fire must not stop the later ones."""
    try:
        return admit_within(connection, request, now=now, limits=None).work, ""
    except Refused as refused:
        return None, f"{refused.reason}: {refused.observed}"


@dataclass(frozen=True)
class _Due:
    newest: int
    skipped: list[Slot]
    number: int | None
    following: int


def _due(schedule: Schedule, now: float) -> _Due:
    """The newest slot not later than now, the passed ones before it, and the one after it."""
    if schedule.every is not None:
        newest = int(now) - (int(now) - schedule.anchor) % schedule.every
        passed: Sequence[int] = range(schedule.next_slot, newest, schedule.every)
        number: int | None = len(passed)
        following = newest + schedule.every
    else:
        due = list(islice(_until(now, _cron_slots(schedule, schedule.next_slot - 1)), _COUNTED + 1))
        number = len(due) - 1
        if number == _COUNTED:
            number, due = None, [due[0], *_last_two(schedule, now)]
        *passed, newest = due
        following = next(_cron_slots(schedule, newest))
    return _Due(newest, _skipped(schedule.name, passed, number, now), number, following)


def _skipped(name: str, passed: Sequence[int], number: int | None, now: float) -> list[Slot]:
    if number == 0:
        return []
    if number is None or number > SKIPPED_ROWS:
        return [Slot(name, passed[0], passed[-1], number, "skipped", None, now)]
    return [Slot(name, slot, slot, 1, "skipped", None, now) for slot in passed]


def _last_two(schedule: Schedule, now: float) -> list[int]:
    """The newest slot not later than now and the one before it, without walking through a long outage."""
    for days in _LOOK_BACK_DAYS:
        found = deque(_until(now, _cron_slots(schedule, int(now) - days * 86400)), maxlen=2)
        if len(found) == found.maxlen:
            return list(found)
    raise AssertionError(f"schedule {schedule.name} had more slots than this before")


def _cron_slots(schedule: Schedule, after: int) -> Iterator[int]:
    return crons.slots_after(str(schedule.cron), str(schedule.zone), after)


def _until(now: float, slots: Iterator[int]) -> Iterator[int]:
    return takewhile(lambda slot: slot <= now, slots)


def _request(schedule: Schedule, slot: int) -> Request:
    return Request(
        origin=f"schedule:{schedule.name}:{slot}",
        session=schedule.session,
        prompt=schedule.prompt,
        subject=schedule.subject,
        role=schedule.role,
    )


def _first_slot(every: int | None, cron: str | None, zone: str | None, now: float) -> int:
    if (every is None) == (cron is None):
        raise BadInput("schedule: give either a number of seconds or a cron expression")
    if cron is not None:
        if zone is None:
            raise BadInput("zone: a cron expression needs an IANA time zone such as Europe/Paris or UTC")
        crons.check(cron, zone, now)
        return next(crons.slots_after(cron, zone, int(now)))
    if zone is not None:
        raise BadInput("zone: an interval has no time zone")
    if isinstance(every, bool) or not isinstance(every, int):
        raise BadInput(f"every: {every!r} is not a whole number of seconds")
    if not SHORTEST_INTERVAL <= every <= LONGEST_INTERVAL:
        raise BadInput(f"every: {every} is not between {SHORTEST_INTERVAL} and {LONGEST_INTERVAL} seconds")
    return int(now) + every


def _find(connection: sqlite3.Connection, name: str) -> Schedule | None:
    row = connection.execute(
        "SELECT name, every, cron, zone, role, session, subject, prompt, anchor, next_slot FROM schedules"
        " WHERE name = ?",
        (name,),
    ).fetchone()
    return None if row is None else Schedule(*row)
