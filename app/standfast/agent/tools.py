"""Tools, and the dispatcher that every call of a model goes through.

Order of a call: is there such a tool, is it allowed here, are the arguments valid, does the gate agree
(consequential tools only), then the handler. The model sees the result or one of the fixed failure
codes, never more; the reason of a refusal is in the decision and in the journal.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from standfast.agent.messages import size
from standfast.agent.model import ToolCall
from standfast.errors import StandfastError, StoreBusy

log = logging.getLogger(__name__)

RESULT_BYTES = 16 * 1024

type Failure = Literal["invalid_arguments", "unknown_tool", "not_allowed", "tool_failed", "limit"]


class Arguments(BaseModel):
    """Base of every tool's argument model: nothing extra, nothing converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NoArguments(Arguments):
    """For a tool that takes nothing."""


@cache
def _schema(arguments: type[BaseModel]) -> JsonValue:
    """The JSON Schema of a tool's arguments: every step of every turn tells it, and making it is slow."""
    return arguments.model_json_schema()


@dataclass(frozen=True, slots=True)
class Tool:
    """One thing a model may ask for. Make it with `tool`."""

    name: str
    description: str
    arguments: type[BaseModel]
    handler: Callable[[Any, ToolCall], JsonValue]
    """Takes the validated arguments and the call (for its id); what it returns is what the model sees."""
    consequential: bool = False
    """Whether it changes anything: then the gate is asked before each call."""

    def __post_init__(self) -> None:
        config = self.arguments.model_config
        if config.get("extra") != "forbid" or config.get("strict") is not True:
            raise TypeError(f"the arguments of {self.name} must forbid extra fields and be strict")

    @property
    def description_for_model(self) -> dict[str, JsonValue]:
        """``{"name", "description", "parameters"}``, as a model is told about it; not to be changed."""
        return {"name": self.name, "description": self.description, "parameters": _schema(self.arguments)}


def tool[A: BaseModel](
    name: str,
    description: str,
    arguments: type[A],
    handler: Callable[[A, ToolCall], JsonValue],
    *,
    consequential: bool = False,
) -> Tool:
    """Make a tool whose handler takes exactly its own argument model (checked by the type checker)."""
    return Tool(name, description, arguments, handler, consequential)


@dataclass(frozen=True, slots=True)
class Decision:
    """What the gate said about one consequential call."""

    call: str
    """The tool call's id."""
    tool: str
    allowed: bool
    sentence: str
    """Why not, in the gate's own words; empty when allowed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call came to: the handler's result, or a failure code."""

    ok: bool
    result: JsonValue
    decision: Decision | None = None


def failure(code: Failure, decision: Decision | None = None) -> Outcome:
    """A failed call; the model sees the code only."""
    return Outcome(ok=False, result=code, decision=decision)


class Dispatcher:
    """Runs the calls of one claim.

    ``allowed`` names the subset that this claim may use (all, when None). ``before_write`` is the gate: it
    returns to let a consequential call go on and raises to refuse it. A result of more than
    ``result_bytes`` of JSON is replaced by the failure ``limit``.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        allowed: Collection[str] | None = None,
        before_write: Callable[[Tool, BaseModel], None] | None = None,
        result_bytes: int = RESULT_BYTES,
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._allowed = set(self._tools if allowed is None else allowed)
        if unknown := self._allowed - set(self._tools):
            raise ValueError(f"allowed names tools that do not exist: {sorted(unknown)}")
        self._before_write = before_write
        self._result_bytes = result_bytes
        self.descriptions: Sequence[dict[str, JsonValue]] = [
            tool.description_for_model for tool in self._tools.values() if tool.name in self._allowed
        ]
        """The allowed tools as a model is told about them."""

    def dispatch(self, call: ToolCall) -> Outcome:
        """Run one call. Never raises for anything that a model, a gate or a handler can do.

        StoreBusy is nothing that they do: it passes, and the turn is gone on with when the store is free.
        """
        tool = self._tools.get(call.name)
        if tool is None:
            return failure("unknown_tool")
        if tool.name not in self._allowed:
            return failure("not_allowed")
        try:
            arguments = tool.arguments.model_validate_json(call.arguments)
        except ValidationError:
            return failure("invalid_arguments")
        decision = self._decide(tool, arguments, call) if tool.consequential else None
        if decision is not None and not decision.allowed:
            return failure("tool_failed", decision)
        return self._handle(tool, arguments, call, decision)

    def _decide(self, tool: Tool, arguments: BaseModel, call: ToolCall) -> Decision:
        try:
            if self._before_write is not None:
                with _journaled("gate", call):
                    self._before_write(tool, arguments)
        except _Failed as failed:
            return Decision(call.id, tool.name, allowed=False, sentence=str(failed))
        return Decision(call.id, tool.name, allowed=True, sentence="")

    def _handle(self, tool: Tool, arguments: BaseModel, call: ToolCall, decision: Decision | None) -> Outcome:
        try:
            with _journaled("tool", call):
                result = tool.handler(arguments, call)
                taken = size(result)
        except _Failed:
            return failure("tool_failed", decision)
        if taken > self._result_bytes:
            return failure("limit", decision)
        return Outcome(ok=True, result=result, decision=decision)


class _Failed(Exception):
    """A gate or a handler raised; in words."""


@contextmanager
def _journaled(what: str, call: ToolCall) -> Iterator[None]:
    """Write to the journal what the block raises, and raise _Failed in its place; StoreBusy passes."""
    try:
        yield
    except StoreBusy:
        raise
    except StandfastError as refusal:
        log.warning("%s refused: call=%s tool=%s reason=%r", what, call.id, call.name, str(refusal))
        raise _Failed(str(refusal)) from refusal
    except Exception as error:
        log.exception("%s failed: call=%s tool=%s", what, call.id, call.name)
        raise _Failed(f"{what} failed: {type(error).__name__}") from error
