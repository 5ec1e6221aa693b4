"""The service and orders: low stock is proposed, approved by a person, sent once, followed to its end."""

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
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
from standfast.clock import rfc3339
from standfast.layout import Layout
from standfast.notify import Notifier
from standfast.operations import health
from standfast.orders import Order, SupplierAccess
from standfast.serve.service import Service
from standfast.shop import config, prompts
from standfast.shop.config import parse, sample
from standfast.shop.plan import plan
from standfast.shop.stock import positions
from standfast.shop.tools import ShopTools
from standfast.store import open_store, triggers
from standfast.supplier.ledger import Ledger
from standfast.supplier.wire import SupplierReceipt

ACCESS = SupplierAccess("http://supplier.invalid", TOKEN)


@dataclass
class Shop:
    """An instance with low stock, and a service whose supplier is a real ledger."""

    instance: Instance
    account: LedgerAccount

    @contextmanager
    def serving(self, model: Any = None) -> Iterator[Service]:
        with self.instance.service(model) as bare:
            worker = replace(bare._worker, settings=replace(bare._worker.settings, supplier=ACCESS))
            yield Service(worker, bare._notifier, bare._stop, self.account)

    def run(self, model: Any = None) -> int:
        with self.serving(model) as service:
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
    [failing] = supplier_failing(shop)
    assert failing.endswith(": down")
    del shop.account.__dict__["account"]
    shop.instance.clock.pass_time(1800)
    shop.run()
    assert shop.orders()["vanilla"].status == "CONFIRMED"
    assert supplier_failing(shop) == []


def test_a_supplier_that_is_silent_is_told_after_five_minutes_and_until_it_answers(shop: Shop) -> None:
    """Although there is nothing to send."""
    shop.account.receipts = _down  # type: ignore[method-assign]
    with shop.serving() as service:
        until_idle(service)
        shop.instance.clock.pass_time(300)
        until_idle(service)
        assert supplier_failing(shop) == []
        shop.instance.clock.pass_time(1)
        assert len(supplier_failing(shop)) == 1
        del shop.account.__dict__["receipts"]
        shop.instance.clock.pass_time(600)
        until_idle(service)
        assert supplier_failing(shop) == []
    assert shop.account.account().epoch is None, "looking is no registration"


def _down(after: int = 0) -> Any:
    raise orders.SupplierUnavailable("down")


def supplier_failing(shop: Shop) -> list[str]:
    found = health.look(shop.instance.layout, shop.instance.clock.now())
    return [told.observed for told in found.attention if told.rule == "supplier_failing"]


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
    told = shop.reports(order)[-1]
    assert "An approval ended before its order was sent" in told
    assert "6 of vanilla for 18.00 EUR from supplier: it was not sent (the approval of lucy ended" in told
    assert order.digest in told
    [wanted] = [one for one in look(shop).attention if one.rule == "approvals_wanted"]
    assert wanted.observed == "1 orders were approved, but the approval ended before they were sent"
    shop.instance.clock.pass_time(1800)
    assert shop.run() == 0, "told once; work that waits does not spin"
    assert shop.reports(order)[-1] == told
    shop.approve(order)
    shop.run()
    assert shop.orders()["vanilla"].status == "CONFIRMED"
    assert shop.work(order)[0] == "DONE"
    assert "approvals_wanted" not in {one.rule for one in look(shop).attention}


def test_an_approval_that_ended_is_told_although_the_process_died_before_it_could(shop: Shop) -> None:
    shop.run()
    order = shop.orders()["vanilla"]
    shop.approve(order)
    shop.instance.clock.pass_time(3600)

    def die(reached: str) -> None:
        if reached == "claim.committed":
            triggers.disarm()
            raise KeyboardInterrupt

    triggers.arm(die)
    with pytest.raises(KeyboardInterrupt):
        shop.run()
    shop.run()
    assert [report.startswith("An approval ended") for report in shop.reports(order)] == [False, True]


def test_a_draft_that_nobody_approves_ends_with_its_work(shop: Shop) -> None:
    shop.run()
    order = shop.orders()["vanilla"]
    shop.instance.clock.pass_time(86_400)
    assert "approvals_wanted" not in {one.rule for one in look(shop).attention}
    shop.instance.clock.pass_time(orders.LONGEST_DRAFT - 86_400 - 1)
    [wanted] = [one for one in look(shop).attention if one.rule == "approvals_wanted"]
    assert wanted.observed == "2 drafts have waited for an operator for longer than 86400 s"
    shop.run()
    assert (shop.orders()["vanilla"].status, shop.work(order)[0]) == ("DRAFT", "BLOCKED")
    shop.instance.clock.pass_time(1)
    shop.run()
    ended = shop.orders()["vanilla"]
    assert (ended.status, ended.note) == ("REVOKED", "nobody approved it within 7 days")
    assert shop.work(order)[0] == "DONE"
    assert "nobody approved it within 7 days" in shop.reports(order)[-1]
    assert shop.account.sent == []


def look(shop: Shop) -> health.Health:
    return health.look(shop.instance.layout, shop.instance.clock.now())


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
        hour = ("order", "approve", drafts["strawberry"]["digest"], "--operator", "lucy", "--hours", "1")
        until = run(layout, *hour)[1]["until"]
        capsys.readouterr()
        assert cli.main(["--state", str(layout.state), "order", "show", strawberry]) == 0
        assert f"{until} (lucy)" in capsys.readouterr().out
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


def test_check_neither_waits_for_the_service_nor_holds_it_up(shop: Shop, run: Run, tmp_path: Path) -> None:
    """With the write lock held by another process: every look answers at once, and a real act says busy."""
    shop.run()
    layout, found = shop.instance.layout, shop.orders()
    confirmed = found["vanilla"]
    shop.approve(confirmed)
    shop.run()
    draft = found["strawberry"]
    (tmp_path / "receipt.json").write_text(next(shop.account.receipts()).model_dump_json())
    acts = [
        ("approve", draft.digest, "--operator", "lucy"),
        ("revoke", draft.id, "--operator", "lucy"),
        ("resolve", confirmed.id, "--operator", "lucy", "--receipt", str(tmp_path / "receipt.json")),
        ("deliver", confirmed.id, "--operator", "lucy"),
    ]
    changes = [True, True, False, True]
    with holding_the_lock(layout):
        told = [run(layout, "order", *act, check=True) for act in acts]
        assert [(code, one["changed"]) for code, one in told] == [(0, changed) for changed in changes]
        code, busy = run(layout, "order", *acts[0])
        assert (code, busy["refused"]["code"]) == (1, "store_busy")
    assert shop.orders()["strawberry"] == draft
    assert shop.orders()["vanilla"].status == "CONFIRMED"
    assert [run(layout, "order", *act)[1]["changed"] for act in acts] == changes


def test_a_cancellation_says_what_it_cannot_recall(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.run()
    order = shop.orders()["vanilla"]
    shop.approve(order)
    shop.account.fault = "drop_after_accept"
    shop.run()
    cancel = ["--state", str(shop.instance.layout.state), "work", "cancel", str(order.work)]
    assert cli.main(cancel) == 0
    said = capsys.readouterr().out
    sent = shop.orders()["vanilla"]
    assert sent.next_look is not None
    told = f"it is UNKNOWN until the supplier answers, and is asked about at {rfc3339(sent.next_look)}"
    assert f"order {order.id}: was sent before and cannot be recalled; {told}" in said
    assert cli.main(["--state", str(shop.instance.layout.state), "order", "show", order.id]) == 0
    assert f"the service asks the supplier at {rfc3339(sent.next_look)}" in capsys.readouterr().out
    assert (sent.status, sent.reserved_cents) == ("UNKNOWN", 1800)


@contextmanager
def holding_the_lock(layout: Layout) -> Iterator[None]:
    """Another process holds the store's write lock."""
    program = (
        "import sqlite3, sys; store = sqlite3.connect(sys.argv[1], autocommit=True);"
        " store.execute('BEGIN IMMEDIATE'); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(layout.database)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.communicate("")


def test_steps_that_only_ask_keep_no_service_alive_beside_a_store_that_stays_locked(shop: Shop) -> None:
    """The supplier answers every time, and nothing can be written: no ping, until something is."""
    shop.run()
    order = shop.orders()["vanilla"]
    shop.approve(order)
    pings: list[int] = []
    asked: list[int] = []

    with (
        shop.instance.service() as bare,
        closing(sqlite3.connect(shop.instance.layout.database, autocommit=True)) as other,
    ):
        worker = replace(bare._worker, settings=replace(bare._worker.settings, supplier=ACCESS))
        service = Service(worker, Watched(pings), bare._stop, shop.account)
        service._connection.execute("PRAGMA busy_timeout = 20")
        receipts = shop.account.receipts

        def answering(after: int = 0) -> Iterator[SupplierReceipt]:
            asked.append(len(pings))
            if len(asked) == 2:  # the work is claimed and about to be sent
                other.execute("BEGIN IMMEDIATE")
            return receipts(after)

        shop.account.receipts = answering  # type: ignore[method-assign]

        def wait(_seconds: float) -> None:
            if len(asked) > 5 and other.in_transaction:
                other.execute("ROLLBACK")
            bare._stop.requested = shop.orders()["vanilla"].status == "CONFIRMED"

        bare._stop.wait = wait  # type: ignore[method-assign, assignment]
        service.run()
    assert len(asked) > 5, "the retried turn went on asking"
    assert len(set(asked[3:6])) == 1, "a step that only asked was told as progress"
    assert len(pings) > asked[-1], "and once something was written, it is told again"


class Watched(Notifier):
    """Counts what the watchdog would hear."""

    def __init__(self, pings: list[int]) -> None:
        super().__init__({})
        self._pings = pings

    def watchdog(self) -> None:
        self._pings.append(len(self._pings))


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
