"""The interface that every model sits behind: one request, one reply, and what it used."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pydantic import JsonValue

from standfast.errors import StandfastError

type Spent = Literal["nothing sent", "nothing", "unknown"]
"""What a failed call used: the request never left; it was refused before any work; nobody can tell."""


class ModelFailed(StandfastError):
    """The model gave no usable reply; the message says why, without any secret.

    ``spent``: what the call used nevertheless. ``again``: whether the same request may succeed a little
    later, and then not before ``after`` seconds, if the model said so.
    """

    def __init__(
        self, reason: str, *, spent: Spent = "unknown", again: bool = False, after: float | None = None
    ) -> None:
        super().__init__(reason)
        self.spent: Spent = spent
        self.again = again
        self.after = after


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that a model asks for."""

    id: str
    """Names the call within its work item; its answer carries the same id."""
    name: str
    arguments: str
    """JSON text, as the model wrote it: possibly malformed."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call. A model without tokens reports zeros."""

    input_tokens: int = 0
    cached_tokens: int = 0
    """How many of the input tokens the provider had cached."""
    output_tokens: int = 0

    @property
    def valid(self) -> bool:
        """Whether the numbers can be an account at all."""
        counts = (self.input_tokens, self.cached_tokens, self.output_tokens)
        return all(type(n) is int and n >= 0 for n in counts) and self.cached_tokens <= self.input_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model said: text, calls, or both."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = field(default_factory=Usage)
    """None when the model did not say what the call used: that is never taken for nothing."""
    cut: bool = False
    """Whether the model stopped at the output limit, in the middle of what it said."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a model is asked."""

    messages: Sequence[dict[str, JsonValue]]
    tools: Sequence[dict[str, JsonValue]]
    """``{"name", "description", "parameters"}`` each; parameters is a JSON Schema."""
    output_tokens: int
    """The most that the reply may hold."""
    seconds: float
    """The most that the call may take, everything included."""


class Model(Protocol):
    """Anything that answers a request."""

    @property
    def source(self) -> str:
        """What the record says about where a reply came from: ``offline``, ``scripted``, ``live:<model>``."""

    def reply(self, request: Request) -> Reply:
        """Answer one request; raises ModelFailed when there is no usable answer."""
