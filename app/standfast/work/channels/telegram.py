"""Telegram's Bot API: one message for each report, and updates by short questions.

sendMessage knows no idempotency: what may have arrived is never sent again by itself.
"""

import json
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from standfast.work.channels.access import TelegramAccess
from standfast.work.channels.inbox import Message
from standfast.work.channels.line import WHOLE_SECONDS, Line
from standfast.work.delivery import Declined, NotSent
from standfast.work.reports import Report

MESSAGE_UNITS = 4096
"""Longest text of one message, in UTF-16 code units."""
CAPTION_UNITS = 1024
"""Longest text beside a document."""
UPDATES_AT_ONCE = 100
LONGEST_RETRY_AFTER = 3600.0
"""Seconds: a longer wait that the server asks for is cut to this; it can ask again."""

_OK, _TOO_MANY, _CLIENT, _SERVER = 200, 429, 400, 500
_TOLD = 200


class _Parameters(BaseModel):
    retry_after: float | None = None


class _Answer(BaseModel):
    """Every answer of the Bot API, and of nobody between it and us."""

    ok: bool
    result: Any = None
    error_code: int | None = None
    description: str = ""
    parameters: _Parameters = _Parameters()


type _Number = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class _Party(BaseModel):
    id: _Number
    type: str = ""


class _Message(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    date: float = 0.0
    chat: _Party
    sender: _Party | None = Field(default=None, alias="from")
    text: str | None = None
    forward_origin: Any = None
    forward_date: Any = None


class _Update(BaseModel):
    update_id: _Number
    message: Any = None


class BotApi:
    """The calls that are needed of it. The token is in the line's address, and nowhere else."""

    def __init__(self, access: TelegramAccess, *, seconds: float = WHOLE_SECONDS) -> None:
        self.source = access.source
        self._secret = access.token.partition(":")[2]
        address = f"{access.url}/bot{access.token}"
        self._asking = Line(address, keep=True, whole_seconds=seconds)
        self._sending = Line(address, keep=False, whole_seconds=seconds)

    def close(self) -> None:
        """Close its connections."""
        self._asking.close()
        self._sending.close()

    def send(self, chat: int, text: str) -> None:
        """One message. Raises NotSent, Declined; any other OSError when it may have arrived."""
        self._call(self._sending, "sendMessage", json={"chat_id": chat, "text": text, **_PLAIN})

    def send_document(self, chat: int, name: str, content: str, caption: str) -> None:
        """One message with a text file; raises as ``send``."""
        self._call(
            self._sending,
            "sendDocument",
            data={"chat_id": str(chat), "caption": caption},
            files={"document": (name, content.encode(), "text/plain")},
        )

    def updates(self, offset: int | None) -> list[Message | int]:
        """Up to a hundred messages that wait; the id alone of an update that is no message of a person.

        ``offset`` acknowledges every update before it. Raises as ``send``; asking twice does no harm.
        """
        asked: dict[str, Any] = {"timeout": 0, "limit": UPDATES_AT_ONCE, "allowed_updates": ["message"]}
        found = self._call(
            self._asking, "getUpdates", json=asked | ({} if offset is None else {"offset": offset})
        )
        try:
            return [self._message(_Update.model_validate(one)) for one in found]
        except (ValidationError, TypeError):
            raise OSError("getUpdates: the answer holds no updates") from None

    def _message(self, update: _Update) -> Message | int:
        try:
            message = _Message.model_validate(update.message)
        except ValidationError:
            return update.update_id
        if message.sender is None:
            return update.update_id
        return Message(
            source=self.source,
            update_id=update.update_id,
            sender=message.sender.id,
            chat=message.chat.id,
            private=message.chat.type == "private",
            text=message.text,
            sent_at=message.date,
            forwarded=message.forward_origin is not None or message.forward_date is not None,
        )

    def _call(self, line: Line, method: str, **body: Any) -> Any:
        status, received = line.post(f"/{method}", **body)
        try:
            # Not pydantic's own reader: half a surrogate pair in one message would lose it all of them.
            answer = _Answer.model_validate(json.loads(received))
        except ValueError:
            raise OSError(f"{method}: HTTP {status} with an answer that is not the Bot API's") from None
        if answer.ok and status == _OK:
            return answer.result
        told = f"{method}: {answer.error_code or status} {self._redacted(answer.description)}".rstrip()
        code = answer.error_code or status
        if code == _TOO_MANY:
            raise NotSent(told, min(max(answer.parameters.retry_after or 1.0, 1.0), LONGEST_RETRY_AFTER))
        if not answer.ok and _CLIENT <= code < _SERVER:
            raise Declined(told)
        raise OSError(told)

    def _redacted(self, text: str) -> str:
        """Also a server, or one between, that repeats the address it was asked at shows no token."""
        return "".join(c for c in text.replace(self._secret, "***") if c.isprintable())[:_TOLD]


_PLAIN = {"link_preview_options": {"is_disabled": True}}


class Telegram:
    """Reports as messages of a bot."""

    idempotent = False

    def __init__(self, api: BotApi, chat_of: Callable[[Report], int]) -> None:
        self._api = api
        self._chat_of = chat_of

    def deliver(self, report: Report) -> None:
        """One message: the text itself, or where it is too long for one, a file with all of it."""
        chat = self._chat_of(report)
        ending = f"\n\n[report {report.id}]"
        text = report.body.strip()
        if _units(text + ending) <= MESSAGE_UNITS:
            self._api.send(chat, text + ending)
            return
        ending = f"\n\n[the whole report of {len(text)} characters is in the file; report {report.id}]"
        beginning = _fitted(text, CAPTION_UNITS - _units(ending) - 1)
        self._api.send_document(chat, f"{report.id}.txt", text + "\n", f"{beginning}…{ending}")


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _fitted(text: str, units: int) -> str:
    encoded = text.encode("utf-16-le", "surrogatepass")[: 2 * units]
    return encoded.decode("utf-16-le", "ignore").rstrip()
