"""A refusal is proven by what it says and by a host on which nothing is different afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from evidence import running
from faults import fingerprint, sentence
from target import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from target import Controller, Host, Play


@pytest.fixture(scope="session")
def play(controller: Controller) -> Callable[..., Play]:
    """`play(host, {...variables}, playbook=...)`: a run against one or more hosts, with its own inventory."""

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
