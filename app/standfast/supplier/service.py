"""The supplier's process: its token, its socket, READY when it answers, a graceful stop."""

import logging
import signal
import socket
import sys
from dataclasses import dataclass
from typing import override

import uvicorn

from standfast.clock import Clock
from standfast.errors import Refused
from standfast.notify import Notifier
from standfast.supplier.application import Keeper, application
from standfast.supplier.faults import Droppable, Faults
from standfast.supplier.settings import Settings, SupplierServed, read_token

_MOST_REQUESTS = 64
"""At once; more are answered 503."""
_STOP_SECONDS = 10
_BACKLOG = 128

log = logging.getLogger("standfast.supplier")


def check(settings: Settings) -> SupplierServed:
    """Whether it could begin, with nothing written."""
    read_token(settings.token_file)
    with _socket(settings):
        pass
    address = f"http://{settings.host}:{settings.port}"
    return SupplierServed(changed=False, check=True, address=address, account=None, accepted=None)


def serve(settings: Settings) -> SupplierServed:
    """Answer until SIGTERM or SIGINT; open requests get ten seconds to end.

    Raises ConfigurationInvalid for the token file, Refused ``address_taken`` or as the store does.
    """
    notifier = Notifier()
    token = read_token(settings.token_file)
    _log_to_stderr()
    with _socket(settings) as listener:
        keeper = Keeper(settings.ledger, settings.key_window, Clock())
        try:
            host, port = listener.getsockname()[:2]
            address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            _run(settings, token, keeper, listener, _Ready(notifier, address))
            account, written = keeper.read(lambda ledger, _now: (ledger.account(), ledger.written))
        finally:
            keeper.close()
    return SupplierServed(
        changed=written, check=False, address=address, account=account.account, accepted=account.accepted
    )


@dataclass(frozen=True)
class _Ready:
    notifier: Notifier
    address: str

    def begun(self) -> None:
        log.info("supplier listens on %s", self.address)
        self.notifier.status(f"listens on {self.address}")
        self.notifier.ready()


def _run(settings: Settings, token: str, keeper: Keeper, listener: socket.socket, ready: _Ready) -> None:
    faults = Faults() if settings.faults else None
    if faults is not None:
        log.warning("fault switches are on: whoever bears the token can make this supplier fail")
    config = uvicorn.Config(
        application(keeper, token, faults),
        http=Droppable if settings.faults else "h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_MOST_REQUESTS,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    # uvicorn raises a signal that stopped it once more when it is done; the default would kill.
    before = {number: signal.signal(number, _heard) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        _Server(config, ready).run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server(uvicorn.Server):
    """Tells systemd when it answers and when it stops."""

    def __init__(self, config: uvicorn.Config, ready: _Ready) -> None:
        super().__init__(config)
        self._ready = ready

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.begun()

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ready.notifier.stopping()
        await super().shutdown(sockets)


def _heard(_number: int, _frame: object) -> None:
    """The stop has been done already."""


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.handlers = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def _socket(settings: Settings) -> socket.socket:
    """A bound socket; Refused ``address_taken`` when there can be none."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise Refused(
            "address_taken",
            f"the supplier cannot listen on {settings.host}, port {settings.port}",
            observed=str(error.strerror or error),
            remedy="name an address of this host and a free port",
        ) from None
    return listener
