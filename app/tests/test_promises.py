"""What a restore and a recovery promise, one test each: the way back from a backup, with a real ledger.

The tests of the parts say how each step behaves; these say what an operator relies on.
`script/test mutations` breaks the code against them.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from backing import made
from buying import KEY_WINDOW, LedgerAccount
from supplying import TOKEN
from support import Instance, until_idle

from standfast import authority, orders
from standfast.authority import Claim, StaleClaim
from standfast.authority import marker as markers
from standfast.errors import BadInput, Refused
from standfast.operations.backup.listing import BackupEntry
from standfast.operations.backup.retention import prune
from standfast.operations.backup.verifying import verify
from standfast.operations.recovery import plan as plans
from standfast.operations.recovery.applying import Recovered, Reviewed, recover
from standfast.operations.recovery.inspecting import Inspected, Inspection, inspect
from standfast.operations.restore.restoring import RestoreResult, restore
from standfast.orders import Order, SupplierAccess
from standfast.serve.service import Service
from standfast.shop.config import parse, sample
from standfast.shop.stock import on_hand
from standfast.supplier.ledger import Ledger
from standfast.supplier.wire import OrderRequest
from standfast.work import finish, observe

REPLACED = "runtime paused or replaced by restore"
COUNTED = {"vanilla": 5, "strawberry": 1, "chocolate": 9}
ACCESS = SupplierAccess("http://supplier.invalid", TOKEN)


@dataclass
class Business:
    """A shop whose backup holds a running claim, an approved order and a draft, and that went on since."""

    instance: Instance
    account: LedgerAccount
    backup: BackupEntry | None = None
    claim: Claim | None = None

    def serve(self) -> int:
        with self.instance.service() as bare:
            worker = replace(bare._worker, settings=replace(bare._worker.settings, supplier=ACCESS))
            service = Service(worker, bare._notifier, bare._stop, self.account)
            until_idle(service)
            return service.turns

    def order(self, sku: str) -> Order:
        with self.instance.store() as connection:
            return next(one for one in orders.list_orders(connection) if one.sku == sku)

    def approve(self, sku: str, hours: float = 20.0) -> None:
        order, now = self.order(sku), self.instance.clock.now()
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

    def control(self) -> authority.Operations:
        with self.instance.store() as connection:
            return authority.operations(connection)

    def restore(self) -> RestoreResult:
        assert self.backup is not None
        return restore(self.instance.layout, self.backup.name, now=self.instance.clock.now())

    def inspect(self, name: str = "plan.json") -> Inspected:
        out = self.instance.layout.root / name
        return inspect(self.instance.layout, self.account, Inspection("lucy", out, self.instance.clock.now()))

    def answered(self, received: bool | None = True, **changes: object) -> Path:
        """The plan of an inspection, with everything stated."""
        path = self.instance.layout.root / "plan.json"
        if not path.exists():
            self.inspect()
        plan = json.loads(path.read_text())
        for sku, counted in COUNTED.items():
            plan["inventory"][sku]["on_hand"] = counted
        for one in plan["deliveries"].values():
            one["received"] = received
        path.write_text(json.dumps({**plan, **changes}))
        return path

    def recover(self, path: Path, digest: str | None = None) -> Recovered:
        asked = Reviewed(path, digest or plans.digest(path.read_bytes()), "lucy")
        return recover(self.instance.layout, lambda: self.account, asked, now=self.instance.clock.now())

    def stock(self) -> dict[str, int]:
        with self.instance.store() as connection:
            return on_hand(connection)

    def write(self, claim: Claim) -> None:
        with self.instance.store() as connection:
            observe(connection, claim, "x", clock=self.instance.clock, marker=self.instance.layout.marker)

    def finish(self, claim: Claim) -> None:
        with self.instance.store() as connection:
            finish(connection, claim, "DONE", clock=self.instance.clock, marker=self.instance.layout.marker)


@pytest.fixture
def business(tmp_path: Path) -> Iterator[Business]:
    instance = Instance.make(tmp_path, low=True)
    ledger = Ledger.open(tmp_path / "ledger", instance.clock.now(), KEY_WINDOW)
    shop = Business(instance, LedgerAccount(ledger, instance.clock.now))
    shop.serve()
    instance.add("in hand when the backup was made")
    shop.claim = instance.claim()
    shop.approve("vanilla")
    shop.backup = made(instance)
    shop.serve()
    assert shop.order("vanilla").status == "CONFIRMED"
    yield shop
    ledger.close()


@contextmanager
def refused(code: str) -> Iterator[None]:
    with pytest.raises(Refused) as caught:
        yield
    assert caught.value.code == code


def test_a_restore_ends_paused_under_an_epoch_that_never_was(business: Business) -> None:
    before = business.control().epoch
    seen = {before}
    for _ in range(2):
        told = business.restore()
        control = business.control()
        assert control.paused
        assert (told.epoch, markers.read_epoch(business.instance.layout.marker)) == (control.epoch,) * 2
        assert control.epoch not in seen, "an epoch was used twice"
        seen.add(control.epoch)
        business.backup = made(business.instance)
    assert business.serve() == 0, "a paused store does nothing"


def test_a_restore_leaves_no_claim_of_before(business: Business) -> None:
    claim = business.claim
    assert claim is not None
    told = business.restore()
    assert told.interrupted == [claim.work]
    assert business.instance.status(claim.work) == ("READY", claim.generation + 1)
    for _ in range(2):
        with pytest.raises(StaleClaim, match=f"^{REPLACED}$"):
            business.write(claim)
        if business.control().paused:
            business.recover(business.answered())


def test_a_restore_leaves_no_approval_and_no_reservation(business: Business) -> None:
    told = business.restore()
    rows = business.instance.rows("SELECT count(*) FROM approvals WHERE revoked = 0")
    assert rows == [(0,)], "an approval of the backup lives"
    assert business.instance.rows("SELECT sum(reserved_cents) FROM orders") == [(0,)]
    assert {business.order(sku).status for sku in ("vanilla", "strawberry")} == {"REVOKED"}
    assert len(told.revoked_orders) == 2


def test_a_restore_replaces_the_content_and_keeps_the_file(business: Business) -> None:
    """A process that has the store open sees the restored state, and its claims are refused there."""
    path = business.instance.layout.database
    inode = path.stat().st_ino
    with closing(sqlite3.connect(path, autocommit=True)) as running:
        assert running.execute("SELECT paused FROM operations").fetchone() == (0,)
        told = business.restore()
        assert running.execute("SELECT paused, epoch FROM operations").fetchone() == (1, told.epoch)
    assert path.stat().st_ino == inode


def test_a_restore_first_keeps_what_it_replaces(business: Business) -> None:
    told = business.restore()
    assert told.safety_backup is not None
    kept = Path(told.safety_backup)
    assert verify(kept).ok
    with closing(sqlite3.connect(f"file:{kept}/snapshot.sqlite?immutable=1", uri=True)) as safety:
        assert safety.execute("SELECT status FROM orders WHERE sku = 'vanilla'").fetchone() == ("CONFIRMED",)


def test_a_damaged_backup_is_never_restored(business: Business) -> None:
    assert business.backup is not None
    snapshot = Path(business.backup.path) / "snapshot.sqlite"
    data = bytearray(snapshot.read_bytes())
    data[-1] ^= 1
    snapshot.write_bytes(data)
    before = business.control()
    with refused("source_sha256"):
        business.restore()
    assert business.control() == before


def test_the_same_backup_is_restored_once(business: Business) -> None:
    first = business.restore()
    again = business.restore()
    assert (again.changed, again.epoch) == (False, first.epoch)


def test_after_the_inspection_the_account_refuses_every_era_of_before(business: Business) -> None:
    old = business.account.sent[0]
    before = business.control().epoch
    business.restore()
    business.inspect()
    late = OrderRequest.model_validate({**old.model_dump(), "operation_id": "0" * 24})
    assert business.account.submit(late) == orders.Declined(
        "the order's epoch is not the account's current one", final=False
    )
    for replaces in (None, business.control().epoch):
        with pytest.raises(Exception, match="retired epoch never comes back"):
            business.account.register(before, replaces)
    assert len(list(business.account.receipts())) == 1


def test_only_the_reviewed_bytes_are_applied(business: Business) -> None:
    business.restore()
    path = business.answered()
    digest = plans.digest(path.read_bytes())
    business.answered(usage={"calls": 1, "cents": 1})
    with refused("digest_differs"):
        business.recover(path, digest)
    assert business.control().paused


@pytest.mark.parametrize("left", ["count", "delivery"])
def test_nothing_is_taken_for_granted(business: Business, left: str) -> None:
    business.restore()
    path = business.answered(received=None if left == "delivery" else True)
    if left == "count":
        plan = json.loads(path.read_text())
        plan["inventory"]["vanilla"]["on_hand"] = None
        path.write_text(json.dumps(plan))
    with pytest.raises(BadInput, match="not stated yet"):
        business.recover(path)
    assert business.control().paused


def test_a_plan_is_for_the_receipts_that_there_are(business: Business) -> None:
    business.restore()
    path = business.answered()
    stray = {**business.account.sent[0].model_dump(), "operation_id": "f" * 24}
    request = OrderRequest.model_validate({**stray, "epoch": business.control().epoch})
    business.account.ledger.order(request, business.instance.clock.now())
    with refused("receipts_changed"):
        business.recover(path)
    assert business.control().paused


def test_a_plan_is_for_one_epoch(business: Business) -> None:
    business.restore()
    path = business.answered()
    business.backup = made(business.instance)
    business.restore()
    with refused("other_epoch"):
        business.recover(path)
    assert business.control().paused


@pytest.mark.parametrize("received", [True, False])
def test_a_recovery_books_each_receipt_once_and_the_counts_as_they_are(
    business: Business, received: bool
) -> None:
    business.restore()
    path = business.answered(received=received)
    told = business.recover(path)
    assert (told.status, told.orders, told.spent_cents) == ("ACTIVE", 1, 1800)
    vanilla = business.order("vanilla")
    assert (vanilla.status, vanilla.spent_cents) == ("DELIVERED" if received else "CONFIRMED", 1800)
    assert business.stock() == COUNTED
    assert not business.control().paused
    business.serve()
    assert len(business.account.sent) == 1, "what was bought before is bought again"


def test_the_same_plan_again_changes_nothing(business: Business) -> None:
    business.restore()
    path = business.answered()
    business.recover(path)
    with closing(sqlite3.connect(business.instance.layout.database)) as store:
        before = list(store.iterdump())
    again = business.recover(path)
    assert (again.changed, again.duplicate) == (False, True)
    with closing(sqlite3.connect(business.instance.layout.database)) as store:
        assert list(store.iterdump()) == before


def test_interrupted_work_is_reported_and_never_done_by_itself(business: Business) -> None:
    claim = business.claim
    assert claim is not None
    business.restore()
    business.recover(business.answered())
    assert business.instance.status(claim.work)[0] == "CANCELED"
    assert "in hand when the backup was made" in business.instance.reports(claim.work)[-1]


def test_requeued_work_goes_on_at_the_next_generation(business: Business) -> None:
    """Transcript rows keep the generation that wrote them: [1, 1, 3, 3]."""
    instance = business.instance
    instance.add("twice observed", session="its own")
    claim = instance.claim("another one")
    for _ in range(2):
        business.write(claim)
    business.backup = made(instance)
    business.restore()
    waiting = dict.fromkeys(business.inspect().interrupted, "requeue")
    business.recover(business.answered(interrupted=waiting))
    fresh = claim
    while fresh.work != claim.work or fresh.generation == claim.generation:
        fresh = instance.claim("yet another")
    for _ in range(2):
        business.write(fresh)
    assert [row[0] for row in instance.transcript(claim.work)] == [1, 1, 3, 3]
    with pytest.raises(StaleClaim, match=f"^{REPLACED}$"):
        business.write(claim)


def test_the_last_good_backup_is_never_pruned(business: Business) -> None:
    assert business.backup is not None
    good = business.backup
    bad = made(business.instance)
    snapshot = Path(bad.path) / "snapshot.sqlite"
    snapshot.write_bytes(snapshot.read_bytes()[:-1])
    told = prune(business.instance.layout, now=business.instance.clock.now() + 1e9, keep=1)
    assert told.removed == []
    assert good.name in told.kept
