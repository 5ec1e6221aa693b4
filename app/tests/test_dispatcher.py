"""The dispatcher: order of the checks, the fixed failure codes, a gate that schema refusals never reach."""

import json
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from standfast.agent import Arguments, Dispatcher, NoArguments, Tool, ToolCall, tool
from standfast.errors import Refused, StoreBusy


class Note(Arguments):
    text: Annotated[str, Field(min_length=1, max_length=20)]


class Bench:
    """A dispatcher with one reading and one writing tool, and a count of what reached what."""

    def __init__(self, refuse: Exception | None = None, **options: Any) -> None:
        self.gate: list[str] = []
        self.written: list[str] = []
        self.refuse = refuse
        tools = [
            tool("look", "Look.", NoArguments, lambda _arguments, _call: {"seen": 1}),
            tool("note", "Note.", Note, self.write, consequential=True),
            tool("boom", "Fail.", NoArguments, self.boom),
            tool("flood", "Say too much.", NoArguments, lambda _arguments, _call: "x" * 20_000),
            tool("odd", "Return what is not JSON.", NoArguments, lambda _arguments, _call: object()),  # type: ignore[arg-type,return-value]
        ]
        self.dispatcher = Dispatcher(tools, before_write=self.before_write, **options)

    def before_write(self, called: Tool, _arguments: BaseModel) -> None:
        self.gate.append(called.name)
        if self.refuse:
            raise self.refuse

    def write(self, arguments: Note, _call: ToolCall) -> str:
        self.written.append(arguments.text)
        return "kept"

    def boom(self, _arguments: NoArguments, _call: ToolCall) -> str:
        raise RuntimeError("secret detail")

    def call(self, name: str, arguments: str = "{}") -> tuple[bool, Any]:
        outcome = self.dispatcher.dispatch(ToolCall("c1", name, arguments))
        return outcome.ok, outcome.result


def test_a_good_call_passes_the_gate_and_reaches_the_handler() -> None:
    bench = Bench()
    assert bench.call("note", '{"text": "low"}') == (True, "kept")
    assert (bench.gate, bench.written) == (["note"], ["low"])


def test_a_reading_tool_never_meets_the_gate() -> None:
    bench = Bench(refuse=Refused("x", "no"))
    assert bench.call("look") == (True, {"seen": 1})
    assert bench.gate == []


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        '{"a":',
        "[]",
        "null",
        '"text"',
        "{}",
        '{"text": ""}',
        '{"text": 3}',
        '{"text": "a", "more": 1}',
        json.dumps({"text": "a" * 21}),
        '{"text": "\\ud800"}',
    ],
)
def test_a_schema_refusal_never_reaches_the_gate(arguments: str) -> None:
    bench = Bench()
    assert bench.call("note", arguments) == (False, "invalid_arguments")
    assert (bench.gate, bench.written) == ([], [])


@given(st.text())
def test_whatever_the_arguments_are_the_answer_is_one_of_two(arguments: str) -> None:
    bench = Bench()
    assert bench.call("note", arguments) in {(True, "kept"), (False, "invalid_arguments")}
    assert len(bench.gate) == len(bench.written)


def test_unknown_and_not_allowed_are_told_apart() -> None:
    bench = Bench(allowed=["look"])
    assert bench.call("nothing") == (False, "unknown_tool")
    assert bench.call("note", '{"text": "a"}') == (False, "not_allowed")
    assert bench.call("note", "{") == (False, "not_allowed")
    assert bench.gate == []
    assert [told["name"] for told in bench.dispatcher.descriptions] == ["look"]


def test_what_a_model_is_told_of_the_arguments_is_made_once() -> None:
    """Every step of every turn tells it; making a JSON Schema takes longer than all else in a step."""
    first, again = Bench().dispatcher.descriptions, Bench().dispatcher.descriptions
    assert first
    assert all(one["parameters"] is other["parameters"] for one, other in zip(first, again, strict=True))


def test_the_model_sees_tool_failed_and_the_decision_keeps_the_sentence() -> None:
    bench = Bench(refuse=Refused("stale", "worker claim expired or superseded"))
    outcome = bench.dispatcher.dispatch(ToolCall("c7", "note", '{"text": "a"}'))
    assert (outcome.ok, outcome.result) == (False, "tool_failed")
    assert bench.written == []
    assert outcome.decision is not None
    assert (outcome.decision.call, outcome.decision.allowed) == ("c7", False)
    assert outcome.decision.sentence == "worker claim expired or superseded"


def test_a_store_that_stays_locked_is_no_fault_of_the_call() -> None:
    busy = StoreBusy("another process held the store's write lock for 5 s; nothing was written")
    bench = Bench(refuse=busy)
    with pytest.raises(StoreBusy):
        bench.call("note", '{"text": "a"}')

    def write(_arguments: NoArguments, _call: ToolCall) -> str:
        raise busy

    with pytest.raises(StoreBusy):
        Dispatcher([tool("write", "Write.", NoArguments, write)]).dispatch(ToolCall("c1", "write", "{}"))


def test_a_gate_with_a_bug_refuses() -> None:
    bench = Bench(refuse=KeyError("x"))
    assert bench.call("note", '{"text": "a"}') == (False, "tool_failed")
    assert bench.written == []


@pytest.mark.parametrize("name", ["boom", "odd"])
def test_a_failing_handler_is_tool_failed_and_nothing_more(name: str) -> None:
    assert Bench().call(name) == (False, "tool_failed")


def test_a_result_that_is_too_large_is_a_limit() -> None:
    assert Bench().call("flood") == (False, "limit")


def test_a_lax_argument_model_is_no_tool() -> None:
    class Lax(BaseModel):
        model_config = ConfigDict(extra="forbid")

    with pytest.raises(TypeError, match="must forbid extra fields and be strict"):
        tool("lax", "Lax.", Lax, lambda _arguments, _call: None)


def test_an_allowed_name_without_a_tool_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="nothing"):
        Bench(allowed=["nothing"])
