"""A Bot API of our own on loopback: a real HTTP server that keeps chats, hands out updates, fails as told.

It is a stand-in for tests. What it answers follows the Bot API's published shapes; what a person wrote to the
bot is put in with `write`.
"""

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from email.message import Message

SECRET = "AAbot-secret_half-of-the-token"
TOKEN = f"4242:{SECRET}"
CHAT = 7001
LUCY = 7001
STRANGER = 6666
GROUP = -900


@dataclass
class Call:
    """One request as the server saw it."""

    method: str
    fields: dict[str, Any]
    document: str | None = None

    @property
    def text(self) -> str:
        return str(self.fields.get("text") or self.fields.get("caption"))


@dataclass
class Fault:
    """What happens to the next calls of a method instead of, or after, accepting them.

    Kinds: `drop` before and `drop_after` accepting, `slow` (seconds of silence, then as usual), `drip` (one
    byte at a time), `garbage` and `garbage_after`, `conflict`, or a number: the status of an ok=false answer.
    """

    method: str
    kind: str | int
    times: int = 1
    seconds: float = 0.0
    retry_after: int | None = None


@dataclass
class BotApiServer:
    """Chats, waiting updates and calls of one bot."""

    server: ThreadingHTTPServer
    waiting: list[dict[str, Any]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    accepted: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    next_update: int = 500
    token: str = TOKEN
    keeps_acknowledged: bool = False
    """Hand out everything again, as after a lost acknowledgement."""
    written: dict[int, dict[str, Any]] = field(default_factory=dict)
    handing_again: set[int] = field(default_factory=set)
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "STANDFAST_TELEGRAM_TOKEN": TOKEN,
            "STANDFAST_TELEGRAM_URL": self.url,
            "STANDFAST_TELEGRAM_CHAT": str(CHAT),
        }

    def write(self, text: str | None, sender: int = LUCY, chat: int | None = None, **more: Any) -> int:
        """Somebody writes to the bot; returns the update's id."""
        where = sender if chat is None else chat
        kind = "private" if where > 0 else "group"
        message = {
            "message_id": self.next_update,
            "date": int(time.time()),
            "from": {"id": sender, "is_bot": False, "first_name": "X"},
            "chat": {"id": where, "type": kind},
            **({} if text is None else {"text": text}),
            **more,
        }
        return self.put({"message": message})

    def put(self, update: dict[str, Any]) -> int:
        with self.lock:
            number = self.next_update
            self.next_update += 1
            self.waiting.append({"update_id": number, **update})
            self.written[number] = self.waiting[-1]
            return number

    def put_again(self, number: int) -> None:
        """Hand an update out once more, although it was acknowledged."""
        with self.lock:
            self.waiting.insert(0, self.written[number])
            self.handing_again.add(number)

    def fail(self, method: str, kind: str | int, **more: Any) -> None:
        with self.lock:
            self.faults.append(Fault(method, kind, **more))

    def texts(self, chat: int = CHAT) -> list[str]:
        """What was accepted for a chat, oldest first."""
        with self.lock:
            return [call.text for call in self.accepted if int(call.fields["chat_id"]) == chat]

    def asked(self, method: str) -> int:
        with self.lock:
            return sum(call.method == method for call in self.calls)

    def fault(self, method: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.method == method and fault.times:
                    fault.times -= 1
                    return fault
        return None

    def do(self, call: Call) -> dict[str, Any]:
        """What the Bot API does with a call."""
        with self.lock:
            if call.method == "getUpdates":
                return {"ok": True, "result": self._updates(call.fields)}
            text = call.text
            if not text or len(text.encode("utf-16-le")) // 2 > (4096 if call.document is None else 1024):
                return {"ok": False, "error_code": 400, "description": "Bad Request: message is too long"}
            self.accepted.append(call)
            return {"ok": True, "result": {"message_id": len(self.accepted), "chat": {"id": 1}}}

    def _updates(self, fields: dict[str, Any]) -> list[dict[str, Any]]:
        offset = fields.get("offset")
        if offset is not None and not self.keeps_acknowledged:
            kept = self.handing_again
            self.waiting = [
                one for one in self.waiting if one["update_id"] >= offset or one["update_id"] in kept
            ]
        handed = self.waiting[: fields.get("limit", 100)]
        self.handing_again -= {one["update_id"] for one in handed}
        return handed


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: BotApiServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = re.fullmatch(r"/bot([^/]+)/(\w+)", self.path)
        if found is None or found[1] != self.api.token:
            # Repeats what it was asked for, as a proxy's page of errors may.
            return self._answer(401, {"ok": False, "error_code": 401, "description": f"no {self.path}"})
        call = self._call(found[2], body)
        with self.api.lock:
            self.api.calls.append(call)
        fault = self.api.fault(call.method)
        if fault is not None:
            return self._fail(fault, call)
        return self._answered(self.api.do(call))

    def _call(self, method: str, body: bytes) -> Call:
        kind = self.headers.get("Content-Type", "")
        if not kind.startswith("multipart/form-data"):
            return Call(method, json.loads(body or b"{}"))
        parsed = BytesParser().parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
        fields: dict[str, Any] = {}
        document = None
        for part in cast("list[Message]", parsed.get_payload()):
            content = cast("bytes", part.get_payload(decode=True)).decode()
            if part.get_filename():
                document = content
            else:
                fields[str(part.get_param("name", header="Content-Disposition"))] = content
        return Call(method, fields, document)

    def _fail(self, fault: Fault, call: Call) -> None:
        if fault.kind == "drop":
            return self._hang_up()
        if fault.kind == "drop_after":
            self.api.do(call)
            return self._hang_up()
        if fault.kind == "slow":
            time.sleep(fault.seconds)
            return self._answered(self.api.do(call))
        if fault.kind == "drip":
            return self._drip(fault.seconds)
        if fault.kind in {"garbage", "garbage_after"}:
            if fault.kind == "garbage_after":
                self.api.do(call)
            return self._bytes(200, b"<html>a proxy's page</html>")
        answer: dict[str, Any] = {
            "ok": False,
            "error_code": fault.kind,
            "description": f"told at {self.path}",
        }
        if fault.retry_after is not None:
            answer["parameters"] = {"retry_after": fault.retry_after}
        return self._answer(int(fault.kind), answer)

    def _answered(self, answer: dict[str, Any]) -> None:
        self._answer(200 if answer["ok"] else int(answer["error_code"]), answer)

    def _answer(self, status: int, answer: dict[str, Any]) -> None:
        self._bytes(status, json.dumps(answer).encode())

    def _bytes(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _drip(self, seconds: float) -> None:
        """A head that never ends, one byte at a time: no single read ever waits long."""
        end = time.monotonic() + seconds
        with suppress(OSError):
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while time.monotonic() < end:
                self.wfile.write(b"x")
                time.sleep(0.1)
        self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        """Nothing: the tests look at what was called."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that went away is part of the tests."""


@contextmanager
def bot_api() -> Iterator[BotApiServer]:
    """A running stand-in, gone at the end."""
    handler = type("Handler", (_Handler,), {})
    with _Server(("127.0.0.1", 0), handler) as server:
        api = BotApiServer(server)
        handler.api = api  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield api
        finally:
            server.shutdown()
            thread.join()
