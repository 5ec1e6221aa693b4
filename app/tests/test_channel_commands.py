"""What operators may ask for over a channel: once per update, within limits, by nobody but them."""

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bot_api import CHAT, GROUP, LUCY, STRANGER, BotApiServer, bot_api
from channeling import Channeling, desk_of, with_channel

from standfast import authority, orders, work
from standfast.authority import marker as markers
from standfast.authority.marker import Marker
from standfast.work import channels


@pytest.fixture
def api() -> Iterator[BotApiServer]:
    with bot_api() as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path, api: BotApiServer) -> Iterator[Channeling]:
    with desk_of(with_channel(tmp_path), api) as made:
        yield made


def test_an_approval_of_the_exact_digest_is_given_once_for_four_hours(shop: Channeling) -> None:
    order = shop.draft()
    [told] = shop.hear(f"/approve {order.digest}")
    assert told.startswith("Approved until ")
    assert f"6 of vanilla for 18.00 EUR from supplier (order {order.id})" in told
    assert shop.order(order).status == "APPROVED"
    [(operator, lives)] = shop.instance.rows("SELECT operator, until - approved_at FROM approvals")
    assert operator == "lucy"
    assert 4 * 3600 - 60 < lives <= 4 * 3600
    assert shop.outcomes() == [("decision", "done", "sent")]


@pytest.mark.parametrize(("given", "seconds"), [("6h", 6 * 3600), ("30m", 1800), ("23H", 23 * 3600)])
def test_an_approval_may_say_how_long(shop: Channeling, given: str, seconds: int) -> None:
    order = shop.draft()
    shop.hear(f"/approve@lucys_bot {order.digest.upper()} {given}")
    [(lives,)] = shop.instance.rows("SELECT until - approved_at FROM approvals")
    assert seconds - 60 < lives <= seconds


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("/approve", "usage: /approve DIGEST"),
        ("/approve {digest} 25h", "until: a time after now and at most one day ahead"),
        ("/approve {digest} soon", "until: 6h, 30m, or a time"),
        ("/approve {digest} 2026-03-01T18:00:00", "until: 6h, 30m, or a time"),
        ("/approve {digest} 9999-12-31T23:59:59-23:59", "until: a time after now and at most one day ahead"),
        ("/approve {digest} 6h now", "usage: /approve DIGEST"),
        ("/approve {short}", "no order has exactly this digest"),
        ("/revoke {short}", "no order has exactly this digest"),
        ("/cancel 012345", "there is no work 012345"),
        ("/cancel", "usage: /cancel WORK"),
    ],
)
def test_a_refused_decision_changes_nothing_and_says_why(shop: Channeling, text: str, reason: str) -> None:
    order = shop.draft()
    before = shop.instance.rows("SELECT * FROM orders"), shop.instance.rows("SELECT * FROM work")
    [told] = shop.hear(text.format(digest=order.digest, short=order.digest[:63]))
    assert told.startswith("Refused, nothing was changed: ")
    assert reason in told
    assert (shop.instance.rows("SELECT * FROM orders"), shop.instance.rows("SELECT * FROM work")) == before
    assert shop.instance.rows("SELECT * FROM approvals") == []
    assert shop.outcomes()[0][1].startswith("refused: ")


def test_an_approval_that_waited_for_the_service_does_not_live_longer_for_it(shop: Channeling) -> None:
    order = shop.draft()
    shop.api.write(f"/approve {order.digest}")
    shop.instance.clock.pass_time(5 * 3600)
    [told] = shop.hear()
    assert "until: a time after now" in told
    assert shop.order(order).status == "DRAFT"


def test_an_approval_of_an_era_that_ended_approves_no_draft_of_the_same_bytes(shop: Channeling) -> None:
    """It waited at the server while a restore ended the era, and new work asks for the same."""
    old = shop.draft()
    shop.api.write(f"/approve {old.digest}")
    clock, layout = shop.instance.clock, shop.instance.layout
    clock.pass_time(60)
    authority.replace(shop.connection, layout, "restored", clock.now())
    authority.resume(shop.connection, layout.marker, "recovered", clock.now())
    assert old.work is not None
    work.cancel(shop.connection, old.work, reason="reported as interrupted", now=clock.now())
    again = shop.draft()
    assert again.digest == old.digest
    [told] = shop.hear()
    assert "the approval is older than the draft" in told
    assert shop.order(again).status == "DRAFT"
    assert shop.instance.rows("SELECT * FROM approvals") == []
    shop.api.write(f"/approve {again.digest}", date=int(clock.now()))
    assert shop.hear()[0].startswith("Approved")


def test_a_forwarded_message_decides_nothing(shop: Channeling) -> None:
    order = shop.draft()
    [told] = shop.hear(f"/approve {order.digest}", forward_origin={"type": "user"})
    assert "a forwarded message decides nothing" in told
    assert shop.order(order).status == "DRAFT"


def test_revoke_takes_a_digest_or_an_order(shop: Channeling) -> None:
    order, other = shop.draft(), shop.draft("chocolate", 2)
    shop.hear(f"/approve {order.digest}")
    assert shop.hear(f"/revoke {order.digest}")[0].startswith("Revoked: 6 of vanilla")
    assert shop.hear(f"/revoke {other.id}")[0].startswith("Revoked: 2 of chocolate")
    assert shop.hear(f"/revoke {other.id}")[0].startswith("Was revoked already")
    assert {shop.order(one).status for one in (order, other)} == {"REVOKED"}
    assert shop.instance.rows("SELECT sum(reserved_cents) FROM orders") == [(0,)]


def test_cancel_ends_work_even_while_it_is_claimed(shop: Channeling) -> None:
    asked = shop.instance.add().work
    claim = shop.instance.claim()
    assert shop.hear(f"/cancel {asked}")[0].startswith(f"Work {asked} is canceled (it was RUNNING)")
    with pytest.raises(authority.StaleClaim):
        work.observe(
            shop.connection, claim, "x", clock=shop.instance.clock, marker=shop.instance.layout.marker
        )
    [(reason,)] = shop.instance.rows("SELECT reason FROM work WHERE id = ?", asked)
    assert reason == "canceled by lucy over the channel"


def test_a_stranger_gets_nothing_done_and_no_answer(shop: Channeling) -> None:
    order = shop.draft()
    texts = [f"/approve {order.digest}", "/status", "what is in stock?", "/help"]
    assert shop.hear(*texts, sender=STRANGER) == []
    assert shop.order(order).status == "DRAFT"
    assert shop.outcomes() == [("stranger", "not on the list; not answered", None)] * 4
    assert shop.instance.rows("SELECT count(*) FROM work") == [(1,)]
    assert shop.api.texts(STRANGER) == []


def test_strangers_are_recorded_up_to_a_bound_and_counted_beyond_it(shop: Channeling) -> None:
    for number in range(150):
        shop.api.write("hello", sender=STRANGER + number)
    order = shop.draft()
    assert shop.hear(f"/approve {order.digest}")[0].startswith("Approved")
    assert shop.instance.rows("SELECT count(*) FROM channel_updates WHERE kind = 'stranger'") == [(20,)]
    assert channels.counted(shop.connection, 0, "stranger") == 150
    assert shop.instance.rows("SELECT count(*) FROM channel_intake WHERE kind = 'stranger'") == [(1,)]


def test_an_operator_counts_only_in_a_chat_of_their_own_or_the_configured_one(
    tmp_path: Path, api: BotApiServer
) -> None:
    with desk_of(with_channel(tmp_path), api) as shop:
        order = shop.draft()
        assert shop.hear(f"/approve {order.digest}", chat=GROUP) == []
        assert shop.order(order).status == "DRAFT"
    with desk_of(shop.instance, api, STANDFAST_TELEGRAM_CHAT=str(GROUP)) as shop:
        assert shop.hear(f"/approve {order.digest}", chat=GROUP)[0].startswith("Approved")
        assert shop.hear("/status", sender=STRANGER, chat=GROUP) == []


def test_updates_that_are_no_message_of_a_person_are_left_behind(shop: Channeling) -> None:
    shop.api.put({"edited_message": {"text": "x"}})
    shop.api.put({"message": {"chat": {"id": 1, "type": "channel"}, "text": "/status", "date": 1}})
    shop.api.put({"message": "nonsense"})
    shop.api.write(None)
    shop.api.write("/nonsense")
    assert shop.hear("/help")[0] == "Only text is read."
    assert shop.api.waiting == []
    assert [kind for kind, _, _ in shop.outcomes()] == ["look"] * 3


def test_a_batch_of_the_longest_messages_is_read(shop: Channeling) -> None:
    order = shop.draft()
    for _ in range(99):
        shop.api.write("🍦" * 2048, entities=[{"type": "bold", "offset": i, "length": 1} for i in range(100)])
    shop.api.write(f"/approve {order.digest}")
    shop.rounds()
    assert shop.order(order).status == "APPROVED"


@pytest.mark.parametrize(
    "update",
    [
        {
            "message": {
                "from": {"id": LUCY},
                "chat": {"id": LUCY, "type": "private"},
                "text": "half \ud83c",
                "date": 1,
            }
        },
        {"message": {"from": {"id": 2**70}, "chat": {"id": LUCY, "type": "private"}, "text": "x", "date": 1}},
        {
            "message": {
                "from": {"id": LUCY},
                "chat": {"id": LUCY, "type": "private"},
                "text": "a\0b",
                "date": 1,
            }
        },
        {"message": {"from": {"id": LUCY}, "chat": {"id": LUCY, "type": "private"}, "text": " ", "date": -5}},
        {
            "message": {
                "from": {"id": LUCY},
                "chat": {"id": LUCY, "type": "private"},
                "text": "/approve \0",
                "date": 9,
            }
        },
    ],
)
def test_a_malformed_message_keeps_none_behind_it_waiting(shop: Channeling, update: dict[str, Any]) -> None:
    shop.api.put(update)
    assert shop.hear("/help")[-1].startswith("/approve DIGEST")
    assert shop.api.waiting == []


def test_a_command_that_fails_is_taken_back_alone_and_said(
    shop: Channeling, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = shop.draft()

    def broken(connection: sqlite3.Connection, *_: object, **__: object) -> None:
        connection.execute("UPDATE orders SET note = 'half done'")
        raise RuntimeError("test")

    monkeypatch.setattr(orders, "approve_within", broken)
    told = shop.hear(f"/approve {order.digest}", "/help")
    assert told[0] == "Not done: it failed. See the journal."
    assert told[1].startswith("/approve DIGEST")
    assert shop.order(order).note != "half done"
    assert shop.outcomes()[0] == ("decision", "failed: RuntimeError", "sent")


def test_the_same_update_again_has_one_effect_and_one_answer(shop: Channeling) -> None:
    shop.api.keeps_acknowledged = True
    order = shop.draft()
    shop.api.write(f"/approve {order.digest}")
    shop.api.write("How is the stock?")
    for _ in range(3):
        shop.desk.round()
    assert len(shop.api.accepted) == 2
    assert shop.instance.rows("SELECT count(*) FROM approvals") == [(1,)]
    assert shop.instance.rows("SELECT count(*) FROM work WHERE session = 'telegram:lucy'") == [(1,)]
    with desk_of(shop.instance, shop.api) as later:
        later.desk.round()
        assert len(shop.api.accepted) == 2
        assert len(later.outcomes()) == 2


def test_another_bot_counts_its_updates_for_itself(shop: Channeling) -> None:
    shop.hear("How is the stock?")
    shop.api.token = "77:other"
    shop.api.next_update = 500
    with desk_of(shop.instance, shop.api, STANDFAST_TELEGRAM_TOKEN="77:other") as other:
        assert other.hear("And the milk?")[0].startswith("Noted as work")


def test_a_flood_of_a_thousand_questions_starves_no_approval(shop: Channeling) -> None:
    order = shop.draft()
    for number in range(1000):
        shop.api.write(f"question {number}")
    shop.api.write(f"/approve {order.digest}")
    shop.desk.round()  # a hundred questions are heard before anybody could know of the approval
    replies = shop.hear()
    assert shop.order(order).status == "APPROVED"
    assert sum(text.startswith("Approved") for text in replies) == 1
    assert shop.instance.rows("SELECT count(*) FROM work WHERE session = 'telegram:lucy'") == [(5,)]
    told = shop.api.texts()
    assert sum("pending limit" in text for text in told) <= 2  # once a minute
    assert len(told) <= 5 + 2 + 1
    assert shop.instance.rows(
        "SELECT count(*) FROM channel_updates WHERE kind = 'question' AND outcome LIKE 'pending limit%'"
    ) == [(995,)]


def test_within_one_batch_a_decision_comes_before_the_questions_before_it(shop: Channeling) -> None:
    order = shop.draft()
    for number in range(50):
        shop.api.write(f"question {number}")
    shop.api.write(f"/approve {order.digest}")
    shop.desk.round()
    assert shop.api.texts()[0].startswith("Approved")
    assert shop.outcomes()[0][0] == "decision"


def test_a_flood_of_strangers_decisions_goes_before_nobody(shop: Channeling) -> None:
    order = shop.draft()
    for _ in range(98):
        shop.api.write(f"/approve {order.digest}", sender=STRANGER)
    shop.api.write("How is the stock?")
    shop.api.write(f"/approve {order.digest}")
    shop.desk.round()
    assert [kind for kind, _, _ in shop.outcomes()[:2]] == ["decision", "stranger"]
    assert shop.instance.rows("SELECT operator FROM approvals") == [("lucy",)]


def test_decisions_have_a_limit_of_their_own_that_looks_do_not_use_up(
    tmp_path: Path, api: BotApiServer
) -> None:
    instance = with_channel(tmp_path, "decisions_per_minute = 3\nlooks_per_minute = 2\n")
    with desk_of(instance, api) as shop:
        order = shop.draft()
        shop.hear(*["/help"] * 20)
        assert shop.hear("/cancel 1", "/cancel 2")[1].startswith("Refused")
        assert shop.hear(f"/approve {order.digest}")[0].startswith("Approved")
        assert shop.hear(*[f"/cancel {number}" for number in range(20)]) == []
        assert shop.outcomes()[-1][1] == "too many decisions this minute"
        shop.instance.clock.pass_time(60)
        assert shop.hear("/cancel 9")[0].startswith("Refused")


def test_a_question_becomes_work_whose_report_goes_where_it_was_asked(
    tmp_path: Path, api: BotApiServer
) -> None:
    instance = with_channel(tmp_path)
    with desk_of(instance, api, STANDFAST_TELEGRAM_CHAT=str(GROUP)) as shop:
        noted = shop.hear("How is the stock?")[0]
        asked = noted.split()[3].rstrip(".")
        assert instance.status(asked) == ("READY", 0)
        instance.settle()
        shop.report("for everybody")
        shop.rounds()
        assert "Vanilla: 2 on hand" in shop.api.texts(LUCY)[-1]
        assert shop.api.texts(GROUP)[-1].startswith("for everybody")


def test_while_paused_approvals_are_refused_questions_wait_and_status_says_so(shop: Channeling) -> None:
    order, report = shop.draft(), shop.report()
    authority.pause(shop.connection, "after a restore", shop.instance.clock.now())
    told = shop.hear(f"/approve {order.digest}", "/status", "How is the stock?")
    assert "operations are paused; inspect and recover the account first" in told[0]
    assert told[1].startswith("PAUSED: after a restore")
    assert told[2].endswith("Operations are paused: it waits.")
    assert shop.order(order).status == "DRAFT"
    assert shop.delivery(report)[0] == "pending"
    authority.resume(shop.connection, shop.instance.layout.marker, "recovered", shop.instance.clock.now())
    assert shop.hear()[0].startswith("vanilla: 2")


def test_status_lists_what_waits_for_an_approval(shop: Channeling) -> None:
    order = shop.draft()
    [told] = shop.hear("/status")
    assert f"/approve {order.digest}" in told
    assert re.search(r"^Work: 1 RUNNING\.$", told, re.MULTILINE)
    assert len(told) < 1500


@pytest.mark.parametrize("spoil", ["host", "epoch", "absent"])
def test_a_copy_that_does_not_work_here_takes_no_updates_from_the_one_that_does(
    shop: Channeling, spoil: str
) -> None:
    order = shop.draft()
    marker = shop.instance.layout.marker
    own = markers.read(marker)
    assert own is not None
    if spoil == "absent":
        marker.unlink()
    else:
        changed = Marker(own.epoch, "b" * 64) if spoil == "host" else Marker("f" * 32, own.host)
        markers.write(marker, changed)
    shop.api.write(f"/approve {order.digest}")
    assert shop.desk.round() is False
    assert shop.api.calls == []
    markers.write(marker, own)
    assert shop.hear()[0].startswith("Approved")


def test_the_end_of_an_era_gives_no_answer_of_the_old_one(shop: Channeling) -> None:
    order = shop.draft()
    shop.api.fail("sendMessage", 429, times=9, retry_after=60)
    shop.hear(f"/approve {order.digest}")
    report = shop.report()
    assert shop.outcomes() == [("decision", "done", "pending")]
    authority.replace(shop.connection, shop.instance.layout, "restored", shop.instance.clock.now())
    assert shop.outcomes() == [("decision", "done", "unknown")]
    assert shop.delivery(report) == ("unknown", "waited when the era ended; may have left since")
    assert shop.order(order).status == "REVOKED"


def test_old_rows_are_dropped_a_few_at_a_time(shop: Channeling) -> None:
    shop.hear(*["/help"] * 9)
    shop.instance.clock.pass_time(31 * 86400)
    shop.hear("/help")
    assert len(shop.outcomes()) == 1


def test_a_removed_operator_is_a_stranger(tmp_path: Path, api: BotApiServer) -> None:
    instance = with_channel(tmp_path)
    instance.layout.shop.write_text(
        instance.layout.shop.read_text().replace(f'"{LUCY}" = "lucy"', f'"{LUCY + 1}" = "lucy"')
    )
    with desk_of(instance, api) as shop:
        assert shop.hear("/status", chat=CHAT) == []
