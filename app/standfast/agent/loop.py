"""The bounded loop: ask the model, run its calls, until it answers or a limit ends the turn.

Every message goes to the observer before the next step. The service passes an observer that writes it
durably under the fence, so a turn that was cut off can be continued from its records without asking the
model again, and a worker that lost its authority stops at the next message.
"""

import enum
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from standfast.agent import messages as chat
from standfast.agent.asking import AllowanceSpent, Asker, Meter, Stopped, Unmetered
from standfast.agent.messages import Message
from standfast.agent.model import Model, ModelFailed, Reply, Request, ToolCall, Usage
from standfast.agent.tools import Decision, Dispatcher, Outcome, failure
from standfast.authority import StaleClaim
from standfast.work.transcripts import MESSAGE_BYTES

log = logging.getLogger(__name__)


class Status(enum.StrEnum):
    """How a turn ended."""

    COMPLETED = "COMPLETED"
    MODEL_CALL_LIMIT = "MODEL_CALL_LIMIT"
    TOOL_LIMIT = "TOOL_LIMIT"
    TIME_LIMIT = "TIME_LIMIT"
    CONTEXT_LIMIT = "CONTEXT_LIMIT"
    TOKEN_LIMIT = "TOKEN_LIMIT"  # noqa: S105 - tokens of a language model, not a credential
    COST_LIMIT = "COST_LIMIT"
    MODEL_FAILED = "MODEL_FAILED"
    INVALID_USAGE = "INVALID_USAGE"
    REPEATED_CALL_ID = "REPEATED_CALL_ID"
    EMPTY_REPLY = "EMPTY_REPLY"
    STOP_REQUESTED = "STOP_REQUESTED"
    AUTHORITY_LOST = "AUTHORITY_LOST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one turn may use. Calls count over the whole work item, its earlier records included."""

    model_calls: int = 8
    tool_calls: int = 16
    seconds: float = 120.0
    call_seconds: float = 45.0
    """The most that one model call may take, its attempts and the pauses between them together."""
    call_attempts: int = 3
    """How often one model call is sent at most."""
    context_bytes: int = 256 * 1024
    """The most that one request may hold, messages and tool descriptions together."""
    call_output_tokens: int = 2048
    output_tokens: int = 4096
    call_id_retries: int = 2
    """How many replies with blank or repeated call ids are answered with an error before the turn ends."""


@dataclass(frozen=True, slots=True)
class LoopResult:
    """What a turn came to."""

    status: Status
    text: str
    """The final answer; empty unless COMPLETED."""
    source: str
    reason: str
    """Why the turn ended early, for the journal and the record; empty when COMPLETED."""
    model_calls: int
    tool_calls: int
    usage: Usage
    decisions: tuple[Decision, ...]
    messages: tuple["Message", ...]


class _Ended(Exception):
    """Ends the turn from any depth of it."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass
class _Turn:
    asker: Asker
    dispatcher: Dispatcher
    limits: Limits
    observe: Callable[[Message], None]
    on_step: Callable[[], None]
    stop: Callable[[], bool]
    monotonic: Callable[[], float]
    messages: list[Message]
    held: int = 0
    """Bytes of the next request: the messages and the descriptions of the tools."""
    deadline: float = 0.0
    model_calls: int = 0
    tool_calls: int = 0
    bad_ids: int = 0
    usage: Usage = field(default_factory=Usage)
    last_output: int = 0
    decisions: list[Decision] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)

    def run(self, opening: Sequence[Message]) -> str:
        """Go on from the messages there are, and return the final answer."""
        self.deadline = self.monotonic() + self.limits.seconds
        for message in opening[len(self.messages) :]:
            self.say(message)
        for call in chat.unanswered(self.messages):
            self.step(call)
        last = self.messages[-1]
        if last.get("role") == "assistant" and not chat.calls_of(last):
            return final(str(last["content"]))  # cut off between the answer and its report
        while True:
            reply = self.ask()
            calls = self.admitted(reply)
            said = chat.assistant(reply.text, calls, self.asker.model.source)
            taken = chat.size(said)
            if taken > MESSAGE_BYTES:
                raise _Ended(Status.CONTEXT_LIMIT, f"one reply of more than {MESSAGE_BYTES} bytes")
            self.say(said, taken)
            self.on_step()
            self.check_tokens()
            if not calls:
                return final(chat.whole(reply.text))
            for call in calls:
                self.step(call)
            if self.bad_ids > self.limits.call_id_retries:
                raise _Ended(
                    Status.REPEATED_CALL_ID, "the model kept sending blank or repeated tool call ids"
                )
            if self.tool_calls > self.limits.tool_calls:
                raise _Ended(Status.TOOL_LIMIT, f"more than {self.limits.tool_calls} tool calls")

    def recount(self) -> None:
        """Charge the records of an earlier, cut-off turn to this one's limits, and the tools to its size."""
        self.held = chat.total_size([*self.messages, *self.dispatcher.descriptions])
        for message in self.messages:
            if message.get("role") == "assistant":
                self.model_calls += 1
                self.ids.update(call.id for call in chat.calls_of(message))
            elif message.get("role") == "tool":
                self.tool_calls += 1

    def say(self, message: Message, taken: int | None = None) -> None:
        """Make one message durable, then part of the conversation; ``taken``: its bytes, when known."""
        self.observe(message)
        self.messages.append(message)
        self.held += chat.size(message) if taken is None else taken

    def check(self) -> None:
        """Between steps: has somebody asked to stop, is there time left?"""
        if self.stop():
            raise _Ended(Status.STOP_REQUESTED, "the service was asked to stop")
        if self.monotonic() >= self.deadline:
            self.abandon(Status.TIME_LIMIT, f"more than {self.limits.seconds:g} s")

    def ask(self) -> Reply:
        """One model call within the limits."""
        self.check()
        limits = self.limits
        if self.model_calls >= limits.model_calls:
            raise _Ended(Status.MODEL_CALL_LIMIT, f"more than {limits.model_calls} model calls")
        if self.held > limits.context_bytes:
            raise _Ended(
                Status.CONTEXT_LIMIT, f"the conversation is larger than {limits.context_bytes} bytes"
            )
        left = limits.output_tokens - self.usage.output_tokens
        if left <= 0:
            raise _Ended(Status.TOKEN_LIMIT, f"more than {limits.output_tokens} output tokens")
        request = Request(
            messages=tuple(self.messages),
            tools=self.dispatcher.descriptions,
            output_tokens=min(limits.call_output_tokens, left),
            seconds=min(limits.call_seconds, self.deadline - self.monotonic()),
        )
        self.model_calls += 1
        try:
            reply = self.asker.ask(request)
        except ModelFailed as error:
            raise _Ended(Status.MODEL_FAILED, chat.whole(str(error))) from error
        except AllowanceSpent as refused:
            raise _Ended(Status.COST_LIMIT, str(refused)) from refused
        except Stopped:
            raise _Ended(Status.STOP_REQUESTED, "the service was asked to stop") from None
        if reply.usage is None or not reply.usage.valid:
            raise _Ended(Status.INVALID_USAGE, "the model reported no usage, or one that cannot be")
        self.usage += reply.usage
        self.last_output = reply.usage.output_tokens
        if reply.cut and not reply.calls:
            # Half an answer is none. It is not recorded, so that it is never taken for one later.
            raise _Ended(Status.TOKEN_LIMIT, "the reply was cut off at its output limit")
        return reply

    def check_tokens(self) -> None:
        """Refuse to go on with a reply longer than it was allowed to be; what it used is still counted."""
        limits = self.limits
        if self.last_output > limits.call_output_tokens:
            self.abandon(
                Status.TOKEN_LIMIT, f"one reply of more than {limits.call_output_tokens} output tokens"
            )
        if self.usage.output_tokens > limits.output_tokens:
            self.abandon(Status.TOKEN_LIMIT, f"more than {limits.output_tokens} output tokens")

    def abandon(self, status: Status, reason: str) -> NoReturn:
        """End the turn with every open call answered, so that the records stay pairs."""
        for call in chat.unanswered(self.messages):
            self.say(chat.tool_result(call, ok=False, result="limit"))
        raise _Ended(status, reason)

    def admitted(self, reply: Reply) -> list[ToolCall]:
        """The reply's calls in a form that the next request can hold.

        A blank or repeated id is replaced by a fresh one, and malformed arguments, or those of a call with
        such an id, by a stand-in that no schema accepts: the call is answered with ``invalid_arguments``.
        """
        calls = []
        bad_id = False
        for call in reply.calls:
            usable = bool(call.id.strip()) and chat.whole(call.id) == call.id and call.id not in self.ids
            identity = call.id if usable else self.fresh_id()
            self.ids.add(identity)
            arguments = chat.valid_arguments(call.arguments) if usable else None
            calls.append(ToolCall(identity, call.name, arguments or chat.shown_malformed(call.arguments)))
            bad_id = bad_id or not usable
        self.bad_ids += bad_id
        return calls

    def fresh_id(self) -> str:
        number = len(self.ids) + 1
        while (identity := f"replaced-{number}") in self.ids:
            number += 1
        return identity

    def step(self, call: ToolCall) -> None:
        """Run one call, or answer it with the limit that it is past; either way it gets its answer."""
        self.tool_calls += 1
        if self.tool_calls > self.limits.tool_calls:
            outcome = failure("limit")
        else:
            self.check()
            outcome = self.dispatcher.dispatch(call)
        self.record(call, outcome)

    def record(self, call: ToolCall, outcome: Outcome) -> None:
        if outcome.decision is not None:
            self.decisions.append(outcome.decision)
        self.say(chat.tool_result(call, ok=outcome.ok, result=outcome.result))
        self.on_step()


def final(text: str) -> str:
    """The answer that ends a turn; an empty one is none."""
    if not text.strip():
        raise _Ended(Status.EMPTY_REPLY, "the model sent neither text nor a call")
    return text


def run_loop(
    model: Model,
    dispatcher: Dispatcher,
    opening: Sequence[Message],
    *,
    records: Sequence[Message] = (),
    limits: Limits | None = None,
    meter: Meter | None = None,
    observe: Callable[[Message], None] = lambda _message: None,
    on_step: Callable[[], None] = lambda: None,
    stop: Callable[[], bool] = lambda: False,
    wait: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> LoopResult:
    """Run one turn to its end and say how it ended.

    ``opening`` is the conversation's start (system and user message). ``records`` are the messages of an
    earlier, cut-off turn of the same work: they are continued, not repeated, and count against the limits.
    ``meter`` books each attempt of a model call before it is made; without one nothing is booked.
    ``on_step`` runs after each attempt and each tool step; ``wait`` sleeps between attempts, and returns
    early for a stop. What ``observe`` and ``meter`` raise passes through, except StaleClaim, which ends the
    turn with AUTHORITY_LOST.
    """
    limits = limits or Limits()

    def on_failure(error: ModelFailed, pause: float) -> None:
        log.warning("model call failed, trying again in %.1f s: %s", pause, chat.whole(str(error)))
        on_step()

    turn = _Turn(
        asker=Asker(
            model=model,
            meter=meter or Unmetered(),
            attempts=limits.call_attempts,
            stop=stop,
            wait=wait,
            monotonic=monotonic,
            on_failure=on_failure,
        ),
        dispatcher=dispatcher,
        limits=limits,
        observe=observe,
        on_step=on_step,
        stop=stop,
        monotonic=monotonic,
        messages=list(records),
    )
    turn.recount()
    status, text, reason = Status.COMPLETED, "", ""
    try:
        text = turn.run(opening)
    except _Ended as ended:
        status, reason = ended.status, ended.reason
    except StaleClaim as stale:
        status, reason = Status.AUTHORITY_LOST, str(stale)
    result = LoopResult(
        status=status,
        text=text,
        source=model.source,
        reason=reason,
        model_calls=turn.model_calls,
        tool_calls=turn.tool_calls,
        usage=turn.usage,
        decisions=tuple(turn.decisions),
        messages=tuple(turn.messages),
    )
    return replace(result, tool_calls=min(result.tool_calls, turn.limits.tool_calls))
