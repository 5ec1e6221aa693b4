"""A live model behind any endpoint of the OpenAI protocol.

The ``openai`` library is imported with the first call, never before: a service that waits does not pay for
it. What an endpoint sends is taken apart by hand and taken for nothing that it is not: the loop decides what
becomes of malformed arguments, blank ids and a missing usage.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from standfast.agent.access import LiveAccess
from standfast.agent.messages import Message
from standfast.agent.model import ModelFailed, Reply, Request, ToolCall, Usage

if TYPE_CHECKING:
    from standfast.agent.endpoint import Endpoint


class LiveModel:
    """Asks one model of one endpoint."""

    def __init__(self, access: LiveAccess) -> None:
        self._access = access
        self._endpoint: Endpoint | None = None
        self.source = f"live:{access.model}"

    def reply(self, request: Request) -> Reply:
        """The model's answer to one request, which is sent once. Raises ModelFailed."""
        body: dict[str, object] = {
            "model": self._access.model,
            "messages": [_sent(message) for message in request.messages],
            self._access.output_field: request.output_tokens,
        }
        if request.tools:
            body["tools"] = [{"type": "function", "function": told} for told in request.tools]
        return parsed(self._reach().post(body, request.seconds))

    def close(self) -> None:
        """Close its connections."""
        if self._endpoint is not None:
            self._endpoint.close()

    def _reach(self) -> "Endpoint":
        if self._endpoint is None:
            try:
                from standfast.agent.endpoint import Endpoint  # noqa: PLC0415 - only a call pays for it
            except ImportError as error:
                reason = f"the library for live models cannot be loaded: {type(error).__name__}"
                raise ModelFailed(reason, spent="nothing sent") from None
            self._endpoint = Endpoint(self._access)
        return self._endpoint


def parsed(answer: bytes) -> Reply:
    """What an endpoint answered; ModelFailed unless it is a completion with one message or more."""
    try:
        completion = json.loads(answer)
        choice = completion["choices"][0]
        message = choice["message"]
        text = _text(message.get("content")) or _text(message.get("refusal"))
        calls = tuple(_call(one) for one in message.get("tool_calls") or ())
        ended = choice.get("finish_reason")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise ModelFailed("the endpoint's answer is no completion of the protocol") from None
    if ended == "content_filter":
        raise ModelFailed("the endpoint withheld the answer (content_filter)")
    return Reply(text=text, calls=calls, usage=_usage(completion.get("usage")), cut=ended == "length")


def _sent(message: Message) -> dict[str, object]:
    """A message as the protocol has it, without what only our records say: the source and a tool's name."""
    sent: dict[str, object] = {name: message[name] for name in ("role", "content") if name in message}
    for name in ("tool_calls", "tool_call_id"):
        if name in message:
            sent[name] = message[name]
    if "tool_calls" in sent and not sent["content"]:
        sent["content"] = None
    return sent


def _call(given: Mapping[str, Any]) -> ToolCall:
    function = given["function"]
    arguments = function.get("arguments")
    if isinstance(arguments, dict):  # some endpoints send the object instead of its text
        arguments = json.dumps(arguments)
    return ToolCall(id=_text(given.get("id")), name=_text(function.get("name")), arguments=_text(arguments))


def _text(given: object) -> str:
    """A text of the protocol; nothing when it is absent or null."""
    if given is None:
        return ""
    if not isinstance(given, str):
        raise TypeError
    return given


def _usage(given: object) -> Usage | None:
    """What the endpoint says was used; None unless it is a whole and consistent account.

    A total above input and output is told by endpoints that show hidden reasoning nowhere else: it is counted
    as output, for which somebody pays.
    """
    if not isinstance(given, dict):
        return None
    details = given.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    told: list[Any] = [given.get("prompt_tokens"), given.get("completion_tokens"), cached or 0]
    if not all(_is_count(count) for count in told):
        return None
    read, written, cached = told
    total = given.get("total_tokens", read + written)
    if not _is_count(total) or total < read + written:
        return None
    usage = Usage(input_tokens=read, cached_tokens=cached, output_tokens=total - read)
    return usage if usage.valid else None


def _is_count(given: Any) -> bool:
    return type(given) is int and given >= 0
