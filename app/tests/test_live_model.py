"""The live model against a real HTTP server of its protocol on loopback: a stand-in, no hosted model."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from endpoint_standin import (
    KEY,
    MODEL,
    Answer,
    StandIn,
    body,
    call,
    completion,
    cut_off,
    error,
    replies,
    silent,
    standin,
    trickling,
    usage,
)

from standfast.agent import (
    Arguments,
    Dispatcher,
    Limits,
    LoopResult,
    ModelFailed,
    NoArguments,
    Reply,
    Request,
    Status,
    ToolCall,
    Usage,
    run_loop,
    tool,
)
from standfast.agent import messages as chat
from standfast.agent.access import LiveAccess, OutputField
from standfast.agent.live import LiveModel, parsed
from standfast.errors import ConfigurationInvalid

OPENING = [chat.system("You count."), chat.user("Count.")]
REQUEST = Request(messages=OPENING, tools=(), output_tokens=50, seconds=10.0)


MADE: list[LiveModel] = []


@pytest.fixture(autouse=True)
def connections_are_closed() -> Iterator[None]:
    yield
    while MADE:
        MADE.pop().close()


def model(one: StandIn, output_field: OutputField = "max_completion_tokens", **environment: str) -> LiveModel:
    access = LiveAccess.from_environment(one.environment | environment, output_field)
    assert access is not None
    MADE.append(LiveModel(access))
    return MADE[-1]


def failure(answer: Answer, seconds: float = 10.0) -> tuple[ModelFailed, StandIn]:
    with standin(answer) as one, pytest.raises(ModelFailed) as failed:
        model(one).reply(replace(REQUEST, seconds=seconds))
    assert KEY not in str(failed.value)
    assert failed.value.__cause__ is None, "a cause holds the request, and the request the key"
    return failed.value, one


class TestOneCall:
    def test_a_reply_with_text_and_usage(self) -> None:
        with standin(replies("42", used=usage(10, 5, 4))) as one:
            reply = model(one).reply(REQUEST)
        assert reply == Reply(text="42", usage=Usage(10, 4, 5))

    def test_what_is_sent(self) -> None:
        asked = ToolCall("a", "look", '{"sku": "vanilla"}')
        messages = [
            *OPENING,
            chat.assistant("", [asked], "live:x"),
            chat.tool_result(asked, ok=True, result=2),
        ]
        tools: list[chat.Message] = [
            {"name": "look", "description": "Look.", "parameters": {"type": "object"}}
        ]
        with standin(replies("done")) as one:
            model(one).reply(replace(REQUEST, messages=messages, tools=tools))
        (sent,) = one.requests
        assert sent["path"] == "/v1/chat/completions"
        assert sent["authorization"] == f"Bearer {KEY}"
        assert sent["body"] == {
            "model": MODEL,
            "max_completion_tokens": 50,
            "messages": [
                {"role": "system", "content": "You count."},
                {"role": "user", "content": "Count."},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "a",
                            "type": "function",
                            "function": {"name": "look", "arguments": '{"sku": "vanilla"}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "a", "content": '{"ok": true, "result": 2}'},
            ],
            "tools": [{"type": "function", "function": tools[0]}],
        }

    def test_an_endpoint_without_a_key_is_sent_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "not-ours")
        monkeypatch.setenv("OPENAI_ORG_ID", "not-ours")
        monkeypatch.setenv("OPENAI_PROJECT_ID", "not-ours")
        with standin(replies("42")) as one:
            model(one, STANDFAST_MODEL_KEY="none").reply(REQUEST)
        (sent,) = one.requests
        assert sent["authorization"] is None
        assert "not-ours" not in str(sent["headers"])

    def test_the_older_name_of_the_output_limit(self) -> None:
        with standin(replies("42")) as one:
            model(one, "max_tokens").reply(REQUEST)
        assert one.requests[0]["body"]["max_tokens"] == 50
        assert "max_completion_tokens" not in one.requests[0]["body"]

    def test_a_proxy_of_the_environment_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
        with standin(replies("42")) as one:
            assert model(one).reply(REQUEST).text == "42"


class TestFailures:
    def test_silence_ends_with_the_call_s_time(self) -> None:
        began = time.monotonic()
        failed, _ = failure(silent(30), seconds=0.5)
        assert time.monotonic() - began < 5
        assert (failed.spent, failed.again) == ("unknown", False)
        assert "did not answer within" in str(failed)

    @pytest.mark.parametrize("headers", [True, False])
    def test_a_trickle_of_bytes_is_no_way_around_it(self, headers: bool) -> None:
        began = time.monotonic()
        failed, _ = failure(trickling(30, headers=headers), seconds=0.7)
        assert time.monotonic() - began < 5
        assert (failed.spent, failed.again) == ("unknown", False)

    @pytest.mark.parametrize("after", [0, 30])
    def test_an_answer_that_is_cut_off_may_be_asked_for_again(self, after: int) -> None:
        failed, _ = failure(cut_off(after))
        assert (failed.spent, failed.again) == ("unknown", True)
        assert "cut off" in str(failed)

    @pytest.mark.parametrize(
        ("answer", "spent", "again", "after"),
        [
            (error(429, "rate_limit_exceeded", Retry_After="7"), "nothing", True, 7.0),
            (error(429, "rate_limit_exceeded"), "nothing", True, None),
            (error(429, "insufficient_quota"), "nothing", False, None),
            (error(429, Retry_After="nan"), "nothing", True, None),
            (error(500), "unknown", True, None),
            (error(503, Retry_After="2"), "unknown", True, 2.0),
            (error(401, "invalid_api_key", f"Incorrect API key provided: {KEY}"), "nothing", False, None),
            (error(400, KEY), "nothing", False, None),
            (body(b"<html>", 404), "nothing", False, None),
            (body(b"", 302, Location="https://elsewhere.example/"), "nothing", False, None),
        ],
    )
    def test_an_error_says_what_it_used_and_whether_to_try_again(
        self, answer: Answer, spent: str, again: bool, after: float | None
    ) -> None:
        failed, one = failure(answer)
        assert (failed.spent, failed.again, failed.after) == (spent, again, after)
        assert len(one.requests) == 1, "the library itself neither retries nor follows"

    def test_a_retry_after_that_is_a_date(self) -> None:
        failed, _ = failure(error(429, Retry_After="Fri, 01 Jan 2999 00:00:00 GMT"))
        assert failed.after is not None
        assert failed.after > 1_000_000

    def test_an_endpoint_that_is_not_there_was_sent_nothing(self) -> None:
        with standin(replies("42")) as one:
            pass
        with pytest.raises(ModelFailed, match="cannot be reached") as failed:
            model(one).reply(REQUEST)
        assert (failed.value.spent, failed.value.again) == ("nothing sent", True)

    @pytest.mark.parametrize("size", [5 * 1024 * 1024, 50 * 1024 * 1024])
    def test_an_answer_that_is_too_long_is_not_read(self, size: int) -> None:
        failed, _ = failure(body(b" " * size))
        assert "longer than" in str(failed)
        assert (failed.spent, failed.again) == ("unknown", False)

    def test_a_packed_answer_is_refused_unopened(self) -> None:
        failed, _ = failure(body(b"\x1f\x8b" + b"0" * 50, 200, **{"Content-Encoding": "gzip"}))
        assert "packed" in str(failed)

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"{",
            b"[]",
            b"null",
            b'"text"',
            b"<html>hello</html>",
            b'{"choices": []}',
            b'{"choices": [{}]}',
            b'{"choices": [{"message": "text"}]}',
            b'{"choices": [{"message": {"content": 5}}]}',
            b'{"choices": [{"message": {"content": [{"type": "text"}]}}]}',
            b'{"choices": [{"message": {"tool_calls": [{}]}}]}',
            b'{"choices": [{"message": {"tool_calls": "look"}}]}',
            b"[" * 100_000,
            b"\xff\xfe",
        ],
    )
    def test_what_is_no_completion_is_refused(self, data: bytes) -> None:
        failed, _ = failure(body(data))
        assert (failed.spent, failed.again) == ("unknown", False)
        assert "no completion" in str(failed)

    def test_a_withheld_answer_is_no_answer(self) -> None:
        failed, _ = failure(replies("", finish="content_filter"))
        assert "withheld" in str(failed)


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (usage(10, 5, 4), Usage(10, 4, 5)),
        ({"prompt_tokens": 10, "completion_tokens": 5}, Usage(10, 0, 5)),
        (usage(10, 5) | {"prompt_tokens_details": None}, Usage(10, 0, 5)),
        (usage(10, 5) | {"total_tokens": 25}, Usage(10, 0, 15)),
        ("missing", None),
        ({}, None),
        ([], None),
        (usage(10, 5, 11), None),
        (usage(-1, 5), None),
        (usage(10, 5) | {"total_tokens": 14}, None),
        (usage(10, 5) | {"total_tokens": None}, None),
        (usage(10, 5) | {"completion_tokens": 5.0}, None),
        (usage(10, 5) | {"completion_tokens": True}, None),
        (usage(10, 5) | {"prompt_tokens": "10"}, None),
    ],
)
def test_a_usage_is_whole_and_consistent_or_none(used: Any, expected: Usage | None) -> None:
    assert parsed(json.dumps(completion("x", used=used)).encode()).usage == expected


class Text(Arguments):
    text: str


class Turn:
    """A turn of the loop whose model is the stand-in."""

    def __init__(self, *answers: Answer, stop_after: int | None = None, **limits: Any) -> None:
        self.handled: list[tuple[str, str]] = []
        self.waited: list[float] = []
        self.steps = 0
        self.stop_after = stop_after
        self.answers = answers
        self.limits = Limits(**limits)

    def run(self) -> LoopResult:
        tools = [
            tool("look", "Look.", NoArguments, self._look),
            tool("keep", "Keep.", Text, self._keep, consequential=True),
        ]
        with standin(*self.answers) as one:
            self.standin = one
            return run_loop(
                model(one),
                Dispatcher(tools),
                OPENING,
                limits=self.limits,
                wait=self.waited.append,
                on_step=self._step,
                stop=lambda: self.stop_after is not None and len(one.requests) >= self.stop_after,
            )

    def _step(self) -> None:
        self.steps += 1

    def _look(self, _arguments: NoArguments, call: ToolCall) -> int:
        self.handled.append(("look", call.id))
        return 42

    def _keep(self, arguments: Text, call: ToolCall) -> str:
        self.handled.append(("keep", call.id))
        return arguments.text


class TestLoop:
    def test_a_turn_with_tool_calls(self) -> None:
        turn = Turn(replies(None, call("look"), call("keep", '{"text": "x"}', "call_2")), replies("42"))
        result = turn.run()
        assert (result.status, result.text, result.source) == (Status.COMPLETED, "42", f"live:{MODEL}")
        assert turn.handled == [("look", "call_1"), ("keep", "call_2")]
        assert result.usage == Usage(200, 0, 40)
        answers = [m for m in turn.standin.requests[1]["body"]["messages"] if m["role"] == "tool"]
        assert [(m["tool_call_id"], json.loads(m["content"])["ok"]) for m in answers] == [
            ("call_1", True),
            ("call_2", True),
        ]

    def test_errors_that_pass_are_tried_again_after_a_growing_pause(self) -> None:
        turn = Turn(error(500), cut_off(10), replies("42"))
        assert turn.run().status == Status.COMPLETED
        assert turn.waited == [1.0, 2.0]
        assert turn.steps == 3, "the watchdog and the lease are served after each attempt"

    def test_a_retry_waits_as_long_as_the_endpoint_asks(self) -> None:
        turn = Turn(error(429, Retry_After="7"), replies("42"))
        assert turn.run().status == Status.COMPLETED
        assert turn.waited == [7.0]

    def test_retries_are_bounded(self) -> None:
        turn = Turn(error(500))
        result = turn.run()
        assert (result.status, result.reason) == (
            Status.MODEL_FAILED,
            "the endpoint answered 500 (some_error)",
        )
        assert len(turn.standin.requests) == 3

    def test_no_pause_outlasts_the_call_s_time(self) -> None:
        turn = Turn(error(429, Retry_After="60"), replies("42"), call_seconds=45)
        result = turn.run()
        assert result.status == Status.MODEL_FAILED
        assert "asks to wait 60 s" in result.reason
        assert (turn.waited, len(turn.standin.requests)) == ([], 1)

    def test_a_stop_ends_the_waiting(self) -> None:
        turn = Turn(error(500), replies("42"), stop_after=1)
        assert turn.run().status == Status.STOP_REQUESTED
        assert len(turn.standin.requests) == 1

    @pytest.mark.parametrize("used", ["missing", usage(10, 5, 11), usage(-1, 5), "text"])
    def test_an_invalid_usage_ends_the_turn(self, used: Any) -> None:
        result = Turn(replies("42", used=used)).run()
        assert (result.status, result.text) == (Status.INVALID_USAGE, "")

    @pytest.mark.parametrize(
        "arguments", ['{"text":', "", "[1]", '{"text": "\\ud800"}', '{"more": 1}', "\ud800"]
    )
    def test_malformed_arguments_are_an_error_that_the_model_sees(self, arguments: str) -> None:
        turn = Turn(replies(None, call("keep", arguments)), replies("sorry"))
        assert turn.run().status == Status.COMPLETED
        assert turn.handled == []
        told = turn.standin.requests[1]["body"]["messages"]
        assert json.loads(told[-1]["content"]) == {"ok": False, "result": "invalid_arguments"}
        assert isinstance(json.loads(told[-2]["tool_calls"][0]["function"]["arguments"]), dict)

    def test_arguments_that_are_an_object_are_taken_as_its_text(self) -> None:
        asked = call("keep")
        asked["function"]["arguments"] = {"text": "x"}
        turn = Turn(replies(None, asked), replies("kept"))
        turn.run()
        assert turn.handled == [("keep", "call_1")]

    def test_repeated_and_missing_ids_are_answered_with_an_error_and_bounded(self) -> None:
        missing = call("look")
        del missing["id"]
        turn = Turn(replies(None, call("look"), missing))
        result = turn.run()
        assert result.status == Status.REPEATED_CALL_ID
        assert turn.handled == [("look", "call_1")]
        assert len(turn.standin.requests) == 3
        last = turn.standin.requests[-1]["body"]["messages"]
        asked = [one["id"] for message in last for one in message.get("tool_calls") or ()]
        assert len(asked) == len(set(asked)) == 4
        assert [message["tool_call_id"] for message in last if message["role"] == "tool"] == asked

    def test_a_surrogate_in_the_text_is_replaced(self) -> None:
        assert Turn(replies("caf\ud800")).run().text == "caf���"

    def test_an_answer_cut_at_its_limit_is_no_answer(self) -> None:
        result = Turn(replies("Vanilla is", finish="length")).run()
        assert (result.status, result.text) == (Status.TOKEN_LIMIT, "")

    def test_an_empty_answer(self) -> None:
        assert Turn(replies(None)).run().status == Status.EMPTY_REPLY


ACCESS = {
    "STANDFAST_MODEL": MODEL,
    "STANDFAST_MODEL_URL": "https://models.example/v1/",
    "STANDFAST_MODEL_KEY": KEY,
}


class TestConfiguration:
    def test_a_whole_one(self) -> None:
        access = LiveAccess.from_environment(ACCESS)
        assert access == LiveAccess(MODEL, "https://models.example/v1", KEY)
        assert KEY not in repr(access)

    @pytest.mark.parametrize(
        "environment", [{}, {"STANDFAST_MODEL": "offline"}, ACCESS | {"STANDFAST_MODEL": "offline"}]
    )
    def test_none_is_a_normal_condition(self, environment: dict[str, str]) -> None:
        assert LiveAccess.from_environment(environment) is None

    @pytest.mark.parametrize(
        "url", ["http://127.0.0.1:1/v1", "http://localhost/v1", "http://[::1]:1/v1", "https://192.0.2.1/v1"]
    )
    def test_a_key_may_go_over_loopback_in_the_clear(self, url: str) -> None:
        assert LiveAccess.from_environment(ACCESS | {"STANDFAST_MODEL_URL": url}) is not None

    def test_without_a_key_http_is_allowed(self) -> None:
        keyless = {"STANDFAST_MODEL_KEY": "none", "STANDFAST_MODEL_URL": "http://192.0.2.1/v1"}
        access = LiveAccess.from_environment(ACCESS | keyless)
        assert access is not None
        assert access.key is None

    @pytest.mark.parametrize(
        ("changed", "field"),
        [
            ({"STANDFAST_MODEL": ""}, "STANDFAST_MODEL"),
            ({"STANDFAST_MODEL": "a b"}, "STANDFAST_MODEL"),
            ({"STANDFAST_MODEL": "a\nb"}, "STANDFAST_MODEL"),
            ({"STANDFAST_MODEL_KEY": ""}, "STANDFAST_MODEL_KEY"),
            ({"STANDFAST_MODEL_KEY": "sk secret"}, "STANDFAST_MODEL_KEY"),
            ({"STANDFAST_MODEL_KEY": "sk-é"}, "STANDFAST_MODEL_KEY"),
            ({"STANDFAST_MODEL_URL": ""}, "STANDFAST_MODEL_URL"),
            ({"STANDFAST_MODEL_URL": "models.example/v1"}, "STANDFAST_MODEL_URL"),
            ({"STANDFAST_MODEL_URL": "ftp://models.example"}, "STANDFAST_MODEL_URL"),
            ({"STANDFAST_MODEL_URL": "https://user:secret@models.example"}, "STANDFAST_MODEL_URL"),
            ({"STANDFAST_MODEL_URL": "https://models.example/?key=secret"}, "STANDFAST_MODEL_URL"),
            ({"STANDFAST_MODEL_URL": "https://models.example:port/"}, "STANDFAST_MODEL_URL"),
            ({"STANDFAST_MODEL_URL": "http://192.0.2.1/v1"}, "STANDFAST_MODEL_URL"),
        ],
    )
    def test_a_wrong_one_names_the_variable_and_no_value(self, changed: dict[str, str], field: str) -> None:
        with pytest.raises(ConfigurationInvalid, match=rf"^{field}: ") as invalid:
            LiveAccess.from_environment(ACCESS | changed)
        assert invalid.value.exit_code == 78
        assert "secret" not in str(invalid.value)
        assert KEY not in str(invalid.value)

    def test_a_release_without_the_extra_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "openai", None)
        monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
        with pytest.raises(ConfigurationInvalid, match="--extra live"):
            LiveAccess.from_environment(ACCESS)


def test_the_library_is_imported_by_the_first_call_only() -> None:
    code = (
        "import sys, standfast.serve.service;"
        "from standfast.agent.access import LiveAccess; from standfast.agent.live import LiveModel;"
        f"LiveModel(LiveAccess.from_environment({ACCESS!r}));"
        "print(sorted({'openai', 'httpx', 'httpx2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
