"""The supplier's HTTP side: who may ask, what was asked, and what the ledger says to it."""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from standfast.clock import Clock
from standfast.supplier.faults import Droppable, Faults
from standfast.supplier.ledger import Denied, Ledger
from standfast.supplier.wire import (
    LONGEST_PAGE,
    Answer,
    Endpoint,
    EpochRegistration,
    ErrorCode,
    FaultSwitch,
    OrderRequest,
)

MAX_BODY = 65_536
"""Bytes that a request may send."""

_LONGEST_SEQUENCE = 18
"""Digits."""

_STATUS: dict[ErrorCode, int] = {
    "epoch_absent": 409,
    "epoch_registered": 409,
    "epoch_retired": 409,
    "failed": 500,
    "key_expired": 409,
    "malformed": 400,
    "not_allowed": 405,
    "operation_conflict": 409,
    "refused": 422,
    "stale_epoch": 409,
    "too_large": 413,
    "unauthorized": 401,
    "unknown_operation": 404,
    "unknown_path": 404,
}

log = logging.getLogger("standfast.supplier")


class Keeper:
    """The ledger on a thread of its own: one action after another, never two at once."""

    def __init__(self, folder: Path, key_window: float, clock: Clock) -> None:
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "ledger")
        self._ledger = self._thread.submit(Ledger.open, folder, clock.now(), key_window).result()

    async def do[Result](self, action: Callable[[Ledger, float], Result]) -> Result:
        """What ``action`` returns for the ledger and the time; its commit is durable by then."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._act, action)

    def read[Result](self, action: Callable[[Ledger, float], Result]) -> Result:
        """As ``do``, from outside the server's loop."""
        return self._thread.submit(self._act, action).result()

    def close(self) -> None:
        """Finish what was begun and close the ledger."""
        self._thread.submit(self._ledger.close).result()
        self._thread.shutdown()

    def _act[Result](self, action: Callable[[Ledger, float], Result]) -> Result:
        return action(self._ledger, self._clock.now())


class Guard:
    """Nothing is read or told without the token. Only its digest is kept, and compared in constant time."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._digest = _digest(token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request, or answer 401."""
        if scope["type"] != "http" or self._admits(scope):
            await self._app(scope, receive, send)
            return
        answer = _deny("unauthorized", "the request does not bear the account's token")
        answer.headers["WWW-Authenticate"] = "Bearer"
        await answer(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1 or given[0][:7].lower() != b"bearer ":
            return False
        return hmac.compare_digest(_digest(given[0][7:].strip()), self._digest)


def application(keeper: Keeper, token: str, faults: Faults | None) -> ASGIApp:
    """The whole account as an ASGI application; ``faults`` None: there are no switches."""
    account = _Account(keeper, faults)
    routes = [
        account.route("GET", "/account", "account", account.show),
        account.route("POST", "/account/epoch", "epoch", account.register),
        account.route("POST", "/orders", "orders", account.order),
        account.route("GET", "/orders/{operation_id}", "lookup", account.lookup),
        account.route("GET", "/receipts", "receipts", account.export),
    ]
    if faults is not None:
        routes.append(Route("/faults", account.switch, methods=["POST"]))
    handlers = {
        Denied: _denied,
        HTTPException: _unrouted,
        ClientDisconnect: _gone,
        Exception: _failed,
    }
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token)  # type: ignore[arg-type]


type _Handler = Callable[[Request], Awaitable[Response]]


class _Account:
    def __init__(self, keeper: Keeper, faults: Faults | None) -> None:
        self._keeper = keeper
        self._faults = faults

    def route(self, method: str, path: str, endpoint: Endpoint, handler: _Handler) -> Route:
        """A route whose requests can be made to fail."""

        async def serve(request: Request) -> Response:
            fault = self._faults.take(endpoint) if self._faults else None
            if fault is None:
                return await handler(request)
            return await _faulty(fault, request, handler)

        return Route(path, serve, methods=[method], name=endpoint)

    async def show(self, _request: Request) -> Response:
        return _say(await self._keeper.do(lambda ledger, _now: ledger.account()))

    async def register(self, request: Request) -> Response:
        wanted = await _body(request, EpochRegistration)
        account = await self._keeper.do(lambda ledger, now: ledger.register(wanted, now))
        log.info("epoch %s is current", wanted.epoch)
        return _say(account)

    async def order(self, request: Request) -> Response:
        wanted = await _body(request, OrderRequest)
        refuse: str | None = getattr(request.state, "refuse", None)
        try:
            receipt, new = await self._keeper.do(lambda ledger, now: ledger.order(wanted, now, refuse=refuse))
        except Denied as denied:
            log.info("order %s: %s", wanted.operation_id, denied.code)
            raise
        log.info("order %s: %s %d", wanted.operation_id, "accepted" if new else "known", receipt.sequence)
        return _say(receipt, 201 if new else 200)

    async def lookup(self, request: Request) -> Response:
        operation_id: str = request.path_params["operation_id"]
        return _say(await self._keeper.do(lambda ledger, _now: ledger.lookup(operation_id)))

    async def export(self, request: Request) -> Response:
        if unknown := set(request.query_params) - {"after", "limit"}:
            raise Denied("malformed", f"unknown parameters: {len(unknown)}")
        after = _number(request, "after", 0, 0, 10**_LONGEST_SEQUENCE)
        limit = _number(request, "limit", 100, 1, LONGEST_PAGE)
        return _say(await self._keeper.do(lambda ledger, _now: ledger.export(after, limit)))

    async def switch(self, request: Request) -> Response:
        wanted = await _body(request, FaultSwitch)
        if wanted.kind == "refuse" and wanted.on != "orders":
            raise Denied("malformed", "only orders can be refused")
        if self._faults is not None:
            self._faults.switch(wanted)
        log.info("fault %s for %d requests to %s", wanted.kind, wanted.times, wanted.on)
        return _say(wanted)


async def _faulty(fault: FaultSwitch, request: Request, handler: _Handler) -> Response:
    log.info("fault %s", fault.kind)
    if fault.kind == "error":
        return _deny("failed", "a fault was switched on")
    if fault.kind == "drop_before_accept":
        return _drop(request)
    if fault.kind == "delay":
        await _body_is_read(request)
        await asyncio.sleep(fault.seconds)
    if fault.kind == "refuse":
        request.state.refuse = "the supplier does not want this order"
    answer = await handler(request)
    return _drop(request) if fault.kind == "drop_after_accept" else answer


def _drop(request: Request) -> Response:
    assert request.client is not None
    Droppable.drop((request.client.host, request.client.port))
    return Response()


async def _body_is_read(request: Request) -> bytes:
    """The whole body, kept for whoever asks again; a client that leaves later does not take it along."""
    kept: bytes | None = getattr(request.state, "body", None)
    if kept is not None:
        return kept
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY:
            raise Denied("too_large", f"a request holds at most {MAX_BODY} bytes")
    request.state.body = bytes(data)
    return bytes(data)


async def _body[Model: BaseModel](request: Request, model: type[Model]) -> Model:
    try:
        return model.model_validate_json(await _body_is_read(request))
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        told = [f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['type']}" for each in problems]
        raise Denied("malformed", "; ".join(told[:10])[:500]) from None


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    plain = text.isascii() and text.isdigit() and len(text) <= _LONGEST_SEQUENCE
    if not plain or not least <= int(text) <= most:
        raise Denied("malformed", f"{name} is a whole number from {least} to {most}")
    return int(text)


def _say(model: BaseModel, status: int = 200) -> Response:
    return Response(model.model_dump_json(), status, media_type="application/json")


def _deny(code: ErrorCode, reason: str) -> Response:
    return _say(Answer(error=code, reason=reason), _STATUS[code])


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


async def _denied(_request: Request, denied: Denied) -> Response:
    return _deny(denied.code, denied.reason)


async def _unrouted(_request: Request, error: HTTPException) -> Response:
    code: ErrorCode = "not_allowed" if error.status_code == _STATUS["not_allowed"] else "unknown_path"
    answer = _deny(code, "the account has nothing there" if code == "unknown_path" else "not that method")
    answer.headers.update(error.headers or {})
    return answer


async def _gone(_request: Request, _error: ClientDisconnect) -> Response:
    return _deny("malformed", "the client left before its request was whole")


async def _failed(_request: Request, _error: Exception) -> Response:
    return _deny("failed", "the supplier failed; whether the request was done is not known")
