"""SIGKILL at every commit boundary of a purchase, with a real supplier process: bought once, paid once."""

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import buying_child
import pytest
from buying import COMPONENTS, POLICY, Buying
from supplying import Supplier, supplier

from standfast import authority, orders
from standfast.store import open_store

COMMITS = [
    f"{boundary}.{when}"
    for boundary in ("propose", "approve", "send", "settle", "deliver_order")
    for when in ("before_commit", "committed")
]
FINDING_OUT = [
    ("drop_after_accept", "give_up.before_commit"),
    ("drop_after_accept", "give_up.committed"),
    ("drop_after_accept", "reconcile.answered"),
    ("drop_after_accept", "reconcile.before_commit"),
    ("drop_after_accept", "reconcile.committed"),
    ("drop_before_accept", "reconcile.committed"),
    ("drop_before_accept", "send.leaves"),
    ("drop_before_accept", "send.answered"),
]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supplier]:
    with supplier(tmp_path_factory.mktemp("supplier")) as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path, running: Supplier) -> Iterator[Buying]:
    """A new instance whose epoch takes over the one account of this module."""
    made = Buying(tmp_path)
    with running.client() as client:
        current = client.get("/account").json()["epoch"]
        body = {"epoch": authority.operations(made.connection).epoch, "replaces": current}
        assert client.post("/account/epoch", json=body).status_code == 200
        client.post("/faults", json={"kind": "error", "times": 0})
    yield made
    made.close()


def buy(shop: Buying, running: Supplier, point: str = "") -> int:
    """A process that buys; a fork of this one, which is much faster than another interpreter.

    The store is closed meanwhile: SQLite's locks do not survive a fork.
    """
    shop.connection.close()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            buying_child.buy(shop.layout, running.url, point)
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    shop.connection = open_store(shop.layout.database, COMPONENTS)
    code = os.waitstatus_to_exitcode(status)
    assert code in {0, -signal.SIGKILL}, "see the traceback above"
    return code


def accepted(running: Supplier) -> int:
    with running.client() as client:
        return int(client.get("/account").json()["accepted"])


def adds_up(shop: Buying, running: Supplier, before: int) -> None:
    """What must hold at every moment, also right after a kill."""
    listed = orders.list_orders(shop.connection)
    money = orders.spending(shop.connection, listed[0].changed_at if listed else shop.now())
    held = sum(one.total_cents for one in listed if one.status in {"APPROVED", "SENDING", "UNKNOWN"})
    assert money.reserved_cents == held
    assert money.reserved_cents + money.spent_cents <= POLICY.ceiling_cents
    bought = accepted(running) - before
    assert bought <= 1
    confirmed = [one for one in listed if one.status in {"CONFIRMED", "DELIVERED"}]
    assert len(confirmed) <= bought
    if bought:
        assert listed[0].status in {"SENDING", "UNKNOWN", "CONFIRMED", "DELIVERED"}
    assert shop.connection.execute("PRAGMA foreign_key_check").fetchone() is None


@pytest.mark.parametrize("point", [*COMMITS, "send.leaves", "send.answered"])
def test_a_purchase_survives_sigkill(shop: Buying, running: Supplier, point: str) -> None:
    before = accepted(running)
    assert buy(shop, running, point) == -signal.SIGKILL
    adds_up(shop, running, before)
    assert buy(shop, running) == 0
    settled(shop, running, before)


@pytest.mark.parametrize(("fault", "point"), FINDING_OUT)
def test_finding_out_survives_sigkill(shop: Buying, running: Supplier, fault: str, point: str) -> None:
    before = accepted(running)
    if point.startswith("give_up"):
        assert buy(shop, running, "send.leaves") == -signal.SIGKILL
    else:
        running.fault(fault)
        assert buy(shop, running, "settle.committed") == -signal.SIGKILL
        [order] = orders.list_orders(shop.connection)
        assert order.status == "UNKNOWN"
    assert buy(shop, running, point) == -signal.SIGKILL
    adds_up(shop, running, before)
    assert buy(shop, running) == 0
    settled(shop, running, before)


def settled(shop: Buying, running: Supplier, before: int) -> None:
    adds_up(shop, running, before)
    [order] = orders.list_orders(shop.connection)
    assert order.status == "DELIVERED"
    assert (order.reserved_cents, order.spent_cents) == (0, 1800)
    assert accepted(running) - before == 1
