"""A switch in a process of its own, run by the interpreter of the release whose code does it.

    switching_child.py STATE UNITS OPERATION RELEASE [POINT SIGNAL]

OPERATION is upgrade, rollback, configure or abandon, or check or check-abandon, which only ask.
It prints the result as JSON and every point that it reaches on stderr; the first time that it reaches POINT
it gets the signal. Where SIGNAL is FULL or FLOOD, the disk is full from there on instead: the file HOG takes
all the room that there is, for FLOOD at every later point again. FLOOR and REASON in the environment are
those of a rollback, PAIRS and SHOP what is configured.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from standfast.errors import BadInput, Refused
from standfast.layout import Layout
from standfast.operations.upgrade.abandoning import Word, abandon
from standfast.operations.upgrade.beginning import Asked
from standfast.operations.upgrade.configuring import Wanted, configure
from standfast.operations.upgrade.manager import Manager
from standfast.operations.upgrade.rolling_back import Force, roll_back
from standfast.operations.upgrade.switching import Limits
from standfast.operations.upgrade.upgrading import upgrade
from standfast.store import triggers


def main(state: str, units: str, operation: str, release: str, *killed: str) -> int:
    left, name = list(killed[:1]), killed[-1] if killed else ""

    def reach(reached: str) -> None:
        print(f"point {reached}", file=sys.stderr, flush=True)
        if reached in left:
            left.remove(reached)
            if name in {"FULL", "FLOOD"}:
                fill(Path(os.environ["HOG"]))
            else:
                os.kill(os.getpid(), signal.Signals[f"SIG{name}"])
        elif name == "FLOOD" and not left:
            fill(Path(os.environ["HOG"]))

    triggers.arm(reach)
    layout = Layout(Path(state))
    manager = Manager(unit=f"{layout.instance().instance}.service", folder=Path(units), settle=2.0)
    asked = Asked(run_id="test", limits=Limits(stop=20, start=20, canary=15))
    try:
        if operation == "rollback":
            force = Force.of(os.environ["FLOOR"] or None, os.environ["REASON"] or None)
            found = roll_back(layout, release, asked, tell=tell, manager=manager, force=force)
        elif operation.endswith("abandon"):
            word, asks = Word.of("lucy", "a test"), operation.startswith("check")
            given_up = abandon(layout, word, now=time.time(), manager=manager, check=asks)
            print(given_up.model_dump_json())
            return 0
        elif operation == "configure":
            pairs, shop = os.environ["PAIRS"].encode() or None, os.environ["SHOP"]
            wanted = Wanted.of(pairs=pairs, shop=Path(shop) if shop else None, adopt=False)
            found = configure(layout, wanted, asked, tell=tell, manager=manager)
        else:
            found = upgrade(layout, release, asked, tell=tell, manager=manager, check=operation == "check")
    except Refused as refused:
        print(json.dumps({"refused": refused.code, "observed": refused.observed, "remedy": refused.remedy}))
        return 3
    except BadInput as error:
        print(json.dumps({"refused": "bad_input", "observed": str(error)}))
        return 2
    print(found.model_dump_json())
    return 0 if found.step is None else 1


def fill(hog: Path) -> None:
    """Take all the room that there is on its disk."""
    with suppress(OSError), hog.open("ab") as file:
        for size in (1 << 20, 4096):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
                    file.flush()


def tell(step: str) -> None:
    print(f"step {step}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
