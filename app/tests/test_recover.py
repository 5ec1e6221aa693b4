"""Recovery: each refusal changes nothing, here or at the supplier; the right plan is applied once."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from daily import COUNTS, Day, day, sha256
from supplying import TOKEN, epoch

from standfast import authority, orders
from standfast.authority import marker as markers
from standfast.clock import rfc3339
from standfast.errors import BadInput, Refused
from standfast.operations.adopting import adopt
from standfast.operations.recovery.applying import Recovered
from standfast.orders import SupplierUnavailable
from standfast.orders.http import HttpSupplier
from standfast.orders.intent import Intent
from standfast.supplier.wire import SupplierReceipt

DAY = 86_400.0


@pytest.fixture(scope="module")
def paused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    """The morning restored and inspected. For refusals alone: none of them changes it."""
    with day(tmp_path_factory.mktemp("paused")) as made:
        made.begin().go_on()
        made.restore_here()
        made.inspect_here()
        yield made


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Day]:
    """The same, for one test."""
    with day(tmp_path) as made:
        made.begin().go_on()
        made.restore_here()
        yield made


def refused(shop: Day, code: str, act: Callable[[], object]) -> Refused:
    """The refusal, after which everything is as it was."""
    before = shop.fingerprint()
    with pytest.raises(Refused) as caught:
        act()
    assert caught.value.code == code
    assert caught.value.remedy
    assert shop.fingerprint() == before
    return caught.value


def malformed(shop: Day, match: str, act: Callable[[], object]) -> None:
    before = shop.fingerprint()
    with pytest.raises(BadInput, match=match):
        act()
    assert shop.fingerprint() == before


class TestThePlanItself:
    def test_another_byte_than_was_reviewed(self, paused: Day) -> None:
        plan = paused.answered()
        digest = sha256(plan.read_bytes())
        plan.write_bytes(plan.read_bytes() + b" ")
        refused(paused, "digest_differs", lambda: paused.recover_here(plan, digest))

    @pytest.mark.parametrize("digest", ["", "0" * 63, "0" * 65, "A" * 64, "sha256:" + "0" * 57])
    def test_what_cannot_be_a_digest(self, paused: Day, digest: str) -> None:
        malformed(paused, "digest", lambda: paused.recover_here(paused.answered(), digest or " "))

    def test_the_bytes_are_compared_before_the_supplier_is_asked(self, paused: Day) -> None:
        plan = paused.answered()
        paused.supplier.fault("error", on="account")
        refused(paused_of(paused), "digest_differs", lambda: paused.recover_here(plan, "0" * 64))

    @pytest.mark.parametrize("operator", ["mallory", "", "Lucy", "lucy "])
    def test_another_operator(self, paused: Day, operator: str) -> None:
        plan = paused.answered()
        refused(paused, "operator_unknown", lambda: paused.recover_here(plan, operator=operator))
        refused(paused, "operator_unknown", lambda: paused.inspect_here("other.json", operator))

    @pytest.mark.parametrize("null", ["inventory", "deliveries"])
    def test_a_count_or_a_delivery_that_nobody_stated(self, paused: Day, null: str) -> None:
        plan = paused.answered(f"{null}.json")
        content = json.loads(plan.read_bytes())
        first = next(iter(content[null].values()))
        first["on_hand" if null == "inventory" else "received"] = None
        plan.write_text(json.dumps(content))
        malformed(paused, "1 not stated yet", lambda: paused.recover_here(plan))

    @pytest.mark.parametrize("change", ["lacks", "extra"])
    def test_other_products_than_there_are(self, paused: Day, change: str) -> None:
        plan = paused.answered(f"{change}.json")
        content = json.loads(plan.read_bytes())
        if change == "lacks":
            del content["inventory"]["chocolate"]
        else:
            content["inventory"]["pistachio"] = {"on_hand": 0}
        plan.write_text(json.dumps(content))
        told = refused(paused, "products_differ", lambda: paused.recover_here(plan))
        assert ("chocolate" if change == "lacks" else "pistachio") in str(told.observed)

    @pytest.mark.parametrize("change", ["lacks", "extra"])
    def test_other_interrupted_work_than_there_is(self, paused: Day, change: str) -> None:
        plan = paused.answered(f"work-{change}.json", interrupted={} if change == "lacks" else None)
        content = json.loads(plan.read_bytes())
        if change == "extra":
            assert paused.running is not None
            content["interrupted"] = {paused.running.work: "report", "f" * 24: "report"}
        plan.write_text(json.dumps(content))
        refused(paused, "interrupted_differs", lambda: paused.recover_here(plan))

    def test_each_check_comes_in_its_place(self, paused: Day) -> None:
        """All is wrong at once; what is mended brings the next refusal, and at the end the plan is good."""
        plan = paused.answered("all-wrong.json")
        good, wrong = json.loads(plan.read_bytes()), json.loads(plan.read_bytes())
        wrong |= {"authority": "0" * 32, "observed_at": "2020-01-01T00:00:00Z", "interrupted": {}}
        wrong["inventory"] |= {"pistachio": {"on_hand": 0}, "vanilla": {"on_hand": None}}
        wrong["deliveries"][good["receipts"][0]]["reference"] += "!"

        def tries(**how: Any) -> object:
            plan.write_text(json.dumps(wrong))
            return paused.recover_here(plan, **how)

        refused(paused, "digest_differs", lambda: tries(digest="0" * 64, operator="mallory"))
        refused(paused, "operator_unknown", lambda: tries(operator="mallory"))
        refused(paused, "other_epoch", tries)
        wrong["authority"] = good["authority"]
        refused(paused, "observed_long_ago", tries)
        wrong["observed_at"] = good["observed_at"]
        refused(paused, "receipts_changed", tries)
        wrong["deliveries"] = good["deliveries"]
        refused(paused, "products_differ", tries)
        del wrong["inventory"]["pistachio"]
        malformed(paused, "vanilla", tries)
        wrong["inventory"] = good["inventory"]
        refused(paused, "interrupted_differs", tries)
        wrong["interrupted"] = good["interrupted"]
        assert tries(check=True)

    @pytest.mark.parametrize(
        "text", ["{}", "not json", '{"inventory": {"vanilla": {"on_hand": NaN}}}'], ids=range(3)
    )
    def test_what_is_no_plan(self, paused: Day, text: str) -> None:
        plan = paused.plan_file("garbage.json")
        plan.write_text(text)
        malformed(paused, "plan: ", lambda: paused.recover_here(plan))

    def test_ten_megabytes_and_a_missing_file(self, paused: Day) -> None:
        plan = paused.plan_file("huge.json")
        plan.write_bytes(b" " * 10_000_000)
        malformed(paused, "longer than", lambda: paused.recover_here(plan, "0" * 64))
        malformed(paused, "cannot be read", lambda: paused.recover_here(paused.plan_file("none"), "0" * 64))


def paused_of(paused: Day) -> Day:
    """The same; its supplier's switches are turned back first, so that it can be looked at."""
    paused.supplier.fault("error", on="account", times=0)
    return paused


class TestTime:
    def at(self, paused: Day, observed: float, now: float) -> Recovered:
        plan = paused.answered("time.json", observed_at=rfc3339(observed))
        return paused.recover_here(plan, now=now, check=True)

    def test_fifteen_minutes_are_the_last_that_count(self, paused: Day) -> None:
        now = float(int(time.time()))
        assert self.at(paused, now, now).changed
        assert self.at(paused, now - 900.0, now).changed
        refused(paused, "observed_long_ago", lambda: self.at(paused, now - 900.001, now))

    def test_what_lies_ahead_was_not_observed(self, paused: Day) -> None:
        now = float(int(time.time()))
        refused(paused, "observed_ahead", lambda: self.at(paused, now + 0.001, now))

    @pytest.mark.parametrize(("off", "code"), [(DAY, "observed_long_ago"), (-DAY, "observed_ahead")])
    def test_a_clock_that_is_a_day_off(self, paused: Day, off: float, code: str) -> None:
        plan = paused.answered("clock.json")
        refused(paused, code, lambda: paused.recover_here(plan, now=time.time() + off))

    def test_the_limit_is_the_shops(self, paused: Day) -> None:
        now = float(int(time.time()))
        text = paused.layout.shop.read_text()
        paused.layout.shop.write_text(text.replace("observation_seconds = 900", "observation_seconds = 60"))
        try:
            refused(paused, "observed_long_ago", lambda: self.at(paused, now - 61, now))
        finally:
            paused.layout.shop.write_text(text)

    def test_any_zone_is_the_same_moment(self, paused: Day) -> None:
        now = float(int(time.time()))
        text = datetime.fromtimestamp(now, UTC).astimezone().isoformat()
        plan = paused.answered("zone.json", observed_at=text)
        assert paused.recover_here(plan, now=now, check=True).changed


class TestPause:
    def test_nothing_is_recovered_in_an_era_that_is_not_paused(self, tmp_path: Path) -> None:
        with day(tmp_path) as made:
            made.begin()
            refused(made, "not_paused", made.inspect_here)
            assert not made.plan_file().exists()

    def test_a_pause_that_no_restore_made_is_ended_by_no_recovery(self, tmp_path: Path) -> None:
        """What a restore that was cut short leaves: only the same restore leads on."""
        with day(tmp_path) as made:
            made.begin()
            with made.instance.store() as connection:
                authority.pause(connection, "a restore is under way", time.time())
            told = refused(made, "not_awaiting_recovery", made.inspect_here)
            assert "restore again" in told.remedy

    @pytest.mark.parametrize("marker", ["missing", "empty", "garbage", "unreadable", "other"])
    def test_a_marker_that_disagrees(self, shop: Day, marker: str) -> None:
        plan = shop.answered()
        if marker == "missing":
            shop.layout.marker.unlink()
        elif marker == "empty":
            shop.layout.marker.write_bytes(b"")
        elif marker == "garbage":
            shop.layout.marker.write_bytes(b"\xff\xfe\0")
        elif marker == "unreadable":  # to root, too
            shop.layout.marker.unlink()
            shop.layout.marker.mkdir()
        else:
            markers.write(shop.layout.marker, markers.Marker("f" * 32, authority.host_identity()))
        refused(shop, "marker_disagrees", lambda: shop.recover_here(plan))
        refused(shop, "marker_disagrees", lambda: shop.inspect_here("other.json"))

    def test_the_client_of_orders_is_refused_while_paused(self, shop: Day) -> None:
        with shop.instance.store() as connection, shop.account() as account:
            told = refused(shop, "paused", lambda: orders.connect(connection, account, shop.layout.marker))
        assert str(told) == "operations are paused; inspect and recover the account first"

    def test_a_second_restore_makes_the_first_ones_plan_useless(self, shop: Day) -> None:
        plan = shop.answered()
        shop.restore_here(shop.backup())
        refused(shop, "other_epoch", lambda: shop.recover_here(plan))
        told = shop.inspect_here("second.json")
        assert told.rotated
        assert shop.recover_here(shop.answered("second.json")).orders == 2


class TestTheSupplier:
    def test_down(self, shop: Day) -> None:
        plan = shop.answered()
        before = shop.instance.rows("SELECT * FROM operations")
        shop.supplier.stop()
        for act in (lambda: shop.recover_here(plan), lambda: shop.inspect_here("other.json")):
            with pytest.raises(SupplierUnavailable):
                act()
        assert shop.instance.rows("SELECT * FROM operations") == before
        assert not shop.plan_file("other.json").exists()

    @pytest.mark.parametrize("endpoint", ["account", "receipts"])
    @pytest.mark.parametrize("kind", ["error", "drop_before_accept", "drop_after_accept"])
    def test_failing(self, paused: Day, endpoint: str, kind: str) -> None:
        plan = paused.answered()
        before = paused.fingerprint()
        paused.supplier.fault(kind, on=endpoint)
        with pytest.raises(SupplierUnavailable):
            paused.recover_here(plan)
        assert paused.fingerprint() == before

    def test_slow(self, paused: Day, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("standfast.orders.http.READ_SECONDS", 0.3)
        plan = paused.answered()
        paused.supplier.fault("delay", on="receipts", seconds=1.5)
        with pytest.raises(SupplierUnavailable):
            paused.recover_here(plan)
        time.sleep(1.5)
        assert paused.control().paused

    def test_an_inspection_whose_rotation_is_not_answered_is_repeated(self, shop: Day) -> None:
        for kind in ("drop_before_accept", "drop_after_accept", "error"):
            shop.supplier.fault(kind, on="epoch")
            if kind == "error":
                break
            with pytest.raises(SupplierUnavailable):
                shop.inspect_here(f"{kind}.json")
            assert not shop.plan_file(f"{kind}.json").exists()
        shop.supplier.fault("error", on="epoch", times=0)
        assert not shop.inspect_here("good.json").rotated, "the lost answer had been done"

    def test_changed_since_the_inspection(self, shop: Day) -> None:
        plan = shop.answered()
        accept(shop, 7, "chocolate")
        told = refused(shop, "receipts_changed", lambda: shop.recover_here(plan))
        assert f"{7:024x}" in str(told.observed)
        assert shop.recover_here(shop.answered("again.json")).orders == 3

    def test_an_account_that_was_taken_over_meanwhile(self, shop: Day) -> None:
        plan = shop.answered()
        with shop.supplier.client() as client:
            body = {"epoch": "f" * 32, "replaces": shop.control().epoch}
            assert client.post("/account/epoch", json=body).status_code == 200
        refused(shop, "account_other_epoch", lambda: shop.recover_here(plan))
        told = refused(shop, "epoch_retired", lambda: shop.inspect_here("again.json"))
        assert "another copy may be acting" in told.remedy

    @pytest.mark.parametrize(
        "changed", [{"quantity": 7, "total_cents": 2100}, {"total_cents": 1}, {"sku": "x"}]
    )
    def test_lying_about_the_bytes_of_a_known_operation(
        self, paused: Day, changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = paused.answered()
        lie(monkeypatch, paused.vanilla, changed)
        refused(paused, "receipts_invalid", lambda: paused.recover_here(plan))
        refused(paused, "receipts_invalid", lambda: paused.inspect_here("lie.json"))

    def test_lying_with_a_digest_that_fits_the_lie(
        self, paused: Day, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = paused.answered()
        digest = Intent("supplier", "vanilla", 7, 300, "EUR").digest
        lie(monkeypatch, paused.vanilla, {"quantity": 7, "total_cents": 2100, "digest": digest})
        refused(paused, "receipts_changed", lambda: paused.recover_here(plan))
        refused(paused, "receipts_differ", lambda: paused.inspect_here("lie.json"))

    def test_lying_about_an_operation_that_only_it_remembers(
        self, paused: Day, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = paused.answered()
        lie(monkeypatch, paused.strawberry, {"unit_cost_cents": 300, "total_cents": 1200})
        refused(paused, "receipts_invalid", lambda: paused.recover_here(plan))
        digest = Intent("supplier", "strawberry", 4, 300, "EUR").digest
        changed = {"unit_cost_cents": 300, "total_cents": 1200, "digest": digest}
        lie(monkeypatch, paused.strawberry, changed)
        refused(paused, "receipts_changed", lambda: paused.recover_here(plan))

    def test_a_receipt_that_was_counted_here_is_gone(self, tmp_path: Path) -> None:
        with day(tmp_path) as made:
            made.begin().go_on()
            made.restore_here(made.backup())
            shop = made
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(HttpSupplier, "receipts", lambda _self, _after=0: iter(()))
                refused(shop, "account_forgot", shop.inspect_here)


def accept(shop: Day, number: int, sku: str) -> None:
    """The supplier accepts an order that nobody here knows."""
    intent = Intent("supplier", sku, 2, 250, "EUR")
    body = {
        "operation_id": f"{number:024x}",
        "epoch": shop.account_now()["epoch"],
        "target": intent.target,
        "sku": sku,
        "quantity": 2,
        "unit_cost_cents": 250,
        "currency": "EUR",
        "digest": intent.digest,
    }
    with shop.supplier.client() as client:
        assert client.post("/orders", json=body).status_code == 201


def lie(monkeypatch: pytest.MonkeyPatch, operation: str, changed: dict[str, Any]) -> None:
    """Whatever the account says of one operation is falsified on the way."""
    honest = HttpSupplier.receipts

    def lying(self: HttpSupplier, after: int = 0) -> Iterator[SupplierReceipt]:
        for one in honest(self, after):
            yield one.model_copy(update=changed) if one.operation_id == operation else one

    monkeypatch.undo()
    monkeypatch.setattr(HttpSupplier, "receipts", lying)


class TestInspection:
    def test_it_fences_the_account_and_asks_what_no_receipt_tells(self, shop: Day) -> None:
        before = shop.account_now()["epoch"]
        foreseen = shop.inspect_here(check=True)
        assert (foreseen.check, foreseen.plan, foreseen.rotated) == (True, None, True)
        assert shop.account_now()["epoch"] == before
        assert not shop.plan_file().exists()

        told = shop.inspect_here()
        assert shop.account_now()["epoch"] == told.epoch == shop.control().epoch != before
        assert (told.receipts, told.accepted_cents) == (2, 2600)
        assert {one.operation for one in told.unknown_here} == {shop.vanilla, shop.strawberry}
        assert shop.running is not None
        assert told.interrupted == [shop.running.work]
        assert told.digest == sha256(shop.plan_file().read_bytes())
        assert shop.plan_file().stat().st_mode & 0o777 == 0o600
        content = json.loads(shop.plan_file().read_bytes())
        assert content["inventory"] == {sku: {"on_hand": None} for sku in sorted(COUNTS)}
        assert content["interrupted"] == {shop.running.work: "report"}
        assert content["usage"] == "unknown"
        assert shop.inspect_here("again.json").rotated is False

    def test_a_plan_that_somebody_works_on_is_never_replaced(self, paused: Day) -> None:
        refused(paused, "out_taken", paused.inspect_here)
        paused.plan_file("link").symlink_to("/nowhere/plan.json")
        refused(paused, "out_taken", lambda: paused.inspect_here("link"))
        malformed(paused, "no folder", lambda: paused.inspect_here("absent/plan.json"))
        malformed(paused, "no folder", lambda: paused.inspect_here("plan.json/within.json"))

    def test_no_token_is_told(self, shop: Day) -> None:
        assert TOKEN not in shop.inspect_here().model_dump_json() + shop.plan_file().read_text()


class TestTheRightPlan:
    def test_it_is_applied_once_whatever_the_pause_or_the_clock_says(self, shop: Day) -> None:
        plan = shop.answered()
        first = shop.recover_here(plan)
        assert (first.status, first.changed, first.duplicate) == ("ACTIVE", True, False)
        after = shop.fingerprint()
        for now in (time.time(), time.time() + DAY, time.time() - DAY):
            again = shop.recover_here(plan, now=now)
            assert (again.status, again.changed, again.duplicate) == ("ACTIVE", False, True)
            assert (again.orders, again.spent_cents) == (first.orders, first.spent_cents)
        assert shop.fingerprint() == after
        with shop.instance.store() as connection:
            authority.pause(connection, "stocktaking", time.time())
        shop.layout.marker.unlink()
        shop.supplier.stop()
        assert shop.recover_here(plan).duplicate
        assert shop.control().paused, "a duplicate resumes nothing"

    def test_a_plan_with_another_byte_is_another_plan(self, shop: Day) -> None:
        plan = shop.answered()
        shop.recover_here(plan)
        plan.write_bytes(plan.read_bytes() + b"\n")
        refused(shop, "not_paused", lambda: shop.recover_here(plan))

    def test_what_it_records(self, shop: Day) -> None:
        plan = shop.answered()
        digest = sha256(plan.read_bytes())
        told = shop.recover_here(plan)
        assert told.imported == [shop.strawberry]
        assert [(one.sku, one.recorded, one.counted) for one in told.stock] == [("vanilla", 2, 8)]
        assert shop.instance.rows("SELECT digest, epoch, plan, operator FROM recoveries") == [
            (digest, told.epoch, plan.read_text(), "lucy")
        ]
        names = [row[0] for row in shop.instance.rows("SELECT name FROM operation_events ORDER BY seq")]
        assert names == ["operations.restored", "operations.recovered"]
        events = shop.instance.rows("SELECT id, delta FROM stock_events WHERE id NOT LIKE 'opening:%'")
        assert events == [(f"recovery:{digest}:vanilla", 6)]
        imported = shop.order(shop.strawberry)
        assert (imported.status, imported.work, imported.attempts) == ("CONFIRMED", None, 0)
        assert (imported.target, imported.spent_cents, imported.reserved_cents) == ("supplier", 800, 0)
        assert imported.digest == imported.intent.digest
        assert json.loads(imported.receipt or "{}")["operation_id"] == shop.strawberry
        with shop.instance.store() as connection:
            approvals = orders.approvals_of(connection, shop.strawberry)
        assert [one.revoked for one in approvals] == [True]
        assert shop.instance.rows("SELECT 1 FROM approvals WHERE revoked = 0") == []
        assert shop.instance.rows("SELECT sum(spent_cents), sum(reserved_cents) FROM orders") == [(2600, 0)]
        control = shop.control()
        assert (control.paused, control.epoch) == (False, told.epoch)
        assert "lucy" in control.reason

    @pytest.mark.parametrize(
        ("usage", "figures"), [("unknown", (None, None)), ({"calls": 3, "cents": 40}, (3, 40))]
    )
    def test_a_loss_of_usage_is_unknown_until_the_plan_states_it(
        self, shop: Day, usage: Any, figures: tuple[int | None, int | None]
    ) -> None:
        shop.recover_here(shop.answered(usage=usage))
        assert shop.instance.rows("SELECT calls, cents FROM usage_losses") == [figures]

    def test_check_shows_the_whole_effect_and_changes_nothing(self, paused: Day) -> None:
        plan = paused.answered()
        before = paused.fingerprint()
        told = paused.recover_here(plan, check=True)
        assert paused.fingerprint() == before
        assert (told.check, told.status) == (True, "PAUSED")
        seen = {one.what.split(":")[0]: (one.before, one.after) for one in told.changes}
        assert seen[f"order {paused.vanilla}"] == ("REVOKED", "DELIVERED, 1800 cents spent")
        assert seen[f"order {paused.strawberry}"] == ("unknown here", "CONFIRMED, 800 cents spent")
        assert seen["stock of vanilla"] == ("2", "8")
        assert paused.running is not None
        assert seen[f"work {paused.running.work}"][1].startswith("CANCELED")
        assert seen["operations"] == ("paused", "active")

    def test_what_the_fenced_account_never_accepted_is_revoked(self, tmp_path: Path) -> None:
        with day(tmp_path) as made:
            order = made.approved("vanilla", 6).id
            made.supplier.fault("drop_before_accept")
            assert made.send(order).status == "UNKNOWN"
            made.restore_here(made.backup())
            assert made.order(order).status == "UNKNOWN", "a fact about the world"
            told = made.inspect_here()
            assert told.uncertain_here == [order]
            done = made.recover_here(made.answered())
            assert (done.orders, done.spent_cents, done.revoked) == (0, 0, [order])
            found = made.order(order)
            assert (found.status, found.reserved_cents, found.spent_cents) == ("REVOKED", 0, 0)

    def test_what_was_accepted_and_not_answered_is_confirmed(self, tmp_path: Path) -> None:
        with day(tmp_path) as made:
            order = made.vanilla = made.approved("vanilla", 6).id
            made.supplier.fault("drop_after_accept")
            assert made.send(order).status == "UNKNOWN"
            made.restore_here(made.backup())
            done = made.recover_here(made.answered())
            assert (done.orders, done.spent_cents, done.revoked) == (1, 1800, [])
            assert made.order(order).status == "DELIVERED"
            assert made.on_hand()["vanilla"] == 8

    def test_a_delivery_that_is_recorded_is_not_denied(self, tmp_path: Path) -> None:
        with day(tmp_path) as made:
            made.begin().go_on()
            made.restore_here(made.backup())
            plan = made.answered()
            content = json.loads(plan.read_bytes())
            content["deliveries"][made.vanilla]["received"] = False
            plan.write_text(json.dumps(content))
            refused(made, "delivery_recorded", lambda: made.recover_here(plan))
            done = made.recover_here(made.answered("right.json"))
            assert (done.orders, done.spent_cents, done.imported, done.stock) == (2, 2600, [], [])

    def test_two_at_once_apply_it_once(self, shop: Day) -> None:
        plan = shop.answered()
        told: list[Recovered] = []
        start = threading.Barrier(2)

        def apply() -> None:
            start.wait()
            told.append(shop.recover_here(plan))

        threads = [threading.Thread(target=apply) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(one.duplicate for one in told) == [False, True]
        assert shop.instance.rows("SELECT count(*) FROM recoveries") == [(1,)]
        assert shop.on_hand() == COUNTS

    def test_two_plans_at_once_apply_one(self, shop: Day) -> None:
        first, second = shop.answered("first.json"), shop.answered("second.json")
        told: list[Recovered | str] = []
        start = threading.Barrier(2)

        def apply(plan: Path) -> None:
            start.wait()
            try:
                told.append(shop.recover_here(plan))
            except Refused as error:
                told.append(error.code)

        threads = [threading.Thread(target=apply, args=(plan,)) for plan in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [one for one in told if isinstance(one, str)] == ["not_paused"]
        assert shop.on_hand() == COUNTS

    def test_the_spending_counts_on_the_day_of_the_acceptance(self, shop: Day) -> None:
        shop.recover_here(shop.answered())
        today = datetime.now(UTC).date().isoformat()
        days = {row[0] for row in shop.instance.rows("SELECT spent_day FROM orders WHERE spent_cents > 0")}
        assert days == {shop.supplier.receipts()[0]["accepted_at"][:10]}
        assert max(days) <= today

    def test_what_the_store_forgot_is_known_afterwards(self, shop: Day) -> None:
        """Else the next start of the service would end the era once more."""
        shop.recover_here(shop.answered())
        with shop.instance.store() as connection, shop.account() as account:
            assert orders.compare(connection, account).unknown == ()


def test_after_amnesia_and_after_adoption_the_same_way_leads_out(tmp_path: Path) -> None:
    with day(tmp_path) as made:
        made.begin().go_on()
        with made.instance.store() as connection:
            authority.replace(connection, made.layout, "amnesia: ...", time.time())
        assert made.recover_here(made.answered()).spent_cents == 2600
        assert not made.control().paused
        made.layout.marker.unlink()
        adopt(made.layout, reason="the marker was lost", now=time.time())
        assert made.recover_here(made.answered("adopted.json")).spent_cents == 2600
        assert not made.control().paused


def test_a_copy_whose_account_was_taken_buys_again_after_a_restore_of_its_new_backup(tmp_path: Path) -> None:
    with day(tmp_path) as made:
        made.begin().go_on()
        made.supplier.taken_over_by(epoch(9))
        wanted = made.approved("vanilla", 1).id
        with pytest.raises(Refused, match="belongs to another epoch"):
            made.send(wanted)
        with made.instance.store() as connection:
            found = Refused("account_other_epoch", "taken", observed="by 9")
            orders.say_account(connection, found, made.now())
        made.restore_here(made.backup())
        assert made.recover_here(made.answered()).spent_cents == 2600
        with made.instance.store() as connection:
            assert orders.account_standing(connection).code == "", "the era with that account has ended"
        assert made.order(wanted).status == "REVOKED"
        assert made.send(made.approved("vanilla", 2).id).status == "CONFIRMED"
        assert len(made.supplier.receipts()) == 3


def test_what_an_unrecovered_era_interrupted_is_still_asked_about(shop: Day) -> None:
    """Two restores in a row: the item that the first one interrupted is not silently done again."""
    shop.restore_here(shop.backup())
    assert shop.running is not None
    assert shop.inspect_here().interrupted == [shop.running.work]
