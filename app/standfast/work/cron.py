"""Cron expressions in an IANA time zone, as a strict subset that cannot surprise.

Five fields of numbers, names, ``*``, lists, ranges and steps. Daylight saving is handled as Debian's cron
does: a daily time that a change skips runs right after it, a repeated one runs once.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from standfast.errors import BadInput

_FIELDS = 5
_LONGEST = 200
_TERM = re.compile(r"(\*|[0-9]{1,2}|[A-Z]{3})(-([0-9]{1,2}|[A-Z]{3}))?(/[0-9]{1,3})?")
_ZONE = re.compile(r"UTC|[A-Z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)+")


def check(expression: str, zone: str, now: float) -> None:
    """Raise BadInput unless the expression is in the subset, the zone is known, and it ever comes due."""
    fields = expression.split()
    if len(fields) != _FIELDS or len(expression) > _LONGEST:
        raise BadInput(
            f"cron: {expression!r} has {len(fields)} fields; minute hour day month weekday are meant"
        )
    for field in fields:
        if not all(_TERM.fullmatch(term) for term in field.upper().split(",")):
            raise BadInput(f"cron: {field!r} is not allowed; use numbers, names, * , - and / (no L, # or @)")
    _zone(zone)
    try:
        next(slots_after(expression, zone, int(now)))
    except CronSimError as error:
        raise BadInput(f"cron: {expression!r}: {error}") from error
    except (StopIteration, OverflowError) as error:
        raise BadInput(f"cron: {expression!r} never comes due") from error


def slots_after(expression: str, zone: str, after: int) -> Iterator[int]:
    """The slots strictly later than ``after``, rising, in epoch seconds.

    cronsim can begin before its start when that lies in the second pass of a repeated hour, so whatever is
    not later than the slot before is left out.
    """
    last = after
    for moment in CronSim(expression, datetime.fromtimestamp(after, _zone(zone))):
        slot = int(moment.timestamp())
        if slot > last:
            yield slot
            last = slot


def _zone(name: str) -> ZoneInfo:
    if _ZONE.fullmatch(name):
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
    raise BadInput(f"zone: {name!r} is not an IANA time zone such as Europe/Paris or UTC")
