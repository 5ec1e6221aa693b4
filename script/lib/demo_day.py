"""A day in the shop, told for people: a backup, a lost state, a paused restore, a recovery by an exact plan.

Two hosts, the agent's and its supplier's. Everything happens through the playbooks and the installed service.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from typing import TYPE_CHECKING, Any

import bundle
from hosts import Group, HostSpec
from old_worker import OldWorker
from sandbox import CHECKOUT, enter
from telling import DemoError, Progress, Shop, play, wait_for

if TYPE_CHECKING:
    from pathlib import Path

GROUP = Group("demo-day")
FOLDER = CHECKOUT / "build/demo-day"
NETWORK = "shop"
ADDRESSES = {"shop": 10, "supplier": 11}
URL = "http://supplier.test:8440"
SHOP = Shop(GROUP, "shop")
STEPS = 10
LOW = ("vanilla", "strawberry")
COUNTED = {"vanilla": 8, "strawberry": 1, "chocolate": 9}

AFTERWARDS = """
look around:  script/host --group demo-day login shop
              then: lucy-agent receipt list, lucy-agent order list, lucy-agent backup list, lucy-agent health
the plan:     build/demo-day/plans/shop/
receipts:     copies are in build/demo-day/receipts/
clean up:     script/demo --clean
"""


def run(playbook: str, **variables: Any) -> None:
    play(playbook, [FOLDER / "inventory.json"], variables, FOLDER / f"{playbook}.log")


def write_inventory(archives: dict[str, Path], addresses: dict[str, str]) -> None:
    """Both hosts, as an operator's inventory would name them; the token is in a file of its own."""
    token = FOLDER / "supplier-token"
    token.touch(0o600)
    token.write_text(secrets.token_hex(20) + "\n")
    pairs = FOLDER / "agent-env.json"
    pairs.touch(0o600)
    pairs.write_text(
        json.dumps({"STANDFAST_SUPPLIER_URL": URL, "STANDFAST_SUPPLIER_TOKEN": token.read_text().strip()})
    )
    common = {
        "ansible_connection": "standfast_podman",
        "ansible_python_interpreter": "/usr/bin/python3",
        "receipt_controller_folder": str(FOLDER / "receipts"),
    }
    agents = {
        **common,
        "release_archive": str(archives["shop"]),
        "state_env_file": str(pairs),
        "backup_offhost": "fetch",
        "backup_offhost_folder": str(FOLDER / "backups"),
        "recover_operator": "lucy",
        "recover_folder": str(FOLDER / "plans"),
    }
    suppliers = {
        **common,
        "release_archive": str(archives["supplier"]),
        "supplier_token_file": str(token),
        "supplier_listen": addresses["supplier"],
    }
    groups = {
        "agents": {"hosts": {"shop": {"ansible_host": GROUP.container("shop")}}, "vars": agents},
        "suppliers": {
            "hosts": {"supplier": {"ansible_host": GROUP.container("supplier")}},
            "vars": suppliers,
        },
    }
    (FOLDER / "inventory.json").write_text(json.dumps(groups, indent=2) + "\n")


def stock() -> dict[str, dict[str, Any]]:
    return {one["sku"]: one for one in SHOP.ask("stock", "list")["products"]}


def told_stock() -> str:
    return ", ".join(f"{sku} {one['on_hand']}" for sku, one in stock().items())


def drafts() -> dict[str, dict[str, Any]]:
    """What the service proposes by itself for the two products that are low, by product."""

    def both() -> dict[str, dict[str, Any]] | None:
        rows = SHOP.ask("order", "list", "--status", "DRAFT")["orders"]
        return {one["sku"]: one for one in rows} if len(rows) == len(LOW) else None

    return wait_for(both, "both products that are low are proposed")


def status_of(order: str) -> str:
    return str(SHOP.ask("order", "show", order)["order"]["status"])


def until(order: str, status: str) -> None:
    wait_for(lambda: status_of(order) == status or None, f"order {order} is {status}")


def told_orders() -> str:
    rows = SHOP.ask("order", "list")["orders"]
    return "\n".join(
        f"{one['sku']}: {one['quantity']} tubs, {one['total_cents']} cents, {one['status']}" for one in rows
    )


def inode() -> str:
    return SHOP.run("stat", "--format=%i", "/srv/lucy/state/agent.sqlite").strip()


def refused(plan: Path, digest: str, **variables: Any) -> str:
    """What playbooks/recover.yml says of a plan that it does not apply."""
    try:
        run("recover", recover_plan=str(plan), recover_digest=digest, **variables)
    except DemoError:
        log = (FOLDER / "recover.log").read_text()
    else:
        raise DemoError(f"{plan} was applied, and should not have been")
    said = re.search(r"Refused: (.{1,160})", " ".join(log.split()))
    return f"refused: {said[1]} ..." if said else "refused"


def fill(plan: Path, arrived: str) -> str:
    """What somebody who looks into the freezer writes into the plan; its digest."""
    content = json.loads(plan.read_text())
    for sku, one in content["inventory"].items():
        one["on_hand"] = COUNTED[sku]
    for operation, one in content["deliveries"].items():
        one["received"] = operation == arrived
    plan.write_text(json.dumps(content, indent=1) + "\n")
    return hashlib.sha256(plan.read_bytes()).hexdigest()


def the_shop_and_its_supplier(progress: Progress) -> None:
    progress.step("building the two releases from this source tree")
    archives = {"shop": bundle.ensure(), "supplier": bundle.ensure("supplier")}
    progress.step("booting two bare Debian 13 hosts on a network of their own")
    aliases = {"supplier.test": ADDRESSES["supplier"]}
    hosts = [
        HostSpec(name, network=NETWORK, address=address, aliases=aliases)
        for name, address in ADDRESSES.items()
    ]
    GROUP.boot(*hosts)
    known = SHOP.run("getent", "ahostsv4", "supplier.test").split()[0]
    write_inventory(archives, {"supplier": known})
    progress.step("installing the supplier's account and the agent (about two minutes)")
    run("supplier")
    run("install")
    progress.say(f"in the shop: {told_stock()}")


def the_morning(progress: Progress) -> tuple[dict[str, Any], OldWorker]:
    progress.step("morning: two products are low; the agent proposes both, and Lucy approves vanilla")
    proposed = drafts()
    vanilla = proposed["vanilla"]
    SHOP.agent("systemctl", "stop", "lucy-agent")
    SHOP.ask("order", "approve", vanilla["digest"], "--operator", "lucy")
    SHOP.ask("work", "add", "How is the strawberry?", "--session", "counter")
    worker = OldWorker(GROUP.container("shop"))
    progress.say(told_orders())
    progress.say(f"A worker is busy with request {worker.work}. Right now playbooks/backup.yml runs:")
    run("backup")
    newest = SHOP.ask("backup", "list")["backups"][0]
    progress.say(
        f"{newest['name']}, {newest['bytes']} bytes, verified; a copy is below build/demo-day/backups"
    )
    day = {"vanilla": vanilla["id"], "strawberry": proposed["strawberry"], "morning": newest["name"]}
    return day, worker


def the_forenoon(progress: Progress, day: dict[str, Any]) -> None:
    progress.step("forenoon: vanilla is bought and delivered, strawberry approved and bought: 2,600 cents")
    SHOP.agent("systemctl", "start", "lucy-agent")
    until(day["vanilla"], "CONFIRMED")
    SHOP.ask("order", "deliver", day["vanilla"], "--operator", "lucy")
    strawberry = day["strawberry"]
    SHOP.ask("order", "approve", strawberry["digest"], "--operator", "lucy")
    until(strawberry["id"], "CONFIRMED")
    progress.say(f"{told_orders()}\nin the shop: {told_stock()}")


def noon(progress: Progress, day: dict[str, Any], worker: OldWorker) -> str:
    progress.step("noon: the state is lost. playbooks/restore.yml brings the morning back, paused")
    before = inode()
    run("restore", restore_from=day["morning"])
    told = "the same file as before" if inode() == before else "ANOTHER FILE"
    progress.say(f"the store is {told} (inode {before}); who had it open sees the restored one")
    progress.say(told_orders())
    progress.say(
        f"in the books: {told_stock()} - the books are wrong, and the agent knows that it can not know"
    )
    progress.say(f"the worker of this morning tries to write: {worker.tries('write')}")
    waiting: str = SHOP.ask("work", "add", "How is the stock?", "--session", "window")["work"]
    progress.say(f"a customer asks something: admitted as {waiting}, and waits")
    return waiting


def the_afternoon(progress: Progress, day: dict[str, Any], worker: OldWorker, waiting: str) -> None:
    progress.step("playbooks/recover.yml asks the supplier what it accepted, and makes a plan to fill")
    run("recover")
    plan = max((FOLDER / "plans/shop").iterdir(), key=lambda path: path.stat().st_mtime)
    progress.say(plan.read_text())
    progress.say(f"the worker of this morning tries to buy: {worker.tries('order')}")
    progress.step(
        "somebody looks into the freezer and fills the plan; playbooks/recover.yml applies it, once"
    )
    unanswered = hashlib.sha256(plan.read_bytes()).hexdigest()
    progress.say(f"as it came:       {refused(plan, unanswered)}")
    digest = fill(plan, day["vanilla"])
    other = plan.with_name("other-bytes.json")
    other.write_bytes(plan.read_bytes() + b" ")
    progress.say(f"one byte more:    {refused(other, digest)}")
    progress.say(f"another operator: {refused(plan, digest, recover_operator='mallory')}")
    run("recover", recover_plan=str(plan), recover_digest=digest)
    now = stock()
    progress.say(
        f"{told_orders()}\nin the books: {told_stock()}; strawberry on order: {now['strawberry']['on_order']}"
    )
    spent = SHOP.ask("health")["spending"]["spent_cents"]
    progress.say(f"spent: {spent} cents, once")
    run("recover", recover_plan=str(plan), recover_digest=digest)
    again = SHOP.ask("health")["spending"]["spent_cents"]
    progress.say(f"the same plan once more is a duplicate: {again} cents still")
    report = SHOP.ask("report", "list", "--work", worker.work)["reports"][0]
    progress.say(f"who asked about strawberry is told:\n{report['body']}")
    progress.step("the request that waited is finished by the service")
    wait_for(
        lambda: SHOP.ask("work", "show", waiting)["work"]["status"] == "DONE" or None,
        "the request that waited is finished",
    )
    progress.say(SHOP.ask("report", "list", "--work", waiting)["reports"][0]["body"])


def demonstrate() -> None:
    enter()
    FOLDER.mkdir(parents=True, exist_ok=True)
    progress = Progress(STEPS)
    the_shop_and_its_supplier(progress)
    day, worker = the_morning(progress)
    try:
        the_forenoon(progress, day)
        waiting = noon(progress, day, worker)
        the_afternoon(progress, day, worker, waiting)
    finally:
        worker.end()
    progress.step("done: two orders, paid once, and every operation left a receipt")
    progress.say(SHOP.agent("receipt", "list"))
    progress.say(AFTERWARDS)
