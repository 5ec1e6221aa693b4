"""The service and orders: low stock is proposed, approved by a person, sent once, followed to its end."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from buying import KEY_WINDOW, LedgerAccount
from supplying import TOKEN, supplier
from support import COMPONENTS, Counting, Instance, Process, eventually, until_idle

from standfast import authority, orders
from standfast.agent import Dispatcher, OfflinePlanner, ScriptedModel
from standfast.agent.model import Reply, ToolCall
from standfast.cli import main as cli
from standfast.layout import Layout
from standfast.orders import Order, SupplierAccess
from standfast.serve.service import Service
from standfast.shop import config, prompts
from standfast.shop.config import parse, sample
from standfast.shop.plan import plan
from standfast.shop.stock import positions
from standfast.shop.tools import ShopTools
from standfast.store import open_store, triggers
from standfast.supplier.ledger import Ledger

ACCESS = SupplierAccess("http://supplier.invalid", TOKEN)


@dataclass
class Shop:
    """An instance with low stock, and a service whose supplier is a real ledger."""

    instance: Instance
    account: LedgerAccount

    def run(self, model: Any = None) -> int:
        with self.instance.service(model) as bare:
            worker = replace(bare._worker, settings=replace(bare._worker.settings, supplier=ACCESS))
            service = Service(worker, bare._notifier, bare._stop, self.account)
            until_idle(service)
            return service.turns

    def orders(self) -> dict[str, Order]:
        with self.instance.store() as connection:
            return {one.sku: one for one in orders.list_orders(connection)}

    def approve(self, order: Order, hours: float = 1) -> None:
        now = self.instance.clock.now()
        with self.instance.store() as connection:
            orders.approve(
                connection,
                order.digest,
                operator="lucy",
                until=now + hours * 3600,
                policy=parse(sample()).policy,
                now=now,
                marker=self.instance.layout.marker,
                order=order.id,
            )

    def work(self, order: Order) -> tuple[str, int]:
        assert order.work is not None
        return self.instance.status(order.work)

    def reports(self, order: Order) -> list[str]:
        assert order.work is not None
        return self.instance.reports(order.work)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    instance = Instance.make(tmp_path, low=True)
    ledger = Ledger.open(tmp_path / "ledger", instance.clock.now(), KEY_WINDOW)
    yield Shop(instance, LedgerAccount(ledger, instance.clock.now))
    ledger.close()


def test_low_stock_is_proposed_approved_sent_confirmed_and_reported(shop: Shop) -> None:
    shop.run()
    found = shop.orders()
    assert {sku: (one.status, one.quantity) for sku, one in found.items()} == {
        "vanilla": ("DRAFT", 6),
        "strawberry": ("DRAFT", 4),
    }
    vanilla = found["vanilla"]
    assert shop.work(vanilla)[0] == "BLOCKED"
    [brief] = shop.reports(vanilla)
    assert "Waiting for your approval:\n- 6 of vanilla for 18.00 EUR from supplier" in brief
    assert vanilla.digest in brief
    assert shop.run() == 0, "work that waits does not spin"
    assert shop.account.sent == []

    shop.approve(vanilla)
    assert shop.run() == 1
    found = shop.orders()
    assert [found[sku].status for sku in ("vanilla", "strawberry")] == ["CONFIRMED", "DRAFT"]
    assert shop.work(vanilla)[0] == "DONE"
    closing = shop.reports(vanilla)[-1]
    assert "6 of vanilla for 18.00 EUR from supplier: the supplier accepted it" in closing
    with shop.instance.store() as connection:
        [position, *_] = positions(connection, parse(sample()))
        assert (position.on_order, position.needed) == (6, 0)
    assert shop.run() == 0
    assert len(shop.account.sent) == 1


def test_an_uncertain_order_is_found_with_a_back_off_and_only_then_ends_its_work(shop: Shop) -> None:
    shop.run()
    order = shop.orders()["vanilla"]
    shop.approve(order)
    shop.account.fault = "drop_after_accept"
    shop.run()
    assert shop.orders()["vanilla"].status == "UNKNOWN"
    assert shop.work(order)[0] == "BLOCKED"
    shop.instance.clock.pass_time(29)
    shop.run()
    assert shop.account.lookups == 0
    shop.account.fault = "error"
    shop.instance.clock.pass_time(1)
    shop.run()
    assert (shop.account.lookups, shop.orders()["vanilla"].status) == (1, "UNKNOWN")
    shop.instance.clock.pass_time(60)
    shop.run()
    assert (shop.account.lookups, shop.orders()["vanilla"].status) == (2, "CONFIRMED")
    assert shop.work(order)[0] == "DONE"
    assert len(shop.account.sent) == 1


def test_a_supplier_that_cannot_be_reached_is_asked_less_and_less(shop: Shop) -> None:
    shop.run()
    order = shop.orders()["vanilla"]
    shop.approve(order, hours=20)
    asked: list[float] = []

    def down() -> Any:
        asked.append(shop.instance.clock.now())
        raise orders.SupplierUnavailable("down")

    shop.account.account = down  # type: ignore[method-assign]
    generations = []
    for _ in range(20):
        shop.run()
        shop.instance.clock.pass_time(60)
        generations.append(shop.work(order)[1])
    assert shop.work(order)[0] == "BLOCKED"
    assert shop.orders()["vanilla"].status == "APPROVED"
    assert generations[-1] < 12, "it spins"
    del shop.account.__dict__["account"]
    shop.instance.clock.pass_time(1800)
    shop.run()
    assert shop.orders()["vanilla"].status == "CONFIRMED"


def test_nothing_is_sent_or_looked_up_while_paused(shop: Shop) -> None:
    shop.run()
    order = shop.orders()["vanilla"]
    shop.approve(order)
    now = shop.instance.clock.now()
    with shop.instance.store() as connection:
        authority.pause(connection, "looking", now)
    assert shop.run() == 0
    assert shop.account.sent == []
    assert shop.account.account().epoch is None
    with shop.instance.store() as connection:
        authority.resume(connection, shop.instance.layout.marker, "seen", now)
    shop.run()
    assert len(shop.account.sent) == 1


def test_an_approval_that_ends_unsent_waits_for_a_new_one(shop: Shop) -> None:
    shop.run()
    order = shop.orders()["vanilla"]
    shop.approve(order)
    shop.instance.clock.pass_time(3600)
    shop.run()
    assert shop.account.sent == []
    assert shop.orders()["vanilla"].status == "DRAFT"
    assert shop.work(order)[0] == "BLOCKED"
    shop.approve(order)
    shop.run()
    assert shop.orders()["vanilla"].status == "CONFIRMED"


def test_a_revoked_draft_ends_its_work_with_a_report(shop: Shop) -> None:
    shop.run()
    order = shop.orders()["vanilla"]
    with shop.instance.store() as connection:
        orders.revoke(
            connection,
            order.id,
            operator="lucy",
            policy=parse(sample()).policy,
            now=shop.instance.clock.now(),
        )
    shop.run()
    assert shop.work(order)[0] == "DONE"
    assert "it was revoked and not sent" in shop.reports(order)[-1]


def test_the_brief_proposes_what_no_open_order_covers(shop: Shop) -> None:
    shop.run()
    admitted = shop.instance.add(prompts.MORNING_BRIEF)
    shop.run()
    assert len(shop.instance.rows("SELECT 1 FROM orders")) == 2
    [brief] = shop.instance.reports(admitted.work)
    assert "Waiting for your approval:" in brief
    assert shop.instance.status(admitted.work)[0] == "DONE"


@pytest.mark.parametrize(
    ("session", "prompt", "role"),
    [
        ("canary-0123", prompts.MORNING_BRIEF, "agent"),
        ("x", "How is the stock?", "agent"),
        ("x", prompts.MORNING_BRIEF, "research"),
    ],
)
def test_who_proposes_nothing(shop: Shop, session: str, prompt: str, role: str) -> None:
    admitted = shop.instance.add(prompt, session=session, role=role)
    shop.instance.rows("UPDATE work SET status = 'CANCELED' WHERE id <> ?", admitted.work)
    shop.run()
    assert shop.instance.rows("SELECT 1 FROM orders WHERE work = ?", admitted.work) == []
    assert shop.instance.status(admitted.work)[0] == "DONE"


@pytest.mark.parametrize("point", ["wait.before_commit", "wait.committed"])
def test_a_death_around_the_end_of_a_turn_that_ordered_loses_no_report(shop: Shop, point: str) -> None:
    def die(reached: str) -> None:
        if reached == point:
            triggers.disarm()
            raise KeyboardInterrupt

    triggers.arm(die)
    with pytest.raises(KeyboardInterrupt):
        shop.run()
    shop.run()
    for order in shop.orders().values():
        assert shop.work(order)[0] == "BLOCKED"
        assert len(shop.reports(order)) == 1


def test_without_a_supplier_the_tool_is_not_there(shop: Shop) -> None:
    model = Counting(lambda request: offered.append([tool["name"] for tool in request.tools]))
    offered: list[list[Any]] = []
    shop.instance.settle(model)
    assert offered
    assert not any("propose_order" in names for names in offered)
    assert shop.orders() == {}


def call(name: str, **arguments: Any) -> Reply:
    return Reply(calls=(ToolCall("c1", name, json.dumps(arguments)),))


@pytest.mark.parametrize(
    "arguments",
    [
        {"sku": "vanilla", "quantity": 0},
        {"sku": "vanilla", "quantity": 1001},
        {"sku": "vanilla", "quantity": "6"},
        {"sku": "vanilla", "quantity": 6, "unit_cost_cents": 1},
        {"sku": "vanilla"},
    ],
)
def test_a_model_can_neither_name_a_price_nor_leave_the_bounds(shop: Shop, arguments: dict[str, Any]) -> None:
    shop.instance.add("buy")
    model = ScriptedModel([call("propose_order", **arguments), Reply(text="done")])
    shop.instance.rows("UPDATE work SET status = 'CANCELED' WHERE prompt <> 'buy'")
    shop.run(model)
    assert "invalid_arguments" in str(model.requests[1].messages[-1])
    assert shop.orders() == {}


def test_the_price_is_the_catalogues_and_a_foreign_product_is_refused(shop: Shop) -> None:
    shop.instance.add("buy")
    foreign = Reply(calls=(ToolCall("c0", "propose_order", '{"sku": "gold", "quantity": 1}'),))
    model = ScriptedModel([foreign, call("propose_order", sku="chocolate", quantity=2), Reply(text="done")])
    shop.run(model)
    assert "tool_failed" in str(model.requests[1].messages[-1])
    assert shop.orders()["chocolate"].unit_cost_cents == 250


def test_work_killed_while_it_followed_its_orders_goes_on_with_them(shop: Shop) -> None:
    shop.run()
    order = shop.orders()["vanilla"]
    shop.approve(order)
    with shop.instance.store() as connection:
        orders.wake(connection, now=shop.instance.clock.now(), marker=shop.instance.layout.marker)
    shop.instance.claim(owner=shop.instance.layout.instance().instance)
    shop.run()
    assert shop.orders()["vanilla"].status == "CONFIRMED"
    assert not any("was stopped while it worked" in report for report in shop.reports(order))


def test_a_turn_killed_after_its_proposal_is_reported_and_still_follows_its_order(shop: Shop) -> None:
    admitted = shop.instance.add("buy")
    claim = shop.instance.claim(owner=shop.instance.layout.instance().instance)
    assert claim.work == admitted.work
    with shop.instance.store() as connection:
        tools = ShopTools(
            connection,
            claim,
            parse(sample()),
            shop.instance.clock,
            shop.instance.layout.marker,
            purchasing=True,
        )
        done = tools.dispatcher().dispatch(
            ToolCall("c1", "propose_order", '{"sku": "vanilla", "quantity": 6}')
        )
        assert done.ok
    shop.instance.rows("UPDATE episodes SET closed_at = 1")
    shop.run(OfflinePlanner(plan))
    order = next(one for one in shop.orders().values() if one.work == admitted.work)
    assert shop.work(order)[0] == "BLOCKED"
    assert "was stopped while it worked" in shop.reports(order)[0]
    shop.approve(order)
    shop.run()
    assert shop.work(order)[0] == "DONE"


def test_the_demos_shop_and_the_sample_name_a_policy() -> None:
    for text in (sample(), (Path(__file__).parents[2] / "inventories/demo/shop.toml").read_text()):
        policy = config.parse(text).policy
        assert (policy.currency, policy.target, policy.ceiling_cents) == ("EUR", "supplier", 20_000)
        assert (policy.allowance_cents, policy.operators) == (0, ("lucy",))
    without = re.sub(r"(?s)\[spending\].*", "", sample())
    assert config.parse(without).policy == orders.Policy()


Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(layout: Layout, *arguments: str, check: bool = False) -> tuple[int, dict[str, Any]]:
        options = ["--check"] if check else []
        code = cli.main(["--json", *options, "--state", str(layout.state), *arguments])
        return code, json.loads(capsys.readouterr().out)

    return call


def test_the_whole_story_through_the_real_service_and_a_real_supplier(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = Instance.make(tmp_path, low=True)
    layout = instance.layout
    (tmp_path / "supplier").mkdir()
    with supplier(tmp_path / "supplier") as made:
        with instance.store() as connection:
            epoch = authority.operations(connection).epoch
        with made.client() as client:
            body = {"epoch": epoch, "replaces": client.get("/account").json()["epoch"]}
            assert client.post("/account/epoch", json=body).status_code == 200
        access = {"STANDFAST_SUPPLIER_URL": made.url, "STANDFAST_SUPPLIER_TOKEN": TOKEN}
        with Process(instance, pausing=None, **access) as process:
            process.ready()
            eventually(lambda: len(run(layout, "order", "list", "--status", "DRAFT")[1]["orders"]) == 2)
            drafts = {one["sku"]: one for one in run(layout, "order", "list")[1]["orders"]}
            vanilla = drafts["vanilla"]
            assert cli.main(["--state", str(layout.state), "order", "show", vanilla["id"]]) == 0
            page = capsys.readouterr().out
            for said in ("6 of vanilla", "18.00 EUR", "supplier", "not approved", vanilla["digest"]):
                assert said in page
            approve = ("order", "approve", vanilla["digest"])
            code, told = run(layout, *approve, "--operator", "mallory")
            assert (code, told["refused"]["code"]) == (3, "operator_unknown")
            code, told = run(layout, *approve, "--operator", "lucy", check=True)
            assert (code, told["changed"], told["order"]["status"]) == (0, True, "DRAFT")
            assert run(layout, *approve, "--operator", "lucy")[0] == 0
            show = ("order", "show", vanilla["id"])
            eventually(lambda: run(layout, *show)[1]["order"]["status"] == "CONFIRMED")
            code, told = run(layout, *approve, "--operator", "lucy")
            assert (code, told["refused"]["code"]) == (3, "not_a_draft")
            code, health = run(layout, "health")
            assert health["spending"]["spent_cents"] == 1800
            assert (health["pending_approvals"], health["uncertain_orders"]) == (1, 0)
            process.terminate()
            assert TOKEN not in process.log
            assert "cents=1800" in process.log
        deliver = ("order", "deliver", vanilla["id"], "--operator", "lucy")
        assert run(layout, *deliver, check=True)[1]["changed"]
        assert run(layout, *deliver)[1]["changed"]
        assert not run(layout, *deliver)[1]["changed"]
        stock = {one["sku"]: one for one in run(layout, "stock", "list")[1]["products"]}
        assert (stock["vanilla"]["on_hand"], stock["vanilla"]["on_order"]) == (8, 0)

        # By hand: the supplier accepts, then the line drops; asked again, it shows its receipt.
        strawberry = drafts["strawberry"]["id"]
        code, told = run(layout, "order", "send", strawberry)
        assert (code, told["refused"]["code"]) == (3, "no_supplier")
        layout.environment.write_text("".join(f'{name}="{value}"\n' for name, value in access.items()))
        code, told = run(layout, "order", "send", strawberry)
        assert (code, told["refused"]["code"]) == (3, "not_approved")
        run(layout, "order", "approve", drafts["strawberry"]["digest"], "--operator", "lucy", "--hours", "1")
        assert run(layout, "order", "send", strawberry, check=True)[1]["order"]["status"] == "APPROVED"
        made.fault("drop_after_accept")
        code, told = run(layout, "order", "send", strawberry)
        assert (code, told["order"]["status"]) == (4, "UNKNOWN")
        assert run(layout, "health")[1]["uncertain_orders"] == 1
        canceled = run(layout, "work", "cancel", drafts["strawberry"]["work"])[1]
        assert (canceled["orders_revoked"], canceled["orders_sent"]) == ([], [strawberry])
        code, told = run(layout, "order", "resolve", strawberry, "--operator", "lucy")
        assert (code, told["order"]["status"]) == (0, "CONFIRMED")
        assert len(made.receipts()) == 2


def test_evidence_from_a_file_and_revocation_by_hand(shop: Shop, run: Run, tmp_path: Path) -> None:
    shop.run()
    order = shop.orders()["vanilla"]
    shop.approve(order)
    shop.account.fault = "drop_after_accept"
    shop.run()
    layout = shop.instance.layout
    resolve = (
        "order",
        "resolve",
        order.id,
        "--operator",
        "lucy",
        "--receipt",
        str(tmp_path / "receipt.json"),
    )
    assert run(layout, *resolve)[0] == 2
    (tmp_path / "receipt.json").write_text("{}")
    assert run(layout, *resolve)[0] == 2
    [receipt] = list(shop.account.receipts())
    (tmp_path / "receipt.json").write_text(receipt.model_copy(update={"quantity": 7}).model_dump_json())
    code, told = run(layout, *resolve)
    assert (code, told["refused"]["code"]) == (3, "receipt_differs")
    (tmp_path / "receipt.json").write_text(receipt.model_dump_json())
    assert run(layout, *resolve, check=True)[1]["order"]["status"] == "UNKNOWN"
    assert run(layout, *resolve)[1]["order"]["status"] == "CONFIRMED"
    revoke = ("order", "revoke", shop.orders()["strawberry"].id, "--operator", "lucy")
    assert run(layout, *revoke, check=True)[1]["order"]["status"] == "DRAFT"
    assert run(layout, *revoke)[1]["order"]["status"] == "REVOKED"
    code, told = run(layout, "order", "show", "0" * 24)
    assert (code, told["refused"]["code"]) == (3, "order_unknown")


def test_the_dispatcher_refuses_a_purchase_outside_its_subset(shop: Shop) -> None:
    shop.instance.add("buy")
    claim = shop.instance.claim()
    with shop.instance.store() as connection:
        tools = ShopTools(
            connection, claim, parse(sample()), shop.instance.clock, shop.instance.layout.marker
        )
        dispatcher: Dispatcher = tools.dispatcher()
        told = dispatcher.dispatch(ToolCall("c", "propose_order", '{"sku": "vanilla", "quantity": 1}'))
    assert told.result == "not_allowed"


def test_the_store_of_before_orders_is_brought_forward(tmp_path: Path) -> None:
    older = tuple(one for one in COMPONENTS if one.name != "orders")
    path = tmp_path / "agent.sqlite"
    open_store(path, older, create=True).close()
    connection = open_store(path, COMPONENTS)
    assert orders.list_orders(connection) == []
    connection.close()
