"""The channel's own thread: reports out, commands and questions in, without ever holding up a pass.

It has a connection of its own to the store and meets the passes only there. A slow or dead server costs this
thread its time and nobody else's; the watchdog is fed by the passes alone. It asks no model.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from standfast.authority import host_identity, operations
from standfast.clock import Clock
from standfast.errors import StoreBusy
from standfast.layout import Layout
from standfast.operations import commands
from standfast.operations.schema import COMPONENTS
from standfast.serve.journal import facts
from standfast.serve.obstacles import not_ours
from standfast.serve.settings import Settings
from standfast.shop.config import ShopConfig
from standfast.store import open_store, triggers
from standfast.work import (
    Attempt,
    Channel,
    Declined,
    NotSent,
    Report,
    channels,
    deliver_pending,
    resume_deliveries,
)
from standfast.work.channels import Access, Message, TelegramAccess, WebhookAccess

log = logging.getLogger(__name__)

POLL_SECONDS = 3.0
"""Between two rounds: how long a command waits at most while the server answers."""
REPORTS_PER_ROUND = 5
REPLIES_PER_ROUND = 5
FIRST_RETRY = 5.0
LONGEST_RETRY = 300.0
"""Seconds before a server that failed is tried again: doubled up to the longest."""
STOP_SECONDS = 5.0
"""How long a stop waits for an exchange that is going on; what it cut short is unknown after the restart."""


class Incoming(Protocol):
    """What can be asked for messages, and answer them."""

    def updates(self, offset: int | None) -> list[Message | int]:
        """See BotApi."""

    def send(self, chat: int, text: str) -> None:
        """See BotApi."""


@dataclass
class Pace:
    """When something that failed may be tried again."""

    failures: int = 0
    next_try: float = 0.0

    def failed(self, now: float, retry_after: float | None = None) -> float:
        """Returns the pause, in seconds."""
        pause = min(LONGEST_RETRY, FIRST_RETRY * 2.0 ** min(self.failures, 16))
        self.failures += 1
        pause = retry_after if retry_after is not None else pause
        self.next_try = now + pause
        return pause

    def succeeded(self) -> None:
        """Nothing is wrong any more."""
        self.failures, self.next_try = 0, 0.0


class ChannelDesk:
    """Rounds of one channel, over one connection to the store."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        layout: Layout,
        clock: Clock,
        *,
        shop: ShopConfig,
        access: Access,
        may_deliver: Callable[[], bool] = lambda: True,
    ) -> None:
        """``may_deliver``: False until the passes know that this state is not older than the world."""
        self._connection = connection
        self._may_deliver = may_deliver
        self._layout = layout
        self._clock = clock
        self._way = opened(access, connection, shop)
        self._channel, self._incoming = self._way.channel, self._way.incoming
        self._kind = access.kind
        self._host = host_identity()
        chat = access.chat if isinstance(access, TelegramAccess) else 0
        self._desk = commands.Desk(connection, layout, shop, chat, clock.now)
        self._sending, self._asking = Pace(), Pace()
        self._problems: dict[str, str] = {}
        self._offset: int | None = None
        self._begun = self._resumed = False

    def close(self) -> None:
        """Close the connections to the server."""
        self._way.close()

    def round(self) -> bool:
        """Hear, answer, deliver, each bounded; True when there is more of it at once.

        Nothing while the state directory is not this host's to work on: another copy may be answering. While
        only paused it hears and answers, so that somebody can ask why, and delivers nothing.
        """
        control = operations(self._connection)
        if not_ours(control, self._layout, self._host):
            return False
        if not self._begun:
            channels.settle_stranded(self._connection)
            channels.clear(self._connection)
            self._begun = True
        more = self._hear()
        if not control.paused and self._may_deliver():
            more = self._deliver() or more
        self._stand()
        return more

    def _hear(self) -> bool:
        if self._incoming is None:
            return False
        more = False
        if self._clock.now() >= self._asking.next_try:
            more = self._ask(self._incoming)
        return self._reply(self._incoming) or more

    def _ask(self, incoming: Incoming) -> bool:
        try:
            found = incoming.updates(self._offset)
        except OSError as error:
            self._failed("hearing", self._asking, error)
            return False
        self._asking.succeeded()
        self._problems.pop("hearing", None)
        triggers.reach("channel.updates_taken")
        messages = [one for one in found if isinstance(one, Message)]
        for reply in commands.receive(self._desk, messages):
            log.info(
                "channel: %s",
                facts(kind=reply.kind, command=reply.command or None, outcome=reply.outcome, work=reply.work),
            )
        # Only what is on the disk is acknowledged, by the next question; what comes again was heard before.
        # The number is not kept: after a week of silence the server may begin anywhere again.
        ids = [one.update_id if isinstance(one, Message) else one for one in found]
        self._offset = max(ids) + 1 if ids else None
        triggers.reach("channel.updates_heard")
        return bool(found)

    def _reply(self, incoming: Incoming) -> bool:
        for _ in range(REPLIES_PER_ROUND):
            if self._clock.now() < self._sending.next_try:
                return False
            reply = channels.pending_reply(self._connection)
            if reply is None:
                return False
            triggers.reach("channel.reply_leaves")
            try:
                incoming.send(reply.chat, reply.text)
            except Declined as error:
                channels.settle_reply(self._connection, reply, "refused", str(error))
                log.warning("channel: reply refused: %s", facts(reason=str(error)))
                continue
            except NotSent as error:
                channels.settle_reply(self._connection, reply, "pending", str(error))
                self._failed("sending", self._sending, error)
                return False
            except OSError as error:
                channels.settle_reply(self._connection, reply, "unknown", str(error))
                self._failed("sending", self._sending, error)
                return False
            triggers.reach("channel.reply_left")
            channels.settle_reply(self._connection, reply, "sent")
            self._succeeded()
        return True

    def _deliver(self) -> bool:
        if not self._resumed:
            # Before anything is sent by this process: what is still being sent is of a dead one.
            resume_deliveries(self._connection, self._channel)
            self._resumed = True
        if self._clock.now() < self._sending.next_try:
            return False
        sent = deliver_pending(
            self._connection,
            self._channel,
            clock=self._clock,
            most=REPORTS_PER_ROUND,
            attempted=self._attempted,
        )
        if sent:
            log.info("delivered: %s", facts(reports=sent, channel=self._kind))
        return sent == REPORTS_PER_ROUND

    def _attempted(self, attempt: Attempt) -> None:
        if attempt.error is None:
            self._succeeded()
            return
        log.warning(
            "report not delivered: %s",
            facts(report=attempt.report, delivery=attempt.delivery, reason=str(attempt.error)),
        )
        self._failed("sending", self._sending, attempt.error)

    def _succeeded(self) -> None:
        self._sending.succeeded()
        self._problems.pop("sending", None)

    def _failed(self, what: str, pace: Pace, error: OSError) -> None:
        retry_after = error.retry_after if isinstance(error, NotSent) else None
        pause = pace.failed(self._clock.now(), retry_after)
        if self._problems.get(what) != str(error):
            self._problems[what] = str(error)
            log.warning(
                "channel: %s", facts(failed=what, reason=str(error), next_try_seconds=pause, kind=self._kind)
            )

    def _stand(self) -> None:
        problem = "; ".join(f"{what}: {told}" for what, told in sorted(self._problems.items()))
        channels.say(self._connection, self._kind, problem, self._clock.now())


class ChannelThread:
    """The thread, for one start of the service; nothing at all while reports go to the outbox."""

    def __init__(
        self, layout: Layout, clock: Clock, settings: Settings, may_deliver: Callable[[], bool]
    ) -> None:
        self._may_deliver = may_deliver
        self._layout = layout
        self._clock = clock
        self._settings = settings
        self._stop = threading.Event()
        # A daemon: an exchange that outlasts the stop must not keep the process; its outcome is unknown then.
        self._thread = threading.Thread(target=self._run, name="channel", daemon=True)

    def __enter__(self) -> Self:
        if self._settings.channel is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._rounds()
            except (StoreBusy, sqlite3.OperationalError) as error:
                log.warning("channel: trying again: %s", facts(error=str(error)))
            except Exception:
                # A thread that ended would leave the operator unheard, and nobody would notice.
                log.exception("channel: unexpected failure, trying again")
            self._stop.wait(FIRST_RETRY)

    def _rounds(self) -> None:
        access = self._settings.channel
        assert access is not None
        with closing(open_store(self._layout.database, COMPONENTS)) as connection:
            desk = ChannelDesk(
                connection,
                self._layout,
                self._clock,
                shop=self._settings.shop,
                access=access,
                may_deliver=self._may_deliver,
            )
            with closing(desk):
                while not self._stop.is_set():
                    if not desk.round():
                        self._stop.wait(POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class Way:
    """A channel that is open."""

    channel: Channel
    incoming: Incoming | None
    close: Callable[[], None]


def opened(access: Access, connection: sqlite3.Connection, shop: ShopConfig) -> Way:
    """The way that an access leads to. Imports httpx."""
    if isinstance(access, WebhookAccess):
        from standfast.work.channels.webhook import Webhook  # noqa: PLC0415 - httpx

        webhook = Webhook(access)
        return Way(webhook, None, webhook.close)
    from standfast.work.channels.telegram import BotApi, Telegram  # noqa: PLC0415 - httpx

    def chat_of(report: Report) -> int:
        """The answer to a question goes where it was asked, while its sender is still on the list."""
        asked = channels.reply_chat(connection, report.work)
        known = asked is not None and str(asked[0]) in shop.operators.telegram
        return asked[1] if asked is not None and known else access.chat

    api = BotApi(access)
    return Way(Telegram(api, chat_of), api, api.close)
