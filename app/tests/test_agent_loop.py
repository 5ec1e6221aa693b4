"""The bounded loop: limits, order of durability, continuation, and requests that stay valid."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.agent import (
    Arguments,
    Dispatcher,
    Limits,
    LoopResult,
    ModelFailed,
    NoArguments,
    Reply,
    Request,
    ScriptedModel,
    Status,
    ToolCall,
    Usage,
    run_loop,
    tool,
)
from standfast.agent import messages as chat
from standfast.authority import StaleClaim

OPENING = [chat.system("You count."), chat.user("Count.")]

type Turn = Reply | Callable[[Request], Reply]


class Text(Arguments):
    text: str


class Bench:
    """A scripted model, a counting tool, and a record of every step in order."""

    def __init__(self, turns: Sequence[Turn], **options: Any) -> None:
        self.model = ScriptedModel(turns)
        self.steps: list[str] = []
        self.records: list[chat.Message] = []
        self.handled: list[str] = []
        self.options = options
        self.lost_at: int | None = None
        self.tools = [
            tool("look", "Look.", NoArguments, self.look),
            tool("keep", "Keep.", Text, self.keep, consequential=True),
        ]

    def look(self, _arguments: NoArguments, call: ToolCall) -> int:
        self.steps.append(f"look {call.id}")
        self.handled.append(call.id)
        return 42

    def keep(self, arguments: Text, call: ToolCall) -> str:
        self.handled.append(call.id)
        return arguments.text

    def observe(self, message: chat.Message) -> None:
        if self.lost_at is not None and len(self.records) >= self.lost_at:
            raise StaleClaim("worker claim expired or superseded")
        self.records.append(message)
        self.steps.append(f"record {message['role']}")

    def run(self) -> LoopResult:
        return run_loop(self.model, Dispatcher(self.tools), OPENING, observe=self.observe, **self.options)


def look(*ids: str, tokens: int = 0) -> Reply:
    return Reply(calls=tuple(ToolCall(i, "look", "{}") for i in ids), usage=Usage(output_tokens=tokens))


def answer(text: str = "done") -> Reply:
    return Reply(text=text)


def assert_pairs(messages: Sequence[chat.Message]) -> None:
    """Every call has exactly one answer, after it and before the next assistant message; ids are unique."""
    seen: set[str] = set()
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            waiting.remove(str(message["tool_call_id"]))
        else:
            assert waiting == []
            waiting = [call.id for call in chat.calls_of(message)]
            assert all(identity.strip() for identity in waiting)
            assert not seen & set(waiting)
            assert len(set(waiting)) == len(waiting)
            seen |= set(waiting)
    assert waiting == []


def test_the_limits_are_those_of_the_contract() -> None:
    limits = Limits()
    assert (limits.model_calls, limits.tool_calls, limits.seconds, limits.output_tokens) == (8, 16, 120, 4096)


def test_a_turn_completes_and_every_message_is_recorded_before_the_next_step() -> None:
    bench = Bench([look("a", "b"), answer("42 it is")])
    result = bench.run()
    assert (result.status, result.text, result.source) == (Status.COMPLETED, "42 it is", "scripted")
    assert (result.model_calls, result.tool_calls) == (2, 2)
    assert bench.steps == [
        "record system",
        "record user",
        "record assistant",
        "look a",
        "record tool",
        "look b",
        "record tool",
        "record assistant",
    ]
    assert tuple(bench.records) == result.messages
    assert [m["tool_call_id"] for m in result.messages if m["role"] == "tool"] == ["a", "b"]
    assert json.loads(str(bench.records[3]["content"])) == {"ok": True, "result": 42}
    assert bench.records[2]["source"] == "scripted"


def test_the_model_is_told_what_the_limits_leave_it() -> None:
    bench = Bench([look("a", tokens=30), answer()], limits=Limits(output_tokens=50, call_output_tokens=40))
    bench.run()
    assert [request.output_tokens for request in bench.model.requests] == [40, 20]
    assert all(0 < request.seconds <= 45 for request in bench.model.requests)
    assert [told["name"] for told in bench.model.requests[0].tools] == ["look", "keep"]


@pytest.mark.parametrize(
    ("limits", "turns", "status"),
    [
        (Limits(model_calls=3), [look("a"), look("b"), look("c"), answer()], Status.MODEL_CALL_LIMIT),
        (Limits(tool_calls=3), [look("a", "b"), look("c", "d", "e"), answer()], Status.TOOL_LIMIT),
        (Limits(context_bytes=300), [answer()], Status.CONTEXT_LIMIT),
        (Limits(output_tokens=10), [look("a", tokens=11), answer()], Status.TOKEN_LIMIT),
        (Limits(output_tokens=10), [look("a", tokens=10), answer()], Status.TOKEN_LIMIT),
        (Limits(call_output_tokens=5), [look("a", tokens=6), answer()], Status.TOKEN_LIMIT),
        (Limits(), [Reply(text="x", usage=Usage(input_tokens=-1))], Status.INVALID_USAGE),
        (Limits(), [Reply(text="x", usage=Usage(cached_tokens=2))], Status.INVALID_USAGE),
        (Limits(), [Reply(text="x", usage=Usage(output_tokens=True))], Status.INVALID_USAGE),
        (Limits(), [Reply(text=" \n")], Status.EMPTY_REPLY),
        (Limits(), [], Status.MODEL_FAILED),
    ],
)
def test_each_limit_has_its_own_status(limits: Limits, turns: list[Turn], status: Status) -> None:
    result = Bench(turns, limits=limits).run()
    assert result.status == status
    assert result.text == ""
    assert result.reason
    assert_pairs(result.messages)


def test_calls_past_the_tool_limit_are_answered_and_not_run() -> None:
    bench = Bench([look("a", "b", "c")], limits=Limits(tool_calls=2))
    result = bench.run()
    assert bench.handled == ["a", "b"]
    assert json.loads(str(result.messages[-1]["content"])) == {"ok": False, "result": "limit"}
    assert result.tool_calls == 2


def test_time_runs_out_between_steps_and_open_calls_are_answered() -> None:
    clock = [0.0]

    def slow(_request: Request) -> Reply:
        clock[0] += 7
        return look("a", "b")

    bench = Bench([slow, answer()], limits=Limits(seconds=5), monotonic=lambda: clock[0])
    result = bench.run()
    assert result.status == Status.TIME_LIMIT
    assert bench.handled == []
    assert_pairs(result.messages)


def test_a_stop_ends_the_turn_before_the_next_step() -> None:
    stop = [False]

    def stopping(_request: Request) -> Reply:
        stop[0] = True
        return look("a")

    bench = Bench([stopping, answer()], stop=lambda: stop[0])
    result = bench.run()
    assert result.status == Status.STOP_REQUESTED
    assert bench.handled == []
    assert len(bench.model.requests) == 1


@pytest.mark.parametrize("lost_at", range(6))
def test_a_worker_that_lost_its_authority_stops_at_the_next_message(lost_at: int) -> None:
    bench = Bench([look("a"), answer()])
    bench.lost_at = lost_at
    result = bench.run()
    if lost_at == 5:
        assert result.status == Status.COMPLETED
    else:
        assert result.status == Status.AUTHORITY_LOST
        assert result.reason == "worker claim expired or superseded"
        assert result.text == ""
    assert len(bench.records) == lost_at


def test_any_other_failure_of_the_observer_is_not_swallowed() -> None:
    def broken(_message: chat.Message) -> None:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        run_loop(ScriptedModel([answer()]), Dispatcher([]), OPENING, observe=broken)


def test_a_model_that_fails_says_why() -> None:
    def failing(_request: Request) -> Reply:
        raise ModelFailed("the endpoint answered 429 three times")

    result = Bench([failing]).run()
    assert (result.status, result.reason) == (Status.MODEL_FAILED, "the endpoint answered 429 three times")


@pytest.mark.parametrize("cut", range(6))
def test_a_turn_cut_off_anywhere_continues_from_its_records(cut: int) -> None:
    """Whatever was recorded is neither asked nor run again."""
    turns = [look("a", "b"), answer("42")]
    whole = Bench(turns).run()
    records = whole.messages[:cut]
    spoken = sum(message["role"] == "assistant" for message in records)
    bench = Bench(turns[spoken:], records=records)
    result = bench.run()
    assert result.status == Status.COMPLETED
    assert result.messages == whole.messages
    assert tuple(bench.records) == whole.messages[cut:]
    assert bench.handled == ["a", "b"][max(0, cut - 3) :]
    assert (result.model_calls, result.tool_calls) == (whole.model_calls, whole.tool_calls)


def test_a_turn_cut_off_after_its_answer_asks_nothing() -> None:
    records = Bench([answer("42")]).run().messages
    bench = Bench([], records=records)
    assert bench.run().text == "42"
    assert bench.model.requests == []
    assert bench.records == []


def test_earlier_records_count_against_the_limits() -> None:
    records = Bench([look("a"), look("b"), answer()]).run().messages[:6]
    bench = Bench([look("c"), answer()], records=records, limits=Limits(model_calls=3))
    assert bench.run().status == Status.MODEL_CALL_LIMIT
    again = Bench([look("c"), answer()], records=records, limits=Limits(tool_calls=2))
    assert again.run().status == Status.TOOL_LIMIT
    assert again.handled == []


@pytest.mark.parametrize("raw", ['{"a":', "", "[1]", '{"text": "\\udc80"}', "\ud800", "[" * 100_000])
def test_malformed_arguments_are_an_error_the_model_sees_and_the_next_request_is_valid(raw: str) -> None:
    bench = Bench([Reply(calls=(ToolCall("a", "keep", raw),)), answer()])
    result = bench.run()
    assert result.status == Status.COMPLETED
    sent = bench.model.requests[1].messages
    json.dumps(sent, ensure_ascii=False).encode("utf-8")
    arguments = json.loads(chat.calls_of(sent[2])[0].arguments)
    assert isinstance(arguments, dict)
    assert json.loads(str(sent[3]["content"])) == {"ok": False, "result": "invalid_arguments"}
    assert bench.handled == []


def test_repeated_and_blank_ids_are_replaced_and_answered_with_an_error() -> None:
    bench = Bench([look("a"), look("a", " ", "b", "\ud800"), answer()])
    result = bench.run()
    assert result.status == Status.COMPLETED
    assert bench.handled == ["a", "b"]
    assert_pairs(result.messages)


def test_a_replaced_call_stays_refused_when_its_turn_is_continued() -> None:
    records = Bench([look("a"), look("a"), answer()]).run().messages[:5]
    bench = Bench([answer()], records=records)
    result = bench.run()
    assert bench.handled == []
    assert json.loads(str(result.messages[5]["content"])) == {"ok": False, "result": "invalid_arguments"}


def test_a_model_that_keeps_repeating_ids_is_stopped() -> None:
    bench = Bench([look("a")] * 8, limits=Limits(call_id_retries=2))
    result = bench.run()
    assert result.status == Status.REPEATED_CALL_ID
    assert len(bench.model.requests) == 4
    assert_pairs(result.messages)


def test_unpaired_surrogates_in_text_are_replaced() -> None:
    result = Bench([answer("caf\ud800")]).run()
    assert (result.status, result.text) == (Status.COMPLETED, "caf\ufffd\ufffd\ufffd")


calls = st.builds(
    ToolCall,
    id=st.sampled_from(["a", "b", "c", "d", "", " ", "\udc00", "replaced-1", "replaced-2"]),
    name=st.sampled_from(["look", "keep", "nothing", ""]),
    arguments=st.one_of(st.just("{}"), st.just('{"text": "x"}'), st.text(max_size=20)),
)
replies = st.builds(
    Reply,
    text=st.text(max_size=5),
    calls=st.lists(calls, max_size=4).map(tuple),
    usage=st.builds(Usage, output_tokens=st.integers(-1, 40)),
)


@given(st.lists(replies, max_size=10))
def test_whatever_a_model_sends_the_transcript_stays_valid_and_bounded(turns: list[Reply]) -> None:
    limits = Limits(model_calls=5, tool_calls=6, output_tokens=100, call_output_tokens=30)
    bench = Bench(turns, limits=limits)
    result = bench.run()
    assert_pairs(result.messages)
    json.dumps(result.messages, ensure_ascii=False).encode("utf-8")
    assert result.model_calls <= 5
    assert len(bench.handled) <= 6
    assert result.status != Status.COMPLETED or result.text.strip()
