"""A webhook's receiver on loopback: a real HTTP server that keeps what it was sent, and fails as told."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Receiver:
    """A webhook's receiver that keeps what it was sent."""

    url: str
    status: int = 204
    drop: bool = False
    silent: threading.Event | None = None
    """Take what comes and answer only when this is set."""
    received: list[tuple[dict[str, str], bytes]] = field(default_factory=list)


class _Server(ThreadingHTTPServer):
    daemon_threads = True


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A running receiver, gone at the end."""
    made: Receiver

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.received.append(({"path": self.path, **dict(self.headers)}, body))
            if made.silent is not None:
                made.silent.wait()
            if made.drop or made.silent is not None:
                self.close_connection = True
                return
            self.send_response(made.status)
            self.send_header("Content-Length", "0")
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with _Server(("127.0.0.1", 0), Handler) as server:
        made = Receiver(f"http://127.0.0.1:{server.server_address[1]}/in/s3cret?key=k%20y")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield made
        finally:
            if made.silent is not None:
                made.silent.set()
            server.shutdown()
            thread.join()
