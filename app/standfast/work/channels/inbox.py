"""What came in over a channel: once per update, within limits of its kind, with the reply beside it."""

import sqlite3
from dataclasses import dataclass
from typing import Literal

from standfast.store import immediate

type Kind = Literal["decision", "look", "question", "stranger"]

KEPT_SECONDS = 30 * 86400
"""Rows older than this are dropped, a few with each new one. A Bot API server keeps updates for one day."""
REPLY_LENGTH = 3500
"""Longest reply, in characters; below what one message of the Bot API takes."""
_DROPPED_AT_ONCE = 10
_TEXT_LENGTH = 300


@dataclass(frozen=True, slots=True)
class Message:
    """One update as it came in; who sent it is what the Bot API says."""

    source: str
    """The bot by whose numbers ``update_id`` counts."""
    update_id: int
    sender: int
    chat: int
    private: bool
    """A chat of the sender and the bot alone."""
    text: str | None
    """None when it was anything but text."""
    sent_at: float
    """Epoch seconds, by the Bot API's clock."""
    forwarded: bool = False
    """Somebody else's words."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a message, and what its sender is told."""

    kind: Kind
    outcome: str
    text: str | None = None
    """None: nothing."""
    work: str | None = None
    """The work that a question became."""
    command: str = ""
    """The command with its argument; empty for a question, whose text is the work's prompt."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A reply that is to be sent."""

    seq: int
    chat: int
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One kept update."""

    update_id: int
    sender: int
    operator: str | None
    """None: not on the list."""
    kind: Kind
    command: str
    outcome: str
    work: str | None
    delivery: str | None
    """Of the reply: ``pending``, ``sending``, ``sent``, ``unknown`` or ``refused``; None without one."""
    note: str
    received_at: float


def heard(connection: sqlite3.Connection, message: Message) -> bool:
    """Whether this update had its effect before."""
    row = connection.execute(
        "SELECT 1 FROM channel_updates WHERE source = ? AND update_id = ?",
        (message.source, message.update_id),
    ).fetchone()
    return row is not None


def take(
    connection: sqlite3.Connection, sender: int, kind: str, *, limit: int, seconds: int, now: float
) -> bool:
    """Inside the caller's transaction: count one of a kind; False once the window of ``seconds`` is full."""
    window = int(now // seconds)
    taken = connection.execute(
        "INSERT INTO channel_intake VALUES (?, ?, ?, 1) ON CONFLICT DO UPDATE"
        " SET taken = CASE WHEN window = excluded.window THEN taken + 1 ELSE 1 END, window = excluded.window"
        " RETURNING taken",
        (sender, kind, window),
    ).fetchone()[0]
    return int(taken) <= limit


def counted(connection: sqlite3.Connection, sender: int, kind: str) -> int:
    """How many of a kind the newest window of a sender has seen, those past its limit too."""
    row = connection.execute(
        "SELECT taken FROM channel_intake WHERE sender = ? AND kind = ?", (sender, kind)
    ).fetchone()
    return 0 if row is None else int(row[0])


def keep(
    connection: sqlite3.Connection, message: Message, operator: str | None, reply: Reply, now: float
) -> None:
    """Inside the caller's transaction, which holds the effect too: record the update and its reply."""
    connection.execute(
        "INSERT INTO channel_updates"
        " (source, update_id, sender, operator, chat, kind, command, outcome, work, reply, delivery,"
        "  received_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            message.source,
            message.update_id,
            message.sender,
            operator,
            message.chat,
            reply.kind,
            reply.command[:_TEXT_LENGTH],
            reply.outcome[:_TEXT_LENGTH],
            reply.work,
            None if reply.text is None else reply.text[:REPLY_LENGTH],
            None if reply.text is None else "pending",
            now,
        ),
    )
    connection.execute(
        "DELETE FROM channel_updates WHERE received_at < ?"
        " AND seq IN (SELECT seq FROM channel_updates ORDER BY seq LIMIT ?)",
        (now - KEPT_SECONDS, _DROPPED_AT_ONCE),
    )


def pending_reply(connection: sqlite3.Connection) -> Pending | None:
    """Take the next reply into ``sending``: those to decisions first, then the oldest."""
    query = (
        "SELECT seq FROM channel_updates WHERE delivery = 'pending' ORDER BY kind <> 'decision', seq LIMIT 1"
    )
    if connection.execute(query).fetchone() is None:
        return None
    with immediate(connection, "channel_reply"):
        row = connection.execute(
            f"UPDATE channel_updates SET delivery = 'sending' WHERE seq = ({query})"  # noqa: S608 - no input
            " RETURNING seq, chat, reply"
        ).fetchone()
    return None if row is None else Pending(*row)


def settle_reply(connection: sqlite3.Connection, reply: Pending, delivery: str, note: str = "") -> None:
    """Say what became of a reply that was being sent; an era that ended in the meantime has settled it."""
    with immediate(connection, "channel_replied"):
        connection.execute(
            "UPDATE channel_updates SET delivery = ?, note = ? WHERE seq = ? AND delivery = 'sending'",
            (delivery, note[:_TEXT_LENGTH], reply.seq),
        )


def settle_stranded(connection: sqlite3.Connection) -> int:
    """At a start: replies that a dead process left sending are unknown; returns how many."""
    if connection.execute("SELECT 1 FROM channel_updates WHERE delivery = 'sending'").fetchone() is None:
        return 0
    with immediate(connection, "channel_stranded"):
        return connection.execute(
            "UPDATE channel_updates SET delivery = 'unknown', note = 'the service stopped while sending'"
            " WHERE delivery = 'sending'"
        ).rowcount


def reply_chat(connection: sqlite3.Connection, work: str) -> tuple[int, int] | None:
    """Sender and chat of the question that the work is; None for any other work."""
    row = connection.execute("SELECT sender, chat FROM channel_updates WHERE work = ?", (work,)).fetchone()
    return None if row is None else (row[0], row[1])


def entries(connection: sqlite3.Connection, limit: int = 20) -> list[Entry]:
    """The newest kept updates first."""
    rows = connection.execute(
        "SELECT update_id, sender, operator, kind, command, outcome, work, delivery, note, received_at"
        " FROM channel_updates ORDER BY seq DESC LIMIT ?",
        (limit,),
    )
    return [Entry(*row) for row in rows]
