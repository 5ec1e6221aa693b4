"""Stating what the end of an era lost of the account: a figure that nobody stated is unknown, not zero."""

import sqlite3
from dataclasses import dataclass

from standfast.agent.usage.reading import current_day
from standfast.errors import BadInput

LARGEST = 1_000_000_000_000


@dataclass(frozen=True, slots=True)
class LossStated:
    """What a statement changed, or with ``check`` would change."""

    changed: bool
    """False when none of its figures was unknown."""
    day: str
    """The UTC day that it counts against."""


def state_loss(
    connection: sqlite3.Connection,
    *,
    calls: int | None,
    cents: int | None,
    tokens: int | None = None,
    now: float,
    check: bool = False,
) -> LossStated:
    """Say what was lost of the present day's account, in the caller's write transaction.

    Each figure is for everything of the day that is unknown now, and counts against the day's ceilings from
    then on. None leaves its figure unknown: a ceiling on it then refuses every call of the day. No calls
    means no tokens and no cents too. What was stated before stays; what was lost on an earlier day concerns
    no ceiling any more. Raises BadInput.
    """
    if not check and not connection.in_transaction:
        raise RuntimeError("a loss is stated in the caller's write transaction")
    if calls == 0:
        if tokens or cents:
            raise BadInput("calls: no calls cannot have used tokens or money")
        tokens = cents = 0
    day = current_day(connection, now)
    changed = [
        _state(connection, name, value, day, now, check=check)
        for name, value in (("calls", calls), ("tokens", tokens), ("cents", cents))
        if value is not None
    ]
    return LossStated(changed=any(changed), day=day)


def _state(
    connection: sqlite3.Connection, name: str, value: int, day: str, now: float, *, check: bool
) -> bool:
    """Give the newest unknown figure of that name the value, and the others of the day nothing."""
    if not 0 <= value <= LARGEST:
        raise BadInput(f"{name}: {value} is not between 0 and {LARGEST}")
    unknown = connection.execute(
        f"SELECT seq FROM usage_losses WHERE day = ? AND {name} IS NULL ORDER BY seq DESC",  # noqa: S608
        (day,),
    ).fetchall()
    if not check:
        connection.executemany(
            f"UPDATE usage_losses SET {name} = ?, stated_at = ? WHERE seq = ?",  # noqa: S608
            [(0 if position else value, now, seq) for position, (seq,) in enumerate(unknown)],
        )
    return bool(unknown)
