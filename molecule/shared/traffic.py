"""An operator who adds work all the time, and whether every accepted item was finished exactly once."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from target import wait_until

if TYPE_CHECKING:
    from target import Host

ACCEPTED, REFUSED, STOP = "/root/traffic/accepted", "/root/traffic/refused", "/root/traffic/stop"
# One request after the other; what was answered is kept, and so are the refusals.
LOOP = f"""
mkdir -p /root/traffic && rm -f {STOP} && touch {ACCEPTED} {REFUSED}
n=0
while [ ! -e {STOP} ]; do
    n=$((n + 1))
    if said=$(lucy-agent --json work add "How is the stock?" --session "$1-$n" 2>&1); then
        printf '%s\\n' "$said" | grep '"work"' >> {ACCEPTED}
    else
        printf '%s\\n' "$said" | tail -n 1 >> {REFUSED}
    fi
    sleep 1
done
touch {STOP}.seen
"""


class Operator:
    """Adds work on a host from `begin` to `end`."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def begin(self, session: str) -> None:
        self.host.run("mkdir -p /root/traffic && rm -f /root/traffic/stop*")
        self.host.run("cat > /root/traffic/loop", stdin=LOOP)
        self.host.run(
            ["setsid", "--fork", "bash", "-c", f"exec bash /root/traffic/loop {session} >/dev/null 2>&1"]
        )

    def accepted(self) -> list[str]:
        """The work that was accepted so far, in its order; also by earlier times."""
        lines = self.host.run(f"cat {ACCEPTED} 2>/dev/null || true").stdout.splitlines()
        return [str(json.loads(line)["work"]) for line in lines]

    def end(self) -> list[str]:
        self.host.run(["touch", STOP])
        wait_until(
            lambda: self.host.run(["test", "-e", f"{STOP}.seen"], check=False).rc == 0, 30, "it has stopped"
        )
        return self.accepted()


def finished_once(host: Host, works: list[str], timeout: float = 120) -> None:
    """Each of them is DONE and has one report: nothing was lost, nothing was done twice."""
    assert len(set(works)) == len(works) > 0

    def none_left() -> bool:
        listed = {one["id"]: one["status"] for one in host.cli("work", "list", "--limit", "1000")["work"]}
        left = {work: listed.get(work, "absent") for work in works if listed.get(work) != "DONE"}
        assert left == {}, left
        return True

    wait_until(none_left, timeout, "everything that was accepted is finished", every=2)
    reports = Counter(one["work"] for one in host.cli("report", "list", "--limit", "1000")["reports"])
    assert {work: reports[work] for work in works if reports[work] != 1} == {}
