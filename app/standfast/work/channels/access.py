"""Where reports go and how to enter there: secrets from the environment only, shown nowhere."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

from standfast.address import host_of
from standfast.errors import ConfigurationInvalid

TELEGRAM_TOKEN = "STANDFAST_TELEGRAM_TOKEN"  # noqa: S105 - the variable's name
TELEGRAM_URL = "STANDFAST_TELEGRAM_URL"
TELEGRAM_CHAT = "STANDFAST_TELEGRAM_CHAT"
TELEGRAM_DEFAULT_URL = "https://api.telegram.org"
WEBHOOK_URL = "STANDFAST_WEBHOOK_URL"
WEBHOOK_SECRET = "STANDFAST_WEBHOOK_SECRET"  # noqa: S105 - the variable's name

_BOT_TOKEN = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_-]{1,200}")
_CHAT = re.compile(r"-?[0-9]{1,18}")

type Kind = Literal["outbox", "telegram", "webhook"]


@dataclass(frozen=True, slots=True)
class TelegramAccess:
    """A bot of the Bot API and the chat that reports go to."""

    token: str = field(repr=False)
    chat: int
    url: str = TELEGRAM_DEFAULT_URL
    kind: Kind = "telegram"

    @property
    def source(self) -> str:
        """What update ids are counted by: the bot, by the public half of its token."""
        return f"telegram:{self.token.partition(':')[0]}"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Raises ConfigurationInvalid, which names a variable and never its value."""
        token = _required(environment, TELEGRAM_TOKEN, "telegram")
        if not _BOT_TOKEN.fullmatch(token):
            raise ConfigurationInvalid(f"{TELEGRAM_TOKEN}: digits, a colon, then letters, digits, - and _")
        chat = _required(environment, TELEGRAM_CHAT, "telegram")
        if not _CHAT.fullmatch(chat):
            raise ConfigurationInvalid(f"{TELEGRAM_CHAT}: a chat's number, such as 123456789")
        url = environment.get(TELEGRAM_URL) or TELEGRAM_DEFAULT_URL
        if host_of(url) is None:
            raise ConfigurationInvalid(f"{TELEGRAM_URL}: http:// or https://, a host, no user or query")
        return cls(token=token, chat=int(chat), url=url.rstrip("/"))


@dataclass(frozen=True, slots=True)
class WebhookAccess:
    """An address that takes reports by POST; the address may be a secret itself."""

    url: str = field(repr=False)
    secret: str = field(default="", repr=False)
    """Signs each body, when there is one."""
    idempotent: bool = False
    """Whether the receiver gives one effect per Idempotency-Key, as the operator says."""
    kind: Kind = "webhook"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, idempotent: bool) -> Self:
        """Raises ConfigurationInvalid, which names a variable and never its value."""
        url = _required(environment, WEBHOOK_URL, "webhook")
        if host_of(url, query=True) is None:
            raise ConfigurationInvalid(f"{WEBHOOK_URL}: http:// or https://, a host, no user or fragment")
        return cls(url=url, secret=environment.get(WEBHOOK_SECRET, ""), idempotent=idempotent)


type Access = TelegramAccess | WebhookAccess


def access(kind: Kind, environment: Mapping[str, str], *, webhook_idempotent: bool = False) -> Access | None:
    """What a kind of channel needs; None for the outbox. Raises ConfigurationInvalid."""
    if kind == "telegram":
        return TelegramAccess.from_environment(environment)
    if kind == "webhook":
        return WebhookAccess.from_environment(environment, idempotent=webhook_idempotent)
    return None


def _required(environment: Mapping[str, str], name: str, kind: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise ConfigurationInvalid(f"{name}: must be set while the channel is {kind}")
    return value
