"""The supplier's account over HTTP.

httpx is imported when a client is made, never before. The token is in the request's header and nowhere else.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from standfast.errors import Refused
from standfast.lazy import leave_out
from standfast.orders.client import (
    Absent,
    Accepted,
    Declined,
    Found,
    Outcome,
    SupplierAccess,
    SupplierUnavailable,
    Unclear,
)
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

CONNECT_SECONDS = 5.0
READ_SECONDS = 10.0
ANSWER_SECONDS = 20.0
"""The most that one whole answer may take to arrive once it has begun."""
ANSWER_BYTES = 1024 * 1024

_CREATED, _OK, _CONFLICT, _UNPROCESSABLE, _NOT_FOUND = 201, 200, 409, 422, 404


class HttpSupplier:
    """The account over HTTP, with explicit time-outs, no redirects and no proxy from the environment."""

    def __init__(self, access: SupplierAccess, *, transport: "httpx.BaseTransport | None" = None) -> None:
        leave_out("httpx._main")  # its command line: 5 MB resident
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

    def receipts(self, after: int = 0) -> Iterator[SupplierReceipt]:
        """See SupplierAccount."""
        begin: int | None = after
        while begin is not None:
            status, body = self._ask("GET", f"/receipts?after={begin}&limit={LONGEST_PAGE}")
            if status != _OK:
                raise SupplierUnavailable(f"the receipts could not be read: {_told(status, body)}")
            page = _parsed(ReceiptPage, body)
            yield from page.receipts
            if page.next is not None and page.next <= begin:
                raise SupplierUnavailable("the receipts could not be read: their pages do not go on")
            begin = page.next

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
