"""Every named commit boundary of claims, work and orders is one at which some test lets a process die.

Those of a day, a purchase, a channel and a model's call die in tests of their own; the others die here.
"""

import ast
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import test_channel_crash
import test_crash
import test_orders_crash
from buying import COMPONENTS as BUYING
from buying import Buying

import standfast
from standfast import authority, orders, work
from standfast.agent import usage
from standfast.agent.model import Usage
from standfast.errors import Refused
from standfast.store import open_store, triggers
from standfast.supplier.wire import SupplierReceipt
from standfast.work import channels

COMPONENTS = (*BUYING, usage.COMPONENT)
PACKAGES = ("authority", "orders", "work", "agent", "operations/commands.py", "serve")

type Action = Callable[[], object]


def renewing(shop: Buying) -> Action:
    claim = shop.claimed()
    shop.time.passes(60)
    return lambda: authority.renew(shop.connection, claim, clock=shop.clock, marker=shop.marker)


def pausing(shop: Buying) -> Action:
    return lambda: authority.pause(shop.connection, "test", shop.now())


def reporting(shop: Buying) -> Action:
    claim = shop.claimed()
    return lambda: work.create_report(shop.connection, claim, "text", clock=shop.clock, marker=shop.marker)


def admitting(shop: Buying) -> Action:
    return lambda: work.admit(shop.connection, origin="o", session="s", prompt="look", now=shop.now())


def keeping_its_run(shop: Buying) -> Action:
    run = work.start_run(shop.connection, release="source", pid=1, invocation="", now=shop.now())
    kept = work.show_run(shop.connection, run)
    shop.connection.execute("DELETE FROM runs")  # as in a store that was restored beside the service
    return lambda: work.keep_run(shop.connection, kept)


def canceling(shop: Buying) -> Action:
    claim, _ = shop.approved()
    return lambda: work.cancel(shop.connection, claim.work, reason="test", now=shop.now())


def scheduling(shop: Buying) -> Action:
    return lambda: work.add_schedule(
        shop.connection, name="brief", prompt="brief", every=3600, now=shop.now()
    )


def unscheduling(shop: Buying) -> Action:
    scheduling(shop)()
    return lambda: work.remove_schedule(shop.connection, "brief")


def revoking(shop: Buying) -> Action:
    _, order = shop.approved()
    return lambda: shop.revoke(order)


def expiring(shop: Buying) -> Action:
    shop.approved()
    shop.time.passes(3601)
    return lambda: orders.expire(shop.connection, now=shop.now())


def resolving(shop: Buying) -> Action:
    order = shop.unknown()
    [receipt] = shop.receipts()
    return lambda: resolve(shop, order.id, receipt)


def resolve(shop: Buying, order: str, receipt: SupplierReceipt) -> orders.Recorded:
    return orders.resolve(
        shop.connection,
        order,
        receipt,
        operator="lucy",
        policy=shop.policy,
        now=shop.now(),
        marker=shop.marker,
    )


def waiting(shop: Buying) -> Action:
    claim, _ = shop.approved()
    return lambda: orders.wait(
        shop.connection, claim, clock=shop.clock, marker=shop.marker, report="text", reason="approval"
    )


def waking(shop: Buying) -> Action:
    waiting(shop)()
    return lambda: orders.wake(shop.connection, now=shop.now(), marker=shop.marker)


def settling(shop: Buying) -> Action:
    reporting(shop)()
    shop.connection.execute("UPDATE reports SET delivery = 'sending'")
    shop.connection.execute("UPDATE reports SET delivery = 'unknown'")
    [report] = work.list_reports(shop.connection)
    return lambda: work.resolve_delivery(shop.connection, report.id, arrived=True, twice=False)


def resuming(shop: Buying) -> Action:
    reporting(shop)()
    shop.connection.execute("UPDATE reports SET delivery = 'sending'")
    outbox = work.Outbox(shop.root / "outbox")
    return lambda: work.resume_deliveries(shop.connection, outbox)


def standing(shop: Buying) -> Action:
    return lambda: channels.say(shop.connection, "telegram", "no answer", shop.now())


def clearing(shop: Buying) -> Action:
    reporting(shop)()
    shop.connection.execute("INSERT INTO channel_refusals SELECT id, 5, NULL FROM reports")
    return lambda: channels.clear(shop.connection)


def stranding(shop: Buying) -> Action:
    shop.connection.execute(
        "INSERT INTO channel_updates"
        " (source, update_id, sender, operator, chat, kind, command, outcome, reply, delivery, received_at)"
        " VALUES ('bot', 1, 1, 'lucy', 1, 'look', '/status', 'done', 'Working.', 'sending', 0)"
    )
    return lambda: channels.settle_stranded(shop.connection)


def missing_the_supplier(shop: Buying) -> Action:
    silent = orders.SupplierUnavailable("down")
    return lambda: orders.say_account(shop.connection, silent, shop.now())


def metering(shop: Buying) -> Action:
    return lambda: usage.set_up(
        shop.connection, source="live:m", prices=None, ceilings=usage.Ceilings(), now=shop.now()
    )


def failing(shop: Buying) -> Action:
    call = usage.book(
        shop.connection,
        shop.claimed(),
        source="live:m",
        most=Usage(),
        ceilings=usage.Ceilings(),
        clock=shop.clock,
        marker=shop.marker,
    )
    return lambda: usage.failed(shop.connection, call, "unknown", now=shop.now())


HERE: dict[str, Callable[[Buying], Action]] = {
    "renew": renewing,
    "pause": pausing,
    "report": reporting,
    "admit": admitting,
    "keep_run": keeping_its_run,
    "cancel": canceling,
    "add_schedule": scheduling,
    "remove_schedule": unscheduling,
    "revoke": revoking,
    "expire": expiring,
    "resolve": resolving,
    "wait": waiting,
    "wake": waking,
    "resolve_delivery": settling,
    "resume_deliveries": resuming,
    "channel_standing": standing,
    "supplier_standing": missing_the_supplier,
    "channel_clear": clearing,
    "channel_stranded": stranding,
    "usage.set_up": metering,
    "usage.failed": failing,
}
TWICE = {"report"}
"""Without an identity of its own: whoever does it again has done it twice."""


IN_OTHER_TESTS = (
    "delegate.committed",
    "close_children.committed",
    "usage.book.committed",
    "usage.settle.before_commit",
    "initialise.before_commit",
    "initialise.marker_written",
    "replace.committed",
    "replace.marker_written",
)
"""test_delegation, test_usage and test_authority."""


def boundaries() -> Iterator[str]:
    """What the code calls its transactions, and the points between them."""
    root = Path(standfast.__file__).parent
    for package in PACKAGES:
        for path in [root / package] if package.endswith(".py") else (root / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    yield from named(node)


def named(call: ast.Call) -> Iterator[str]:
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if function in {"immediate", "fenced", "acting", "reach"}:
        for given in (*call.args, *(keyword.value for keyword in call.keywords)):
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                yield given.value


def points() -> Iterator[str]:
    """Every point at which a process dies in a test of its own."""
    yield from test_crash.POINTS
    yield from test_orders_crash.COMMITS
    yield from (point for _, point in test_orders_crash.FINDING_OUT)
    yield from (*test_channel_crash.HEARING, *test_channel_crash.REPLYING, *test_channel_crash.DELIVERING)
    yield from IN_OTHER_TESTS


def test_each_is_one_at_which_a_process_dies() -> None:
    killed = {point.removesuffix(".before_commit").removesuffix(".committed") for point in points()}
    assert not killed & set(HERE)
    assert set(boundaries()) == killed | set(HERE)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Buying]:
    made = Buying(tmp_path)
    made.connection.close()
    made.connection = open_store(made.layout.database, COMPONENTS)
    yield made
    made.close()


def die(shop: Buying, action: Action, point: str) -> None:
    """A fork of this process does it and is killed at ``point``."""
    shop.connection.close()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            triggers.arm(lambda reached: os.kill(os.getpid(), signal.SIGKILL) if reached == point else None)
            shop.connection = open_store(shop.layout.database, COMPONENTS)
            action()
        except BaseException:  # noqa: BLE001 - a fork must not go on with the tests
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    shop.connection = open_store(shop.layout.database, COMPONENTS)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "see the traceback above"


def everything(shop: Buying) -> list[str]:
    return list(shop.connection.iterdump())


@pytest.mark.parametrize("name", HERE)
def test_killed_there_it_is_all_done_or_not_at_all_and_can_be_done_again(shop: Buying, name: str) -> None:
    action = HERE[name](shop)
    before = everything(shop)
    die(shop, action, f"{name}.before_commit")
    assert everything(shop) == before
    die(shop, action, f"{name}.committed")
    after = everything(shop)
    assert after != before
    assert shop.connection.execute("PRAGMA foreign_key_check").fetchone() is None
    held = [one for one in orders.list_orders(shop.connection) if one.status in {"APPROVED", "UNKNOWN"}]
    assert shop.money()[0] == sum(one.total_cents for one in held)
    if name in TWICE:
        return
    with suppress(Refused, authority.StaleClaim):
        action()
    assert everything(shop) == after
