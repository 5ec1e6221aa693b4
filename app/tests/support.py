"""An initialised instance in a temporary folder, a service in this process, and a real one beside it."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from standfast.agent import Model, OfflinePlanner, Reply, Request, ToolCall
from standfast.authority import Claim, claim_next
from standfast.clock import Clock
from standfast.layout import Layout
from standfast.notify import Notifier
from standfast.operations.initialise import initialise_instance
from standfast.operations.schema import COMPONENTS
from standfast.serve.service import Service
from standfast.serve.settings import load
from standfast.serve.turn import Worker
from standfast.serve.waiting import Stop
from standfast.shop.plan import plan
from standfast.store import Store, open_store
from standfast.work import Admission, admit, start_run

__all__ = [
    "COMPONENTS",
    "Counting",
    "HandClock",
    "Instance",
    "Pausing",
    "Process",
    "eventually",
    "until_idle",
]


class HandClock(Clock):
    """A clock that the test moves: `pass_time` as time does, `step` as somebody who sets the wall clock."""

    def __init__(self, start: float | None = None) -> None:
        self.elapsed = 0.0
        self.offset = time.time() if start is None else start
        super().__init__(wall=lambda: self.offset + self.elapsed, boot=lambda: self.elapsed)

    def pass_time(self, seconds: float) -> None:
        self.elapsed += seconds

    def step(self, seconds: float) -> None:
        self.offset += seconds


class Counting:
    """The offline planner, with a count of how often it was asked and something to do at each call."""

    source = "offline"

    def __init__(self, at_call: Callable[[Request], None] = lambda _request: None) -> None:
        self.calls = 0
        self._planner = OfflinePlanner(plan)
        self._at_call = at_call

    def reply(self, request: Request) -> Reply:
        self.calls += 1
        self._at_call(request)
        return self._planner.reply(request)


class Pausing:
    """Reads the stock, then stays in its second call until the file `go-on` is there; `in-call` says so.

    It then answers, or reads the stock once more first when there is a file `more`.
    """

    source = "scripted"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def reply(self, request: Request) -> Reply:
        if not any(message["role"] == "tool" for message in request.messages):
            return Reply(calls=(ToolCall("first", "list_stock", "{}"),))
        (self._folder / "in-call").touch()
        end = time.monotonic() + 20
        while not (self._folder / "go-on").exists() and time.monotonic() < end:
            time.sleep(0.02)
        if (self._folder / "more").exists() and len(request.messages) < 5:
            return Reply(calls=(ToolCall("second", "list_stock", "{}"),))
        return Reply(text="The stock was read.")


@dataclass
class Instance:
    """One instance's state, initialised from the sample shop.toml without low stock unless told otherwise.

    Its brief is due on leap days only, so that no test depends on the time of day at which it is run.
    """

    layout: Layout
    clock: HandClock = field(default_factory=HandClock)
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, root: Path, *, low: bool = False) -> "Instance":
        from standfast.shop.config import sample  # noqa: PLC0415

        instance = cls(Layout(root / "state"))
        instance.layout.state.mkdir(mode=0o700)
        text = sample().replace('cron = "30 6 * * *"', 'cron = "0 0 29 2 *"')
        for point in () if low else (8, 5):
            text = text.replace(f"reorder_point = {point}", "reorder_point = 0")
        instance.layout.shop.write_text(text)
        initialise_instance(instance.layout, now=instance.clock.now())
        return instance

    @contextmanager
    def store(self) -> Iterator[Store]:
        with closing(open_store(self.layout.database, COMPONENTS)) as connection:
            yield connection

    def rows(self, query: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(self.layout.database, autocommit=True)) as connection:
            return connection.execute(query, values).fetchall()

    def epoch(self) -> str:
        [(epoch,)] = self.rows("SELECT epoch FROM operations")
        return str(epoch)

    def add(self, prompt: str = "How is the stock?", **options: Any) -> Admission:
        options.setdefault("session", "test")
        options.setdefault("origin", f"test:{time.monotonic_ns()}")
        with self.store() as connection:
            return admit(connection, prompt=prompt, now=self.clock.now(), **options)

    def claim(self, owner: str = "another", lease: float = 300.0) -> Claim:
        with self.store() as connection:
            claim = claim_next(
                connection, owner=owner, now=self.clock.now(), marker=self.layout.marker, lease=lease
            )
        assert claim is not None
        return claim

    @contextmanager
    def service(self, model: Model | None = None) -> Iterator[Service]:
        """A service in this process whose passes the test makes one by one."""
        with self.store() as connection:
            run = start_run(connection, release="test", pid=os.getpid(), invocation="", now=self.clock.now())
            stop = Stop()
            worker = Worker(
                connection=connection,
                layout=self.layout,
                clock=self.clock,
                settings=load(self.layout, self.environment, None),
                model=model or OfflinePlanner(plan),
                run=run,
                on_step=lambda: None,
                stop=lambda: stop.requested,
            )
            yield Service(worker, Notifier({}), stop)

    def settle(self, model: Model | None = None) -> int:
        """Start a service and let it pass until there is nothing to do; returns how many turns it made."""
        with self.service(model) as service:
            until_idle(service)
            return service.turns

    def status(self, work: str) -> tuple[str, int]:
        return tuple(self.rows("SELECT status, generation FROM work WHERE id = ?", work)[0])

    def reports(self, work: str) -> list[str]:
        return [row[0] for row in self.rows("SELECT body FROM reports WHERE work = ? ORDER BY seq", work)]

    def transcript(self, work: str) -> list[tuple[int, str]]:
        return self.rows("SELECT generation, message FROM transcript WHERE work = ? ORDER BY seq", work)


def until_idle(service: Service) -> None:
    for _ in range(100):
        if not service.one_pass():
            return
    raise AssertionError("the service never came to rest")


class Process:
    """A real `serve` in a process of its own, with a real notify socket. Use as a context manager.

    With a folder ``pausing`` its model is Pausing, the file `step` there says by how many seconds its wall
    clock is wrong, and with a file `hurry` a stop lets no turn come to its end.
    """

    def __init__(self, instance: Instance, *, pausing: Path | None = None, **environment: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sf-")  # short: a socket path has 108 bytes
        address = f"{self._folder.name}/notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)
        self.told: list[str] = []
        command = [sys.executable, "-m", "standfast", "--state", str(instance.layout.state), "serve"]
        if pausing is not None:
            command = [sys.executable, __file__, str(instance.layout.state), str(pausing)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STANDFAST_")}
        self._log = Path(self._folder.name) / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**kept, "NOTIFY_SOCKET": address, "PYTHONPATH": _PACKAGE_ROOT, **environment},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._socket.close()
        self._folder.cleanup()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def messages(self) -> list[str]:
        """Everything told to the notify socket so far."""
        try:
            while True:
                self.told.append(self._socket.recv(4096).decode())
        except BlockingIOError:
            return self.told

    def ready(self) -> "Process":
        try:
            eventually(lambda: "READY=1" in self.messages() or self.process.poll() is not None)
            assert self.process.poll() is None, self.log
        except BaseException:
            self.__exit__()  # no `with` block has begun that would do it
            raise
        return self

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def wait(self) -> int:
        return self.process.wait(timeout=30)


def eventually(true: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until it is true; AssertionError when it never becomes so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.02)


def _stepped(folder: Path) -> Clock:
    """The host's clocks, but for what somebody who sets the wall clock did to that."""

    def wall() -> float:
        step = folder / "step"
        return time.time() + (float(step.read_text()) if step.exists() else 0.0)

    return Clock(wall=wall)


_PACKAGE_ROOT = str(Path(__file__).resolve().parent.parent)

if __name__ == "__main__":
    from standfast.serve import serve
    from standfast.serve.waiting import FINISH_SECONDS

    _folder = Path(sys.argv[2])
    serve(
        Layout(Path(sys.argv[1])),
        model=Pausing(_folder),
        clock=_stepped(_folder),
        finish=0 if (_folder / "hurry").exists() else FINISH_SECONDS,
    )
