"""A controller of upgrade.yml that is lost at any task of it: while it stages, in the switch, or after it.

In the full tier only; the sampled one loses a controller at its switch, and one after it (test_kills).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from conftest import adds, upgraded_once, works
from evidence import LOCK, good, running
from freezing import lose_at_task, points

if TYPE_CHECKING:
    from pathlib import Path

    from target import Controller, Host


@pytest.fixture(scope="module")
def host(hosts: dict[str, Host]) -> Host:
    return hosts[min(hosts)]


@pytest.mark.skipif(not os.environ.get("STANDFAST_FULL"), reason="the full tier does it")
def test_the_next_run_comes_to_the_end(
    host: Host, controller: Controller, archive: Path, release: str
) -> None:
    controller.write_inventory("lost", {host.name: {}}, {"release_archive": str(archive)})
    anew(host)
    whole = controller.playbook("upgrade", inventory="lost")
    good(whole)
    failures = []
    for number, task in points(whole):
        anew(host)
        epoch = host.cli("facts")["epoch"]
        accepted = adds(host, 2, "before")
        try:
            lose_at_task(controller, "upgrade", host, number, inventory="lost")
            accepted += adds(host, 2, "after")
            good(controller.playbook("upgrade", inventory="lost"))
            upgraded_once(host, release, accepted, epoch)
            state = running(host)
            good(controller.playbook("upgrade", inventory="lost"), changed=0)
            assert running(host) == state
            assert not host.testinfra.file(LOCK).exists
        except AssertionError as failure:  # all of them, so that one run says which tasks are wrong
            failures.append(f"{number} ({task}): {failure}")
    assert not failures, "\n".join(failures)


def anew(host: Host) -> None:
    """With the release before, and nothing staged."""
    host.renew()
    works(host)
