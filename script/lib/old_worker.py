"""A worker of the old era, for whoever shows that it can do nothing more: its program, and its process.

As the service user, with the installed release's own code: an open connection, a claim under a label that the
service leaves alone until its lease has passed, and a client of the account. It tries what it is told to and
says what came of it.
"""

from __future__ import annotations

import subprocess

PROGRAM = """
import sys
from pathlib import Path
from standfast.authority import StaleClaim, claim_next, operations
from standfast.clock import Clock
from standfast.layout import Layout
from standfast.operations.purchasing import supplier_account
from standfast.operations.schema import COMPONENTS
from standfast.orders import Declined
from standfast.store import open_store
from standfast.supplier.wire import OrderRequest
from standfast.work import observe

layout, clock = Layout(Path("/srv/lucy/state")), Clock()
store = open_store(layout.database, COMPONENTS)
claim = claim_next(store, owner="old-worker", now=clock.now(), marker=layout.marker, lease=900.0)
print(claim.work, claim.epoch, flush=True)
with supplier_account(layout) as account:
    for line in sys.stdin:
        told = "?"
        if line == "see\\n":
            control = operations(store)
            told = f"{control.epoch} {'paused' if control.paused else 'active'}"
        elif line == "write\\n":
            try:
                observe(store, claim, "from the old era", clock=clock, marker=layout.marker)
                told = "written"
            except StaleClaim as stale:
                told = str(stale)
        elif line == "order\\n":
            outcome = account.submit(OrderRequest(
                operation_id="f" * 24, epoch=claim.epoch, target="supplier", sku="vanilla", quantity=1,
                unit_cost_cents=300, currency="EUR", digest="d" * 64,
            ))
            told = outcome.reason if isinstance(outcome, Declined) else type(outcome).__name__
        print(told, flush=True)
"""


class OldWorker:
    """A process in the container of an agent's host. `work` and `epoch` are its claim's."""

    def __init__(self, container: str) -> None:
        python = ("/srv/lucy/current/venv/bin/python", "-I", "-c", PROGRAM)
        self.process = subprocess.Popen(
            ["podman", "exec", "--interactive", "--user", "lucy", container, *python],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.work, self.epoch = self._line().split()

    def tries(self, what: str) -> str:
        """`see`, `write` or `order`: what it saw, or the sentence of the refusal."""
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise AssertionError(f"the old worker has ended: {self.process.wait()}")
        return line

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
