"""Proposals, approvals, sending, settling: each rule, and that a refusal writes nothing."""

import hashlib
import math
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from buying import FAULTS, KEY_WINDOW, POLICY, Buying
from world import HOST, dump

from standfast import authority, orders, work
from standfast.authority import Claim, StaleClaim
from standfast.errors import BadInput, Refused
from standfast.orders import Accepted, Intent, Unclear
from standfast.store import triggers


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Buying]:
    made = Buying(tmp_path)
    yield made
    made.close()


def refused(code: str) -> Any:
    class _Check:
        def __enter__(self) -> None:
            self.raises = pytest.raises(Refused)
            self.info = self.raises.__enter__()

        def __exit__(self, *exception: object) -> Any:
            swallowed = self.raises.__exit__(*exception)  # type: ignore[arg-type]
            assert self.info.value.code == code
            return swallowed

    return _Check()


def test_the_bytes_and_the_digest_are_those_of_the_contract() -> None:
    intent = Intent("supplier", "vanilla", 6, 300, "EUR")
    text = '{"currency":"EUR","quantity":6,"sku":"vanilla","target":"supplier","unit_cost_cents":300}'
    assert intent.canonical == text.encode()
    assert intent.digest == hashlib.sha256(f"supplier\n{text}".encode()).hexdigest()
    assert orders.order_id("w", "d") == hashlib.sha256(b"w\nd").hexdigest()[:24]
    changed = [
        replace(intent, target="other"),
        replace(intent, sku="chocolate"),
        replace(intent, quantity=7),
        replace(intent, unit_cost_cents=301),
        replace(intent, currency="USD"),
    ]
    assert len({one.digest for one in [intent, *changed]}) == 6


def test_a_proposal_is_a_draft_once_and_says_in_the_transcript_that_it_was_allowed(shop: Buying) -> None:
    claim = shop.claimed()
    first, again = shop.propose(claim), shop.propose(claim)
    assert first == again
    assert (first.status, first.total_cents, first.reserved_cents) == ("DRAFT", 1800, 0)
    rows = work.transcript(shop.connection, claim.work)
    assert len(rows) == 1
    assert first.id in rows[0].message
    assert '"gate": "allowed"' in rows[0].message


@pytest.mark.parametrize("quantity", [0, -1, 1001, True, 1.0])
def test_a_quantity_outside_the_bounds_is_bad_input(shop: Buying, quantity: Any) -> None:
    claim = shop.claimed()
    before = dump(shop.connection)
    with pytest.raises(BadInput):
        shop.propose(claim, quantity=quantity)
    assert dump(shop.connection) == before


def test_the_bounds_themselves_are_allowed(shop: Buying) -> None:
    claim = shop.claimed()
    assert shop.propose(claim, quantity=1).quantity == 1
    assert shop.propose(claim, quantity=1000).quantity == 1000


def test_a_changed_draft_supersedes_the_old_one_and_can_be_changed_back(shop: Buying) -> None:
    claim = shop.claimed()
    six = shop.propose(claim, quantity=6)
    four = shop.propose(claim, quantity=4)
    other = shop.propose(claim, "strawberry", 2)
    assert [shop.show(one).status for one in (six, four, other)] == ["REVOKED", "DRAFT", "DRAFT"]
    with refused("not_a_draft"):
        shop.approve(six)
    assert shop.propose(claim, quantity=6).status == "DRAFT"
    assert [shop.show(one).status for one in (six, four)] == ["DRAFT", "REVOKED"]


def test_a_second_purchase_of_a_product_needs_new_work_once_the_first_has_an_effect(shop: Buying) -> None:
    claim, order = shop.approved()
    assert shop.propose(claim).id == order.id
    with refused("purchase_exists"):
        shop.propose(claim, quantity=7)
    shop.send(order, claim)
    with refused("purchase_exists"):
        shop.propose(claim, quantity=7)
    assert shop.propose(claim, "strawberry", 1).status == "DRAFT"
    assert shop.propose(shop.claimed(), quantity=7).status == "DRAFT"


def test_what_an_operator_revoked_is_not_proposed_again_by_the_same_work(shop: Buying) -> None:
    claim = shop.claimed()
    order = shop.propose(claim)
    assert shop.revoke(order).changed
    assert not shop.revoke(order).changed
    with refused("purchase_exists"):
        shop.propose(claim)


def test_research_has_no_purchasing_authority(shop: Buying) -> None:
    with refused("no_purchasing"):
        shop.propose(shop.claimed(role="research"))
    parent, child = shop.claimed(), shop.claimed()
    shop.connection.execute(
        "UPDATE work SET parent = ?, deadline = ? WHERE id = ?", (parent.work, shop.now() + 60, child.work)
    )
    with refused("no_purchasing"):
        shop.propose(child)
    assert shop.connection.execute("SELECT count(*) FROM orders").fetchone() == (0,)


def test_an_approval_reserves_and_is_repeatable(shop: Buying) -> None:
    order = shop.propose(shop.claimed())
    told = shop.approve(order)
    assert (told.order.status, told.changed, shop.money()) == ("APPROVED", True, (1800, 0))
    again = shop.approve(order, hours=2)
    assert (again.changed, again.approval, shop.money()) == (False, told.approval, (1800, 0))


@pytest.mark.parametrize("hours", [0.0, -1.0, 24.001, math.nan, math.inf])
def test_an_approval_ends_at_most_a_day_ahead(shop: Buying, hours: float) -> None:
    order = shop.propose(shop.claimed())
    with pytest.raises(BadInput):
        shop.approve(order, hours=hours)
    assert shop.approve(order, hours=24.0).changed


def test_only_an_operator_of_the_list_approves_and_only_the_exact_digest(shop: Buying) -> None:
    order = shop.propose(shop.claimed())
    before = dump(shop.connection)
    with refused("operator_unknown"):
        shop.approve(order, operator="mallory")
    for digest in (order.digest[:-1], order.digest.upper(), "0" * 64, order.digest + " "):
        with refused("digest_unknown"):
            shop.approve(order, digest=digest)
    assert dump(shop.connection) == before


def test_one_digest_of_two_works_must_be_told_apart_and_one_approval_is_one_order(shop: Buying) -> None:
    first, second = shop.propose(shop.claimed()), shop.propose(shop.claimed())
    assert first.digest == second.digest
    assert first.id != second.id
    now = shop.now()
    with refused("digest_ambiguous"):
        orders.approve(
            shop.connection,
            first.digest,
            operator="lucy",
            until=now + 60,
            policy=POLICY,
            now=now,
            marker=shop.marker,
        )
    shop.approve(first)
    assert shop.show(second).status == "DRAFT"


def test_the_ceiling_holds_over_reservations_and_spending_and_midnight(shop: Buying) -> None:
    claim, first = shop.approved(quantity=10)
    second = shop.propose(shop.claimed(), quantity=7)
    with refused("ceiling"):
        shop.approve(second)
    shop.send(first, claim)
    assert shop.money() == (0, 3000)
    with refused("ceiling"):
        shop.approve(second)
    exact = shop.propose(shop.claimed(), "strawberry", 10)
    shop.approve(exact)
    assert shop.money() == (2000, 3000)
    shop.time.passes(86400)
    assert shop.money() == (2000, 0)
    with refused("ceiling"):
        shop.approve(shop.propose(shop.claimed(), quantity=11))
    assert shop.approve(second).changed


def test_yesterdays_ceiling_does_not_open_again_when_the_clock_goes_back(shop: Buying) -> None:
    claim, order = shop.approved(quantity=16)
    shop.send(order, claim)
    shop.time.passes(86400)
    claim, order = shop.approved(quantity=16)
    shop.send(order, claim)
    shop.time.wall -= 86400
    shop.clock = shop.time.clock()
    assert shop.money() == (0, 4800)
    with refused("ceiling"):
        shop.approve(shop.propose(shop.claimed(), "strawberry", 2))


def test_the_store_itself_refuses_a_reservation_past_the_ceiling(shop: Buying) -> None:
    claim = shop.claimed()
    small, large = shop.propose(claim, "strawberry", 1), shop.propose(claim, quantity=1000)
    shop.approve(small)
    now = shop.now()
    shop.connection.execute(
        "INSERT INTO approvals (id, order_id, digest, operator, automatic, day, cents, approved_at, until)"
        " VALUES ('x', ?, ?, 'lucy', 0, '2023-11-14', 1, ?, ?)",
        (large.id, large.digest, now, now + 60),
    )
    beyond = "UPDATE orders SET status = 'APPROVED', reserved_cents = quantity * unit_cost_cents WHERE id = ?"
    with pytest.raises(sqlite3.IntegrityError, match="ceiling"):
        shop.connection.execute(beyond, (large.id,))


def test_canceled_work_loses_its_draft_and_approval_whoever_cancels_it(shop: Buying) -> None:
    """The store itself sees to it, also where no code of ours asks for it."""
    order = shop.propose(shop.claimed())
    shop.approve(order)
    shop.connection.execute(
        "UPDATE work SET status = 'CANCELED', lease_until = NULL, finished_at = 7 WHERE id = ?", (order.work,)
    )
    found = shop.connection.execute(
        "SELECT status, reserved_cents, changed_at, revoked FROM orders"
        " JOIN approvals ON order_id = orders.id"
    ).fetchall()
    assert found == [("REVOKED", 0, 7.0, 1)]


def test_what_canceling_goes_by_cannot_be_removed(shop: Buying) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="counted and told here"):
        shop.connection.execute("DELETE FROM work_aside_counts")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE orders SET quantity = 7",
        "UPDATE orders SET digest = 'x'",
        "UPDATE orders SET status = 'CONFIRMED'",
        "UPDATE orders SET status = 'UNKNOWN'",
        "UPDATE orders SET spent_cents = 1800",
        "UPDATE orders SET reserved_cents = 1",
        "DELETE FROM orders",
        "UPDATE orders SET status = 'SENDING', attempts = 1, first_sent_at = 1, last_sent_at = 1",
    ],
)
def test_the_store_itself_refuses_what_no_rule_allows(shop: Buying, statement: str) -> None:
    shop.propose(shop.claimed())
    before = dump(shop.connection)
    with pytest.raises(sqlite3.IntegrityError):
        shop.connection.execute(statement)
    assert dump(shop.connection) == before


def test_the_allowance_approves_so_much_a_day_and_no_more(tmp_path: Path) -> None:
    shop = Buying(tmp_path, replace(POLICY, allowance_cents=2000))
    first = shop.propose(shop.claimed(), quantity=6)
    second = shop.propose(shop.claimed(), "strawberry", 2)
    third = shop.propose(shop.claimed(), "strawberry", 1)
    assert [one.status for one in (first, second, third)] == ["APPROVED", "DRAFT", "APPROVED"]
    [approval] = orders.approvals_of(shop.connection, first.id)
    assert (approval.automatic, approval.operator) == (True, orders.POLICY_OPERATOR)
    assert shop.money() == (2000, 0)
    shop.time.passes(86400)
    assert shop.propose(shop.claimed(), "strawberry", 3).status == "APPROVED"
    shop.close()


def test_without_an_allowance_nothing_is_approved_by_itself(shop: Buying) -> None:
    assert POLICY.allowance_cents == 0
    assert orders.Policy().allowance_cents == 0
    assert orders.Policy().ceiling_cents == 0
    assert shop.propose(shop.claimed(), "strawberry", 1).status == "DRAFT"


def test_sending_is_committed_before_the_request_leaves_and_a_receipt_settles_it(shop: Buying) -> None:
    claim, order = shop.approved()
    seen: list[object] = []
    shop.account.leaving = lambda request: seen.append(
        shop.elsewhere("SELECT status, attempts FROM orders WHERE id = ?", request.operation_id)
    )
    sent = shop.send(order, claim)
    assert seen == [[("SENDING", 1)]]
    assert (sent.status, sent.reserved_cents, sent.spent_cents) == ("CONFIRMED", 0, 1800)
    assert [one.operation_id for one in shop.receipts()] == [order.id]
    assert orders.on_order(shop.connection) == {"vanilla": 6}
    with refused("not_approved"):
        shop.send(order, claim)
    assert len(shop.account.sent) == 1


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in {"none", "refuse"}])
def test_whatever_is_not_definite_is_unknown_and_keeps_its_reservation(shop: Buying, fault: str) -> None:
    sent = shop.unknown(fault)
    assert shop.money() == (1800, 0)
    assert sent.receipt is None
    assert (sent.refused_receipt is not None) == (fault == "lie")


def test_a_definite_refusal_is_rejected_and_released(shop: Buying) -> None:
    claim, order = shop.approved()
    assert shop.send(order, claim, "refuse").status == "REJECTED"
    assert shop.money() == (0, 0)
    with refused("purchase_exists"):
        shop.propose(claim, quantity=7)


def test_an_approval_that_has_ended_sends_nothing_and_becomes_a_draft_again(shop: Buying) -> None:
    claim, order = shop.approved()
    shop.time.passes(3600)
    authority.renew(shop.connection, shop.claimed(), clock=shop.clock, marker=shop.marker)
    before = dump(shop.connection)
    with refused("approval_ended"):
        shop.send(order)
    assert dump(shop.connection) == before
    assert [one.id for one in orders.expire(shop.connection, now=shop.now())] == [order.id]
    assert (shop.show(order).status, shop.money()) == ("DRAFT", (0, 0))
    assert shop.approve(order).changed
    assert shop.send(order).status == "CONFIRMED"
    assert len(shop.account.sent) == 1
    del claim


def test_an_approval_is_good_until_just_before_its_end(shop: Buying) -> None:
    _, order = shop.approved()
    shop.time.passes(3599.999)
    assert shop.send(order).status == "CONFIRMED"


def test_an_ended_approval_can_be_given_again_without_waiting_for_the_sweep(shop: Buying) -> None:
    _, order = shop.approved(quantity=16)
    shop.time.passes(3600)
    assert shop.approve(order).changed
    assert shop.money() == (4800, 0)
    assert [one.revoked for one in orders.approvals_of(shop.connection, order.id)] == [True, False]


def test_a_revoked_approval_sends_nothing(shop: Buying) -> None:
    _, order = shop.approved()
    assert shop.revoke(order).recalled
    assert shop.money() == (0, 0)
    with refused("not_approved"):
        shop.send(order)
    assert shop.account.sent == []


def test_a_claim_sends_only_its_own_orders_and_only_while_it_is_current(shop: Buying) -> None:
    claim, order = shop.approved()
    before = dump(shop.connection)
    with refused("not_yours"):
        shop.send(order, shop.claimed())
    with pytest.raises(StaleClaim, match="worker claim expired"):
        shop.send(order, claim._replace(generation=claim.generation + 1))
    assert [row for row in before if row[0] == "orders"] == [
        row for row in dump(shop.connection) if row[0] == "orders"
    ]
    assert shop.account.sent == []


def its_lease_passes(shop: Buying, _claim: Claim) -> None:
    shop.time.passes(301)


def it_is_canceled(shop: Buying, claim: Claim) -> None:
    work.cancel(shop.connection, claim.work, reason="test", now=shop.now())


@pytest.mark.parametrize("ends", [its_lease_passes, it_is_canceled])
@pytest.mark.parametrize(
    ("fault", "status", "money"),
    [
        ("none", "CONFIRMED", (0, 1800)),
        ("refuse", "REJECTED", (0, 0)),
        ("drop_after_accept", "UNKNOWN", (1800, 0)),
    ],
)
def test_an_answer_to_a_claim_that_has_ended_meanwhile_is_recorded_at_once(
    shop: Buying,
    ends: Callable[[Buying, Claim], None],
    fault: str,
    status: str,
    money: tuple[int, int],
) -> None:
    """For the order only: the claim writes nothing more."""
    claim, order = shop.approved()
    shop.account.leaving = lambda _request: ends(shop, claim)
    with pytest.raises(StaleClaim):
        shop.send(order, claim, fault)
    assert (shop.show(order).status, shop.money()) == (status, money)
    assert work.transcript(shop.connection, claim.work)[1:] == []
    if status == "UNKNOWN":
        assert shop.reconcile(order).how == "found"
    assert len(shop.receipts()) == (status != "REJECTED")
    assert len(shop.account.sent) == 1


def it_is_paused(shop: Buying) -> None:
    authority.pause(shop.connection, "test", shop.now())


def the_marker_goes(shop: Buying) -> None:
    shop.marker.rename(shop.marker.with_name("elsewhere"))


@pytest.mark.parametrize("comes", [it_is_paused, the_marker_goes])
def test_an_answer_in_a_pause_writes_nothing_and_is_found_afterwards(
    shop: Buying, comes: Callable[[Buying], None]
) -> None:
    claim, order = shop.approved()
    shop.account.leaving = lambda _request: comes(shop)
    with pytest.raises(StaleClaim):
        shop.send(order, claim)
    shop.account.leaving = lambda _request: None
    assert shop.show(order).status == "SENDING"
    if not shop.marker.exists():
        shop.marker.with_name("elsewhere").rename(shop.marker)
    authority.resume(shop.connection, shop.marker, "test", shop.now())
    with refused("not_uncertain"):
        shop.reconcile(order)
    asked_at = orders.asked_about_at(shop.show(order))
    assert asked_at is not None
    shop.time.passes(asked_at - shop.now() - 0.001)
    assert orders.give_up_waiting(shop.connection, clock=shop.clock, marker=shop.marker) == []
    shop.time.passes(0.002)
    [lost] = orders.give_up_waiting(shop.connection, clock=shop.clock, marker=shop.marker)
    assert lost.status == "UNKNOWN"
    assert shop.reconcile(order).how == "found"
    assert shop.money() == (0, 1800)
    assert len(shop.receipts()) == 1


@pytest.mark.parametrize(
    ("fault", "status", "after"),
    [
        ("none", "CONFIRMED", "CONFIRMED"),
        ("refuse", "REJECTED", "REJECTED"),
        ("drop_after_accept", "UNKNOWN", "CONFIRMED"),
        ("drop_before_accept", "UNKNOWN", "UNKNOWN"),
    ],
)
def test_a_revocation_between_the_commit_of_sending_and_the_request_recalls_nothing(
    shop: Buying, fault: str, status: str, after: str
) -> None:
    """The request leaves, once. It is never sent a second time, and its answer counts."""
    claim, order = shop.approved()
    revoked: list[orders.Revoked] = []

    def revoke(point: str) -> None:
        if point == "send.leaves":
            revoked.append(shop.revoke(order))

    triggers.arm(revoke)
    try:
        assert shop.send(order, claim, fault).status == status
    finally:
        triggers.disarm()
    assert [(one.changed, one.recalled, one.order.status) for one in revoked] == [(True, False, "SENDING")]
    if status == "UNKNOWN":
        shop.reconcile(order)
    found = shop.show(order)
    assert found.status == after
    if after == "UNKNOWN":
        assert found.note.endswith("its approval has ended: never sent again")
        assert shop.money() == (1800, 0)
    assert len(shop.account.sent) == 1


def test_a_lookup_comes_before_any_retransmission(shop: Buying) -> None:
    order = shop.unknown("drop_after_accept")
    found = shop.reconcile(order)
    assert (found.how, found.order.status, found.order.attempts) == ("found", "CONFIRMED", 1)
    assert len(shop.account.sent) == 1
    assert shop.reconcile(order).how == "settled"
    assert shop.account.lookups == 1


def test_an_empty_lookup_proves_nothing_and_the_same_bytes_are_sent_again(shop: Buying) -> None:
    order = shop.unknown("drop_before_accept")
    assert shop.reconcile(order, resend=False).order.status == "UNKNOWN"
    assert shop.money() == (1800, 0)
    again = shop.reconcile(order)
    assert (again.how, again.order.status, again.order.attempts) == ("sent_again", "CONFIRMED", 2)
    first, second = shop.account.sent
    assert first == second
    assert (shop.money(), len(shop.receipts())) == ((0, 1800), 1)


def test_a_request_that_arrives_late_after_an_empty_lookup_is_bought_once(shop: Buying) -> None:
    order = shop.unknown("delay")
    assert shop.reconcile(order).order.status == "CONFIRMED"
    shop.account.arrive()
    assert len(shop.receipts()) == 1


def test_an_unclear_lookup_is_no_reason_to_send_again_and_backs_off(shop: Buying) -> None:
    order = shop.unknown("drop_before_accept")
    pauses = []
    for _ in range(3):
        found = shop.reconcile(order, "error").order
        assert found.status == "UNKNOWN"
        assert found.next_look is not None
        pauses.append(found.next_look - shop.now())
    assert pauses == [30.0, 60.0, 120.0]
    assert len(shop.account.sent) == 1
    assert orders.due(shop.connection, shop.now()) == []
    assert orders.due(shop.connection, shop.now() + 121) == [order.id]


@pytest.mark.parametrize(
    ("passed", "sent"), [(KEY_WINDOW - 61, 2), (KEY_WINDOW - 60, 1), (KEY_WINDOW, 1), (10 * KEY_WINDOW, 1)]
)
def test_past_the_key_window_it_is_never_sent_again(shop: Buying, passed: float, sent: int) -> None:
    order = shop.propose(shop.claimed())
    shop.approve(order, hours=24)
    shop.send(order, None, "drop_before_accept")
    shop.time.passes(passed)
    shop.reconcile(order)
    assert len(shop.account.sent) == sent
    if sent == 1:
        assert shop.show(order).status == "UNKNOWN"
        assert "never sent again" in shop.show(order).note
        assert shop.money() == (1800, 0)


def test_a_key_window_that_the_supplier_has_shortened_counts(shop: Buying) -> None:
    order = shop.unknown("drop_before_accept")
    shop.time.passes(100)
    supplier = replace(shop.supplier(), key_window=100.0)
    told = orders.reconcile(shop.connection, order.id, supplier, clock=shop.clock, marker=shop.marker)
    assert told.how == "waiting"
    assert len(shop.account.sent) == 1


def test_a_clock_that_was_set_back_forbids_sending_again(shop: Buying) -> None:
    order = shop.unknown("drop_before_accept")
    shop.time.wall -= 3600
    shop.clock = shop.time.clock()
    assert "set back" in shop.reconcile(order).order.note
    assert len(shop.account.sent) == 1


@pytest.mark.parametrize("end", ["revoke", "cancel", "expire"])
def test_an_uncertain_order_whose_approval_has_ended_is_found_but_never_sent_again(
    shop: Buying, end: str
) -> None:
    order = shop.unknown("drop_before_accept")
    if end == "revoke":
        told = shop.revoke(order)
        assert (told.changed, told.recalled, told.order.status) == (True, False, "UNKNOWN")
        assert not shop.revoke(order).changed
    elif end == "cancel":
        assert order.work is not None
        work.cancel(shop.connection, order.work, reason="no", now=shop.now())
    else:
        order = shop.show(order)
        shop.connection.execute("UPDATE approvals SET until = ?", (shop.now() + 1,))
        shop.time.passes(2)
    assert shop.reconcile(order).how == "waiting"
    assert "never sent again" in shop.show(order).note
    assert shop.money() == (1800, 0)
    assert len(shop.account.sent) == 1


def test_a_receipt_that_does_not_match_is_refused_and_shown(shop: Buying) -> None:
    order = shop.unknown("drop_after_accept")
    told = shop.reconcile(order, "lie")
    assert (told.how, told.order.status, told.order.receipt) == ("mismatch", "UNKNOWN", None)
    assert told.order.refused_receipt is not None
    assert "quantity 7" in told.order.note
    assert orders.due(shop.connection, shop.now() + 10_000) == []
    assert shop.money() == (1800, 0)
    assert shop.reconcile(order).order.status == "CONFIRMED"


def test_one_receipt_never_counts_for_two_orders(shop: Buying) -> None:
    first, second = shop.unknown(), shop.unknown("drop_before_accept")
    shop.reconcile(first)
    [receipt] = shop.receipts()
    forged = receipt.model_copy(update={"operation_id": second.id})
    with refused("receipt_differs"):
        resolve(shop, second, forged)
    assert shop.show(second).status == "UNKNOWN"


def resolve(shop: Buying, order: orders.Order, receipt: Any, **more: Any) -> orders.Recorded:
    return orders.resolve(
        shop.connection,
        order.id,
        receipt,
        operator="lucy",
        policy=POLICY,
        now=shop.now(),
        marker=shop.marker,
        **more,
    )


@pytest.mark.parametrize(
    "field",
    ["operation_id", "target", "sku", "quantity", "unit_cost_cents", "total_cents", "currency", "digest"],
)
def test_evidence_counts_only_when_it_is_about_exactly_this_order(shop: Buying, field: str) -> None:
    order = shop.unknown()
    [receipt] = shop.receipts()
    value = getattr(receipt, field)
    other = value + 1 if isinstance(value, int) else f"{value}x"
    before = dump(shop.connection)
    with refused("receipt_differs"):
        resolve(shop, order, receipt.model_copy(update={field: other}))
    assert not [row for row in dump(shop.connection) if row not in before]
    assert resolve(shop, order, receipt, check=True).changed
    assert shop.show(order).status == "UNKNOWN"
    assert resolve(shop, order, receipt).order.status == "CONFIRMED"
    assert not resolve(shop, order, receipt).changed
    assert shop.money() == (0, 1800)


def test_a_delivery_is_recorded_once_and_with_its_stock(shop: Buying) -> None:
    claim, order = shop.approved()
    stock: list[str] = []

    def deliver(into: Any) -> orders.Recorded:
        return orders.deliver(
            shop.connection, order.id, operator="lucy", policy=POLICY, into_stock=into, now=shop.now()
        )

    def fails(*_: object) -> None:
        raise Refused("stock_out_of_range", "no")

    with refused("not_confirmed"):
        deliver(fails)
    shop.send(order, claim)
    with refused("stock_out_of_range"):
        deliver(fails)
    assert shop.show(order).status == "CONFIRMED"
    assert deliver(lambda _c, one, _now: stock.append(one.id)).changed
    assert not deliver(lambda _c, one, _now: stock.append(one.id)).changed
    assert stock == [order.id]
    assert orders.on_order(shop.connection) == {}
    assert shop.money() == (0, 1800)


def test_cancel_revokes_drafts_and_approvals_and_frees_reservations(shop: Buying) -> None:
    claim = shop.claimed()
    draft, approved = shop.propose(claim), shop.propose(claim, "strawberry", 3)
    shop.approve(approved)
    unknown = shop.unknown()
    assert unknown.work is not None
    for item in (claim.work, unknown.work):
        work.cancel(shop.connection, item, reason="no", now=shop.now())
    assert [shop.show(one).status for one in (draft, approved, unknown)] == ["REVOKED", "REVOKED", "UNKNOWN"]
    assert shop.money() == (1800, 0)
    assert shop.reconcile(unknown).order.status == "CONFIRMED"
    with refused("not_approved"):
        shop.send(approved)


def test_a_new_era_ends_approvals_and_reservations_and_leaves_what_was_sent(shop: Buying) -> None:
    claim, approved = shop.approved()
    draft = shop.propose(claim, "strawberry", 1)
    confirmed = shop.unknown()
    shop.reconcile(confirmed)
    shop.policy = replace(POLICY, ceiling_cents=5400)
    unknown = shop.unknown()
    supplier = shop.supplier()
    authority.replace(shop.connection, shop.layout, "restored", shop.now(), HOST)
    assert [shop.show(one).status for one in (approved, draft, unknown, confirmed)] == [
        "REVOKED",
        "REVOKED",
        "UNKNOWN",
        "CONFIRMED",
    ]
    assert shop.money() == (0, 1800)
    assert shop.connection.execute("SELECT count(*) FROM approvals WHERE revoked = 0").fetchone() == (0,)
    before = dump(shop.connection)
    with refused("paused"):
        orders.connect(shop.connection, shop.account, shop.marker)
    for act in (
        lambda: orders.send(
            shop.connection, approved.id, supplier, claim=None, clock=shop.clock, marker=shop.marker
        ),
        lambda: orders.reconcile(shop.connection, unknown.id, supplier, clock=shop.clock, marker=shop.marker),
        lambda: shop.approve(draft),
        lambda: resolve(shop, unknown, shop.receipts()[0]),
    ):
        with refused("paused"):
            act()
    assert dump(shop.connection) == before
    authority.resume(shop.connection, shop.marker, "inspected", shop.now())
    with refused("account_other_epoch"):
        shop.supplier()
    with refused("account_other_epoch"):
        orders.reconcile(shop.connection, unknown.id, supplier, clock=shop.clock, marker=shop.marker)
    with pytest.raises(StaleClaim, match="runtime paused or replaced"):
        shop.propose(claim)


def test_building_a_client_is_refused_while_paused_and_registers_on_an_account_without_an_epoch(
    shop: Buying,
) -> None:
    authority.pause(shop.connection, "looking", shop.now())
    with pytest.raises(Refused, match=r"^operations are paused; inspect and recover the account first$"):
        shop.supplier()
    assert shop.account.account().epoch is None
    authority.resume(shop.connection, shop.marker, "seen", shop.now())
    assert shop.supplier().epoch == authority.operations(shop.connection).epoch
    assert shop.supplier().epoch == shop.account.account().epoch


def test_a_marker_that_disagrees_sends_nothing(shop: Buying) -> None:
    _, order = shop.approved()
    supplier = shop.supplier()
    authority.marker.write(shop.marker, authority.Marker("0" * 32, HOST))
    with refused("marker_disagrees"):
        orders.send(shop.connection, order.id, supplier, claim=None, clock=shop.clock, marker=shop.marker)
    assert shop.account.sent == []


def test_an_order_accepted_in_an_earlier_epoch_is_the_same_order(shop: Buying) -> None:
    """A state that forgot an order proposes it again: same work, same bytes, so the old receipt answers."""
    order = shop.unknown("drop_after_accept")
    receipt = shop.receipts()[0].model_copy(update={"epoch": "f" * 32})
    attempt = orders.Attempt(order, order.attempts, shop.account.sent[0])
    settled = orders.settle(
        shop.connection, attempt, Accepted(receipt), claim=None, clock=shop.clock, marker=shop.marker
    )
    assert settled.status == "CONFIRMED"


def test_a_late_answer_of_an_earlier_transmission_counts_only_as_proof(shop: Buying) -> None:
    order = shop.unknown("drop_before_accept")
    supplier = shop.supplier()
    first = orders.Attempt(order, 1, shop.account.sent[0])
    shop.reconcile(order, "none", resend=True)
    assert shop.show(order).status == "CONFIRMED"
    late = orders.settle(
        shop.connection,
        first,
        orders.Declined("stale", final=False),
        claim=None,
        clock=shop.clock,
        marker=shop.marker,
    )
    assert late.status == "CONFIRMED"
    del supplier


def test_another_epochs_refusal_of_a_retransmission_says_nothing_about_the_first(shop: Buying) -> None:
    order = shop.unknown("drop_before_accept")
    supplier = shop.supplier()
    shop.account.register("e" * 32, replaces=supplier.epoch)
    told = orders.reconcile(shop.connection, order.id, supplier, clock=shop.clock, marker=shop.marker)
    assert (told.how, told.order.status, told.order.attempts) == ("sent_again", "UNKNOWN", 2)
    assert shop.money() == (1800, 0)


def test_another_epochs_refusal_of_the_only_transmission_is_definite(shop: Buying) -> None:
    _, order = shop.approved()
    supplier = shop.supplier()
    shop.account.register("e" * 32, replaces=supplier.epoch)
    sent = orders.send(shop.connection, order.id, supplier, claim=None, clock=shop.clock, marker=shop.marker)
    assert (sent.status, shop.money()) == ("REJECTED", (0, 0))


def test_an_unclear_answer_of_an_earlier_transmission_leaves_the_later_one_on_its_way(shop: Buying) -> None:
    order = shop.unknown("drop_before_accept")
    first = orders.Attempt(order, 1, shop.account.sent[0])
    seen: list[str] = []

    def meanwhile(_request: object) -> None:
        late = orders.settle(
            shop.connection, first, Unclear("late"), claim=None, clock=shop.clock, marker=shop.marker
        )
        seen.append(late.status)

    shop.account.leaving = meanwhile
    assert shop.reconcile(order).order.status == "CONFIRMED"
    assert seen == ["SENDING"]


def test_work_waits_for_its_orders_without_spinning_and_wakes_for_each_change(shop: Buying) -> None:
    claim, order = shop.claimed(), None
    order = shop.propose(claim)

    def blocked(*, back_off: bool) -> None:
        orders.wait(shop.connection, claim, clock=shop.clock, marker=shop.marker, back_off=back_off)

    def woken() -> list[str]:
        return orders.wake(shop.connection, now=shop.now(), marker=shop.marker)

    blocked(back_off=False)
    shop.time.passes(10_000)
    assert woken() == []
    shop.approve(order)
    assert woken() == [claim.work]
    assert woken() == []
    for pause in (30.0, 60.0):  # the supplier cannot be reached
        found = authority.claim_next(shop.connection, owner="worker", now=shop.now(), marker=shop.marker)
        assert found is not None
        claim = found
        blocked(back_off=True)
        assert woken() == []
        shop.time.passes(pause - 1)
        assert woken() == []
        shop.time.passes(1)
        assert woken() == [claim.work]
    found = authority.claim_next(shop.connection, owner="worker", now=shop.now(), marker=shop.marker)
    assert found is not None
    claim = found
    blocked(back_off=True)
    shop.revoke(order)
    assert woken() == [claim.work]
