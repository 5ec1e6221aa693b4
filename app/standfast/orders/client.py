"""The supplier's account as this side sees it: what an answer proves, and what it does not.

httpx is imported when a client is made, never before. The token is in the request's header and nowhere else.
"""

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from standfast.errors import ConfigurationInvalid, Refused, StandfastError
from standfast.orders.era import current_epoch
from standfast.supplier.wire import (
    LONGEST_PAGE,
    Account,
    Answer,
    EpochRegistration,
    OrderRequest,
    ReceiptPage,
    SupplierReceipt,
)

if TYPE_CHECKING:
    import httpx

URL = "STANDFAST_SUPPLIER_URL"
TOKEN = "STANDFAST_SUPPLIER_TOKEN"  # noqa: S105 - the variable's name
CONNECT_SECONDS = 5.0
READ_SECONDS = 10.0
ANSWER_SECONDS = 20.0
"""The most that one whole answer may take to arrive once it has begun."""
ANSWER_BYTES = 1024 * 1024

_CREATED, _OK, _CONFLICT, _UNPROCESSABLE, _NOT_FOUND = 201, 200, 409, 422, 404


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
        if not _usable(url):
            raise ConfigurationInvalid(f"{URL}: http:// or https://, a host, no user, query or fragment")
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigurationInvalid(f"{TOKEN}: printable ASCII without spaces")
        return cls(url.rstrip("/"), token)


def _usable(url: str) -> bool:
    if not url.isascii() or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    plain = not (parts.query or parts.fragment or "@" in parts.netloc)
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and plain


@dataclass(frozen=True, slots=True)
class Accepted:
    """The supplier says that it accepted the operation, once and for ever."""

    receipt: SupplierReceipt


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

    def account(self) -> Account:
        """The account. Raises SupplierUnavailable."""

    def register(self, epoch: str, replaces: str | None = None) -> Account:
        """Make ``epoch`` the account's. Raises SupplierUnavailable, and Refused with the supplier's code."""

    def submit(self, request: OrderRequest) -> Outcome:
        """Send one order."""

    def lookup(self, operation: str) -> Found:
        """Ask about one operation."""

    def receipts(self) -> Iterator[SupplierReceipt]:
        """Every receipt of the account, oldest first. Raises SupplierUnavailable."""


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
    if found.epoch != epoch:
        raise Refused(
            "account_other_epoch",
            "the supplier's account belongs to another epoch",
            observed=f"account {found.account} has epoch {found.epoch}, this store {epoch}",
            remedy="another copy may be acting: find out which one is to go on, then inspect the account",
        )
    if current_epoch(connection, marker) != epoch:  # replaced while the supplier was answering
        raise Refused("account_other_epoch", "the epoch changed meanwhile", remedy="try again")
    return Supplier(account, epoch, found.account, float(found.key_window_seconds))


class HttpSupplier:
    """The account over HTTP, with explicit time-outs, no redirects and no proxy from the environment."""

    def __init__(self, access: SupplierAccess, *, transport: "httpx.BaseTransport | None" = None) -> None:
        import httpx  # noqa: PLC0415 - only a process that talks to a supplier pays for it

        self._errors = (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError)
        self._client = httpx.Client(
            base_url=access.url,
            headers={"Authorization": f"Bearer {access.token}", "Accept": "application/json"},
            timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
            follow_redirects=False,
            trust_env=False,
            transport=transport,
        )

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def account(self) -> Account:
        """See SupplierAccount."""
        status, body = self._ask("GET", "/account")
        if status != _OK:
            raise SupplierUnavailable(f"the supplier's account could not be read: {_told(status, body)}")
        return _parsed(Account, body)

    def register(self, epoch: str, replaces: str | None = None) -> Account:
        """See SupplierAccount."""
        status, body = self._ask("POST", "/account/epoch", EpochRegistration(epoch=epoch, replaces=replaces))
        if status == _CONFLICT and (answer := _answer(body)):
            raise Refused(
                answer.error,
                "the supplier's account does not take this epoch",
                observed=answer.reason,
                remedy="another copy may be acting: find out which one is to go on, then inspect the account",
            )
        if status != _OK:
            raise SupplierUnavailable(f"the epoch could not be registered: {_told(status, body)}")
        return _parsed(Account, body)

    def submit(self, request: OrderRequest) -> Outcome:
        """See SupplierAccount."""
        try:
            status, body = self._exchange("POST", "/orders", request)
        except self._errors as error:
            return Unclear(f"no answer: {type(error).__name__}")
        if status in {_OK, _CREATED}:
            return _receipt(body)
        answer = _answer(body)
        if status == _UNPROCESSABLE and answer is not None and answer.error == "refused":
            return Declined(answer.reason)
        if status == _CONFLICT and answer is not None and answer.error == "stale_epoch":
            return Declined(f"stale_epoch: {answer.reason}", final=False)
        return Unclear(_told(status, body))

    def lookup(self, operation: str) -> Found:
        """See SupplierAccount."""
        try:
            status, body = self._exchange("GET", f"/orders/{operation}")
        except self._errors as error:
            return Unclear(f"no answer: {type(error).__name__}")
        if status == _OK:
            return _receipt(body)
        answer = _answer(body)
        if status == _NOT_FOUND and answer is not None and answer.error == "unknown_operation":
            return Absent()
        return Unclear(_told(status, body))

    def receipts(self) -> Iterator[SupplierReceipt]:
        """See SupplierAccount."""
        after: int | None = 0
        while after is not None:
            status, body = self._ask("GET", f"/receipts?after={after}&limit={LONGEST_PAGE}")
            if status != _OK:
                raise SupplierUnavailable(f"the receipts could not be read: {_told(status, body)}")
            page = _parsed(ReceiptPage, body)
            yield from page.receipts
            if page.next is not None and page.next <= after:
                raise SupplierUnavailable("the receipts could not be read: their pages do not go on")
            after = page.next

    def _ask(self, method: str, path: str, body: BaseModel | None = None) -> tuple[int, bytes]:
        try:
            return self._exchange(method, path, body)
        except self._errors as error:
            raise SupplierUnavailable(f"the supplier did not answer: {type(error).__name__}") from error

    def _exchange(self, method: str, path: str, body: BaseModel | None = None) -> tuple[int, bytes]:
        content = None if body is None else body.model_dump_json().encode()
        headers = None if body is None else {"Content-Type": "application/json"}
        end = time.monotonic() + ANSWER_SECONDS
        received = bytearray()
        with self._client.stream(method, path, content=content, headers=headers) as response:
            for chunk in response.iter_bytes():
                received += chunk
                if len(received) > ANSWER_BYTES:
                    raise ValueError("the answer is too long")
                if time.monotonic() > end:
                    raise TimeoutError
        return response.status_code, bytes(received)


def _receipt(body: bytes) -> Accepted | Unclear:
    try:
        return Accepted(SupplierReceipt.model_validate_json(body))
    except ValidationError:
        return Unclear("a malformed receipt")


def _answer(body: bytes) -> Answer | None:
    try:
        return Answer.model_validate_json(body)
    except ValidationError:
        return None


def _parsed[M: BaseModel](model: type[M], body: bytes) -> M:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise SupplierUnavailable(f"the supplier's {model.__name__} is malformed") from error


def _told(status: int, body: bytes) -> str:
    answer = _answer(body)
    return f"HTTP {status}" + (f" {answer.error}: {answer.reason}"[:200] if answer else "")


def as_json(receipt: SupplierReceipt) -> str:
    """A receipt as it is kept."""
    return json.dumps(receipt.model_dump(), ensure_ascii=False, sort_keys=True)
