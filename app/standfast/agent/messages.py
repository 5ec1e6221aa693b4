"""Transcript messages: plain JSON objects of the chat protocol, kept valid whatever a model sends.

A message has a ``role`` (``system``, ``user``, ``assistant`` or ``tool``) and a ``content``; an assistant
message may carry ``tool_calls``, and every tool message answers exactly one of them by ``tool_call_id``.
"""

import json
from collections.abc import Iterable, Sequence

from pydantic import JsonValue

from standfast.agent.model import ToolCall

type Message = dict[str, JsonValue]

MALFORMED_SHOWN = 200


def system(content: str) -> Message:
    """The standing instructions of a conversation."""
    return {"role": "system", "content": whole(content)}


def user(content: str) -> Message:
    """What is asked."""
    return {"role": "user", "content": whole(content)}


def assistant(content: str, calls: Sequence[ToolCall], source: str) -> Message:
    """What a model said; ``source`` names the model, so that a record never passes for another's."""
    message: Message = {"role": "assistant", "content": whole(content), "source": source}
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": whole(call.name), "arguments": call.arguments},
            }
            for call in calls
        ]
    return message


def tool_result(call: ToolCall, *, ok: bool, result: JsonValue) -> Message:
    """The answer to one call, always with the call's id."""
    content = _encode_sorted({"ok": ok, "result": result})
    return {"role": "tool", "tool_call_id": call.id, "name": whole(call.name), "content": whole(content)}


def calls_of(message: Message) -> list[ToolCall]:
    """The tool calls that an assistant message carries, in order."""
    raw = message.get("tool_calls")
    entries = [entry for entry in raw if isinstance(entry, dict)] if isinstance(raw, list) else []
    return [
        ToolCall(str(entry.get("id")), str(function.get("name")), str(function.get("arguments")))
        for entry in entries
        if isinstance(function := entry.get("function"), dict)
    ]


def unanswered(messages: Sequence[Message]) -> list[ToolCall]:
    """The calls of the last assistant message that no tool message has answered yet."""
    answered = set()
    for message in reversed(messages):
        if message.get("role") == "tool":
            answered.add(message.get("tool_call_id"))
        elif message.get("role") == "assistant":
            return [call for call in calls_of(message) if call.id not in answered]
    return []


def whole(text: str) -> str:
    """The text with unpaired surrogates replaced: they can be neither stored nor sent as UTF-8."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def valid_arguments(raw: str) -> str | None:
    """``raw`` if it is the JSON text of an object that UTF-8 can carry, else None."""
    try:
        parsed = json.loads(raw)
        json.dumps(parsed, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        return None
    return raw if isinstance(parsed, dict) else None


def shown_malformed(raw: str) -> str:
    """A valid JSON stand-in for arguments that are not, so that the next request stays valid."""
    return json.dumps({"malformed": whole(raw)[:MALFORMED_SHOWN]}, ensure_ascii=False)


# One encoder for all: json.dumps makes a new one for each call with a setting of its own.
_encode = json.JSONEncoder(ensure_ascii=False).encode
_encode_sorted = json.JSONEncoder(ensure_ascii=False, sort_keys=True).encode


def encoded(value: JsonValue) -> str:
    """The JSON text of a message, or of what is part of one."""
    return _encode(value)


def size(value: JsonValue) -> int:
    """Bytes of UTF-8 that a value takes as JSON; raises for what JSON or UTF-8 cannot carry."""
    return len(_encode(value).encode("utf-8"))


def total_size(values: Iterable[JsonValue]) -> int:
    """The sum of ``size`` over messages, tool descriptions, or both."""
    return sum(map(size, values))
