"""One endpoint over HTTP, through the ``openai`` library. Import it only to make a call.

The library neither retries nor follows a redirect here: each attempt is booked by itself, and the key goes to
the configured endpoint only. An answer is bounded as a whole, in seconds and in bytes: a time-out for each
read alone would let a trickle of bytes last for ever.

What an endpoint writes into an error stays out of ours: it may quote the key.
"""

import email.utils
import math
import re
import ssl
import time
from collections.abc import Iterable
from typing import Any, override

# First: it brings the two below, and where the extra `live` is not carried it is the one that is missing.
import openai

# isort: split
import httpcore2
import httpx2

from standfast.agent.access import NO_KEY, LiveAccess
from standfast.agent.model import ModelFailed

CONNECT_SECONDS = 10.0
ANSWER_BYTES = 4 * 1024 * 1024
"""The most that one answer may hold, its headers included."""

_PIECE = 64 * 1024
_SHOWN = 200
_BUSY = frozenset({408, 409, 429})
_SERVER_ERROR = 500
_CODE = re.compile(r"[a-z][a-z0-9_]{0,59}")
_HOPELESS = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Codes for which no waiting helps, whatever the status says."""


class Endpoint:
    """Sends requests to one endpoint, one at a time."""

    def __init__(self, access: LiveAccess) -> None:
        self._bounds = _Bounds()
        self._headers: dict[str, str | openai.Omit] = {"Accept-Encoding": "identity"}
        if access.key is None:
            self._headers["Authorization"] = openai.Omit()
        self._client = openai.OpenAI(
            api_key=access.key or NO_KEY,
            base_url=access.url,
            max_retries=0,
            http_client=httpx2.Client(
                transport=_Transport(self._bounds), trust_env=False, follow_redirects=False
            ),
        )
        # The library takes these from the environment when they are not given; nothing but agent.env counts.
        self._client.organization = self._client.project = None

    def post(self, body: dict[str, object], seconds: float) -> bytes:
        """The body of the endpoint's answer to a chat completion. Raises ModelFailed."""
        self._bounds.begin(seconds)
        timeout = httpx2.Timeout(max(seconds, 0.001), connect=min(seconds, CONNECT_SECONDS))
        try:
            response = self._client.post(
                "/chat/completions",
                body=body,
                cast_to=httpx2.Response,
                options={"timeout": timeout, "headers": self._headers},
            )
        except openai.OpenAIError as error:
            # Without its cause: that holds the request, and the request the key.
            if self._bounds.refused:
                raise ModelFailed(f"the endpoint's answer is refused: {self._bounds.refused}") from None
            raise _failure(error, seconds) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError, ValueError) as error:
            raise ModelFailed(f"the call failed: {type(error).__name__}") from None
        return response.content

    def close(self) -> None:
        """Close its connections."""
        self._client.close()


def _failure(error: openai.OpenAIError, seconds: float) -> ModelFailed:
    if isinstance(error, openai.APIStatusError):
        return _status_failure(error)
    cause = error.__cause__
    if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout):
        why = str(cause)[:_SHOWN]
        return ModelFailed(f"the endpoint cannot be reached: {why}", spent="nothing sent", again=True)
    if isinstance(error, openai.APITimeoutError):
        return ModelFailed(f"the endpoint did not answer within {seconds:.0f} s")
    return ModelFailed(f"the endpoint's answer was cut off: {type(cause or error).__name__}", again=True)


def _status_failure(error: openai.APIStatusError) -> ModelFailed:
    status, code = error.status_code, _code(error)
    told = f"the endpoint answered {status}" + (f" ({code})" if code else "")
    after = _retry_after(error.response.headers)
    if after:
        told += f" and asks to wait {after:.0f} s"
    if status >= _SERVER_ERROR:
        return ModelFailed(told, again=True, after=after)
    return ModelFailed(told, spent="nothing", again=status in _BUSY and code not in _HOPELESS, after=after)


def _code(error: openai.APIStatusError) -> str:
    """The error's code or type when it is a plain word of the protocol; nothing else of the body is told."""
    body = error.body if isinstance(error.body, dict) else {}
    words = [word for word in (body.get("code"), body.get("type")) if isinstance(word, str)]
    return next((word for word in words if _CODE.fullmatch(word)), "")


def _retry_after(headers: httpx2.Headers) -> float | None:
    """Seconds to wait, from a header that says seconds or a date; None when it says nothing usable."""
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


class _Bounds:
    """What the call in hand may still take."""

    def __init__(self) -> None:
        self._end = 0.0
        self._bytes = 0
        self.refused = ""
        """Why the answer was not read to its end."""

    def begin(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._bytes = ANSWER_BYTES
        self.refused = ""

    def seconds(self, timeout: float | None) -> float:
        """What is left, and no more than ``timeout``; raises TimeoutError when nothing is."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left if timeout is None else min(left, timeout)

    def receive(self, data: bytes) -> bytes:
        self._bytes -= len(data)
        if self._bytes < 0:
            self.refused = f"it is longer than {ANSWER_BYTES} bytes"
            raise httpcore2.ReadError(self.refused)
        return data


class _Transport(httpx2.HTTPTransport):
    """The library's transport on sockets that keep to the bounds."""

    def __init__(self, bounds: _Bounds) -> None:
        super().__init__(trust_env=False)
        self._bounds = bounds
        self._pool = httpcore2.ConnectionPool(
            ssl_context=httpx2.create_ssl_context(trust_env=False),
            max_connections=1,
            network_backend=_Sockets(bounds),
        )

    @override
    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = super().handle_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            # It was asked not to: unpacked, it could be any size.
            response.close()
            self._bounds.refused = "it is packed"
            raise httpx2.ReadError(self._bounds.refused, request=request)
        return response


class _Sockets(httpcore2.SyncBackend):
    def __init__(self, bounds: _Bounds) -> None:
        self._bounds = bounds

    @override
    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        return _Stream(super().connect_tcp(host, port, timeout, local_address, socket_options), self._bounds)


class _Stream(httpcore2.NetworkStream):
    def __init__(self, stream: httpcore2.NetworkStream, bounds: _Bounds) -> None:
        self._stream = stream
        self._bounds = bounds

    @override
    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            return self._bounds.receive(self._stream.read(max_bytes, self._bounds.seconds(timeout)))
        except TimeoutError as error:
            raise httpcore2.ReadTimeout from error

    @override
    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _PIECE):
            try:
                self._stream.write(buffer[start : start + _PIECE], self._bounds.seconds(timeout))
            except TimeoutError as error:
                raise httpcore2.WriteTimeout from error

    @override
    def close(self) -> None:
        self._stream.close()

    @override
    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout), self._bounds)

    @override
    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
