"""`standfast channel`: where reports go, and what came in there."""

from typing import Annotated

import typer
from pydantic import BaseModel

from standfast.cli.common import current, emit, examples, facts, group, table, write
from standfast.clock import rfc3339
from standfast.operations.configuration import shop_config
from standfast.operations.opening import reading
from standfast.work.channels import Entry, entries, standing

app = group("Where reports go, and what came in there.")


@app.callback()
def channel() -> None:
    """Where reports go, and what came in there."""  # without it, typer would make the one command the group


class ChannelEntry(BaseModel):
    """One message that came in and was recorded."""

    received_at: str
    sender: int
    """The sender's number, as the Bot API says it."""
    operator: str | None
    """Which operator that was; null for a stranger, who has nothing done and no answer."""
    kind: str
    """`decision`, `look`, `question` or `stranger`."""
    command: str
    """The command with its argument; empty for a question: see its work's prompt."""
    outcome: str
    work: str | None
    reply: str | None
    """`pending`, `sending`, `sent`, `unknown` or `refused`; null without one."""
    note: str

    @classmethod
    def of(cls, entry: Entry) -> "ChannelEntry":
        """The published form."""
        return cls(
            received_at=rfc3339(entry.received_at),
            sender=entry.sender,
            operator=entry.operator,
            kind=entry.kind,
            command=entry.command,
            outcome=entry.outcome,
            work=entry.work,
            reply=entry.delivery,
            note=entry.note,
        )


class ChannelShown(BaseModel):
    """The channel and its newest messages. No secret is among them."""

    configured: str
    """What shop.toml says; the service takes it over when it starts."""
    idempotent: bool
    """Whether a report that is sent again has one effect."""
    running: str
    """What the service last used."""
    problem: str | None
    since: str | None
    """Since when it has been well, or not."""
    held_reports: int
    operators: dict[str, str]
    """Sender's number -> operator, of shop.toml."""
    messages: list[ChannelEntry]
    """The newest first."""


@app.command(epilog=examples("standfast channel show", "standfast --json channel show --limit 50"))
def show(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many messages.")] = 20,
) -> None:
    """How the channel stands and who wrote: a stranger's number is what `[operators]` in shop.toml needs."""
    layout = current(ctx).layout
    shop = shop_config(layout)
    with reading(layout) as connection:
        found, messages = standing(connection), entries(connection, limit)
    shown = ChannelShown(
        configured=shop.channel.kind,
        idempotent=shop.channel.idempotent,
        running=found.kind,
        problem=found.problem or None,
        since=rfc3339(found.since) if found.since else None,
        held_reports=found.held,
        operators=dict(shop.operators.telegram),
        messages=[ChannelEntry.of(one) for one in messages],
    )
    emit(ctx, shown, lambda: _render(shown))


def _render(shown: ChannelShown) -> None:
    facts(
        [
            ("channel", shown.configured),
            ("sent again", "one effect" if shown.idempotent else "may arrive twice"),
            ("service", f"{shown.running}: {shown.problem or 'ok'} {shown.since or ''}"),
            ("held reports", shown.held_reports),
            (
                "operators",
                ", ".join(f"{number} {name}" for number, name in shown.operators.items()) or "none",
            ),
        ]
    )
    write()
    table(
        ["RECEIVED", "SENDER", "OPERATOR", "KIND", "COMMAND", "OUTCOME", "REPLY"],
        [
            [m.received_at, m.sender, m.operator or "-", m.kind, m.command[:40], m.outcome, m.reply or "-"]
            for m in shown.messages
        ],
    )
