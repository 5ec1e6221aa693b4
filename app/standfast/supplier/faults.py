"""Failures on demand, for tests and demonstrations; there at all only with ``--faults``."""

import asyncio
from typing import ClassVar, override

from uvicorn.protocols.http.h11_impl import H11Protocol

from standfast.supplier.wire import Endpoint, FaultSwitch


class Faults:
    """The switches that are on. Used from the server's own thread only."""

    def __init__(self) -> None:
        self._on: dict[Endpoint, FaultSwitch] = {}

    def switch(self, wanted: FaultSwitch) -> None:
        """Turn a switch on, in place of the endpoint's earlier one."""
        self._on[wanted.on] = wanted

    def take(self, endpoint: Endpoint) -> FaultSwitch | None:
        """The fault of this request, used up by it; None: it is served as it should be."""
        found = self._on.get(endpoint)
        if found is None or found.times == 0:
            return None
        self._on[endpoint] = found.model_copy(update={"times": found.times - 1})
        return found


class Droppable(H11Protocol):
    """A connection that can be cut without an answer, found by the client's address."""

    _open: ClassVar[dict[tuple[str, int], "Droppable"]] = {}

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        if self.client is not None:
            self._open[self.client] = self

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self.client is not None:
            self._open.pop(self.client, None)
        super().connection_lost(exc)

    @classmethod
    def drop(cls, client: tuple[str, int]) -> None:
        """Cut the connection from ``client`` now; whatever is still written to it goes nowhere."""
        connection = cls._open.get(client)
        if connection is not None:  # else the client was faster
            connection.cycle.disconnected = True
            connection.transport.abort()
