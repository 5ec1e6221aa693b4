"""Orders through the installed service, with a supplier on a host of its own that can fail.

The tests go on from each other, in their order. While they do, the arguments of every process are sampled for
the account's token; the hosts' processes are among the machine's.
"""

from __future__ import annotations

import json
import secrets
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from account import Account, address_for, give, put_in_place
from evidence import canary, good, receipts, running
from target import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from runbook import Executor
    from target import Controller, Host

SKU = "chocolate"


class Watcher(threading.Thread):
    """Samples the arguments of all processes for a word."""

    def __init__(self, word: str) -> None:
        super().__init__(daemon=True)
        self.word = word.encode()
        self.seen: set[str] = set()
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.05):
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    self._look(entry)

    def _look(self, entry: Path) -> None:
        try:
            arguments = (entry / "cmdline").read_bytes()
        except OSError:
            return
        if self.word in arguments:
            self.seen.add(arguments.replace(b"\0", b" ").decode("utf-8", "replace"))


@pytest.fixture(scope="module")
def token() -> str:
    return f"CANARY{secrets.token_hex(20)}"


@pytest.fixture(scope="module", autouse=True)
def watcher(token: str) -> Generator[Watcher]:
    thread = Watcher(token)
    thread.start()
    yield thread
    thread.ended.set()
    thread.join()


@pytest.fixture(scope="module")
def supplier(hosts: dict[str, Host]) -> Host:
    return hosts["supplier"]


@pytest.fixture(scope="module")
def address(agent: Host) -> str:
    return address_for(agent)


@pytest.fixture(scope="module")
def ask(supplier: Host, address: str) -> Callable[..., dict[str, Any]]:
    return Account(supplier, address).ask


@pytest.fixture(scope="module")
def ledger(supplier: Host, address: str) -> Callable[[], list[dict[str, Any]]]:
    """Everything that the supplier accepted."""
    return Account(supplier, address).receipts


@pytest.fixture
def page(runbook: Callable[[str, Host], Executor], agent: Host) -> Executor:
    return runbook("approve-an-order", agent)


def orders(host: Host, status: str) -> list[dict[str, Any]]:
    return list(host.cli("order", "list", "--status", status)["orders"])


def shown(host: Host, order: str) -> dict[str, Any]:
    return host.cli("order", "show", order)


def stock(host: Host) -> dict[str, Any]:
    return next(one for one in host.cli("stock", "list")["products"] if one["sku"] == SKU)


def sell(host: Host, tubs: int, event: str) -> dict[str, Any]:
    """Sell until the stock is low; the draft that the service then proposes by itself."""
    canary(host, running(host).main_pid)  # a pass has seen the stock as it was before
    host.cli("stock", "adjust", "--reason", "sold", "--event-id", event, "--", SKU, str(-tubs))
    (draft,) = wait_until(lambda: orders(host, "DRAFT"), 60, "the service proposes an order")
    assert draft["sku"] == SKU
    assert draft["quantity"] == stock(host)["reorder_point"] - stock(host)["on_hand"]
    return draft


def becomes(host: Host, order: str, status: str, within: float = 60) -> dict[str, Any]:
    return wait_until(
        lambda: (seen := shown(host, order))["order"]["status"] == status and seen,
        within,
        f"order {order} is {status}",
    )


def proves(receipt: dict[str, Any], order: dict[str, Any]) -> None:
    """The supplier's own receipt says exactly what was approved."""
    same = ("target", "sku", "quantity", "unit_cost_cents", "total_cents", "currency", "digest")
    assert {name: receipt[name] for name in same} == {name: order[name] for name in same}
    assert (receipt["operation_id"], receipt["epoch"]) == (order["id"], order["epoch"])


def test_the_watcher_sees_arguments_on_the_hosts(supplier: Host) -> None:
    """Else its silence would mean nothing."""
    watcher = Watcher("SEEN" + secrets.token_hex(8))
    watcher.start()
    supplier.run(["sleep", "1", "--", "0"], env={"OTHER": "word"})
    assert not watcher.seen
    supplier.run(["bash", "-c", "sleep 1; :", watcher.word.decode()])
    watcher.ended.set()
    watcher.join()
    assert watcher.seen


def test_a_supplier_on_its_own_host(controller: Controller, supplier: Host, token: str, address: str) -> None:
    put_in_place(controller, address, token)
    active = supplier.run(["systemctl", "is-active", "supplier.service"]).stdout.strip()
    assert active == "active"


def test_the_agent_is_given_the_account(controller: Controller, agent: Host, token: str) -> None:
    before = running(agent)
    give(controller, token)
    assert running(agent).main_pid != before.main_pid
    assert orders(agent, "DRAFT") == []


def test_its_runs_leave_receipts(controller: Controller, supplier: Host) -> None:
    """One for what was done, none for nothing, one on the controller for what was refused."""
    (receipt,) = receipts(supplier, "/srv/supplier").values()
    assert (receipt["operation"], receipt["verdict"], receipt["instance"]) == ("install", "done", "supplier")
    assert receipt["unit"]["active_state"] == "active"
    account = [check["observed"] for check in receipt["checks"] if check["name"] == "account"]
    assert account == ["supplier.service answers 200 with the token, 401 without it"]
    good(controller.playbook("supplier", inventory="supplier"), changed=0)
    assert len(receipts(supplier, "/srv/supplier")) == 1
    wrong = {"release_archive": str(controller.archive)}
    play = controller.playbook("supplier", inventory="supplier", extra_vars=wrong)
    assert play.rc != 0
    assert "does not carry the extra supplier" in play.output
    copied = sorted(path.name for path in (controller.folder / "receipts/supplier").iterdir())
    assert [name.rpartition("-")[0] for name in copied] == [
        "supplier-000001-install",
        "supplier-refused-install",
    ]


@pytest.fixture(scope="module")
def first(agent: Host) -> dict[str, Any]:
    return sell(agent, 5, "sold-1")


def test_low_stock_becomes_a_draft_and_nothing_leaves(
    agent: Host, first: dict[str, Any], ledger: Callable[[], list[dict[str, Any]]]
) -> None:
    health = agent.cli("health")
    assert (health["pending_approvals"], health["uncertain_orders"]) == (1, 0)
    listed = agent.run(["lucy-agent", "order", "list"]).stdout
    assert first["id"] in listed
    assert "DRAFT" in listed
    assert (first["attempts"], first["reserved_cents"], first["spent_cents"]) == (0, 0, 0)
    assert ledger() == []


def test_who_is_not_on_the_list_and_what_is_not_the_digest_is_refused(
    agent: Host, first: dict[str, Any], ledger: Callable[[], list[dict[str, Any]]]
) -> None:
    before = shown(agent, first["id"])
    stranger = agent.cli("order", "approve", first["digest"], "--operator", "mallory", rc=3)
    assert (stranger["changed"], stranger["refused"]["code"]) == (False, "operator_unknown")
    other = "0" * 64
    assert agent.cli("order", "approve", other, "--operator", "lucy", rc=3)["changed"] is False
    canary(agent, running(agent).main_pid)
    assert shown(agent, first["id"]) == before
    assert ledger() == []


def test_an_operator_approves_the_exact_digest_by_the_page(
    agent: Host, page: Executor, first: dict[str, Any], ledger: Callable[[], list[dict[str, Any]]]
) -> None:
    page.run("Preconditions", "Diagnosis", "Act: keep", "Act: approve", "Verify")
    order = becomes(agent, first["id"], "CONFIRMED")
    assert [step["status"] for step in order["history"]] == ["DRAFT", "APPROVED", "SENDING", "CONFIRMED"]
    assert [one["operator"] for one in order["approvals"]] == ["lucy"]
    assert order["order"]["attempts"] == 1
    assert (order["order"]["reserved_cents"], order["order"]["spent_cents"]) == (0, first["total_cents"])
    (receipt,) = ledger()
    proves(receipt, order["order"])
    assert receipt["receipt_id"] == order["order"]["receipt_id"]
    assert agent.cli("health")["pending_approvals"] == 0
    work = wait_until(
        lambda: (w := agent.cli("work", "show", first["work"])["work"])["status"] == "DONE" and w,
        30,
        "its work is done",
    )
    assert work["id"] == first["work"]


def test_its_delivery_is_counted_once(agent: Host, page: Executor, first: dict[str, Any]) -> None:
    before = stock(agent)
    assert before["on_order"] == first["quantity"]
    page.run("Act: record")
    again = agent.cli("order", "deliver", first["id"], "--operator", "lucy")
    assert (again["changed"], again["order"]["status"]) == (False, "DELIVERED")
    after = stock(agent)
    assert (after["on_hand"], after["on_order"]) == (before["on_hand"] + first["quantity"], 0)


@pytest.fixture(scope="module")
def uncertain(agent: Host, supplier: Host, ask: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """An order that the supplier accepts without a word, and is then killed; it is not there for a while."""
    draft = sell(agent, 3, "sold-2")
    ask("POST", "/faults", json.dumps({"kind": "drop_after_accept", "times": 1}))
    agent.cli("order", "approve", draft["digest"], "--operator", "lucy")
    found = becomes(agent, draft["id"], "UNKNOWN")
    supplier.run(["systemctl", "kill", "--signal=KILL", "supplier.service"])
    return found


def test_nobody_knows_whether_it_was_accepted(agent: Host, uncertain: dict[str, Any]) -> None:
    health = agent.cli("health", rc=4 if agent.run(["lucy-agent", "health"], check=False).rc else 0)
    assert health["uncertain_orders"] == 1
    order = uncertain["order"]
    assert (order["attempts"], order["reserved_cents"]) == (1, order["total_cents"])
    assert order["receipt_id"] is None


def test_it_is_found_once_and_never_sent_again(
    agent: Host,
    supplier: Host,
    uncertain: dict[str, Any],
    first: dict[str, Any],
    ledger: Callable[[], list[dict[str, Any]]],
) -> None:
    """By a lookup of its operation id, after the supplier came back with its ledger."""
    order = becomes(agent, uncertain["order"]["id"], "CONFIRMED", within=120)
    assert order["order"]["attempts"] == 1
    steps = [step["status"] for step in order["history"]]
    assert steps == ["DRAFT", "APPROVED", "SENDING", "UNKNOWN", "CONFIRMED"]
    assert (order["order"]["reserved_cents"], order["order"]["spent_cents"]) == (
        0,
        order["order"]["total_cents"],
    )
    assert [receipt["operation_id"] for receipt in ledger()] == [first["id"], order["order"]["id"]]
    proves(ledger()[1], order["order"])
    restarts = supplier.run(["systemctl", "show", "supplier.service", "--property=NRestarts"]).stdout
    assert restarts.strip() == "NRestarts=1"
    health = agent.cli("health")
    assert (health["uncertain_orders"], health["attention"]) == (0, [])
    agent.cli("order", "deliver", order["order"]["id"], "--operator", "lucy")


def test_a_draft_is_taken_back_by_the_page(
    agent: Host, page: Executor, ledger: Callable[[], list[dict[str, Any]]]
) -> None:
    draft = sell(agent, 2, "sold-3")
    page.run("Act: keep")
    page.run("Rollback")
    assert shown(agent, draft["id"])["order"]["status"] == "REVOKED"
    refused = agent.cli("order", "approve", draft["digest"], "--operator", "lucy", rc=3)
    assert refused["changed"] is False
    canary(agent, running(agent).main_pid)
    assert len(ledger()) == 2


def test_the_service_never_fell(agent: Host) -> None:
    state = running(agent)
    assert state.restarts == 0
    canary(agent, state.main_pid)
    assert agent.cli("receipt", "verify")["verified"] is True


def test_the_token_is_where_it_must_be_and_nowhere_else(
    agent: Host, supplier: Host, controller: Controller, watcher: Watcher, token: str
) -> None:
    for host, kept in ((agent, "/srv/lucy/state/agent.env"), (supplier, "/srv/supplier/token")):
        sweep = "grep -rlaF -f - / --exclude-dir=proc --exclude-dir=sys --exclude-dir=dev 2>/dev/null"
        assert host.run(sweep, stdin=token + "\n", check=False, timeout=120).stdout.split() == [kept]
        journal = host.run(["journalctl", "--all", "--output=export", "--no-pager"], timeout=120).stdout
        assert "standfast" in journal
        assert token not in journal
    assert token not in json.dumps(receipts(agent))
    copies = list((controller.folder / "receipts").rglob("*.json"))
    assert copies
    assert [path for path in copies if token in path.read_text()] == []
    assert watcher.seen == set()
