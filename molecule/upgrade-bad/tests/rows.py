"""The business of a host, read from the file itself row by row: nothing can be lost or doubled unseen."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from target import Host

# As the service's user, read-only; only columns that every release has.
READ = """
import json, sqlite3
store = sqlite3.connect("file:/srv/lucy/state/agent.sqlite?mode=ro", uri=True)
asked = {
    "work": "SELECT id, session, status, generation, finished_at, run FROM work ORDER BY seq",
    "reports": "SELECT id, work, generation, delivery, body FROM reports ORDER BY seq",
    "orders": "SELECT id, status, quantity, spent_cents, reserved_cents FROM orders ORDER BY seq",
    "stock": "SELECT id, sku, delta FROM stock_events ORDER BY id",
    "runs": "SELECT id, release, pid FROM runs ORDER BY id",
    "operations": "SELECT epoch, paused, reason FROM operations",
    "schema": "SELECT component, version FROM meta ORDER BY component",
}
print(json.dumps({name: store.execute(query).fetchall() for name, query in asked.items()}))
"""


@dataclass(frozen=True)
class Rows:
    """Every row that the business consists of, as lists of columns."""

    work: list[list[Any]]
    reports: list[list[Any]]
    orders: list[list[Any]]
    stock: list[list[Any]]
    runs: list[list[Any]]
    operations: list[list[Any]]
    schema: list[list[Any]]

    @property
    def releases(self) -> list[str]:
        """The release of each start of the service, oldest first."""
        return [str(release) for _, release, _ in self.runs]


def rows(host: Host) -> Rows:
    found = host.as_user("lucy", ["/usr/bin/python3", "-I", "-c", READ], timeout=60)
    return Rows(**json.loads(found.stdout))


def only_canaries_came(before: Rows, after: Rows) -> list[list[Any]]:
    """All that was there is as it was. Returns what is new: canaries, each finished one with one report."""
    for part in ("work", "reports"):
        old, new = getattr(before, part), getattr(after, part)
        assert new[: len(old)] == old, part
    for part in ("orders", "stock", "operations"):
        assert getattr(after, part) == getattr(before, part), part
    came = after.work[len(before.work) :]
    for _, session, status, generation, *_ in came:
        assert session.startswith("canary-"), came
        # A canary that nobody took is withdrawn.
        assert (status, generation) in {("DONE", 1), ("CANCELED", 0), ("CANCELED", 1)}, came
    done = [work for work, _, status, *_ in came if status == "DONE"]
    told = [work for _, work, *_ in after.reports[len(before.reports) :]]
    assert sorted(told) == sorted(done), (told, came)
    return came
