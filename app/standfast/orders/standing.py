"""How the supplier's account stands: what keeps the service from it, and since when."""

import sqlite3
from dataclasses import dataclass

from standfast.errors import Refused, StandfastError
from standfast.store import immediate

NO_ANSWER = "no_answer"
"""The code of an account that gives no usable answer; any other is a refusal's."""

_PROBLEM_LENGTH = 300


@dataclass(frozen=True, slots=True)
class AccountStanding:
    """The account as the service last found it."""

    code: str
    """NO_ANSWER or a refusal's code; empty while nothing is wrong."""
    problem: str
    since: float
    """Since when it has been so, epoch seconds."""


def account_standing(connection: sqlite3.Connection) -> AccountStanding:
    """The standing; without a problem before the service said anything in this era."""
    row = connection.execute("SELECT code, problem, since FROM supplier_standing").fetchone()
    return AccountStanding(*(row or ("", "", 0.0)))


def say_account(connection: sqlite3.Connection, error: StandfastError | None, now: float) -> None:
    """Record what keeps the service from the account, or None; nothing is written when it is as recorded."""
    code = error.code if isinstance(error, Refused) else NO_ANSWER if error else ""
    observed = getattr(error, "observed", None)
    problem = f"{error}: {observed}" if observed else str(error or "")
    present = account_standing(connection)
    if present.code == code:  # one problem that is told in other words goes on since it began
        return
    with immediate(connection, "supplier_standing"):
        connection.execute(
            "INSERT INTO supplier_standing VALUES (1, ?, ?, ?) ON CONFLICT DO UPDATE"
            " SET code = excluded.code, problem = excluded.problem, since = excluded.since",
            (code, problem[:_PROBLEM_LENGTH], now),
        )
