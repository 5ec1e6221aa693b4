"""One worker in a process of its own: claims work and asks the endpoint once, under the ceilings it is told.

    metering_child.py STATE OWNER DAILY_CALLS

The endpoint is in its environment. It claims, waits for a line on stdin, and says how the turn ended. The
line is `go`, or the point of the code at which it dies by SIGKILL. Booking is made slow, so that workers that
decide outside the booking's transaction are found out.
"""

import os
import signal
import sys
import time
from contextlib import closing
from pathlib import Path

from metering import COMPONENTS

from standfast import authority
from standfast.agent import Dispatcher, run_loop
from standfast.agent import messages as chat
from standfast.agent.access import LiveAccess
from standfast.agent.live import LiveModel
from standfast.agent.usage import FREE, Account, Ceilings
from standfast.clock import Clock
from standfast.layout import Layout
from standfast.store import open_store, triggers


def main(state: str, owner: str, daily_calls: str) -> None:
    layout = Layout(Path(state))
    access = LiveAccess.from_environment(os.environ)
    assert access is not None
    clock = Clock()
    with closing(LiveModel(access)) as model, closing(open_store(layout.database, COMPONENTS)) as connection:
        claim = authority.claim_next(connection, owner=owner, now=clock.now(), marker=layout.marker)
        assert claim is not None
        print("ready", flush=True)
        told = sys.stdin.readline().strip()
        triggers.arm(lambda point: die(point, told))
        account = Account(
            connection=connection,
            claim=claim,
            source=model.source,
            prices=FREE,
            ceilings=Ceilings(daily_calls=int(daily_calls)),
            clock=clock,
            marker=layout.marker,
        )
        result = run_loop(model, Dispatcher([]), [chat.system("s"), chat.user("u")], meter=account)
    print(result.status, flush=True)


def die(point: str, at: str) -> None:
    if point == at:
        os.kill(os.getpid(), signal.SIGKILL)
    if point == "usage.book.before_commit":
        time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
