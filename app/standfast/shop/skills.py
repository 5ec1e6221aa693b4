"""Skills: texts kept in the store that shape what the agent writes, replaceable and with their history."""

import sqlite3
from dataclasses import dataclass

from standfast.errors import BadInput
from standfast.store import immediate

OPENING = "opening"
"""The skill that shapes the morning brief."""
MAX_BYTES = 8 * 1024


@dataclass(frozen=True, slots=True)
class Skill:
    """One version of a skill."""

    name: str
    version: int
    """1 for the first; each replacement is the next."""
    text: str
    set_at: float


def current(connection: sqlite3.Connection, name: str = OPENING) -> Skill | None:
    """The version in force, or None before ``standfast init``."""
    row = connection.execute(
        "SELECT name, version, text, set_at FROM skills WHERE name = ? ORDER BY version DESC LIMIT 1", (name,)
    ).fetchone()
    return None if row is None else Skill(*row)


def history(connection: sqlite3.Connection, name: str = OPENING) -> list[Skill]:
    """Every version, newest first."""
    rows = connection.execute(
        "SELECT name, version, text, set_at FROM skills WHERE name = ? ORDER BY version DESC", (name,)
    )
    return [Skill(*row) for row in rows]


def replace(
    connection: sqlite3.Connection, text: str, *, now: float, name: str = OPENING, check: bool = False
) -> bool:
    """Put a new version in force; False when the text is the one in force already.

    BadInput for an empty text, one over 8 KiB, or one with control characters other than line ends and tabs.
    With ``check`` nothing is written.
    """
    _validate(text)
    if check:
        return _differs(current(connection, name), text)
    with immediate(connection, "skill"):
        before = current(connection, name)
        if not _differs(before, text):
            return False
        insert(connection, text, version=1 + (before.version if before else 0), now=now, name=name)
    return True


def insert(
    connection: sqlite3.Connection, text: str, *, version: int, now: float, name: str = OPENING
) -> None:
    """Write one version inside the caller's transaction."""
    connection.execute(
        "INSERT INTO skills (name, version, text, set_at) VALUES (?, ?, ?, ?)", (name, version, text, now)
    )


def _differs(before: Skill | None, text: str) -> bool:
    return before is None or before.text != text


def _validate(text: str) -> None:
    try:
        length = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise BadInput("skill: the text is not valid UTF-8") from error
    if not text.strip() or length > MAX_BYTES:
        raise BadInput(f"skill: the text has 1 to {MAX_BYTES} bytes")
    if any(not character.isprintable() and character not in "\n\t" for character in text):
        raise BadInput("skill: the text holds control characters; only line ends and tabs are allowed")
