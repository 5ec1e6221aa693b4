"""Reports and replies over a real connection: what was accepted, refused, or may have been, is told apart."""

import hashlib
import hmac
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bot_api import CHAT, SECRET, TOKEN, BotApiServer, bot_api
from channeling import Channeling, configured, desk_of, with_channel
from support import Instance
from webhook_receiver import Receiver, receiver

from standfast import work
from standfast.errors import ConfigurationInvalid
from standfast.shop import config
from standfast.work import NotSent, channels
from standfast.work.channels import TelegramAccess, WebhookAccess
from standfast.work.channels.telegram import BotApi
from standfast.work.delivery import REFUSALS


@pytest.fixture
def api() -> Iterator[BotApiServer]:
    with bot_api() as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path, api: BotApiServer) -> Iterator[Channeling]:
    with desk_of(with_channel(tmp_path), api) as made:
        yield made


def test_a_report_is_one_plain_message_with_its_id(shop: Channeling) -> None:
    report = shop.report("vanilla: *2* <b>on</b> hand\n")
    shop.rounds()
    [call] = shop.api.accepted
    assert call.text == f"vanilla: *2* <b>on</b> hand\n\n[report {report}]"
    assert "parse_mode" not in call.fields
    assert shop.delivery(report) == ("sent", "")


def test_nothing_is_delivered_before_the_state_is_known_not_to_be_older_than_the_world(
    tmp_path: Path, api: BotApiServer
) -> None:
    with desk_of(with_channel(tmp_path), api, may_deliver=False) as shop:
        report = shop.report()
        assert shop.hear("/status")[0].startswith("Working.")
        assert shop.delivery(report)[0] == "pending"
    with desk_of(shop.instance, api) as shop:
        shop.rounds()
        assert shop.delivery(report)[0] == "sent"


@pytest.mark.parametrize(("character", "units"), [("x", 1), ("é", 1), ("🍦", 2)])
def test_a_report_too_long_for_one_message_is_whole_in_a_file(
    shop: Channeling, character: str, units: int
) -> None:
    longest = (4096 - len("\n\n[report ]") - 32) // units
    shop.report(character * longest)
    whole = character * (longest + 1)
    report = shop.report(whole)
    shop.rounds()
    first, second = shop.api.accepted
    assert first.document is None
    assert first.text.count(character) == longest
    assert second.document == whole + "\n"
    assert f"the whole report of {longest + 1} characters is in the file; report {report}" in second.text
    assert len(second.text.encode("utf-16-le")) // 2 <= 1024


@pytest.mark.parametrize("kind", ["drop", "drop_after", "garbage", "garbage_after", 500, 502])
def test_what_may_have_arrived_is_unknown_and_never_sent_again(shop: Channeling, kind: str | int) -> None:
    report = shop.report()
    shop.api.fail("sendMessage", kind)
    shop.rounds()
    assert shop.delivery(report)[0] == "unknown"
    shop.instance.clock.pass_time(86400)
    shop.rounds()
    assert shop.api.asked("sendMessage") == 1
    assert work.uncertain_reports(shop.connection) == 1


def test_what_never_left_is_pending_and_sent_once_the_server_is_there(
    shop: Channeling, tmp_path: Path
) -> None:
    report = shop.report()
    with desk_of(shop.instance, shop.api, STANDFAST_TELEGRAM_URL="http://127.0.0.1:9") as away:
        away.rounds()
        assert away.delivery(report) == ("pending", "no connection: ConnectError")
        assert channels.standing(away.connection).problem == (
            "hearing: no connection: ConnectError; sending: no connection: ConnectError"
        )
    shop.rounds()
    assert shop.delivery(report) == ("sent", "")
    assert channels.standing(shop.connection).problem == ""


def test_too_many_requests_are_waited_out_without_holding_anything_up(shop: Channeling) -> None:
    first, second = shop.report("one"), shop.report("two")
    shop.api.fail("sendMessage", 429, retry_after=40)
    began = time.monotonic()
    shop.rounds()
    assert time.monotonic() - began < 35
    assert [shop.delivery(one)[0] for one in (first, second)] == ["pending", "pending"]
    shop.instance.clock.pass_time(39)
    shop.hear("/help")  # heard, though nothing is sent yet
    assert shop.api.asked("sendMessage") == 1
    assert shop.outcomes() == [("look", "done", "pending")]
    shop.instance.clock.pass_time(1)
    shop.rounds()
    assert [shop.delivery(one)[0] for one in (first, second)] == ["sent", "sent"]
    assert shop.outcomes() == [("look", "done", "sent")]


def test_a_wait_without_end_is_cut_to_an_hour(api: BotApiServer) -> None:
    api.fail("sendMessage", 429, retry_after=10**9)
    bot = BotApi(TelegramAccess(TOKEN, CHAT, api.url))
    with pytest.raises(NotSent) as told:
        bot.send(CHAT, "x")
    bot.close()
    assert told.value.retry_after == 3600


def test_a_refused_report_is_tried_a_bounded_number_of_times_and_lets_others_pass(shop: Channeling) -> None:
    refused, other = shop.report("one"), shop.report("two")
    shop.api.fail("sendMessage", 400, times=1)
    shop.rounds()
    assert shop.delivery(refused)[0] == "pending"
    assert shop.delivery(refused)[1].startswith("sendMessage: 400 told at /bot")
    shop.instance.clock.pass_time(10)
    shop.rounds()
    assert shop.delivery(other) == ("sent", "")
    shop.api.fail("sendMessage", 403, times=100)
    for _ in range(30):
        shop.instance.clock.pass_time(3600)
        shop.rounds()
    assert shop.api.asked("sendMessage") == REFUSALS + 1
    assert shop.delivery(refused)[0] == "pending"
    assert channels.standing(shop.connection).held == 1
    shop.api.faults = []
    with desk_of(shop.instance, shop.api) as later:  # a start tries again: the settings may have been wrong
        later.rounds()
        assert later.delivery(refused) == ("sent", "")
        assert channels.standing(later.connection).held == 0


def test_a_silent_server_and_one_that_drips_cost_a_bounded_time(api: BotApiServer) -> None:
    bot = BotApi(TelegramAccess(TOKEN, CHAT, api.url), seconds=0.6)
    for kind in ("slow", "drip"):
        api.fail("sendMessage", kind, seconds=8)
        began = time.monotonic()
        with pytest.raises(OSError, match="no answer") as told:
            bot.send(CHAT, "x")
        assert not isinstance(told.value, NotSent)
        assert time.monotonic() - began < 7
    bot.close()


def test_a_slow_server_delays_no_pass(tmp_path: Path, api: BotApiServer) -> None:
    """The passes have no channel in them: they go on while an exchange hangs."""
    instance = with_channel(tmp_path)
    with desk_of(instance, api) as shop:
        shop.report()
        api.fail("sendMessage", "slow", seconds=3)
        finished = threading.Event()

        def passes() -> None:
            instance.add()
            instance.settle()
            finished.set()

        passing = threading.Thread(target=passes)
        passing.start()
        shop.rounds()
        assert finished.wait(20)
        passing.join()


@pytest.mark.parametrize("kind", [409, 401, 500, "garbage", "drop"])
def test_updates_that_cannot_be_asked_for_are_a_problem_that_ends_by_itself(
    shop: Channeling, kind: str | int
) -> None:
    shop.api.fail("getUpdates", kind)
    shop.rounds()
    standing = channels.standing(shop.connection)
    assert standing.kind == "telegram"
    assert standing.problem.startswith("hearing: ")
    asked = shop.api.asked("getUpdates")
    shop.rounds()
    assert shop.api.asked("getUpdates") == asked  # not at once
    shop.instance.clock.pass_time(5)
    assert shop.hear("/help")[0].startswith("/approve DIGEST")
    assert channels.standing(shop.connection).problem == ""


@pytest.mark.parametrize("kind", ["drop", "drop_after", 500])
def test_a_reply_that_may_have_arrived_is_not_said_twice(shop: Channeling, kind: str | int) -> None:
    order = shop.draft()
    shop.api.fail("sendMessage", kind)
    shop.hear(f"/approve {order.digest}")
    shop.instance.clock.pass_time(600)
    shop.rounds()
    assert shop.outcomes() == [("decision", "done", "unknown")]
    assert shop.api.asked("sendMessage") == 1
    assert shop.order(order).status == "APPROVED"


def test_the_token_shows_nowhere(
    tmp_path: Path, api: BotApiServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every log of every library at its most talkative, every exception with its causes, every row."""
    for name in ["", *logging.root.manager.loggerDict, "httpx", "httpcore.connection", "httpcore.http11"]:
        caplog.set_level(1, logger=name or None)
    instance = with_channel(tmp_path)
    raised: list[BaseException] = []
    access = TelegramAccess(TOKEN, CHAT, api.url)
    with desk_of(instance, api) as shop:
        shop.hear("/status", "How is the stock?")
        for kind in (400, 401, 403, 404, 409, 429, 500, "garbage", "drop", "drop_after"):
            for method in ("sendMessage", "getUpdates"):
                api.fail(method, kind)
            shop.report()
            shop.api.write("/help")
            shop.instance.clock.pass_time(7200)
            shop.rounds()
            bot = BotApi(access, seconds=1)
            api.fail("sendMessage", kind)
            with pytest.raises(OSError, match=r".") as told:
                bot.send(CHAT, "x")
            raised.append(told.value)
            bot.close()
        api.token = "another"
        shop.instance.clock.pass_time(7200)
        shop.report()
        shop.rounds()
        dump = "\n".join(shop.connection.iterdump())
    away = BotApi(TelegramAccess(TOKEN, CHAT, "http://127.0.0.1:9"))
    with pytest.raises(NotSent) as told:
        away.send(CHAT, "x")
    raised.append(told.value)
    said = [caplog.text, dump, repr(access), repr(away), *capfd.readouterr()]
    while raised:
        error = raised.pop()
        said += [str(error), repr(error), repr(vars(error)), repr(getattr(error, "request", ""))]
        request = getattr(error, "_request", None)
        said += [str(request.url), repr(request.headers)] if request is not None else []
        raised += [one for one in (error.__cause__, error.__context__) if one is not None]
    assert "HTTP Request: POST http://channel.invalid/" in caplog.text  # httpx did speak
    for text in said:
        assert SECRET not in text
        assert TOKEN.replace(":", "%3A") not in text


def test_the_outbox_imports_no_http(tmp_path: Path) -> None:
    instance = Instance.make(tmp_path)
    code = (
        "import sys\nfrom pathlib import Path\nfrom standfast.layout import Layout\n"
        "from standfast.serve.settings import load\nimport standfast.serve.service\n"
        f"load(Layout(Path({str(instance.layout.state)!r})), {{}}, None)\n"
        "sys.exit('httpx' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# The webhook.


@contextmanager
def hooked(tmp_path: Path, made: Receiver, *, idempotent: bool) -> Iterator[Channeling]:
    more = f"webhook_idempotent = {str(idempotent).lower()}"
    instance = with_channel(tmp_path, more, kind="webhook")
    with (
        bot_api() as api,
        desk_of(instance, api, STANDFAST_WEBHOOK_URL=made.url, STANDFAST_WEBHOOK_SECRET="shared") as shop,
    ):
        yield shop


def test_a_webhook_gets_the_report_its_key_and_a_signature(tmp_path: Path) -> None:
    with receiver() as made, hooked(tmp_path, made, idempotent=False) as shop:
        report = shop.report("vanilla: 2 €")
        shop.rounds()
        assert shop.delivery(report) == ("sent", "")
    [(headers, body)] = made.received
    assert headers["path"] == "/in/s3cret?key=k%20y"
    assert headers["Host"] == made.url.split("/")[2]
    assert headers["Idempotency-Key"] == report
    signed = hmac.new(b"shared", body, hashlib.sha256).hexdigest()
    assert headers["X-Standfast-Signature"] == f"sha256={signed}"
    found = json.loads(body)
    assert (found["id"], found["body"]) == (report, "vanilla: 2 €")


@pytest.mark.parametrize(
    ("status", "delivery"),
    [(200, "sent"), (302, "pending"), (404, "pending"), (429, "pending"), (408, "unknown"), (503, "unknown")],
)
def test_what_a_webhook_answers(tmp_path: Path, status: int, delivery: str) -> None:
    with receiver() as made, hooked(tmp_path, made, idempotent=False) as shop:
        made.status = status
        report = shop.report()
        shop.rounds()
        assert shop.delivery(report)[0] == delivery


@pytest.mark.parametrize(("idempotent", "delivery"), [(True, "pending"), (False, "unknown")])
def test_a_webhook_is_asked_again_only_when_the_operator_calls_it_idempotent(
    tmp_path: Path, idempotent: bool, delivery: str
) -> None:
    with receiver() as made, hooked(tmp_path, made, idempotent=idempotent) as shop:
        made.drop = True
        report = shop.report()
        shop.rounds()
        state, note = shop.delivery(report)
        assert (state, "s3cret" in note) == (delivery, False)
        made.drop = False
        shop.instance.clock.pass_time(600)
        shop.rounds()
        assert shop.delivery(report)[0] == ("sent" if idempotent else "unknown")
        assert {headers["Idempotency-Key"] for headers, _ in made.received} == {report}


# Settings.

TELEGRAM = {"STANDFAST_TELEGRAM_TOKEN": TOKEN, "STANDFAST_TELEGRAM_CHAT": "7"}


@pytest.mark.parametrize(
    ("kind", "given", "named"),
    [
        ("telegram", {}, "STANDFAST_TELEGRAM_TOKEN"),
        ("telegram", {**TELEGRAM, "STANDFAST_TELEGRAM_TOKEN": "no/colon here"}, "STANDFAST_TELEGRAM_TOKEN"),
        ("telegram", {"STANDFAST_TELEGRAM_TOKEN": TOKEN}, "STANDFAST_TELEGRAM_CHAT"),
        ("telegram", {**TELEGRAM, "STANDFAST_TELEGRAM_CHAT": "@lucy"}, "STANDFAST_TELEGRAM_CHAT"),
        ("telegram", {**TELEGRAM, "STANDFAST_TELEGRAM_URL": "ftp://x"}, "STANDFAST_TELEGRAM_URL"),
        ("telegram", {**TELEGRAM, "STANDFAST_TELEGRAM_URL": "http://u:p@x"}, "STANDFAST_TELEGRAM_URL"),
        ("webhook", {}, "STANDFAST_WEBHOOK_URL"),
        ("webhook", {"STANDFAST_WEBHOOK_URL": "http://x/#s3cret"}, "STANDFAST_WEBHOOK_URL"),
    ],
)
def test_a_bad_setting_is_named_and_its_value_is_not(kind: str, given: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationInvalid) as told:
        channels.access(kind, given)  # type: ignore[arg-type]
    assert str(told.value).startswith(f"{named}: ")
    for value in given.values():
        assert value not in str(told.value)


def test_secrets_are_in_no_representation() -> None:
    assert SECRET not in repr(TelegramAccess(TOKEN, 7))
    assert "s3cret" not in repr(WebhookAccess("https://x/s3cret", "s3cret"))
    assert TelegramAccess(TOKEN, 7).source == "telegram:4242"


@pytest.mark.parametrize(
    ("operators", "channel", "named"),
    [
        ('telegram = { "7001" = "eve" }', "", "telegram: eve must be among allowed"),
        ('telegram = { "lucy" = "lucy" }', "", "operators.telegram"),
        ("", 'kind = "pigeon"', "channel.kind"),
        ("", 'token = "x"', "channel.token: unknown field"),
        ("", "questions_daily = 0", "channel.questions_daily"),
    ],
)
def test_a_bad_table_is_named(operators: str, channel: str, named: str) -> None:
    with pytest.raises(ConfigurationInvalid, match=named.replace(".", r"\.")):
        config.parse(configured(config.sample(), operators, channel))
