"""One destination over HTTP whose address is a secret, or holds one.

The Bot API wants its token in the path, and httpx writes addresses into its log and its exceptions. So httpx
is given an address without the secret, and the transport below it puts the real one in at the last moment.
"""

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from standfast.lazy import leave_out
from standfast.work.delivery import NotSent

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 5.0
READ_SECONDS = 10.0
WHOLE_SECONDS = 20.0
"""The most that one exchange may take from its first byte to its last; below half a watchdog of 120 s."""
ANSWER_BYTES = 16 * 1024 * 1024
"""A hundred of the longest messages, each character of them escaped, are some megabytes."""
_SHOWN = "http://channel.invalid"


class Line:
    """POST to one address, with explicit time-outs, no redirects and no proxy from the environment."""

    def __init__(self, address: str, *, keep: bool, whole_seconds: float = WHOLE_SECONDS) -> None:
        """``keep`` leaves the connection open for the next exchange.

        A message that must not be sent twice goes over a new one: an old one may just have been closed by the
        other side, and then nobody knows.
        """
        leave_out("httpx._main")  # its command line: 5 MB resident
        import httpx  # noqa: PLC0415 - only a service whose channel needs it pays for it

        self._never = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
        self._errors = (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError)
        self._whole = whole_seconds
        self._stream: Any = None
        self._client = httpx.Client(
            base_url=_SHOWN,
            timeout=httpx.Timeout(min(READ_SECONDS, whole_seconds), connect=CONNECT_SECONDS),
            follow_redirects=False,
            trust_env=False,
            transport=_hiding(httpx.URL(address), keep=keep),
        )

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def post(self, path: str, *, headers: Mapping[str, str] | None = None, **body: Any) -> tuple[int, bytes]:
        """Status and body of the answer; ``body`` is httpx's ``content``, ``json``, ``data`` and ``files``.

        Raises NotSent when no connection came about, and any other OSError when one did but no whole answer.
        """
        try:
            with self._bounded():
                return self._exchange(path, headers, body)
        except self._never as error:
            raise NotSent(f"no connection: {type(error).__name__}") from error
        except self._errors as error:
            raise OSError(f"no answer: {type(error).__name__}") from error

    def _exchange(
        self, path: str, headers: Mapping[str, str] | None, body: Mapping[str, Any]
    ) -> tuple[int, bytes]:
        received = bytearray()
        extensions = {"trace": self._trace}
        with self._client.stream("POST", path, headers=headers, extensions=extensions, **body) as response:
            for chunk in response.iter_bytes():
                received += chunk
                if len(received) > ANSWER_BYTES:
                    raise ValueError("the answer is too long")
        return response.status_code, bytes(received)

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event in {"connection.connect_tcp.complete", "connection.start_tls.complete"}:
            self._stream = info["return_value"]

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        """End the exchange after the whole time: httpx bounds each read, and drops never add up to a line."""
        ended = threading.Timer(self._whole, self._hang_up)
        ended.daemon = True
        ended.start()
        try:
            yield
        finally:
            ended.cancel()

    def _hang_up(self) -> None:
        found = self._stream.get_extra_info("socket") if self._stream is not None else None
        if found is not None:
            with suppress(OSError):
                # Not the TLS socket's own: that one forgets its TLS state under the reader's hands.
                socket.socket.shutdown(found, socket.SHUT_RDWR)


def _hiding(address: "httpx.URL", *, keep: bool) -> "httpx.BaseTransport":
    import httpx  # noqa: PLC0415 - as above

    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1 if keep else 0)
    host = address.netloc.decode("ascii")

    class Hiding(httpx.BaseTransport):
        def __init__(self) -> None:
            self._below = httpx.HTTPTransport(trust_env=False, limits=limits)

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            asked = request.url.raw_path
            path = address.raw_path if asked == b"/" else address.raw_path.rstrip(b"/") + asked
            headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"host"]
            return self._below.handle_request(
                httpx.Request(
                    request.method,
                    address.copy_with(raw_path=path),
                    headers=[(b"Host", host.encode()), *headers],
                    stream=request.stream,
                    extensions=request.extensions,
                )
            )

        def close(self) -> None:
            self._below.close()

    return Hiding()
