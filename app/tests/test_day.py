"""The day through real processes: the state is lost at noon, and nothing is paid or done twice."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daily import COUNTS, Day, day, sha256
from support import eventually

from standfast import orders
from standfast.authority import Claim, StaleClaim, operations
from standfast.clock import Clock
from standfast.layout import Layout
from standfast.operations.schema import COMPONENTS
from standfast.orders import Declined, SupplierAccess
from standfast.orders.http import HttpSupplier
from standfast.store import open_store
from standfast.supplier.wire import OrderRequest
from standfast.work import observe

SENTENCE = "runtime paused or replaced by restore"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Day]:
    with day(tmp_path) as made:
        yield made.begin().go_on()


def worker(shop: Day) -> subprocess.Popen[str]:
    """A process of the old era: an open connection, a claim and a client; it tries what it is told to."""
    claim = shop.running
    assert claim is not None
    return subprocess.Popen(
        [sys.executable, __file__, str(shop.layout.state), json.dumps(claim._asdict())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(shop.process_environment()),
    )


def ask(process: subprocess.Popen[str], what: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(what + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_the_day(shop: Day) -> None:
    assert shop.on_hand() == {"vanilla": 8, "strawberry": 1, "chocolate": 9}
    inode, before = shop.layout.database.stat().st_ino, shop.control()
    old = worker(shop)
    try:
        assert ask(old, "write") == "written"
        code, restored = shop.cli("restore", shop.morning)
        assert (code, restored["changed"]) == (0, True)
        assert restored["interrupted"] == [shop.running.work if shop.running else None]
        assert restored["revoked_orders"] == [shop.vanilla]
        assert restored["epoch_before"] == before.epoch != restored["epoch"]
        assert shop.layout.database.stat().st_ino == inode

        # The old connection sees the new era; its writes and its supplier's client are refused.
        assert ask(old, "see") == f"{restored['epoch']} 1"
        assert ask(old, "write") == SENTENCE

        # A request made while paused waits.
        code, asked = shop.cli("work", "add", "How is the stock?", "--session", "counter")
        assert code == 0
        plan = shop.inspect()
        assert ask(old, "order").startswith("stale_epoch")
        content = json.loads(plan.read_bytes())
        assert content["receipts"] == sorted([shop.vanilla, shop.strawberry])
        assert {one["on_hand"] for one in content["inventory"].values()} == {None}
        assert {one["received"] for one in content["deliveries"].values()} == {None}

        paused = shop.fingerprint()
        code, told = shop.recover(plan)
        assert code == 2, "counts and deliveries are not stated yet"
        digest = sha256(shop.answer(plan).read_bytes())
        code, told = shop.recover(plan, digest[:-1] + ("0" if digest[-1] != "0" else "1"))
        assert (code, told["refused"]["code"]) == (3, "digest_differs")
        code, told = shop.recover(plan, operator="mallory")
        assert (code, told["refused"]["code"]) == (3, "operator_unknown")
        assert shop.fingerprint() == paused

        code, told = shop.recover(plan)
        assert code == 0, told
        assert (told["status"], told["duplicate"], told["changed"]) == ("ACTIVE", False, True)
        assert (told["orders"], told["spent_cents"]) == (2, 2600)
        assert ask(old, "write") == SENTENCE, "also after the resume"
    finally:
        old.kill()
        old.communicate()
    assert shop.on_hand() == COUNTS
    with shop.instance.store() as connection:
        assert orders.on_order(connection) == {"strawberry": 4}
        assert orders.spending(connection, shop.now()).spent_cents == 2600
    assert [shop.order(one).status for one in (shop.vanilla, shop.strawberry)] == ["DELIVERED", "CONFIRMED"]
    assert shop.running is not None
    assert shop.instance.status(shop.running.work) == ("CANCELED", 3)
    [report] = shop.instance.reports(shop.running.work)
    assert "restored from a backup" in report
    assert "send it again" in report

    # The service takes up the request that waited, and finds nothing that it never knew.
    service = subprocess.Popen(
        shop.command("serve"), env=dict(shop.process_environment()), stdout=-3, stderr=-3
    )
    try:
        eventually(lambda: shop.instance.status(asked["work"])[0] == "DONE")
    finally:
        service.terminate()
        service.wait()
    assert not shop.control().paused
    assert len(shop.supplier.receipts()) == 2

    told_again = shop.recover(plan)
    assert told_again[0] == 0
    assert (told_again[1]["status"], told_again[1]["duplicate"]) == ("ACTIVE", True)


def test_requeued_work_is_claimed_afresh_and_its_transcript_keeps_its_generations(shop: Day) -> None:
    shop.cli("restore", shop.morning)
    plan = shop.answer(shop.inspect())
    content = json.loads(plan.read_bytes())
    assert shop.running is not None
    content["interrupted"] = {shop.running.work: "requeue"}
    plan.write_text(json.dumps(content))
    assert shop.recover(plan)[0] == 0
    assert shop.instance.status(shop.running.work) == ("READY", 2)
    fresh = shop.instance.claim("lucy-agent")
    assert (fresh.work, fresh.generation) == (shop.running.work, 3)
    shop.observe(fresh)
    shop.observe(fresh)
    assert [generation for generation, _ in shop.instance.transcript(fresh.work)] == [1, 1, 3, 3]


def test_work_that_waited_for_its_order_ends_with_what_became_of_it(shop: Day) -> None:
    [(waiting,)] = shop.instance.rows("SELECT work FROM orders WHERE id = ?", shop.vanilla)
    shop.cli("restore", shop.morning)
    assert shop.recover(shop.answer(shop.inspect()))[0] == 0
    shop.instance.settle()
    assert shop.instance.status(waiting)[0] == "DONE"
    assert "it was delivered" in shop.instance.reports(waiting)[-1]


def old_process(state: str, fields: str) -> None:
    """Live through a restore: see, write and order when asked to, and say what came of it."""
    layout, claim, clock = Layout(Path(state)), Claim(**json.loads(fields)), Clock()
    connection = open_store(layout.database, COMPONENTS)
    access = SupplierAccess.from_environment(os.environ)
    assert access is not None
    account = HttpSupplier(access)
    for line in sys.stdin:
        told = "?"
        if line == "see\n":
            control = operations(connection)
            told = f"{control.epoch} {int(control.paused)}"
        elif line == "write\n":
            try:
                observe(connection, claim, "from the old era", clock=clock, marker=layout.marker)
                told = "written"
            except StaleClaim as stale:
                told = str(stale)
        elif line == "order\n":
            request = OrderRequest(
                operation_id="f" * 24,
                epoch=claim.epoch,
                target="supplier",
                sku="vanilla",
                quantity=1,
                unit_cost_cents=300,
                currency="EUR",
                digest="d" * 64,
            )
            outcome = account.submit(request)
            told = outcome.reason if isinstance(outcome, Declined) else type(outcome).__name__
        print(told, flush=True)


if __name__ == "__main__":
    old_process(*sys.argv[1:])
