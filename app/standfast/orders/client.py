"""The supplier's account as this side sees it: what an answer proves, and what it does not."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from standfast.address import host_of, is_plain
from standfast.errors import ConfigurationInvalid, Refused, StandfastError
from standfast.orders.era import current_epoch

if TYPE_CHECKING:  # health reads orders and must start fast: it needs none of these models
    from standfast.supplier.wire import Account, OrderRequest, SupplierReceipt

URL = "STANDFAST_SUPPLIER_URL"
TOKEN = "STANDFAST_SUPPLIER_TOKEN"  # noqa: S105 - the variable's name


class SupplierUnavailable(StandfastError):
    """The account gave no usable answer; nothing was ordered."""


@dataclass(frozen=True, slots=True)
class SupplierAccess:
    """Where the supplier's account is and how to enter it."""

    url: str
    token: str = field(repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self | None:
        """From two variables; None when neither is set. ConfigurationInvalid names one, never its value."""
        url, token = environment.get(URL, ""), environment.get(TOKEN, "")
        if not url and not token:
            return None
        for name, value, other in ((URL, url, TOKEN), (TOKEN, token, URL)):
            if not value:
                raise ConfigurationInvalid(f"{name}: must be set when {other} is")
        if host_of(url) is None:
            raise ConfigurationInvalid(f"{URL}: http:// or https://, a host, no user, query or fragment")
        if not is_plain(token):
            raise ConfigurationInvalid(f"{TOKEN}: printable ASCII without spaces")
        return cls(url.rstrip("/"), token)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The supplier says that it accepted the operation, once and for ever."""

    receipt: "SupplierReceipt"


@dataclass(frozen=True, slots=True)
class Declined:
    """The supplier refused. ``final``: for this operation for ever; else only this one transmission."""

    reason: str
    final: bool = True


@dataclass(frozen=True, slots=True)
class Absent:
    """The supplier knows no such operation yet: that proves nothing, a request may still be on its way."""


@dataclass(frozen=True, slots=True)
class Unclear:
    """No answer, or one that proves nothing about the operation."""

    reason: str


type Outcome = Accepted | Declined | Unclear
type Found = Accepted | Absent | Unclear


class SupplierAccount(Protocol):
    """What orders need of an account. Only ``account``, ``register`` and ``receipts`` raise."""

    def account(self) -> "Account":
        """The account. Raises SupplierUnavailable."""

    def register(self, epoch: str, replaces: str | None = None) -> "Account":
        """Make ``epoch`` the account's. Raises SupplierUnavailable, and Refused with the supplier's code."""

    def submit(self, request: "OrderRequest") -> Outcome:
        """Send one order."""

    def lookup(self, operation: str) -> Found:
        """Ask about one operation."""

    def receipts(self, after: int = 0) -> Iterator["SupplierReceipt"]:
        """Every receipt of the account after a sequence, oldest first. Raises SupplierUnavailable."""


@dataclass(frozen=True, slots=True)
class Supplier:
    """An account that is registered for the present era."""

    account: SupplierAccount
    epoch: str
    identity: str
    """The account's own identity."""
    key_window: float
    """Seconds for which the supplier answers a repeated operation with its first receipt."""


def connect(connection: sqlite3.Connection, account: SupplierAccount, marker: Path) -> Supplier:
    """Register the present epoch on an account that has none, or find it there.

    Replacing another epoch is the business of the account's inspection, never of this. Raises Refused
    ``paused`` (`operations are paused; inspect and recover the account first`), ``marker_disagrees``,
    ``account_other_epoch``; SupplierUnavailable.
    """
    epoch = current_epoch(connection, marker)
    found = account.account()
    if found.epoch is None:
        found = account.register(epoch)
    refuse_taken(found, epoch)
    if current_epoch(connection, marker) != epoch:  # replaced while the supplier was answering
        raise Refused("account_other_epoch", "the epoch changed meanwhile", remedy="try again")
    return Supplier(account, epoch, found.account, float(found.key_window_seconds))


def refuse_taken(found: "Account", epoch: str) -> None:
    """Raise Refused ``account_other_epoch`` when the account has an epoch, and it is not this one."""
    if found.epoch not in {None, epoch}:
        raise Refused(
            "account_other_epoch",
            "the supplier's account belongs to another epoch",
            observed=f"account {found.account} has epoch {found.epoch}, this store {epoch}",
            remedy="another copy may be acting: find out which one is to go on, then inspect the account",
        )


def as_json(receipt: "SupplierReceipt") -> str:
    """A receipt as it is kept."""
    return json.dumps(receipt.model_dump(), ensure_ascii=False, sort_keys=True)
