"""The offline model: a deterministic planner that needs no key and makes nothing up.

A plan (the shop brings its own) looks at the conversation so far and returns the next reply. The planner
vouches for one thing about it: every number in a final answer was in the result of a tool. An answer with
any other number is not given at all.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from standfast.agent import messages as chat
from standfast.agent.messages import Message
from standfast.agent.model import ModelFailed, Reply, Request, ToolCall

NUMBER = re.compile(r"-?\d+(?:[.,:]\d+)*")


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a plan can see: the messages so far and the names of the tools it may call."""

    messages: Sequence[Message]
    tools: frozenset[str]

    @property
    def system(self) -> str:
        """The standing instructions."""
        return self._text("system")

    @property
    def prompt(self) -> str:
        """What is asked: the newest user message."""
        return self._text("user")

    def results(self, name: str) -> list[JsonValue]:
        """The successful results of one tool, oldest first."""
        found = []
        for message in self.messages:
            if message.get("role") == "tool" and message.get("name") == name:
                answer = json.loads(str(message["content"]))
                if answer["ok"]:
                    found.append(answer["result"])
        return found

    def asked(self, name: str) -> int:
        """How often one tool was called, whatever came of it."""
        return sum(call.name == name for message in self.messages for call in chat.calls_of(message))

    def call(self, name: str, **arguments: JsonValue) -> Reply:
        """A reply that asks for one tool."""
        return self.call_all(name, [arguments])

    def call_all(self, name: str, arguments: Sequence[Mapping[str, JsonValue]]) -> Reply:
        """A reply that asks for one tool several times; the ids follow from the conversation alone."""
        first = 1 + sum(len(chat.calls_of(message)) for message in self.messages)
        return Reply(
            calls=tuple(
                ToolCall(f"offline-{first + n}", name, json.dumps(given, ensure_ascii=False, sort_keys=True))
                for n, given in enumerate(arguments)
            )
        )

    def _text(self, role: str) -> str:
        return next((str(m["content"]) for m in reversed(self.messages) if m.get("role") == role), "")


class OfflinePlanner:
    """Answers with a plan instead of a language model. Uses no tokens."""

    source = "offline"

    def __init__(self, plan: Callable[[Conversation], Reply]) -> None:
        self._plan = plan

    def reply(self, request: Request) -> Reply:
        """The plan's next step; ModelFailed if its answer holds a number that no tool gave."""
        names = frozenset(str(tool["name"]) for tool in request.tools)
        reply = self._plan(Conversation(request.messages, names))
        if not reply.calls and (loose := ungrounded(reply.text, request.messages)):
            raise ModelFailed(
                f"the plan's answer holds numbers that no tool gave: {', '.join(sorted(loose))}"
            )
        return reply


def ungrounded(text: str, messages: Sequence[Message]) -> set[str]:
    """The numbers in ``text`` that are in no tool result of the conversation."""
    given: set[str] = set()
    for message in messages:
        if message.get("role") == "tool":
            given.update(NUMBER.findall(str(message["content"])))
    return set(NUMBER.findall(text)) - given
