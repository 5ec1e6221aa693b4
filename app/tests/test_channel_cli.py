"""What an operator sees and settles of a channel on the host: report resolve, channel show, health."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bot_api import CHAT, LUCY, SECRET, STRANGER, BotApiServer, bot_api
from channeling import Channeling, desk_of, with_channel
from support import Instance

from standfast.cli import main as cli
from standfast.cli.channel import ChannelShown
from standfast.cli.report import ReportResolved
from standfast.operations.health import look
from standfast.work import channels
from standfast.work.delivery import REFUSALS


@pytest.fixture
def api() -> Iterator[BotApiServer]:
    with bot_api() as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path, api: BotApiServer) -> Iterator[Channeling]:
    with desk_of(with_channel(tmp_path), api) as made:
        yield made


def run(capsys: pytest.CaptureFixture[str], instance: Instance, *words: str) -> tuple[int, Any]:
    code = cli.main(["--json", "--state", str(instance.layout.state), *words])
    return code, json.loads(capsys.readouterr().out)


def unknown(shop: Channeling) -> str:
    report = shop.report()
    shop.api.fail("sendMessage", "drop_after")
    shop.rounds()
    assert shop.delivery(report)[0] == "unknown"
    return report


def rules(shop: Channeling) -> set[str]:
    found = look(shop.instance.layout, shop.instance.clock.now())
    return {str(told.rule) for told in found.attention} - {"service_down"}


def test_an_uncertain_report_that_arrived(shop: Channeling, capsys: pytest.CaptureFixture[str]) -> None:
    report = unknown(shop)
    assert rules(shop) == {"uncertain_reports"}
    code, told = run(capsys, shop.instance, "report", "resolve", report, "--sent")
    assert (code, ReportResolved.model_validate(told).changed) == (0, True)
    assert shop.delivery(report) == ("sent", "an operator said that it arrived")
    assert rules(shop) == set()
    code, told = run(capsys, shop.instance, "report", "resolve", report, "--sent")
    assert (code, told["changed"]) == (0, False)


def test_sending_an_uncertain_report_again_must_be_meant(
    shop: Channeling, capsys: pytest.CaptureFixture[str]
) -> None:
    report = unknown(shop)
    code, told = run(capsys, shop.instance, "report", "resolve", report, "--resend")
    assert (code, told["refused"]["code"]) == (3, "may_arrive_twice")
    assert shop.delivery(report)[0] == "unknown"
    meant = ["report", "resolve", report, "--resend", "--may-arrive-twice"]
    code, told = run(capsys, shop.instance, "--check", *meant)
    assert (code, told["changed"], shop.delivery(report)[0]) == (0, True, "unknown")
    code, told = run(capsys, shop.instance, *meant)
    assert (code, told["report"]["delivery"]) == (0, "pending")
    shop.instance.clock.pass_time(60)
    shop.rounds()
    assert shop.delivery(report)[0] == "sent"
    assert len(shop.api.texts(CHAT)) == 2


@pytest.mark.parametrize("words", [[], ["--sent", "--resend"]])
def test_one_of_the_two_must_be_said(
    shop: Channeling, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    code, told = run(capsys, shop.instance, "report", "resolve", shop.report(), *words)
    assert (code, told["refused"]["code"]) == (2, "bad_input")


def test_what_is_sent_or_being_sent_is_not_sent_again(
    shop: Channeling, capsys: pytest.CaptureFixture[str]
) -> None:
    sent, sending = shop.report(), shop.report()
    shop.connection.execute("UPDATE reports SET delivery = 'sending' WHERE id = ?", (sending,))
    shop.connection.execute("UPDATE reports SET delivery = 'sent' WHERE id = ?", (sent,))
    for report, refused in (
        (sent, "report_settled"),
        (sending, "report_sending"),
        ("0" * 24, "report_unknown"),
    ):
        code, told = run(capsys, shop.instance, "report", "resolve", report, "--resend", "--may-arrive-twice")
        assert (code, told["refused"]["code"]) == (3, refused)


def test_a_held_report_is_attention_until_an_operator_lets_it_go(
    shop: Channeling, capsys: pytest.CaptureFixture[str]
) -> None:
    report = shop.report()
    shop.api.fail("sendMessage", 403, times=REFUSALS)
    for _ in range(REFUSALS):
        shop.rounds()
        shop.instance.clock.pass_time(3600)
    assert "held_reports" in rules(shop)
    code, told = run(capsys, shop.instance, "report", "resolve", report, "--resend")
    assert (code, told["changed"]) == (0, True)
    shop.rounds()
    assert shop.delivery(report) == ("sent", "")
    assert rules(shop) == set()


def test_a_failing_channel_is_attention_after_five_minutes(shop: Channeling) -> None:
    shop.api.fail("getUpdates", 409, times=100)
    shop.rounds()
    assert rules(shop) == set()
    shop.instance.clock.pass_time(301)
    shop.rounds()
    assert rules(shop) == {"channel_failing"}
    found = look(shop.instance.layout, shop.instance.clock.now())
    assert found.channel is not None
    assert (found.channel.kind, found.channel.problem) == (
        "telegram",
        "hearing: getUpdates: 409 told at /bot4242:***/getUpdates",
    )
    shop.api.faults = []
    shop.instance.clock.pass_time(600)
    shop.rounds()
    assert rules(shop) == set()


def test_a_start_with_the_outbox_forgets_the_other_channel_s_problem(shop: Channeling) -> None:
    held = shop.report()
    shop.api.fail("getUpdates", 401, times=100)
    shop.rounds()
    shop.connection.execute("UPDATE reports SET delivery = 'pending' WHERE id = ?", (held,))
    shop.connection.execute("INSERT INTO channel_refusals VALUES (?, 9, NULL)", (held,))
    text = shop.instance.layout.shop.read_text()
    shop.instance.layout.shop.write_text(text.replace('kind = "telegram"', 'kind = "outbox"'))
    shop.instance.settle()
    found = channels.standing(shop.connection)
    assert (found.kind, found.problem, found.held) == ("outbox", "", 0)
    assert shop.delivery(held)[0] == "sent"


def test_channel_show_tells_a_stranger_s_number_and_no_secret(
    shop: Channeling, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.hear("/status")
    shop.hear("let me in", sender=STRANGER)
    code, told = run(capsys, shop.instance, "channel", "show")
    shown = ChannelShown.model_validate(told)
    assert code == 0
    assert (shown.configured, shown.running, shown.idempotent) == ("telegram", "telegram", False)
    assert shown.operators == {str(LUCY): "lucy"}
    assert [(m.sender, m.operator, m.kind, m.reply) for m in shown.messages] == [
        (STRANGER, None, "stranger", None),
        (LUCY, "lucy", "look", "sent"),
    ]
    assert SECRET not in json.dumps(told)
    assert "let me in" not in json.dumps(told)
    assert cli.main(["--state", str(shop.instance.layout.state), "channel", "show"]) == 0
    assert str(STRANGER) in capsys.readouterr().out
