"""The amnesia check: a state that is older than the world ends its own era, before it does anything else."""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from buying import Buying
from supplying import TOKEN, Supplier, supplier
from support import Instance, Process, eventually, until_idle

from standfast import authority, orders
from standfast.authority import marker as markers
from standfast.cli import main as cli
from standfast.orders import SupplierAccess, SupplierUnavailable
from standfast.orders.http import HttpSupplier
from standfast.serve.service import Service
from standfast.shop.config import parse, sample
from standfast.supplier.wire import SupplierReceipt

REASON = "amnesia: the supplier holds an accepted receipt that this store never knew"


def copy(source: Path, target: Path) -> None:
    """A whole copy through SQLite's backup API, also into a live file: what a rolled-back disk amounts to."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


class TestCompare:
    @pytest.fixture
    def buying(self, tmp_path: Path) -> Iterator[Buying]:
        made = Buying(tmp_path)
        yield made
        made.close()

    def unknown(self, buying: Buying, after: int = 0) -> tuple[str, ...]:
        return orders.compare(buying.connection, buying.account, after=after).unknown

    @pytest.mark.parametrize("fault", ["none", "drop_after_accept", "lie", "crash"])
    def test_what_was_sent_from_here_is_known_whatever_came_back(self, buying: Buying, fault: str) -> None:
        claim, order = buying.approved()
        assert orders.compare(buying.connection, buying.account) == orders.Remembered(0, ())
        buying.send(order, claim, fault)
        assert orders.compare(buying.connection, buying.account) == orders.Remembered(1, ())

    def test_what_is_on_its_way_is_known_before_the_supplier_has_it(self, buying: Buying) -> None:
        claim, order = buying.approved()
        seen: list[tuple[str, ...]] = []
        buying.account.leaving = lambda _request: seen.append(self.unknown(buying))
        buying.send(order, claim)
        assert (seen, self.unknown(buying)) == ([()], ())

    @pytest.mark.parametrize("before", ["proposed", "approved"])
    def test_what_this_store_never_sent_is_unknown(self, buying: Buying, tmp_path: Path, before: str) -> None:
        """Rolled back to before the proposal, or to before the sending: the approval would be used again."""
        if before == "proposed":
            copy(buying.layout.database, tmp_path / "old")
        claim, order = buying.approved()
        if before == "approved":
            copy(buying.layout.database, tmp_path / "old")
        buying.send(order, claim)
        assert self.unknown(buying) == ()
        copy(tmp_path / "old", buying.layout.database)
        assert self.unknown(buying) == (order.id,)
        assert self.unknown(buying, after=1) == ()

    def test_what_the_supplier_said_before_it_fell_silent_counts(
        self, buying: Buying, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        claim, order = buying.approved()
        buying.send(order, claim)
        [receipt] = buying.receipts()

        def cut(*receipts: SupplierReceipt) -> Iterator[SupplierReceipt]:
            yield from receipts
            raise SupplierUnavailable("gone")

        monkeypatch.setattr(buying.account, "receipts", lambda _after: cut(receipt))
        with pytest.raises(SupplierUnavailable):
            self.unknown(buying)
        other = receipt.model_copy(update={"operation_id": "f" * 24})
        monkeypatch.setattr(buying.account, "receipts", lambda _after: cut(receipt, other))
        assert self.unknown(buying) == ("f" * 24,)


class Shop:
    """An instance with low stock, a real supplier process, and services that reach it over HTTP."""

    def __init__(self, root: Path, made: Supplier) -> None:
        self.instance = Instance.make(root, low=True)
        self.supplier = made
        with self.instance.store() as connection:
            epoch = authority.operations(connection).epoch
        with made.client() as client:
            body = {"epoch": epoch, "replaces": client.get("/account").json()["epoch"]}
            assert client.post("/account/epoch", json=body).status_code == 200

    @property
    def environment(self) -> dict[str, str]:
        return {"STANDFAST_SUPPLIER_URL": self.supplier.url, "STANDFAST_SUPPLIER_TOKEN": TOKEN}

    @contextmanager
    def service(self) -> Iterator[Service]:
        """A service in this process that reaches the supplier over HTTP."""
        access = SupplierAccess(self.supplier.url, TOKEN)
        with self.instance.service() as bare, closing(HttpSupplier(access)) as account:
            worker = replace(bare._worker, settings=replace(bare._worker.settings, supplier=access))
            yield Service(worker, bare._notifier, bare._stop, account)

    def run(self) -> None:
        with self.service() as service:
            until_idle(service)

    def approve(self, sku: str, now: float | None = None) -> str:
        now = now or self.instance.clock.now()
        with self.instance.store() as connection:
            draft = next(one for one in orders.list_orders(connection) if one.sku == sku)
            orders.approve(
                connection,
                draft.digest,
                operator="lucy",
                until=now + 80_000,
                policy=parse(sample()).policy,
                now=now,
                marker=self.instance.layout.marker,
                order=draft.id,
            )
        return draft.id

    def order(self, order: str) -> str:
        return str(self.instance.rows("SELECT status FROM orders WHERE id = ?", order)[0][0])

    def control(self) -> authority.Operations:
        with self.instance.store() as connection:
            return authority.operations(connection)

    def keep(self, name: str) -> None:
        copy(self.instance.layout.database, self.instance.layout.root / name)

    def roll_back(self, name: str) -> None:
        copy(self.instance.layout.root / name, self.instance.layout.database)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    (tmp_path / "supplier").mkdir()
    with supplier(tmp_path / "supplier") as made:
        yield Shop(tmp_path, made)


@pytest.mark.parametrize("kept", ["at the beginning", "when approved"])
def test_a_rolled_back_state_ends_its_era_at_the_start_and_stays_up(
    shop: Shop, kept: str, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = shop.instance.layout
    shop.keep("at the beginning")
    shop.run()
    order = shop.approve("vanilla")
    shop.keep("when approved")
    shop.run()
    assert shop.order(order) == "CONFIRMED"
    before = shop.control()
    shop.run()
    assert shop.control() == before, "a state that forgot nothing stays as it is"

    shop.roll_back(kept)
    with Process(shop.instance, pausing=None, **shop.environment) as process:
        process.ready()
        eventually(lambda: shop.control().paused)
        eventually(lambda: "STATUS=not working: paused: amnesia" in " ".join(process.messages()))
        after = shop.control()
        assert after.epoch != before.epoch
        assert after.reason.startswith(REASON)
        assert order in after.reason
        marker = markers.read(layout.marker)
        assert marker is not None
        assert marker.epoch == after.epoch
        assert cli.main(["--json", "--state", str(layout.state), "health"]) == 4
        health = json.loads(capsys.readouterr().out)
        assert health["service"]["alive"]
        [paused] = [one for one in health["attention"] if one["rule"] == "paused"]
        assert REASON in paused["observed"]
        assert process.terminate() == 0
        assert "authority replaced: " in process.log
        assert TOKEN not in process.log
    assert len(shop.supplier.receipts()) == 1
    assert shop.instance.rows("SELECT count(*) FROM work WHERE finished_at > ?", after.changed_at) == [(0,)]
    assert shop.instance.rows("SELECT 1 FROM approvals WHERE revoked = 0") == []
    if kept == "when approved":
        assert shop.order(order) == "REVOKED"

    # Resumed without a recovery it ends the next era, too: the receipt is still unknown.
    with shop.instance.store() as connection:
        authority.resume(connection, layout.marker, "hoping for the best", shop.instance.clock.now())
    shop.run()
    again = shop.control()
    assert again.paused
    assert again.epoch != after.epoch
    assert again.reason.startswith(REASON)


def test_a_state_rolled_back_under_a_running_service_is_noticed_before_it_looks_up(shop: Shop) -> None:
    shop.run()
    vanilla, strawberry = shop.approve("vanilla"), shop.approve("strawberry")
    shop.supplier.fault("drop_after_accept", times=1)
    with shop.service() as service:
        service.one_pass()
        uncertain = {one: shop.order(one) for one in (vanilla, strawberry)}
        assert "UNKNOWN" in uncertain.values()
        shop.keep("one uncertain")
        until_idle(service)
        late = next(one for one, status in uncertain.items() if status == "APPROVED")
        assert shop.order(late) == "CONFIRMED"
        shop.roll_back("one uncertain")
        shop.instance.clock.pass_time(40)
        until_idle(service)
    control = shop.control()
    assert control.paused
    assert late in control.reason
    assert len(shop.supplier.receipts()) == 2


@pytest.mark.parametrize("how", ["send", "resolve"])
def test_an_operator_s_own_request_makes_the_same_comparison(
    shop: Shop, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*arguments: str, check: bool = False) -> tuple[int, dict[str, Any]]:
        options = ["--check"] if check else []
        code = cli.main(["--json", *options, "--state", str(layout.state), "order", *arguments])
        return code, json.loads(capsys.readouterr().out)

    layout = shop.instance.layout
    access = "".join(f'{name}="{value}"\n' for name, value in shop.environment.items())
    layout.environment.write_text(access)
    shop.run()
    vanilla, strawberry = (
        shop.approve("vanilla", now=time.time()),
        shop.approve("strawberry", now=time.time()),
    )
    if how == "resolve":
        shop.supplier.fault("drop_after_accept", times=1)
        assert call("send", strawberry)[0] == 4
    shop.keep("before")
    assert call("send", vanilla)[0] == 0
    shop.roll_back("before")
    before = shop.control()

    act = ("send", strawberry) if how == "send" else ("resolve", strawberry, "--operator", "lucy")
    if how == "send":
        code, told = call(*act, check=True)
        assert (code, told["refused"]["code"], told["refused"]["observed"]) == (3, "amnesia", [vanilla])
        assert shop.control() == before
    code, told = call(*act)
    assert (code, told["refused"]["code"], told["refused"]["observed"]) == (3, "amnesia", [vanilla])
    after = shop.control()
    assert after.paused
    assert after.epoch != before.epoch
    assert after.reason.startswith(REASON)
    assert shop.order(strawberry) == {"send": "REVOKED", "resolve": "UNKNOWN"}[how]
    assert len(shop.supplier.receipts()) == {"send": 1, "resolve": 2}[how]


def test_a_silent_supplier_does_not_stop_the_shop_and_is_asked_again(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "standfast")
    shop.keep("old")
    shop.run()
    order = shop.approve("vanilla")
    shop.run()
    shop.roll_back("old")
    port = shop.supplier.url.rpartition(":")[2]
    shop.supplier.stop()
    asked = shop.instance.add().work
    caplog.clear()
    with shop.service() as service:
        until_idle(service)
        assert shop.instance.status(asked)[0] == "DONE"
        assert "supplier not reached" in caplog.text
        assert not shop.control().paused
        said = caplog.text.count("supplier not reached")
        shop.instance.clock.pass_time(29)
        until_idle(service)
        assert caplog.text.count("supplier not reached") == said, "not before the back-off has passed"
        shop.supplier.options = ("--faults", "--port", port)
        shop.supplier.start()
        shop.instance.clock.pass_time(1)
        until_idle(service)
    assert shop.control().paused
    assert order in shop.control().reason


def test_without_a_supplier_it_says_once_that_nothing_was_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "standfast")
    instance = Instance.make(tmp_path)
    instance.add()
    instance.settle()
    assert caplog.text.count('receipts not compared: reason="no supplier is configured"') == 1


def test_nothing_is_compared_while_paused(shop: Shop) -> None:
    shop.keep("old")
    shop.run()
    shop.approve("vanilla")
    shop.run()
    shop.roll_back("old")
    with shop.instance.store() as connection:
        authority.pause(connection, "stocktaking", shop.instance.clock.now())
    shop.run()
    assert shop.control().reason == "stocktaking"


def test_the_export_is_read_page_by_page_from_a_sequence_on(shop: Shop) -> None:
    epoch = shop.control().epoch
    with shop.supplier.client() as client:
        for number in range(1, 6):
            body = {
                "operation_id": f"{number:024x}",
                "epoch": epoch,
                "target": "supplier",
                "sku": "vanilla",
                "quantity": 1,
                "unit_cost_cents": 300,
                "currency": "EUR",
                "digest": "d" * 64,
            }
            assert client.post("/orders", json=body).status_code == 201
    account = HttpSupplier(SupplierAccess(shop.supplier.url, TOKEN))
    assert [one.sequence for one in account.receipts(3)] == [4, 5]
    with shop.instance.store() as connection:
        found = orders.compare(connection, account)
    account.close()
    assert found.upto == 5
    assert len(found.unknown) == 5
    assert "5 accepted receipts" in found.reason
