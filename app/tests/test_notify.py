"""The notify protocol: right messages to the right socket, and nothing for children to inherit."""

import os
import socket
from pathlib import Path

import pytest

from standfast.notify import Notifier


def listener(address: str) -> socket.socket:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(address)
    receiver.settimeout(5)
    return receiver


@pytest.mark.parametrize("abstract", [False, True])
def test_messages_reach_the_socket(tmp_path: Path, abstract: bool) -> None:
    name = f"@standfast-{os.getpid()}-{tmp_path.name}" if abstract else str(tmp_path / "notify")
    with listener("\0" + name[1:] if abstract else name) as receiver:
        environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
        notifier = Notifier(environment)
        notifier.ready()
        notifier.status("two\nlines")
        notifier.watchdog()
        notifier.stopping()
        received = [receiver.recv(100) for _ in range(4)]
    assert received == [b"READY=1", b"STATUS=two lines", b"WATCHDOG=1", b"STOPPING=1"]
    assert notifier.watchdog_seconds == 30
    assert environment == {}


def test_without_a_listener_nothing_happens() -> None:
    notifier = Notifier({})
    notifier.ready()
    notifier.watchdog()
    assert notifier.watchdog_seconds is None


def test_another_process_watchdog_is_not_ours() -> None:
    assert Notifier({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).watchdog_seconds is None
