"""A refusal is proven by what it says and by a host on which nothing is different afterwards."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

import pytest
from evidence import listing, running, service
from target import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from target import Controller, Host, Play

# Ansible's own empty folder; the guard file of the deploy lock; what an idle service's store touches by itself.
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


@pytest.fixture(scope="session")
def play(controller: Controller) -> Callable[..., Play]:
    """`play(host, {...variables}, playbook=...)`: one run against one or more hosts, with an inventory of its own."""

    def run(
        hosts: Host | list[Host],
        variables: Mapping[str, Any] | None = None,
        playbook: str = "install",
        **how: Any,
    ) -> Play:
        named = hosts if isinstance(hosts, list) else [hosts]
        controller.write_inventory("refused", {host.name: {} for host in named}, variables)
        return controller.playbook(playbook, inventory="refused", **how)

    return run


@pytest.fixture(scope="session")
def refused(play: Callable[..., Play]) -> Callable[..., Play]:
    """As `play`; refused with these words, and the (first) host is as it was, but for what is below `may`."""

    def run(
        hosts: Host | list[Host],
        words: Sequence[str],
        variables: Mapping[str, Any] | None = None,
        *,
        may: Sequence[str] = (),
        **how: Any,
    ) -> Play:
        host = hosts[0] if isinstance(hosts, list) else hosts
        before = fingerprint(host, may)
        done = play(hosts, variables, **how)
        assert done.rc != 0, done.output[-3000:]
        said = sentence(done)
        assert said.startswith("Refused: "), done.output[-3000:]
        assert [word for word in words if word not in said] == [], said
        assert fingerprint(host, may) ^ before == set()
        return done

    return run


@pytest.fixture(scope="session")
def bare(hosts: dict[str, Host]) -> Host:
    return hosts["bare"]


@pytest.fixture(scope="session")
def installed(hosts: dict[str, Host]) -> Host:
    host = hosts["installed"]
    wait_until(lambda: running(host), 30, "the installed service runs")
    return host
