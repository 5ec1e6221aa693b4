"""Inspecting the account after an era ended: fence it, read all that it accepted, and ask what is missing.

From the rotation on the account refuses every client of an earlier epoch, so nothing that is read afterwards
can change any more. What arrived and what is in the freezer no supplier can tell: the plan leaves it open.
"""

import getpass
import os
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from standfast import orders
from standfast.clock import rfc3339
from standfast.durable import create_file
from standfast.errors import BadInput, Refused, StandfastError
from standfast.layout import Layout
from standfast.operations.configuration import shop_config
from standfast.operations.opening import reading
from standfast.operations.recovery import plan as plans
from standfast.operations.recovery.eras import awaiting
from standfast.operations.recovery.plan import Count, Delivery, Plan
from standfast.orders import SupplierAccount
from standfast.orders.intent import money
from standfast.receipts.model import Check
from standfast.shop import stock
from standfast.shop.config import ShopConfig
from standfast.store import triggers
from standfast.supplier.wire import SupplierReceipt


@dataclass(frozen=True, slots=True)
class UnknownHere:
    """One operation that the account accepted and that the local records never sent."""

    operation: str
    reference: str


class Inspected(BaseModel):
    """What an inspection found, or with `--check` would find so far."""

    changed: bool
    check: bool
    account: str
    """The account's own identity."""
    epoch: str
    """The restored epoch, which the account now takes orders of, and of no other."""
    rotated: bool
    """False when the account had this epoch already."""
    observed_at: str
    receipts: int
    accepted_cents: int
    unknown_here: list[UnknownHere]
    uncertain_here: list[str]
    """SENDING or UNKNOWN orders that the account never accepted."""
    interrupted: list[str]
    """Work ids."""
    plan: str | None
    """The template; null under `--check`."""
    digest: str | None
    """Of the template as it is; it changes with every answer."""
    receipt: str | None = None
    """The operation receipt's file; null when the caller keeps one."""

    def seen(self) -> list[Check]:
        """What the operation's receipt says."""
        told = (
            f"account {self.account}, {'fenced' if self.rotated else 'fenced before'};"
            f" {self.receipts} receipts, {self.accepted_cents} cents;"
            f" {len(self.unknown_here)} were unknown here;"
            f" never accepted: {len(self.uncertain_here)}; plan {self.plan}, digest {self.digest}"
        )
        return [
            Check(name="epoch", outcome="pass", observed=self.epoch),
            Check(name="inspect", outcome="attention", observed=told),
        ]


@dataclass(frozen=True, slots=True)
class Inspection:
    """Who inspects, and where the plan goes."""

    operator: str
    out: Path
    now: float


def inspect(
    layout: Layout, account: SupplierAccount, wanted: Inspection, *, check: bool = False
) -> Inspected:
    """Rotate the account to the present, paused epoch, export its receipts, and write a plan template.

    Raises Refused, with nothing changed: ``operator_unknown``, ``not_paused``, ``not_awaiting_recovery``,
    ``marker_disagrees``, ``out_taken``, ``receipts_invalid``, ``receipts_differ``, ``account_forgot``, and
    the supplier's own codes; SupplierUnavailable.
    """
    shop = shop_config(layout)
    shop.policy.refuse_unless_operator(wanted.operator)
    _refuse_place(wanted.out)
    with reading(layout) as connection:
        epoch = awaiting(connection, layout.marker).epoch
        found = account.account()
        receipts = list(account.receipts())
        _refuse_unusable(connection, receipts)
        if check:
            return _told(connection, wanted, found.account, epoch, receipts, rotated=found.epoch != epoch)
        if found.epoch != epoch:
            account.register(epoch, replaces=found.epoch)
        triggers.reach("inspect.rotated")
        # Only what was accepted between the first look and the fence can be new: receipts are never undone.
        if late := list(account.receipts(receipts[-1].sequence if receipts else 0)):
            receipts += late
            _refuse_unusable(connection, receipts)
        if awaiting(connection, layout.marker).epoch != epoch:
            raise Refused(
                "epoch_replaced",
                "the state was restored once more meanwhile",
                observed=f"inspected under {epoch}",
                remedy="inspect again: the account is to follow the present epoch",
            )
        template = _template(connection, shop, wanted, epoch, receipts)
        data = plans.render(template)
        _write(wanted.out, data)
        triggers.reach("inspect.written")
        told = _told(connection, wanted, found.account, epoch, receipts, rotated=found.epoch != epoch)
    return told.model_copy(
        update={"changed": True, "check": False, "plan": str(wanted.out), "digest": plans.digest(data)}
    )


def reference(receipt: SupplierReceipt) -> str:
    """What a receipt says, for a person who looks for the goods; changes with every one of its bytes."""
    return (
        f"{receipt.quantity} of {receipt.sku} for {money(receipt.total_cents, receipt.currency)}"
        f" from {receipt.target}, accepted {receipt.accepted_at}, receipt {receipt.receipt_id},"
        f" digest {receipt.digest}"
    )


def products(
    connection: sqlite3.Connection, shop: ShopConfig, receipts: Iterable[SupplierReceipt]
) -> set[str]:
    """Every product that must be counted: of the catalogue, of the stock's events, of the receipts."""
    return (
        {product.sku for product in shop.product}
        | stock.on_hand(connection).keys()
        | {receipt.sku for receipt in receipts}
    )


def interrupted(connection: sqlite3.Connection) -> dict[str, str]:
    """Work id -> prompt of what an era's end interrupted and no recovery has decided on, oldest first."""
    rows = connection.execute(
        "SELECT id, prompt FROM work INDEXED BY work_open WHERE status = 'READY' AND interrupted_epoch IN"
        " (SELECT epoch FROM eras EXCEPT SELECT epoch FROM recoveries) ORDER BY seq"
    )
    return dict(rows.fetchall())


def _refuse_place(path: Path) -> None:
    """Before the account is fenced: with a plan that cannot be written, half of the work would be done."""
    if not os.access(path.parent, os.W_OK | os.X_OK) or not path.parent.is_dir():
        raise BadInput(
            f"out: {path.parent} is no folder in which {getpass.getuser()} may write; name an absolute path,"
            " for example in the state directory"
        )
    if path.exists() or path.is_symlink():
        raise Refused(
            "out_taken",
            "there is a file of this name, and a plan that somebody works on is never replaced",
            observed=str(path),
            remedy="name another file with --out",
        )


def _write(path: Path, data: bytes) -> None:
    try:
        create_file(path, data, 0o600)
    except FileExistsError:
        _refuse_place(path)
    except OSError as error:
        raise StandfastError(
            f"the account was rotated, but the plan could not be written to {path}: {error.strerror};"
            " inspect again with another --out"
        ) from error


def _refuse_unusable(connection: sqlite3.Connection, receipts: list[SupplierReceipt]) -> None:
    orders.refuse_invalid(receipts)
    local = orders.all_orders(connection)
    orders.refuse_differing(local, receipts)
    orders.refuse_forgotten(local, receipts)


def _template(
    connection: sqlite3.Connection,
    shop: ShopConfig,
    wanted: Inspection,
    epoch: str,
    receipts: list[SupplierReceipt],
) -> Plan:
    by_operation = {receipt.operation_id: receipt for receipt in receipts}
    return Plan(
        authority=epoch,
        observed_at=rfc3339(wanted.now),
        receipts=tuple(sorted(by_operation)),
        inventory={sku: Count(on_hand=None) for sku in sorted(products(connection, shop, receipts))},
        deliveries={
            operation: Delivery(received=None, reference=reference(by_operation[operation]))
            for operation in sorted(by_operation)
        },
        interrupted=dict.fromkeys(interrupted(connection), "report"),
        usage="unknown",
    )


def _told(
    connection: sqlite3.Connection,
    wanted: Inspection,
    account: str,
    epoch: str,
    receipts: list[SupplierReceipt],
    *,
    rotated: bool,
) -> Inspected:
    known = orders.all_orders(connection)
    accepted = {receipt.operation_id for receipt in receipts}
    return Inspected(
        changed=True,
        check=True,
        account=account,
        epoch=epoch,
        rotated=rotated,
        observed_at=rfc3339(wanted.now),
        receipts=len(receipts),
        accepted_cents=sum(receipt.total_cents for receipt in receipts),
        unknown_here=[
            UnknownHere(operation=receipt.operation_id, reference=reference(receipt))
            for receipt in receipts
            if receipt.operation_id not in known or not known[receipt.operation_id].sent
        ],
        uncertain_here=[
            order.id
            for order in known.values()
            if order.status in {"SENDING", "UNKNOWN"} and order.id not in accepted
        ],
        interrupted=list(interrupted(connection)),
        plan=None,
        digest=None,
    )
