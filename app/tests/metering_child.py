"""One worker in a process of its own: claims work and asks the endpoint once, under the ceilings it is told.

    metering_child.py STATE OWNER DAILY_CALLS

The endpoint is in its environment. It waits for a line on stdin before it claims, and says how the turn
ended; with `die` as the line it dies by SIGKILL as soon as its call was booked.
"""

import os
import signal
import sys
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
        print("ready", flush=True)
        if sys.stdin.readline().strip() == "die":
            triggers.arm(die)
        claim = authority.claim_next(connection, owner=owner, now=clock.now(), marker=layout.marker)
        assert claim is not None
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


def die(point: str) -> None:
    if point == "usage.book.committed":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
