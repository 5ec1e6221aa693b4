"""The offline planner: deterministic, and grounded whatever the stock is."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.agent import Dispatcher, Limits, LoopResult, OfflinePlanner, Reply, Status, run_loop, tool
from standfast.agent.offline import ungrounded
from standfast.agent.tools import Arguments, NoArguments
from standfast.shop.config import parse, sample
from standfast.shop.plan import DEFAULT_OPENING, NOT_READ, plan
from standfast.shop.prompts import DEFAULT_SKILL, opening_messages

CONFIG = parse(sample())


class Finding(Arguments):
    text: str


def product(sku: str, name: str, on_hand: int, on_order: int, point: int) -> dict[str, Any]:
    return {
        "sku": sku,
        "name": name,
        "on_hand": on_hand,
        "on_order": on_order,
        "reorder_point": point,
        "needed": max(0, point - on_hand - on_order),
    }


SAMPLE = [
    product("vanilla", "Vanilla", 2, 0, 8),
    product("strawberry", "Strawberry", 1, 0, 5),
    product("chocolate", "Chocolate", 9, 0, 6),
]


def brief(
    products: list[dict[str, Any]] | None,
    *,
    skill: str = DEFAULT_SKILL,
    subject: str | None = None,
    prompt: str = "Write the morning brief.",
    keeps: bool = True,
) -> LoopResult:
    def list_stock(_arguments: NoArguments, _call: object) -> Any:
        if products is None:
            raise RuntimeError("no stock")
        return {"products": products}

    def record(_arguments: Finding, _call: object) -> str:
        if not keeps:
            raise RuntimeError("no")
        return "kept"

    tools = [
        tool("list_stock", "Stock.", NoArguments, list_stock),
        tool("record_finding", "Keep.", Finding, record, consequential=True),
    ]
    opening = opening_messages(CONFIG, skill=skill, prompt=prompt, subject=subject)
    return run_loop(
        OfflinePlanner(plan), Dispatcher(tools, result_bytes=10**6), opening, limits=Limits(tool_calls=16)
    )


def test_the_brief_of_the_sample_shop() -> None:
    result = brief(SAMPLE)
    assert result.status == Status.COMPLETED
    assert result.source == "offline"
    assert result.text.startswith("Good morning, Lucy.")
    assert "- Vanilla: 2 on hand, 0 on order, reorder point 8; 6 needed" in result.text
    assert "- Strawberry: 1 on hand, 0 on order, reorder point 5; 4 needed" in result.text
    assert "- Chocolate: 9 on hand, 0 on order, reorder point 6\n" in result.text
    findings = [d for d in result.decisions if d.tool == "record_finding"]
    assert len(findings) == 2
    assert (result.model_calls, result.tool_calls) == (3, 3)


def test_the_same_stock_gives_the_same_transcript() -> None:
    assert brief(SAMPLE).messages == brief(SAMPLE).messages


def test_the_skill_shapes_the_brief() -> None:
    result = brief(SAMPLE, skill="opening: Buenos dias, Lucy.\nSHOW: low\n")
    assert result.text.startswith("Buenos dias, Lucy.")
    assert "Chocolate" not in result.text
    assert "Vanilla" in result.text


def test_a_number_in_the_skill_is_not_vouched_for() -> None:
    result = brief(SAMPLE, skill="Opening: It is 7 o'clock.\n")
    assert result.status == Status.COMPLETED
    assert result.text.startswith(DEFAULT_OPENING)


def test_a_subject_narrows_the_answer_to_one_product() -> None:
    result = brief(SAMPLE, subject="vanilla")
    assert result.text.startswith("Low stock: vanilla.")
    assert "Strawberry" not in result.text
    assert result.tool_calls == 2


def test_an_unknown_subject_is_answered_with_the_whole_stock() -> None:
    assert "Strawberry" in brief(SAMPLE, subject="shop").text


def test_stock_that_cannot_be_read_is_said() -> None:
    result = brief(None)
    assert (result.status, result.text) == (Status.COMPLETED, NOT_READ)


def test_findings_that_were_not_kept_are_said() -> None:
    assert "Not every finding could be kept." in brief(SAMPLE, keeps=False).text
    assert "Not every finding" not in brief(SAMPLE).text


names = st.text(
    st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"], exclude_characters="\u2028"),
    min_size=1,
    max_size=12,
).filter(lambda text: text.strip() and text.isprintable())
skus = st.from_regex(r"\A[a-z0-9][a-z0-9-]{0,10}\Z")
counts = st.integers(0, 10**6)
stocks = st.lists(
    st.builds(product, skus, names, st.integers(-(10**6), 10**6), counts, counts), min_size=1, max_size=25
)


@given(stocks, st.text(max_size=60), st.booleans())
def test_every_number_in_any_brief_comes_from_a_tool_result(
    stock: list[dict[str, Any]], skill: str, with_subject: bool
) -> None:
    result = brief(stock, skill=skill, subject=stock[0]["sku"] if with_subject else None)
    assert result.status == Status.COMPLETED, result.reason
    results = " ".join(str(m["content"]) for m in result.messages if m["role"] == "tool")
    assert set(re.findall(r"\d+", result.text)) <= set(re.findall(r"\d+", results))
    for row in stock if not with_subject else []:
        stand = f"{row['on_hand']} on hand, {row['on_order']} on order, reorder point {row['reorder_point']}"
        needed = f"; {row['needed']} needed" if row["needed"] else ""
        assert f"- {row['name']}: {stand}{needed}" in result.text.splitlines()


def test_an_answer_with_a_number_of_its_own_is_not_given() -> None:
    planner = OfflinePlanner(lambda _conversation: Reply(text="There are 7 tubs."))
    result = run_loop(planner, Dispatcher([]), opening_messages(CONFIG, skill="", prompt="x", subject=None))
    assert result.status == Status.MODEL_FAILED
    assert "7" in result.reason
    assert result.text == ""


def test_ungrounded_compares_whole_numbers() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "tool", "content": json.dumps({"ok": True, "result": {"a": 12, "b": -3, "c": "1,500.25"}})},
        {"role": "user", "content": "99"},
    ]
    assert ungrounded("12, -3, 1,500.25.", messages) == set()
    assert ungrounded("1 2 3 99 500", messages) == {"1", "2", "3", "99", "500"}


@pytest.mark.parametrize("prompt", ["", "Subject: ", "How many?\n\nSubject: x\n"])
def test_any_prompt_gets_an_answer(prompt: str) -> None:
    assert brief(SAMPLE, prompt=prompt).status == Status.COMPLETED
