"""The notify socket of a manager that is gone or does not read: no turn ends or waits for it."""

import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from standfast.notify import Notifier


@pytest.fixture
def manager() -> Iterator[tuple[socket.socket, str]]:
    with tempfile.TemporaryDirectory(prefix="sf-") as folder:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listening.bind(f"{folder}/notify")
        listening.setblocking(False)
        yield listening, f"{folder}/notify"
        listening.close()


def test_a_manager_that_is_gone_ends_nothing(manager: tuple[socket.socket, str]) -> None:
    listening, address = manager
    notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "2000000"})
    assert notifier.watchdog_seconds == 2.0
    listening.close()
    notifier.watchdog()
    Notifier({"NOTIFY_SOCKET": "/nonexistent/socket"}).ready()


def test_a_manager_that_does_not_read_holds_nothing_up(manager: tuple[socket.socket, str]) -> None:
    _, address = manager
    filler = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    filler.setblocking(False)
    with suppress(BlockingIOError):
        for _ in range(100_000):
            filler.sendto(b"x", address)
    with pytest.raises(BlockingIOError):
        filler.sendto(b"x", address)
    filler.close()
    began = time.monotonic()
    Notifier({"NOTIFY_SOCKET": address}).ready()
    assert time.monotonic() - began < 5
