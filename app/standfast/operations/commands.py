"""What an operator may ask for over a channel: a message's whole effect, its record and its reply, at once.

The sender is who the Bot API says. Only a sender that shop.toml maps to an allowed operator, in a chat of
their own with the bot or in the configured one, has anything done; nobody else is answered.
"""

import logging
import re
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from standfast import orders, work
from standfast.authority import operations
from standfast.clock import rfc3339
from standfast.errors import BadInput, Refused, StandfastError, StoreBusy
from standfast.layout import Layout
from standfast.operations import health
from standfast.orders import Order
from standfast.shop.config import ShopConfig
from standfast.store import immediate
from standfast.work import channels
from standfast.work.channels import Message, Reply

log = logging.getLogger(__name__)

APPROVAL_SECONDS = 4 * 3600
"""How long an approval lives from the moment its message was sent, unless it says otherwise."""
STRANGERS_DAILY = 20
"""Messages of strangers that are recorded per day; the rest is only counted."""
LOOKS = ("/status", "/help", "/start")
HELP = """\
/approve DIGEST [6h] - let exactly this order be sent once; for 4h unless said: 30m, 6h, 2026-03-01T18:00:00Z
/revoke DIGEST or ORDER - take a draft or an approval back
/cancel WORK - stop work
/status - how the shop is, and what waits for an approval
Anything else is a question; its answer comes as a report."""

_MINUTE, _DAY = 60, 86_400
_TICK = 1.0
"""The Bot API's clock has whole seconds: a message may have been sent up to the end of its own."""
_NOTICE = "notice"
_STRANGERS = 0
_DRAFTS_SHOWN = 5
_UNITS = {"m": 60, "h": 3600}
_SPAN = re.compile(r"([0-9]{1,4})([mh])")
_ORDER_ID = re.compile(r"[0-9a-f]{24}")


@dataclass(frozen=True, slots=True)
class Desk:
    """What commands need to act."""

    connection: sqlite3.Connection
    layout: Layout
    shop: ShopConfig
    chat: int
    """The configured chat."""
    now: Callable[[], float]

    def operator(self, message: Message) -> str | None:
        """Which operator wrote it; None for a stranger, and in a chat that nobody chose."""
        if not message.private and message.chat != self.chat:
            return None
        return self.shop.operators.telegram.get(str(message.sender))


def receive(desk: Desk, messages: Sequence[Message]) -> list[Reply]:
    """Let every message have its effect, once; returns what became of those not heard before.

    An operator's decision is a transaction of its own and comes before all others, whatever stands before it;
    the others share one. Raises StoreBusy with the rest unheard: they come again; what was heard is known.
    """
    decisions = [one for one in messages if _words(one)[0] in DECISIONS and desk.operator(one)]
    others = [one for one in messages if one not in decisions]
    done: list[Reply] = []
    for group in [*([one] for one in decisions), *([others] if others else [])]:
        with immediate(desk.connection, "channel_update"):
            replies = [_hear(desk, one) for one in group]
        done += [reply for reply in replies if reply is not None]
    return done


@dataclass(frozen=True, slots=True)
class _Asked:
    """One message of an operator."""

    desk: Desk
    message: Message
    operator: str
    now: float

    def within(self, kind: str, limit: int) -> bool:
        """Whether it still is within the minute's limit of its kind."""
        return channels.take(
            self.desk.connection, self.message.sender, kind, limit=limit, seconds=_MINUTE, now=self.now
        )


def _hear(desk: Desk, message: Message) -> Reply | None:
    if channels.heard(desk.connection, message):
        return None
    now = desk.now()
    operator = desk.operator(message)
    if operator is not None:
        reply = _answer(_Asked(desk, message, operator, now))
    elif channels.take(desk.connection, _STRANGERS, "stranger", limit=STRANGERS_DAILY, seconds=_DAY, now=now):
        reply = Reply("stranger", "not on the list; not answered")
    else:
        return None
    channels.keep(desk.connection, message, operator, reply, now)
    return reply


def _answer(asked: _Asked) -> Reply:
    name, arguments = _words(asked.message)
    limits = asked.desk.shop.channel
    if name in DECISIONS:
        if asked.within("decision", limits.decisions_per_minute):
            reply = _guarded(asked, "decision", lambda: _decide(asked, name, arguments))
        else:
            reply = _too_many(asked, Reply("decision", "too many decisions this minute"))
    elif name or asked.message.text is None:
        if asked.within("look", limits.looks_per_minute):
            reply = _guarded(asked, "look", lambda: _look(asked, name))
        else:
            reply = _too_many(asked, Reply("look", "too many looks this minute"))
    else:
        return _guarded(asked, "question", lambda: _ask(asked))
    return replace(reply, command=" ".join([name, *arguments]))


def _too_many(asked: _Asked, reply: Reply) -> Reply:
    """Said once a minute: a flood gets no flood of answers, which would keep other answers waiting."""
    if asked.within(_NOTICE, 1):
        return replace(reply, text=f"Not done: {reply.outcome}. Nothing was changed.")
    return reply


def _guarded(asked: _Asked, kind: channels.Kind, act: Callable[[], Reply]) -> Reply:
    """The effect within the caller's transaction; taken back alone when it is refused, or fails.

    A message that made the whole transaction fail would come again for ever, and all others behind it.
    """
    connection = asked.desk.connection
    connection.execute("SAVEPOINT command")
    try:
        reply = act()
    except (Refused, BadInput) as error:
        connection.execute("ROLLBACK TO command")
        reply = Reply(kind, f"refused: {getattr(error, 'code', 'bad_input')}", _told(error))
    except (StoreBusy, sqlite3.OperationalError):
        raise
    except Exception as error:
        log.exception("channel: a message failed")
        connection.execute("ROLLBACK TO command")
        reply = Reply(kind, f"failed: {type(error).__name__}", "Not done: it failed. See the journal.")
    connection.execute("RELEASE command")
    return reply


def _decide(asked: _Asked, name: str, arguments: list[str]) -> Reply:
    return Reply("decision", "done", _DECIDE[name](asked, arguments))


def _approve(asked: _Asked, arguments: list[str]) -> str:
    digest, until = _given(asked, "/approve DIGEST [6h]", arguments, most=2)
    told = orders.approve_within(
        asked.desk.connection,
        digest,
        operator=asked.operator,
        until=_until(until, asked.message.sent_at, asked.now),
        policy=asked.desk.shop.policy,
        now=asked.now,
        marker=asked.desk.layout.marker,
        said_at=asked.message.sent_at + _TICK,
    )
    done = "Approved" if told.changed else "Is approved already"
    return f"{done} until {rfc3339(told.approval.until)}: {_said(told.order)}. The service sends it."


def _revoke(asked: _Asked, arguments: list[str]) -> str:
    given, _ = _given(asked, "/revoke DIGEST", arguments, most=1)
    told = orders.revoke_within(
        asked.desk.connection,
        _order_of(asked.desk.connection, given),
        operator=asked.operator,
        policy=asked.desk.shop.policy,
        now=asked.now,
    )
    done = "Revoked" if told.changed else "Was revoked already"
    late = (
        "" if told.recalled else " It was sent before: that cannot be recalled, it is only never sent again."
    )
    return f"{done}: {_said(told.order)}.{late}"


def _cancel(asked: _Asked, arguments: list[str]) -> str:
    given, _ = _given(asked, "/cancel WORK", arguments, most=1)
    reason = f"canceled by {asked.operator} over the channel"
    told = work.cancel_within(asked.desk.connection, given, reason=reason, now=asked.now)
    if not told.changed:
        return f"Work {told.work} was canceled already."
    return (
        f"Work {told.work} is canceled (it was {told.status_before}). What was sent before is not recalled."
    )


_DECIDE: dict[str, Callable[[_Asked, list[str]], str]] = {
    "/approve": _approve,
    "/revoke": _revoke,
    "/cancel": _cancel,
}
DECISIONS = tuple(_DECIDE)


def _look(asked: _Asked, name: str) -> Reply:
    if asked.message.text is None:
        return Reply("look", "not text", "Only text is read.")
    if name == "/status":
        return Reply("look", "done", _status(asked.desk, asked.now))
    unknown = "" if name in LOOKS else "There is no such command.\n"
    return Reply("look", "unknown command" if unknown else "done", unknown + HELP)


def _status(desk: Desk, now: float) -> str:
    found = health.look(desk.layout, now)
    lines = [f"PAUSED: {found.reason}" if found.paused else "Working."]
    lines += [f"! {one.rule}: {one.observed}" for one in found.attention if one.rule != "paused"]
    counts = ", ".join(f"{number} {name}" for name, number in found.work.items() if number)
    lines.append(f"Work: {counts or 'none'}.")
    lines.append(f"Uncertain: {found.uncertain_orders} orders, {found.uncertain_reports} reports.")
    drafts = [one for one in orders.open_orders(desk.connection) if one.status == "DRAFT"]
    lines += [f"Waits for an approval: {_said(one)}\n/approve {one.digest}" for one in drafts[:_DRAFTS_SHOWN]]
    if len(drafts) > _DRAFTS_SHOWN:
        lines.append(f"and {len(drafts) - _DRAFTS_SHOWN} more drafts")
    return "\n".join(lines)


def _ask(asked: _Asked) -> Reply:
    connection, message = asked.desk.connection, asked.message
    table = asked.desk.shop.channel
    limits = work.Limits(daily=table.questions_daily, pending=table.questions_pending)
    try:
        request = work.Request(
            origin=f"{message.source}:{message.update_id}",
            session=f"telegram:{asked.operator}",
            prompt=(message.text or "").strip(),
        )
        foreseen = work.foresee(connection, request, now=asked.now, limits=limits)
    except (BadInput, Refused) as error:
        return _too_many(asked, Reply("question", f"refused: {error}"))
    if foreseen.status == "REJECTED":
        return _too_many(asked, Reply("question", foreseen.reason))
    admitted = work.admit_within(connection, request, now=asked.now, limits=limits)
    waits = " Operations are paused: it waits." if operations(connection).paused else ""
    return Reply("question", "admitted", f"Noted as work {admitted.work}.{waits}", admitted.work)


def _words(message: Message) -> tuple[str, list[str]]:
    """The command without its ``@bot``, and its arguments; no command for a question."""
    words = (message.text or "").split()
    if not words or not words[0].startswith("/"):
        return "", []
    return words[0].partition("@")[0].lower(), words[1:]


def _given(asked: _Asked, usage: str, arguments: list[str], *, most: int) -> tuple[str, str | None]:
    """The id that a decision is about, and what else was said."""
    if asked.message.forwarded:
        raise Refused("forwarded", "a forwarded message decides nothing", remedy="send it yourself")
    if not 1 <= len(arguments) <= most:
        raise BadInput(f"usage: {usage}")
    return arguments[0].lower(), arguments[1] if len(arguments) > 1 else None


def _until(given: str | None, sent_at: float, now: float) -> float:
    """Counted from when the message was sent: one that waited for the service does not live longer for it."""
    began = min(sent_at, now)
    if given is None:
        return began + APPROVAL_SECONDS
    if span := _SPAN.fullmatch(given.lower()):
        return began + int(span[1]) * _UNITS[span[2]]
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise BadInput("until: 6h, 30m, or a time such as 2026-03-01T18:00:00Z")
    return found.timestamp()


def _order_of(connection: sqlite3.Connection, given: str) -> str:
    if _ORDER_ID.fullmatch(given):
        return given
    same = orders.with_digest(connection, given)
    still = [one for one in same if one.status in orders.OPEN] or same[-1:]
    if not still:
        raise Refused("digest_unknown", "no order has exactly this digest", remedy="/status lists drafts")
    if len(still) > 1:
        raise Refused(
            "digest_ambiguous",
            "several works ask for exactly the same",
            observed=[f"order {one.id} is {one.status}" for one in still],
            remedy="/revoke ORDER",
        )
    return still[0].id


def _said(order: Order) -> str:
    price = orders.money(order.total_cents, order.currency)
    return f"{order.quantity} of {order.sku} for {price} from {order.target} (order {order.id})"


def _told(error: StandfastError) -> str:
    seen = getattr(error, "observed", "")
    lines = [f"Refused, nothing was changed: {error}", *([seen] if isinstance(seen, str) else seen)]
    if remedy := getattr(error, "remedy", ""):
        lines.append(f"Remedy: {remedy}")
    return "\n".join(line for line in lines if line)
