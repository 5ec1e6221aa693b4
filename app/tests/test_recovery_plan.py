"""A recovery plan is read without tolerance: what is not exactly a plan is refused, and says where."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import BadInput
from standfast.operations.recovery import plan as plans

OPERATION = "a" * 24
GOOD: dict[str, Any] = {
    "format": 1,
    "authority": "e" * 32,
    "observed_at": "2026-03-01T12:00:00Z",
    "receipts": [OPERATION],
    "inventory": {"vanilla": {"on_hand": 8}},
    "deliveries": {OPERATION: {"received": True, "reference": "6 of vanilla"}},
    "interrupted": {"b" * 24: "report"},
    "usage": "unknown",
}


def test_a_plan_is_read_and_written_as_it_is() -> None:
    plan = plans.parse(json.dumps(GOOD).encode())
    assert plan.inventory["vanilla"].on_hand == 8
    assert plan.unanswered() == []
    assert plans.parse(plans.render(plan)) == plan
    assert json.loads(plans.render(plan)) == GOOD


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"format": 2}, "format"),
        ({"authority": "e" * 31}, "authority"),
        ({"authority": None}, "authority"),
        ({"observed_at": 1_700_000_000}, "observed_at"),
        ({"observed_at": "2026-03-01T12:00:00"}, "observed_at"),
        ({"observed_at": "yesterday"}, "observed_at"),
        ({"receipts": ["b" * 24, OPERATION]}, "receipts"),
        ({"receipts": [OPERATION, OPERATION]}, "receipts"),
        ({"receipts": []}, "deliveries"),
        ({"receipts": ["../../etc"], "deliveries": {}}, "receipts.0"),
        ({"deliveries": {}}, "deliveries"),
        ({"inventory": {"vanilla": {"on_hand": -1}}}, "inventory.vanilla.on_hand"),
        ({"inventory": {"vanilla": {"on_hand": True}}}, "inventory.vanilla.on_hand"),
        ({"inventory": {"vanilla": {"on_hand": "8"}}}, "inventory.vanilla.on_hand"),
        ({"inventory": {"vanilla": {"on_hand": 10**7}}}, "inventory.vanilla.on_hand"),
        ({"inventory": {"vanilla": {"on_hand": 10**400}}}, "inventory.vanilla.on_hand"),
        ({"inventory": {"vanilla": 8}}, "inventory.vanilla"),
        ({"inventory": {"vanilla": {"on_hand": 8, "sold": 1}}}, "inventory.vanilla.sold"),
        ({"deliveries": {OPERATION: {"received": 1, "reference": ""}}}, f"deliveries.{OPERATION}.received"),
        ({"deliveries": {OPERATION: {"received": "yes", "reference": ""}}}, "received"),
        ({"deliveries": {OPERATION: {"received": True}}}, "reference"),
        ({"interrupted": {"x": "forget"}}, "interrupted.x"),
        ({"usage": {"calls": 1}}, "usage.cents"),
        ({"usage": {"calls": True, "cents": 1}}, "usage.calls"),
        ({"usage": {"calls": 0, "cents": 1}}, "usage: Value error, no calls"),
        ({"usage": None}, "usage"),
        ({"resume": True}, "resume"),
    ],
)
def test_what_is_no_plan_is_bad_input_and_says_where(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput, match=field.replace(".", r"\.")):
        plans.parse(json.dumps(GOOD | changed).encode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        json.dumps(GOOD).replace("8", "NaN"),
        json.dumps(GOOD).replace("8", "Infinity"),
        json.dumps(GOOD).replace("8", "-Infinity"),
        json.dumps(GOOD).replace("8", "8.0"),
        json.dumps(GOOD).replace("8", "1e400"),
        json.dumps(GOOD).replace("8", "9" * 5000),
        json.dumps(GOOD)[:-1] + ', "usage": "unknown"}',
        json.dumps(GOOD).replace('{"on_hand": 8}', '{"on_hand": 8, "on_hand": 9}'),
        json.dumps(GOOD).replace('"inventory": {', '"inventory": {"vanilla": {"on_hand": 7}, '),
        "[" * 100_000,
        json.dumps(GOOD) + json.dumps(GOOD),
    ],
    ids=range(15),
)
def test_json_that_could_be_read_in_two_ways_or_in_none_is_bad_input(text: str) -> None:
    with pytest.raises(BadInput, match=r"^plan: "):
        plans.parse(text.encode())


def test_bytes_that_are_no_text_are_bad_input() -> None:
    with pytest.raises(BadInput, match="not UTF-8 at byte 1"):
        plans.parse(b"{\xff}")


def test_a_file_of_ten_megabytes_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b" " * 10_000_000)
    with pytest.raises(BadInput, match="longer than"):
        plans.read(path)


def test_a_pipe_is_no_plan_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "plan.json")
    with pytest.raises(BadInput, match="is no file"):
        plans.read(tmp_path / "plan.json")


@pytest.mark.parametrize("value", [True, 1.0, "1", 2, None])
def test_a_format_is_the_number_one(value: object) -> None:
    with pytest.raises(BadInput, match=r"^plan: format"):
        plans.parse(json.dumps(GOOD | {"format": value}).encode())


def test_a_plan_of_ten_thousand_receipts_fits(tmp_path: Path) -> None:
    many = [f"{number:024x}" for number in range(10_000)]
    told = "6 of vanilla for 18.00 EUR from supplier, accepted 2026-03-01T12:00:00.000Z, receipt " + "a" * 24
    one = {"received": None, "reference": f"{told}, digest {'d' * 64}"}
    plan = plans.parse(json.dumps(GOOD | {"receipts": many, "deliveries": dict.fromkeys(many, one)}).encode())
    path = tmp_path / "plan.json"
    path.write_bytes(plans.render(plan))
    assert plans.parse(plans.read(path)) == plan


def test_what_nobody_has_stated_is_named() -> None:
    unknown = GOOD | {
        "inventory": {"vanilla": {"on_hand": None}},
        "deliveries": {OPERATION: {"received": None, "reference": ""}},
    }
    plan = plans.parse(json.dumps(unknown).encode())
    assert plan.unanswered() == ["inventory.vanilla.on_hand", f"deliveries.{OPERATION}.received"]
    with pytest.raises(BadInput, match="2 not stated yet"):
        plan.refuse_unanswered()
