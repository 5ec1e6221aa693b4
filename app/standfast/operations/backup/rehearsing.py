"""Rehearsing a restore: a backup counts only after it was restored somewhere else and its meaning read there.

What a restore does is done to a copy in a scratch folder with the release's own code. The live store, its
marker and the backup itself are not touched; an operation receipt says what was seen.
"""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from standfast.authority import end_era, new_epoch, operations
from standfast.clock import rfc3339
from standfast.durable import create_empty, write_file
from standfast.errors import ConfigurationInvalid, StandfastError
from standfast.layout import Layout
from standfast.operations.backup import folders, meaning, snapshot
from standfast.operations.backup.folders import FILE_MODE, FOLDER_MODE, MANIFEST, REHEARSED, SNAPSHOT, in_use
from standfast.operations.backup.limits import (
    Guard,
    Limits,
    Report,
    cancelable,
    quiet,
    refuse_little_space,
)
from standfast.operations.backup.listing import named
from standfast.operations.backup.manifest import BackupManifest, read_manifest, read_private, write_result
from standfast.operations.backup.standing import LastRehearsal
from standfast.operations.backup.verifying import Check, Fault, equal, looked, verify
from standfast.operations.opening import refuse_other_user
from standfast.operations.receipting import leave
from standfast.operations.recovery import plan as plans
from standfast.operations.recovery.inspecting import interrupted, products
from standfast.operations.recovery.plan import Count, Delivery, Plan
from standfast.operations.schema import COMPONENTS, understood
from standfast.receipts import chain, model
from standfast.shop import config
from standfast.shop.config import ShopConfig
from standfast.store import Store, immediate, open_store, schema_versions, triggers

SCRATCH = "rehearsal"
"""Below the instance's backups, where the space and the privacy are those of a backup."""


class Rehearsal(BaseModel):
    """What `backup rehearse` did, or with `--check` would do."""

    changed: bool
    check: bool
    ok: bool | None
    """null under `--check`."""
    path: str
    checks: list[Check]
    seconds: float
    receipt: str | None
    """The operation receipt's file; null under `--check`."""


def rehearse(
    layout: Layout,
    which: str | None,
    *,
    limits: Limits | None = None,
    report: Report = quiet,
    check: bool = False,
) -> Rehearsal:
    """Restore a backup (by default the newest) in a scratch place, read it, and record what was seen.

    A backup that is no good is a result, not an error. Raises Refused, before anything is done:
    `backup_unknown`, `backup_incomplete`, `no_receipts`, `rehearsal_running`, `backup_no_space`.
    """
    refuse_other_user(layout)
    began, limits = time.time(), limits or Limits()
    home = folders.backups_folder(layout)
    path = named(layout, which, began)
    manifest = read_manifest(path)
    chain.check_folder(layout.receipts)
    refuse_little_space(home, 2 * manifest.bytes + limits.floor)
    if check:
        return Rehearsal(
            changed=True, check=True, ok=None, path=str(path), checks=[], seconds=0, receipt=None
        )
    with folders.scratch(home, SCRATCH) as folder, cancelable() as canceled:
        guard = Guard(limits, live=None, target=home, canceled=canceled)
        checks = _Rehearsing(path, manifest, Layout(folder / "state"), guard, report).checks()
    ok = all(one.outcome == "pass" for one in checks)
    kept = _record(layout, path, manifest, checks, began)
    _remember(home, path, manifest, ok=ok)
    return Rehearsal(
        changed=True,
        check=False,
        ok=ok,
        path=str(path),
        checks=checks,
        seconds=round(time.time() - began, 3),
        receipt=kept,
    )


@dataclass
class _Rehearsing:
    """The checks of one rehearsal, in their order; each part needs the ones before it."""

    backup: Path
    manifest: BackupManifest
    layout: Layout
    """Of the scratch place."""
    guard: Guard
    report: Report
    found: list[Check] = field(default_factory=list)

    def checks(self) -> list[Check]:
        """Everything that was looked at."""
        with in_use(self.backup):
            self.found += verify(self.backup, report=self.report).checks
            if self._good():
                self._look("restored", self._restored)
        if self._good():
            self._open()
        return self.found

    def _open(self) -> None:
        try:
            store = open_store(self.layout.database, COMPONENTS)
        except (StandfastError, sqlite3.Error) as error:
            told = str(error) or type(error).__name__
            self.found.append(Check(name="opened by this release", outcome="fail", observed=told))
            return
        with closing(store):
            self._read(store)

    def _read(self, store: Store) -> None:
        looks: tuple[tuple[str, Callable[[Store], str]], ...] = (
            ("opened by this release", self._opened),
            ("era ends paused", self._paused),
            ("business unchanged", self._unchanged),
            ("plan", self._plan),
            ("whole afterwards", self._whole),
        )
        for name, look in looks:
            self._look(name, lambda look=look: look(store))  # type: ignore[misc]
            triggers.reach("rehearse.check")

    def _look(self, name: str, look: Callable[[], str]) -> None:
        self.guard.check()
        self.found.append(looked(name, look))

    def _good(self) -> bool:
        return all(one.outcome == "pass" for one in self.found)

    def _restored(self) -> str:
        self.layout.state.mkdir(FOLDER_MODE)
        create_empty(self.layout.database, FILE_MODE)
        with snapshot.sealed(self.backup / SNAPSHOT) as source:
            snapshot.copy_database(source, self.layout.database, self.guard, self.report)
        triggers.reach("rehearse.restored")
        return f"{self.layout.database.stat().st_size} bytes in a scratch place"

    def _opened(self, store: Store) -> str:
        equal(schema_versions(store), understood())
        return f"schema {schema_versions(store)}"

    def _paused(self, store: Store) -> str:
        """What a restore does to the image before it becomes the live store."""
        before = operations(store).epoch
        with immediate(store, "rehearse"):
            end_era(store, new_epoch(), "rehearsal", time.time())
        after = operations(store)
        if not after.paused or after.epoch == before:
            raise Fault("the era did not end")
        for what, query in _LEFT.items():
            left = store.execute(query).fetchone()[0]
            if left:
                raise Fault(f"{left} {what} outlived the era")
        return "a new epoch, paused; no claim, no approval and no reservation is left"

    def _unchanged(self, store: Store) -> str:
        totals, wanted = meaning.totals(store), self.manifest.totals
        equal(totals.stock, wanted.stock)
        equal(totals.spent_cents, wanted.spent_cents)
        equal(sum(totals.orders.values()), sum(wanted.orders.values()))
        return f"stock {totals.stock}, {totals.spent_cents} cents spent, {sum(totals.orders.values())} orders"

    def _plan(self, store: Store) -> str:
        """A plan as an inspection would write it, as far as that needs no supplier, written and read."""
        accepted = store.execute("SELECT id FROM orders WHERE receipt_id IS NOT NULL ORDER BY id").fetchall()
        operations_known = tuple(str(row[0]) for row in accepted)
        plan = Plan(
            authority=operations(store).epoch,
            observed_at=rfc3339(time.time()),
            receipts=operations_known,
            inventory={sku: Count(on_hand=None) for sku in sorted(products(store, self._shop(), ()))},
            deliveries={one: Delivery(received=None, reference="rehearsal") for one in operations_known},
            interrupted=dict.fromkeys(interrupted(store), "report"),
            usage="unknown",
        )
        equal(plans.parse(plans.render(plan)), plan)
        return (
            f"{len(plan.inventory)} products to count ({', '.join(plan.inventory)}),"
            f" {len(plan.deliveries)} deliveries, {len(plan.interrupted)} interrupted items"
        )

    def _shop(self) -> ShopConfig:
        """The catalogue that lies in the backup: after a restore elsewhere there is no other."""
        [copied] = [one.copied for one in self.manifest.companions if one.kind == "shop"] or [None]
        try:
            return config.load(self.backup / copied) if copied else config.parse(config.sample())
        except ConfigurationInvalid as error:
            raise Fault(str(error)) from error

    def _whole(self, store: Store) -> str:
        found = [*snapshot.damage(store), *snapshot.dangling(store)]
        if found:
            raise Fault("; ".join(found))
        return "integrity and foreign keys"


_LEFT = {
    "claims": "SELECT count(*) FROM work WHERE status = 'RUNNING' OR lease_until IS NOT NULL",
    "approvals": "SELECT count(*) FROM approvals WHERE revoked = 0",
    "reservations": "SELECT count(*) FROM orders WHERE reserved_cents > 0",
}


def _record(layout: Layout, path: Path, manifest: BackupManifest, checks: list[Check], began: float) -> str:
    failed = [one.name for one in checks if one.outcome == "fail"]
    seen = f"{path}, sequence {manifest.sequence}, sha256 {manifest.sha256}"
    return leave(
        layout,
        "rehearse",
        [
            model.Check(name="backup", outcome="pass", observed=seen),
            *(model.Check(name=one.name, outcome=one.outcome, observed=one.observed) for one in checks),
        ],
        began=began,
        failed=f"backup {path}: {', '.join(failed)}" if failed else None,
        stopped_at=failed[0] if failed else None,
    )


def _remember(home: Path, path: Path, manifest: BackupManifest, *, ok: bool) -> None:
    at = rfc3339(time.time())
    data = read_private(path / MANIFEST)
    if data is not None:
        with suppress(OSError):  # a backup on a medium that cannot be written
            write_result(path, REHEARSED, ok=ok, at=at, manifest=data)
    last = LastRehearsal(path=str(path), sequence=manifest.sequence, ok=ok, at=at)
    write_file(
        home / REHEARSED, (last.model_dump_json(indent=2, exclude={"age_seconds"}) + "\n").encode(), FILE_MODE
    )
