"""Processes that make rounds of a channel, and die by SIGKILL at the point that they were told.

One process has imported everything and forks for each line of its input: state directory, server, point.
"""

import os
import signal
import sys
import traceback
from pathlib import Path

import httpx  # noqa: F401 - before the forks
from bot_api import CHAT, TOKEN

from standfast.clock import Clock
from standfast.layout import Layout
from standfast.operations.schema import COMPONENTS
from standfast.serve.channel import ChannelDesk
from standfast.shop import config
from standfast.store import open_store, triggers
from standfast.work.channels import TelegramAccess


def rounds(state: str, url: str, point: str) -> None:
    """Rounds until one has nothing to do."""
    layout = Layout(Path(state))

    def kill(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    triggers.arm(kill)
    shop = config.load(layout.shop)
    access = TelegramAccess(TOKEN, CHAT, url)
    desk = ChannelDesk(open_store(layout.database, COMPONENTS), layout, Clock(), shop=shop, access=access)
    while desk.round():
        pass


def main() -> None:
    """Fork for each line, and say the exit code of each."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                rounds(*line.split())
                code = 0
            finally:
                if code:
                    traceback.print_exc()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
