"""A change of the configuration whose process or whole host is lost at a step: the next run puts it back.

It says so, and fails, for the new one was not shown to work; the run after that takes it over. Where only
the controller is lost, the host finishes the change by itself, and the next run tells it.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest
from evidence import LOCK, canary, good, receipts, running
from freezing import SHORT, Freezer, lose_at_task, lose_controller, lose_host, lose_process, points
from switches import last, words

if TYPE_CHECKING:
    from pathlib import Path

    from target import Controller, Host

STEPS = ("facts", "stop", "unit", "start", "canary", "compare")
LOSE = {"process": lose_process, "host": lose_host}
EVERY = [(kind, step) for step in STEPS for kind in LOSE]
FULL = bool(os.environ.get("STANDFAST_FULL"))
# The host boots with the new files in place, and its service starts with them by itself.
CASES = EVERY if FULL else [("host", "start")]


@pytest.fixture(scope="module")
def host(controller: Controller, staged: dict[str, Host]) -> Host:
    """The last one, with whatever release it has by now."""
    name = max(staged)
    controller.write_inventory("configured", {name: {}})
    return staged[name]


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_configuration_is_put_back(case: tuple[str, str], host: Host, controller: Controller) -> None:
    kind, step = case
    present = in_place(host)
    shop = changed(host, controller)
    before, count = host.cli("facts"), len(taken_over(host))
    named = {"state_shop_file": str(shop)}

    frozen = Freezer(controller, "configure")(host, step, {**SHORT, **named}, inventory="configured")
    assert frozen.step == step  # it really died there
    LOSE[kind](frozen)
    left = frozen.journal()
    assert (left["operation"], left["step"], left["outcome"]) == ("configure", step, None)

    play = controller.playbook("configure", inventory="configured", extra_vars=named)
    assert play.rc != 0
    assert "The new configuration was not taken over: it was cut short" in words(play)
    assert in_place(host) == present
    assert host.run("ls /srv/lucy/state/upgrade.[kr]*", check=False).stdout == ""  # kept.*, reserve
    told = last(host)
    assert (told["operation"], told["verdict"]) == ("configure", "failed")
    switch = told["switch"]
    assert (switch["outcome"], switch["resumed_from"]) == ("resumed", step)
    assert "the one of before is put back" in switch["resumed_because"]
    canary(host, running(host).main_pid)
    facts = ("epoch", "orders", "stock", "spent_cents")
    after = host.cli("facts")
    assert {name: after[name] for name in facts} == {name: before[name] for name in facts}
    if not FULL:
        return

    good(controller.playbook("configure", inventory="configured", extra_vars=named))
    assert in_place(host) == shop.read_text()
    assert last(host)["verdict"] == "done"
    assert len(taken_over(host)) == count + 1
    assert host.cli("receipt", "verify")["verified"] is True


def test_what_the_host_finished_alone_is_told_by_the_next_run(host: Host, controller: Controller) -> None:
    shop, count = changed(host, controller), len(taken_over(host))
    named = {"state_shop_file": str(shop)}
    frozen = Freezer(controller, "configure")(host, "compare", {**SHORT, **named}, inventory="configured")
    lose_controller(frozen)
    left = frozen.journal()
    assert (left["outcome"], len(taken_over(host))) == ("configured", count)
    assert in_place(host) == shop.read_text()

    state = running(host)
    good(controller.playbook("configure", "--check", inventory="configured", extra_vars=named), changed=0)
    play = controller.playbook("configure", inventory="configured", extra_vars=named)
    good(play)
    assert f"only to prove: run {left['run_id']} changed the configuration" in words(play)
    assert running(host) == state
    told = last(host)
    assert (told["operation"], told["verdict"], len(taken_over(host))) == ("configure", "done", count + 1)
    assert (told["switch"]["outcome"], told["switch"]["step"]) == ("configured", None)
    assert told["switch"]["silence_seconds"] > 0
    assert told["canary"]["work"] != left["result"]["canary"]["work"]
    assert any(left["run_id"] in check["observed"] for check in told["checks"])
    nothing_to_do(host, controller, named)


@pytest.mark.skipif(not FULL, reason="the full tier does it")
def test_a_controller_that_is_lost_at_any_task_leaves_one_receipt(host: Host, controller: Controller) -> None:
    named = {"state_shop_file": str(changed(host, controller))}
    whole = controller.playbook("configure", inventory="configured", extra_vars=named)
    good(whole)
    failures = []
    for number, task in points(whole):
        shop, count = changed(host, controller), len(taken_over(host))
        try:
            lose_at_task(controller, "configure", host, number, inventory="configured", variables=named)
            good(controller.playbook("configure", inventory="configured", extra_vars=named))
            assert in_place(host) == shop.read_text()
            assert len(taken_over(host)) == count + 1
            nothing_to_do(host, controller, named)
            assert not host.testinfra.file(LOCK).exists
        except AssertionError as failure:  # all of them, so that one run says which tasks are wrong
            failures.append(f"{number} ({task}): {failure}")
    assert host.cli("receipt", "verify")["verified"] is True
    assert not failures, "\n".join(failures)


def in_place(host: Host) -> str:
    return host.run(["cat", "/srv/lucy/state/shop.toml"]).stdout


def changed(host: Host, controller: Controller) -> Path:
    """A catalogue that differs from the one in place."""
    shop, present = controller.folder / "shop.toml", in_place(host)
    point = int(re.findall(r"^reorder_point = (\d+)$", present, re.MULTILINE)[0])
    shop.write_text(present.replace(f"reorder_point = {point}", f"reorder_point = {point + 1}", 1))
    return shop


def nothing_to_do(host: Host, controller: Controller, named: dict[str, str]) -> None:
    before = (running(host), len(receipts(host)))
    good(controller.playbook("configure", inventory="configured", extra_vars=named), changed=0)
    assert (running(host), len(receipts(host))) == before


def taken_over(host: Host) -> list[str]:
    """The receipts of a configuration that was."""
    kept = receipts(host).items()
    return [name for name, one in kept if (one["operation"], one["verdict"]) == ("configure", "done")]
