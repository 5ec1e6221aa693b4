"""A controller of rollback.yml that is lost at any task of it, after all that test_rollback did.

In the full tier only; the sampled one loses the controllers of other playbooks, which end in the same tasks.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from evidence import LOCK, good, receipts, running
from freezing import lose_at_task, points
from switches import facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from target import Controller, Host


@pytest.mark.skipif(not os.environ.get("STANDFAST_FULL"), reason="the full tier does it")
def test_the_next_run_comes_to_the_end(
    controller: Controller, host: Host, releases: Mapping[str, str]
) -> None:
    """To and fro between two releases that are kept."""
    here, there = releases["patch"], releases["repair"]
    good(controller.playbook("rollback", extra_vars={"rollback_to": here}))
    whole = controller.playbook("rollback", extra_vars={"rollback_to": there})
    good(whole)
    failures = []
    for number, task in points(whole):
        here, there = there, here
        named, before, count = {"rollback_to": there}, facts(host), done(host)
        try:
            lose_at_task(controller, "rollback", host, number, inventory="yours", variables=named)
            good(controller.playbook("rollback", extra_vars=named))
            state = running(host)
            assert f"/releases/{there}/" in host.run(["cat", f"/proc/{state.main_pid}/cmdline"]).stdout
            assert host.run(["readlink", "/srv/lucy/current"]).stdout.strip() == f"releases/{there}"
            assert done(host) == count + 1
            assert facts(host) == before
            good(controller.playbook("rollback", extra_vars=named), changed=0)
            assert running(host) == state
            assert not host.testinfra.file(LOCK).exists
        except AssertionError as failure:  # all of them, so that one run says which tasks are wrong
            failures.append(f"{number} ({task}): {failure}")
    assert host.cli("receipt", "verify")["verified"] is True
    assert not failures, "\n".join(failures)


def done(host: Host) -> int:
    """How many rollbacks are on record as done."""
    kept = receipts(host).values()
    return sum((one["operation"], one["verdict"]) == ("rollback", "done") for one in kept)
