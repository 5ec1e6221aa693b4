"""A stand-in for a model endpoint: a real HTTP server of the chat completions protocol, on loopback.

It counts what arrives and answers what a test lays out: replies, errors, silence, half an answer. It is no
model, and no endpoint of anybody's: what is tried against it is the client's side of the protocol.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-standin-0123456789abcdefSECRET"
MODEL = "standin-1"

type Answer = Callable[["Handler", dict[str, Any]], None]
"""What the stand-in does with one request; writes its answer to the handler."""


def usage(read: int = 100, written: int = 20, cached: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def call(name: str, arguments: str = "{}", identity: str = "call_1") -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def completion(
    text: str | None = None,
    *calls: dict[str, Any],
    used: Any = None,
    finish: str | None = None,
) -> dict[str, Any]:
    """The body of a completion; ``used="missing"`` leaves the usage out."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = list(calls)
    choice = {"index": 0, "message": message, "finish_reason": finish or ("tool_calls" if calls else "stop")}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice]}
    return body if used == "missing" else body | {"usage": usage() if used is None else used}


def replies(text: str | None = None, *calls: dict[str, Any], **options: Any) -> Answer:
    """Answer with a completion."""
    return body(json.dumps(completion(text, *calls, **options)).encode())


def body(data: bytes, status: int = 200, **headers: str) -> Answer:
    """Answer with these bytes."""
    return lambda handler, _request: handler.send(data, status, headers)


def error(status: int, code: str = "", message: str = "no", **headers: str) -> Answer:
    """Answer with an error of the protocol."""
    data = {"error": {"message": message, "type": "some_error", "param": None, "code": code or None}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return body(json.dumps(data).encode(), status, **named)


def silent(seconds: float) -> Answer:
    """Say nothing for so long, then answer."""

    def answer(handler: "Handler", request: dict[str, Any]) -> None:
        handler.rest(seconds)
        replies("late")(handler, request)

    return answer


def trickling(seconds: float, *, headers: bool) -> Answer:
    """Send a byte every tenth of a second, in the headers or in the body: no single read is ever late."""

    def answer(handler: "Handler", _request: dict[str, Any]) -> None:
        start = b"HTTP/1.1 200 OK\r\n" + (b"X-Slow: " if headers else b"Content-Length: 100000\r\n\r\n")
        handler.wfile.write(start)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            handler.wfile.write(b" ")
            handler.rest(0.1)

    return answer


def cut_off(after: int) -> Answer:
    """Promise a whole completion and close the connection after so many of its bytes."""

    def answer(handler: "Handler", _request: dict[str, Any]) -> None:
        data = json.dumps(completion("never whole")).encode()
        handler.send(data[:after], 200, {}, length=len(data))

    return answer


class Handler(BaseHTTPRequestHandler):
    """One connection of the stand-in."""

    protocol_version = "HTTP/1.1"
    server: "_Server"

    def do_POST(self) -> None:
        received = self.rfile.read(int(self.headers["Content-Length"]))
        request = {
            "path": self.path,
            "authorization": self.headers.get("Authorization"),
            "headers": dict(self.headers),
            "body": json.loads(received),
        }
        try:
            self.server.standin.next_answer(request)(self, request)
        except OSError:
            self.close_connection = True  # the client has given up

    def send(self, data: bytes, status: int, headers: dict[str, str], length: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = length is not None

    def rest(self, seconds: float) -> None:
        """Sleep, or less when the stand-in goes down."""
        self.server.standin.down.wait(seconds)

    def log_request(self, *_: object) -> None:
        """Quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    standin: "StandIn"

    def handle_error(self, *_: object) -> None:
        """Quiet: clients give up, that is the point."""


@dataclass
class StandIn:
    """A running stand-in. Its answers are used up one by one, the last again and again."""

    answers: list[Answer]
    requests: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    down: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next_answer(self, request: dict[str, Any]) -> Answer:
        with self._lock:
            self.requests.append(request)
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    @property
    def environment(self) -> dict[str, str]:
        """What agent.env says to reach it."""
        return {
            "STANDFAST_MODEL": MODEL,
            "STANDFAST_MODEL_URL": self.url,
            "STANDFAST_MODEL_KEY": KEY,
        }


@contextmanager
def standin(*answers: Answer) -> Iterator[StandIn]:
    """A stand-in on a free port of loopback."""
    made = StandIn(list(answers))
    with _Server(("127.0.0.1", 0), Handler) as server:
        server.standin = made
        made.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.down.set()
            server.shutdown()
            thread.join()
