"""The channels that lead out of the host, and what comes back over one: kept, deduplicated, limited.

Nothing here imports httpx until a channel is opened: the outbox, health and commands do without.
"""

from standfast.work.channels.access import Access, TelegramAccess, WebhookAccess, access
from standfast.work.channels.component import COMPONENT
from standfast.work.channels.inbox import (
    Entry,
    Kind,
    Message,
    Pending,
    Reply,
    counted,
    entries,
    heard,
    keep,
    pending_reply,
    reply_chat,
    settle_reply,
    settle_stranded,
    take,
)
from standfast.work.channels.standing import Standing, clear, say, standing

__all__ = [
    "COMPONENT",
    "Access",
    "Entry",
    "Kind",
    "Message",
    "Pending",
    "Reply",
    "Standing",
    "TelegramAccess",
    "WebhookAccess",
    "access",
    "clear",
    "counted",
    "entries",
    "heard",
    "keep",
    "pending_reply",
    "reply_chat",
    "say",
    "settle_reply",
    "settle_stranded",
    "standing",
    "take",
]
