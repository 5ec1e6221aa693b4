"""What the tests of refusals look at: the whole host, and what a failed run said last."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from evidence import listing, service

if TYPE_CHECKING:
    from collections.abc import Sequence

    from target import Host, Play

# Ansible's own empty folder; the guard of the deploy lock; what an idle service's store touches by itself.
PASSING = ("/root/.ansible", "/run/standfast", "/run/sudo", "/run/user", "/srv/lucy/state/agent.sqlite-*")


def fingerprint(host: Host, without: Sequence[str] = ()) -> set[str]:
    """Every file of the host, its accounts that linger, and the service's process."""
    files = listing(host, "/", without=(*PASSING, *without))
    assert len(files) > 5000
    known = host.run(["id", "-u", "lucy"], check=False).rc == 0
    manager = known and host.run("test -S /run/user/$(id -u lucy)/systemd/private", check=False).rc == 0
    return files | ({f"service {service(host)}"} if manager else set())


def sentence(done: Play) -> str:
    """What the failed run said last, on one line: why, where, and which hosts it did not attempt."""
    failures = re.findall(r"^\[ERROR\]: Task failed: Action failed: (\[.*\])$", done.output, re.MULTILINE)
    assert failures, done.output[-3000:]
    return " ".join(ast.literal_eval(failures[-1]))


def half_made_in_use(host: Host) -> str:
    """The releases without a seal that `current`, the unit or a process of lucy names."""
    return host.run("""
        cd /srv/lucy 2>/dev/null || exit 0
        { readlink current
          cat /home/lucy/.config/systemd/user/lucy-agent.service 2>/dev/null
          ps -u lucy -o args= 2>/dev/null
        } | grep -o 'releases/[^/ ]*' | sort -u | while read -r release; do
          test -s "$release/installed.json" || echo "$release"
        done
    """).stdout
