"""The story: two checks of the shop that read the same, of which only one was entitled to write.

The offline model says the same to both. What tells them apart is not in its words: it is in the gate's
decisions, in the rows, and in what `work show` shows to whoever asks.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import Instance
from world import dump

from standfast.agent import Conversation, LoopResult, OfflinePlanner, Reply, Status, ToolCall, run_loop
from standfast.agent.messages import Message, calls_of, system, user
from standfast.authority import Claim, replace, resume
from standfast.cli import main as cli
from standfast.shop.config import load
from standfast.shop.tools import ShopTools

PROSE = "I looked at the shop, kept what matters for Lucy, and made sure that all is well."
OPENING = [system("You look after a shop."), user("Check the shop.")]
REPLACED = "runtime paused or replaced by restore"
KEPT = ["vanilla is low", "strawberry is low"]


def check_the_shop(conversation: Conversation) -> Reply:
    """Whatever comes of its calls, the model goes on and ends with the same words."""
    if not conversation.asked("list_stock"):
        return conversation.call("list_stock")
    if not conversation.asked("record_finding"):
        findings: list[dict[str, Any]] = [{"text": text} for text in KEPT]
        return conversation.call_all("record_finding", [*findings, {"text": "mine", "claim": "is current"}])
    if not conversation.asked("work_status"):
        return conversation.call("work_status")
    return Reply(text=PROSE)


@dataclass
class Check:
    """One check of the shop: the loop's result, and the rows before and after."""

    claim: Claim
    result: LoopResult
    before: list[tuple[object, ...]]
    after: list[tuple[object, ...]]

    def said(self) -> list[tuple[str, str]]:
        """What the model asked for and said, without what came of it."""
        return [
            (str(message["role"]), json.dumps([message["content"], message.get("tool_calls")]))
            for message in self.result.messages
            if message["role"] != "tool"
        ]

    def outcome(self, tool: str) -> list[Any]:
        return [answer for name, answer in map(answered, self.result.messages) if name == tool]

    def decisions(self) -> list[tuple[str, str, bool, str]]:
        return [(one.call, one.tool, one.allowed, one.sentence) for one in self.result.decisions]


def answered(message: Message) -> tuple[str | None, Any]:
    if message["role"] != "tool":
        return None, None
    answer = json.loads(str(message["content"]))
    return str(message["name"]), (answer["ok"], answer["result"])


def checked(instance: Instance, claim: Claim) -> Check:
    """The loop without an observer: only the tools write."""
    with instance.store() as store:
        tools = ShopTools(store, claim, load(instance.layout.shop), instance.clock, instance.layout.marker)
        before = dump(store)
        result = run_loop(OfflinePlanner(check_the_shop), tools.dispatcher(), OPENING)
        return Check(claim, result, before, dump(store))


def shown(instance: Instance, work: str, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    show = ["--state", str(instance.layout.state), "work", "show", work]
    assert cli.main(["--json", *show]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert cli.main(show) == 0
    return found, capsys.readouterr().out


def test_the_same_words_and_a_different_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    instance = Instance.make(tmp_path, low=True)
    for name in ("first", "second"):
        instance.add("Check the shop.", session=name, origin=name)
    first = checked(instance, instance.claim(owner="first"))
    stale = instance.claim(owner="second")
    with instance.store() as store:
        epoch = replace(store, instance.layout, "restored from last week", instance.clock.now())
    second = checked(instance, stale)

    # One and the same transcript, as far as the model is concerned.
    assert first.result.status == second.result.status == Status.COMPLETED
    assert first.result.text == second.result.text == PROSE
    assert first.said() == second.said()
    assert first.result.source == "offline"

    # Both read. The first kept both its findings; its call with one field too many met the schema only.
    assert first.outcome("list_stock")[0][0]
    assert second.outcome("list_stock") == first.outcome("list_stock")
    assert first.outcome("record_finding") == [
        (True, "recorded"),
        (True, "recorded"),
        (False, "invalid_arguments"),
    ]
    assert first.decisions() == [
        ("offline-2", "record_finding", True, ""),
        ("offline-3", "record_finding", True, ""),
    ]
    assert first.outcome("work_status") == [
        (
            True,
            {
                "paused": False,
                "claim_epoch_current": True,
                "claim_generation": 1,
                "work": {"generation": 1, "owner": "first", "status": "RUNNING"},
                "transcript_rows": 2,
            },
        )
    ]
    assert len(first.after) == len(first.before) + 2

    # The second kept nothing: the model was told no more than a code, the ledger has the whole sentence.
    assert second.outcome("record_finding") == [
        (False, "tool_failed"),
        (False, "tool_failed"),
        (False, "invalid_arguments"),
    ]
    assert second.decisions() == [
        ("offline-2", "record_finding", False, REPLACED),
        ("offline-3", "record_finding", False, REPLACED),
    ]
    assert REPLACED not in json.dumps(second.result.messages)
    [(ok, status)] = second.outcome("work_status")
    assert ok
    assert (status["paused"], status["claim_epoch_current"], status["transcript_rows"]) == (True, False, 0)
    assert status["work"] == {"generation": 2, "owner": None, "status": "READY"}
    assert second.after == second.before

    # Whoever asks is shown which of the two it was.
    kept, page = shown(instance, first.claim.work, capsys)
    assert [entry["message"]["text"] for entry in kept["transcript"]] == KEPT
    assert {entry["message"]["gate"] for entry in kept["transcript"]} == {"allowed"}
    assert [entry["generation"] for entry in kept["transcript"]] == [1, 1]
    assert all(text in page for text in KEPT)
    lost, page = shown(instance, second.claim.work, capsys)
    assert lost["transcript"] == []
    assert (lost["work"]["status"], lost["work"]["generation"]) == ("READY", 2)
    assert lost["work"]["interrupted_epoch"] == epoch
    assert epoch in page
    assert not any(text in page for text in KEPT)
    for check, told in ((first, kept), (second, lost)):
        successful = sum(ok for ok, _ in check.outcome("record_finding"))
        assert len(told["transcript"]) == successful


def test_no_words_of_a_model_and_no_resumption_restore_the_claim(tmp_path: Path) -> None:
    instance = Instance.make(tmp_path, low=True)
    instance.add("Check the shop.")
    stale = instance.claim()
    with instance.store() as store:
        replace(store, instance.layout, "restored", instance.clock.now())
        resume(store, instance.layout.marker, "recovered", instance.clock.now())
    again = checked(instance, stale)
    assert [decision[2:] for decision in again.decisions()] == [(False, REPLACED)] * 2
    [(_, status)] = again.outcome("work_status")
    assert (status["paused"], status["claim_epoch_current"]) == (False, False)
    assert again.after == again.before

    fresh = instance.claim()
    assert (fresh.work, fresh.generation) == (stale.work, 3)
    current = checked(instance, fresh)
    assert [decision[2:] for decision in current.decisions()] == [(True, "")] * 2
    assert [generation for generation, _ in instance.transcript(fresh.work)] == [3, 3]


def test_the_second_check_stops_at_its_first_message_when_every_message_is_durable(tmp_path: Path) -> None:
    """With the service's observer the same stale claim does not get as far as its first call."""
    instance = Instance.make(tmp_path, low=True)
    instance.add("Check the shop.")
    stale = instance.claim(owner="lucy-agent")
    with instance.store() as store:
        replace(store, instance.layout, "restored", instance.clock.now())
    with instance.service(OfflinePlanner(check_the_shop)) as service:
        assert service._worker.turn(stale) == Status.AUTHORITY_LOST
    assert instance.transcript(stale.work) == []


def test_the_call_with_a_field_too_many_never_reaches_the_gate(tmp_path: Path) -> None:
    instance = Instance.make(tmp_path, low=True)
    instance.add("Check the shop.")
    check = checked(instance, instance.claim())
    calls = [call for message in check.result.messages for call in calls_of(message)]
    assert [(call.id, call.name) for call in calls] == [
        ("offline-1", "list_stock"),
        ("offline-2", "record_finding"),
        ("offline-3", "record_finding"),
        ("offline-4", "record_finding"),
        ("offline-5", "work_status"),
    ]
    assert "offline-4" not in {decision[0] for decision in check.decisions()}


@pytest.mark.parametrize(
    ("text", "kept"), [("a", True), ("x" * 200, True), ("", False), (" ", False), ("x" * 201, False)]
)
def test_a_finding_is_one_short_sentence(tmp_path: Path, text: str, kept: bool) -> None:
    instance = Instance.make(tmp_path)
    instance.add()
    claim = instance.claim()
    with instance.store() as store:
        tools = ShopTools(store, claim, load(instance.layout.shop), instance.clock, instance.layout.marker)
        call = ToolCall("c1", "record_finding", json.dumps({"text": text}))
        outcome = tools.dispatcher().dispatch(call)
    assert (outcome.ok, outcome.result) == ((True, "recorded") if kept else (False, "invalid_arguments"))
    assert len(instance.transcript(claim.work)) == kept
