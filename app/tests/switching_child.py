"""A switch in a process of its own, run by the interpreter of the release whose code does it.

    switching_child.py STATE UNITS OPERATION RELEASE [POINT SIGNAL]

OPERATION is upgrade, rollback, configure or abandon; or check or check-abandon, which only ask; or cli, and
WORDS in the environment are what is typed.

It prints the result as JSON and every point that it reaches on stderr; the first time that it reaches POINT
it gets the signal; of several, with commas between them, one after the other. Where SIGNAL is FULL or FLOOD,
the disk is full from there on instead: the file HOG takes all the room that there is, for FLOOD at every
later point again. FLOOR and REASON in the environment are those of a rollback, PAIRS and SHOP what is
configured.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from standfast.cli import main as command
from standfast.errors import BadInput, Refused
from standfast.layout import Layout
from standfast.operations.upgrade.abandoning import Abandoned, Word, abandon
from standfast.operations.upgrade.beginning import Asked
from standfast.operations.upgrade.configuring import Wanted, configure
from standfast.operations.upgrade.manager import Manager
from standfast.operations.upgrade.result import Switch
from standfast.operations.upgrade.rolling_back import Force, roll_back
from standfast.operations.upgrade.switching import Limits
from standfast.operations.upgrade.upgrading import upgrade
from standfast.serve.settings import agreed
from standfast.store import triggers


def main(state: str, units: str, operation: str, release: str, *killed: str) -> int:
    left = list(zip(*(words.split(",") for words in killed), strict=True))
    flooded = False

    def reach(reached: str) -> None:
        nonlocal flooded
        print(f"point {reached}", file=sys.stderr, flush=True)
        if left and left[0][0] == reached:
            _, name = left.pop(0)
            if name not in {"FULL", "FLOOD"}:
                os.kill(os.getpid(), signal.Signals[f"SIG{name}"])
                return
            flooded = name == "FLOOD"
        elif not flooded:
            return
        fill(Path(os.environ["HOG"]))

    triggers.arm(reach)
    layout = Layout(Path(state))
    manager = Manager(unit=f"{layout.instance().instance}.service", folder=Path(units), settle=2.0)
    if operation == "cli":
        Manager.of = lambda _: manager  # type: ignore[assignment,method-assign]
        return command.main(["--json", "--state", state, *json.loads(os.environ["WORDS"])])
    try:
        found = done(layout, operation, release, manager)
    except Refused as refused:
        print(json.dumps({"refused": refused.code, "observed": refused.observed, "remedy": refused.remedy}))
        return 3
    except BadInput as error:
        print(json.dumps({"refused": "bad_input", "observed": str(error)}))
        return 2
    print(found.model_dump_json())
    return 1 if isinstance(found, Switch) and found.step else 0


def done(layout: Layout, operation: str, release: str, manager: Manager) -> Switch | Abandoned:
    asked = Asked(run_id="test", limits=Limits(stop=20, start=20, canary=15))
    check = operation.startswith("check")
    if operation == "rollback":
        force = Force.of(os.environ["FLOOR"] or None, os.environ["REASON"] or None)
        return roll_back(layout, release, asked, tell=tell, manager=manager, force=force)
    if operation == "configure":
        pairs, shop = os.environ["PAIRS"].encode() or None, os.environ["SHOP"]
        wanted = Wanted.of(pairs=pairs, shop=Path(shop) if shop else None, adopt=False)
        return configure(layout, wanted, asked, agreed, tell=tell, manager=manager)
    if operation.endswith("abandon"):
        return abandon(layout, Word.of("lucy", "a test"), now=time.time(), manager=manager, check=check)
    return upgrade(layout, release, asked, tell=tell, manager=manager, check=check)


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
