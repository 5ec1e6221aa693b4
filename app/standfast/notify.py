"""The sd_notify protocol, as much of it as the service needs.

The variables are taken out of the environment, so that no child can speak for the service.
"""

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress

_PATIENCE_SECONDS = 1.0


class Notifier:
    """Tells systemd about READY, the watchdog and STOPPING; silent when nobody listens."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        address = environment.pop("NOTIFY_SOCKET", "")
        interval = environment.pop("WATCHDOG_USEC", "")
        process = environment.pop("WATCHDOG_PID", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        mine = not process or process == str(os.getpid())
        self.watchdog_seconds: float | None = int(interval) / 1e6 if interval.isdigit() and mine else None

    def ready(self) -> None:
        """The store is open and the first pass can begin."""
        self._send("READY=1")

    def watchdog(self) -> None:
        """A bounded step has completed."""
        if self.watchdog_seconds is not None:
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """A stop was asked for and has begun."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for ``systemctl status``."""
        self._send("STATUS=" + " ".join(text.split()))

    def _send(self, message: str) -> None:
        if not self._address:
            return
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
        # A manager that is restarting, or does not read, must not end or hold up a turn; what was not told
        # shows as a missing READY or watchdog ping.
        with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as channel:
            channel.settimeout(_PATIENCE_SECONDS)
            channel.sendto(message.encode(), self._address)
