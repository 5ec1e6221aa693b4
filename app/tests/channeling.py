"""An instance whose channel is a bot of the stand-in, and a desk that makes rounds when the test says so."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bot_api import LUCY, BotApiServer
from support import Instance

from standfast import orders, work
from standfast.orders import Order
from standfast.serve.channel import ChannelDesk
from standfast.shop import config
from standfast.work import channels

OPERATORS = f'telegram = {{ "{LUCY}" = "lucy" }}'


def with_channel(root: Path, more: str = "", *, kind: str = "telegram", low: bool = False) -> Instance:
    """An initialised instance with a channel of a kind, and ``more`` lines of `[channel]`."""
    instance = Instance.make(root, low=low)
    shop = instance.layout.shop
    shop.write_text(configured(shop.read_text(), OPERATORS, f'kind = "{kind}"\n{more}'))
    return instance


def configured(text: str, operators: str = "", channel: str = "") -> str:
    """The sample with lines added to `[operators]`, and others in place of its `[channel]`'s."""
    for before, after in (
        ('allowed = ["lucy"]\n', f'allowed = ["lucy"]\n{operators}\n'),
        ('kind = "outbox"\n', f"{channel}\n"),
    ):
        assert text.count(before) == 1
        text = text.replace(before, after)
    return text


@dataclass
class Channeling:
    """The instance, the bot's server, and the desk between them."""

    instance: Instance
    api: BotApiServer
    desk: ChannelDesk
    connection: Any
    drafts: list[Order] = field(default_factory=list)

    def rounds(self, most: int = 60) -> int:
        """Rounds until one has nothing more to do; returns how many."""
        for number in range(1, most):
            if not self.desk.round():
                return number
        raise AssertionError("the channel never came to rest")

    def hear(self, *texts: str, **sender: Any) -> list[str]:
        """Somebody writes, the desk makes its rounds; returns what was sent to the chat since."""
        before = len(self.api.accepted)
        for text in texts:
            self.api.write(text, **sender)
        self.rounds()
        return [call.text for call in self.api.accepted[before:]]

    def draft(self, sku: str = "vanilla", quantity: int = 6) -> Order:
        """A draft order of a claim that is still running."""
        self.instance.add(session=f"draft-{sku}-{quantity}")
        claim = self.instance.claim()
        shop = config.load(self.instance.layout.shop)
        return orders.propose(
            self.connection,
            claim,
            sku=sku,
            quantity=quantity,
            unit_cost_cents=300,
            policy=shop.policy,
            clock=self.instance.clock,
            marker=self.instance.layout.marker,
        ).order

    def order(self, order: Order) -> Order:
        return orders.show_order(self.connection, order.id)

    def report(self, text: str = "vanilla: 2") -> str:
        """A report that waits to be delivered; returns its id."""
        self.instance.add(session=f"report-{len(self.instance.rows('SELECT 1 FROM reports'))}")
        done = work.finish(
            self.connection,
            self.instance.claim(),
            "DONE",
            clock=self.instance.clock,
            marker=self.instance.layout.marker,
            report=text,
        )
        assert done.report is not None
        return done.report

    def delivery(self, report: str) -> tuple[str, str]:
        [row] = self.instance.rows("SELECT delivery, note FROM reports WHERE id = ?", report)
        return row[0], row[1]

    def outcomes(self) -> list[tuple[str, str, str | None]]:
        """Kind, outcome and the reply's delivery, oldest first."""
        return self.instance.rows("SELECT kind, outcome, delivery FROM channel_updates ORDER BY seq")


@contextmanager
def desk_of(
    instance: Instance, api: BotApiServer, *, may_deliver: bool = True, **environment: str
) -> Iterator[Channeling]:
    """A new desk, as after a start of the service."""
    shop = config.load(instance.layout.shop)
    instance.environment = api.environment | environment
    access = channels.access(
        shop.channel.kind,
        instance.environment,
        webhook_idempotent=shop.channel.webhook_idempotent,
    )
    assert access is not None
    with instance.store() as connection:
        desk = ChannelDesk(
            connection,
            instance.layout,
            instance.clock,
            shop=shop,
            access=access,
            may_deliver=lambda: may_deliver,
        )
        try:
            yield Channeling(instance, api, desk, connection)
        finally:
            desk.close()
