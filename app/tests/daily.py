"""The day: a shop, its supplier as a real process, a morning backup, and what came after it."""

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supplying import TOKEN, Supplier, supplier
from support import Instance
from world import dump

from standfast import authority, orders, work
from standfast.authority import Claim
from standfast.layout import Layout
from standfast.operations.backup.creating import Request, create
from standfast.operations.recovery.applying import Recovered, Reviewed, recover
from standfast.operations.recovery.inspecting import Inspected, Inspection, inspect
from standfast.operations.restore.restoring import RestoreResult, restore
from standfast.orders import Order, SupplierAccess
from standfast.orders.http import HttpSupplier
from standfast.shop.config import parse, sample
from standfast.shop.stock import receive

PRICES = {"vanilla": 300, "strawberry": 200, "chocolate": 250}
COUNTS = {"vanilla": 8, "strawberry": 1, "chocolate": 9}
POLICY = parse(sample()).policy


@dataclass
class Day:
    """One instance and its supplier. `morning` is the backup, once there is one."""

    instance: Instance
    supplier: Supplier
    morning: str = ""
    vanilla: str = ""
    """Order ids."""
    strawberry: str = ""
    running: Claim | None = None
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        return self.instance.layout

    @property
    def access(self) -> SupplierAccess:
        return SupplierAccess(self.supplier.url, TOKEN)

    @property
    def environment(self) -> dict[str, str]:
        return {"STANDFAST_SUPPLIER_URL": self.supplier.url, "STANDFAST_SUPPLIER_TOKEN": TOKEN}

    def now(self) -> float:
        return self.instance.clock.now()

    @contextmanager
    def account(self) -> Iterator[HttpSupplier]:
        with closing(HttpSupplier(self.access)) as account:
            yield account

    def claimed(self, prompt: str = "buy what is low") -> Claim:
        """New work, claimed by the service's worker."""
        self.instance.add(prompt, session=f"s{len(self.instance.rows('SELECT 1 FROM work'))}")
        return self.instance.claim("lucy-agent")

    def approved(self, sku: str, quantity: int) -> Order:
        """An approved order whose work waits for it."""
        claim = self.claimed()
        with self.instance.store() as connection:
            order = orders.propose(
                connection,
                claim,
                sku=sku,
                quantity=quantity,
                unit_cost_cents=PRICES[sku],
                policy=POLICY,
                clock=self.instance.clock,
                marker=self.layout.marker,
            ).order
            orders.wait(
                connection, claim, clock=self.instance.clock, marker=self.layout.marker, report="proposed"
            )
            return orders.approve(
                connection,
                order.digest,
                operator="lucy",
                until=self.now() + 3600,
                policy=POLICY,
                now=self.now(),
                marker=self.layout.marker,
                order=order.id,
            ).order

    def send(self, order: str) -> Order:
        with self.instance.store() as connection, self.account() as account:
            reached = orders.connect(connection, account, self.layout.marker)
            return orders.send(
                connection,
                order,
                reached,
                claim=None,
                clock=self.instance.clock,
                marker=self.layout.marker,
            )

    def deliver(self, order: str) -> None:
        with self.instance.store() as connection:
            orders.deliver(
                connection, order, operator="lucy", policy=POLICY, into_stock=receive, now=self.now()
            )

    def order(self, order: str) -> Order:
        with self.instance.store() as connection:
            return orders.show_order(connection, order)

    def observe(self, claim: Claim, message: str = "seen") -> int:
        with self.instance.store() as connection:
            return work.observe(
                connection, claim, message, clock=self.instance.clock, marker=self.layout.marker
            )

    def control(self) -> authority.Operations:
        with self.instance.store() as connection:
            return authority.operations(connection)

    def backup(self) -> str:
        """The name of a new backup."""
        return Path(create(self.layout, Request.of(asked_by="a test")).folder).name

    def on_hand(self) -> dict[str, int]:
        return dict(self.instance.rows("SELECT sku, sum(delta) FROM stock_events GROUP BY sku"))

    def begin(self) -> "Day":
        """The morning: an approved vanilla order, one item RUNNING with two rows, and the backup."""
        self.vanilla = self.approved("vanilla", 6).id
        self.running = self.claimed("how is the strawberry?")
        self.observe(self.running, "first")
        self.observe(self.running, "second")
        self.morning = self.backup()
        return self

    def go_on(self) -> "Day":
        """What the backup does not know: vanilla accepted and delivered, strawberry accepted."""
        assert self.send(self.vanilla).status == "CONFIRMED"
        self.deliver(self.vanilla)
        self.strawberry = self.approved("strawberry", 4).id
        assert self.send(self.strawberry).status == "CONFIRMED"
        return self

    def cli(self, *arguments: object, check: bool = False, timeout: float = 60.0) -> tuple[int, Any]:
        """One real command: its exit code and its JSON."""
        told = subprocess.run(
            self.command(*arguments, check=check),
            capture_output=True,
            text=True,
            env=self.process_environment(),
            timeout=timeout,
            check=False,
        )
        assert "Traceback" not in told.stderr, told.stderr
        return told.returncode, json.loads(told.stdout)

    def command(self, *arguments: object, check: bool = False) -> list[str]:
        options = ["--check"] if check else []
        state = ["--state", str(self.layout.state)]
        return [sys.executable, "-m", "standfast", "--json", *options, *state, *map(str, arguments)]

    def process_environment(self) -> Mapping[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(sys.path),
            **self.environment,
            **self.extra,
        }

    def plan_file(self, name: str = "plan.json") -> Path:
        return self.layout.root / name

    def inspect(self, name: str = "plan.json") -> Path:
        """A plan template by the real command."""
        code, told = self.cli("account", "inspect", "--operator", "lucy", "--out", self.plan_file(name))
        assert code == 0, told
        return self.plan_file(name)

    def recover(self, plan: Path, digest: str = "", operator: str = "lucy", **options: Any) -> Any:
        digest = digest or sha256(plan.read_bytes())
        return self.cli("recover", "--plan", plan, "--digest", digest, "--operator", operator, **options)

    def restore_here(self, source: str = "", now: float | None = None, **options: Any) -> RestoreResult:
        """As the command, in this process."""
        now = time.time() if now is None else now
        return restore(self.layout, source or self.morning, now=now, **options)

    def inspect_here(self, name: str = "plan.json", operator: str = "lucy", **options: Any) -> Inspected:
        """As the command, in this process."""
        wanted = Inspection(operator=operator, out=self.plan_file(name), now=time.time())
        with self.account() as account:
            return inspect(self.layout, account, wanted, **options)

    def recover_here(
        self, plan: Path, digest: str = "", operator: str = "lucy", now: float | None = None, **options: Any
    ) -> Recovered:
        """As the command, in this process."""
        asked = Reviewed(path=plan, digest=digest or sha256(plan.read_bytes()), operator=operator)
        now = time.time() if now is None else now
        with self.account() as account:
            return recover(self.layout, lambda: account, asked, now=now, **options)

    def answered(self, name: str = "plan.json", **changed: Any) -> Path:
        """A plan with every answer, changed as told."""
        if not self.plan_file(name).exists():
            self.inspect_here(name)
        plan = self.answer(self.plan_file(name))
        plan.write_text(json.dumps(json.loads(plan.read_bytes()) | changed))
        return plan

    def answer(self, plan: Path) -> Path:
        """Fill in what a look into the freezer tells: vanilla has come, strawberry has not."""
        content = json.loads(plan.read_bytes())
        for sku, one in content["inventory"].items():
            one["on_hand"] = COUNTS[sku]
        for operation, one in content["deliveries"].items():
            one["received"] = operation == self.vanilla
        plan.write_text(json.dumps(content))
        return plan

    def fingerprint(self) -> dict[str, Any]:
        """Everything that a refusal must leave as it is, here and at the supplier."""
        with closing(sqlite3.connect(self.layout.database)) as connection:
            rows = dump(connection)
        marker = self.layout.marker
        return {
            "rows": rows,
            "inode": self.layout.database.stat().st_ino,
            "marker": marker.read_bytes() if marker.is_file() else None,
            "state": sorted(path.name for path in self.layout.state.iterdir() if "-" not in path.name),
            "backups": sorted(path.name for path in self.layout.backups.iterdir()),
            "account": self.account_now(),
        }

    def account_now(self) -> Any:
        with self.supplier.client() as client:
            return client.get("/account").json()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextmanager
def day(root: Path) -> Iterator[Day]:
    """A shop and its supplier, before anything has happened."""
    with ExitStack() as stack:
        (root / "supplier").mkdir()
        made = stack.enter_context(supplier(root / "supplier"))
        instance = Instance.make(root)
        with instance.store() as connection:
            epoch = authority.operations(connection).epoch
        with made.client() as client:
            body = {"epoch": epoch, "replaces": client.get("/account").json()["epoch"]}
            assert client.post("/account/epoch", json=body).status_code == 200
        instance.layout.receipts.mkdir(mode=0o700)
        yield Day(instance, made)
