"""A day in the shop: a backup in the morning, its state lost at noon, and nothing paid or done twice.

Everything through the installed service, the playbooks and the runbooks' own blocks. The tests go on from
each other, in their order.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from typing import TYPE_CHECKING, Any

import pytest
from account import URL, give, put_in_place
from archives import consistent
from conftest import books
from evidence import LOCK, canary, freed, good, listing, properties, receipts, running, service, strangers
from freezing import SHORT, points
from target import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from account import Account
    from old_worker import OldWorker
    from runbook import Executor
    from target import Controller, Host

SENTENCE = "runtime paused or replaced by restore"
PLANS = "find /srv/lucy/state -name '*plan*'"
COUNTED = {"vanilla": 8, "strawberry": 1, "chocolate": 9}

full = pytest.mark.skipif(not os.environ.get("STANDFAST_FULL"), reason="the full tier does it")


def stock(host: Host) -> dict[str, dict[str, Any]]:
    return {one["sku"]: one for one in host.cli("stock", "list")["products"]}


def order(host: Host, identity: str) -> dict[str, Any]:
    return dict(host.cli("order", "show", identity)["order"])


def becomes(host: Host, identity: str, status: str) -> dict[str, Any]:
    return wait_until(
        lambda: (seen := order(host, identity))["status"] == status and seen, 60, f"{identity} is {status}"
    )


def ctl(host: Host, verb: str) -> None:
    host.run(["lucy-agent", "systemctl", verb, "lucy-agent"], timeout=120)


def falls(host: Host, sku: str, tubs: int) -> dict[str, Any]:
    """The product is counted up, and sold down again: the draft that the service then proposes by itself."""
    host.cli("stock", "adjust", "--reason", "found", "--event-id", f"found-{sku}", "--", sku, str(tubs))
    canary(host, running(host).main_pid)  # a pass has seen it at its reorder point
    host.cli("stock", "adjust", "--reason", "sold", "--event-id", f"sold-{sku}", "--", sku, str(-tubs))
    (draft,) = wait_until(
        lambda: host.cli("order", "list", "--status", "DRAFT")["orders"], 60, f"{sku} is proposed"
    )
    assert (draft["sku"], draft["quantity"]) == (sku, tubs)
    return dict(draft)


def dies(
    controller: Controller,
    host: Host,
    playbook: str,
    task: int | str,
    variables: dict[str, Any],
    *,
    late: float = 0.5,
) -> str | None:
    """The controller is lost as that task begins; on the host it goes on to its end, and the lock is left.

    Returns the id of the run whose lock it is, if there is one.
    """
    others = strangers(host)
    seen = controller.playbook(playbook, extra_vars={**SHORT, **variables}, kill_at=task, kill_late=late)
    # It may have a task less than the run that they were counted in: a lock just renewed is not renewed.
    ended = isinstance(task, int) and len(seen.tasks) < task and seen.rc == 0
    assert seen.killed or ended, seen.output[-3000:]
    lock = freed(host, others)
    return lock["run_id"] if lock else None


def era(host: Host) -> tuple[str, bool]:
    """The epoch on which the store and its marker agree, and whether it is paused."""
    asked = host.run(["lucy-agent", "--json", "health"], check=False)
    assert asked.rc in {0, 4}, asked
    health = json.loads(asked.stdout)
    assert health["epoch"] == host.run(["head", "-n1", "/srv/lucy/state/agent.authority"]).stdout.strip()
    return health["epoch"], health["paused"]


def test_a_shop_with_an_account(
    controller: Controller, agent: Host, account: Account, token: str, noted: dict[str, Any]
) -> None:
    put_in_place(controller, account.address, token)
    give(controller, token, {"backup_offhost": "fetch", "recover_operator": "lucy"})
    counts = {sku: one["on_hand"] for sku, one in stock(agent).items()}
    assert counts == {"vanilla": 2, "strawberry": 1, "chocolate": 9}
    noted["inode"] = agent.run(["stat", "--format=%i", "/srv/lucy/state/agent.sqlite"]).stdout


def test_the_morning_backup_by_the_page(
    controller: Controller,
    agent: Host,
    runbook: Callable[[str, Host], Executor],
    old_worker: Callable[[], OldWorker],
    noted: dict[str, Any],
) -> None:
    """It holds an approved order that was not sent yet, and an item RUNNING under a worker that lives on."""
    vanilla = falls(agent, "vanilla", 6)
    assert vanilla["total_cents"] == 1800
    ctl(agent, "stop")
    agent.cli("order", "approve", vanilla["digest"], "--operator", "lucy")
    agent.cli("work", "add", "How is the strawberry?", "--session", "counter")
    worker = old_worker()
    assert worker.tries("write") == "written"
    # The controller is lost as a backup is being made: it is whole or marked as cut short, and the page's own
    # run goes on from there.
    dies(controller, agent, "backup", "Backup | One is made while the service goes on", {})
    runbook("backup", agent).run("Preconditions", "Diagnosis", "Act", "Verify")
    noted.update(vanilla=vanilla["id"], running=worker.work, epoch=worker.epoch)
    listed = agent.cli("backup", "list")
    assert listed["junk"] == []
    entry, *cut = listed["backups"]
    assert [one["problem"] for one in cut] == [None] * len(cut)
    noted["morning"] = entry["name"]
    assert entry["verified"]["ok"] is True
    last = list(receipts(agent).values())[-1]
    assert (last["operation"], last["verdict"]) == ("backup", "done")
    fetched = controller.folder / "backups/agent/lucy-agent" / entry["name"]
    found = [fetched, *fetched.rglob("*")]
    assert {"snapshot.sqlite", "manifest.json", "shop.toml"} <= {path.name for path in found}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {0o600}
    assert hashlib.sha256((fetched / "snapshot.sqlite").read_bytes()).hexdigest() == entry["sha256"]
    assert agent.run("ls /var/lib/standfast").stdout.split() == [
        "instances",
        "lingering",
        "outgoing",
        "records",
    ]
    assert agent.run("ls -A /var/lib/standfast/outgoing").stdout == ""


def test_a_young_backup_is_enough_when_asked_so(controller: Controller, agent: Host) -> None:
    """Then nothing is left to do: no change, no receipt, and the timers are as they were."""
    before = len(receipts(agent))
    good(controller.playbook("backup", "--diff", extra_vars={"backup_max_age": 3600}), changed=0)
    assert len(receipts(agent)) == before


def test_the_timers_back_up_and_rehearse_by_themselves(agent: Host, noted: dict[str, Any]) -> None:
    """Run as they will be at night: shut in, and without the service's credentials."""
    timers = agent.as_user("lucy", ["systemctl", "--user", "list-timers", "--no-legend", "--all"]).stdout
    assert {"lucy-agent-backup.timer", "lucy-agent-rehearse.timer"} <= set(timers.split())
    for job in ("backup", "rehearse"):
        agent.as_user("lucy", ["systemctl", "--user", "start", f"lucy-agent-{job}.service"], timeout=120)
    newest, morning, *_ = agent.cli("backup", "list")["backups"]
    assert morning["name"] == noted["morning"]
    assert newest["rehearsed"]["ok"] is True
    last = list(receipts(agent).values())[-1]
    assert (last["operation"], last["verdict"]) == ("rehearse", "done")


def test_what_came_after_the_backup(agent: Host, account: Account, noted: dict[str, Any]) -> None:
    """Vanilla is accepted and delivered, strawberry is proposed, approved and accepted: 2,600 cents."""
    ctl(agent, "start")
    becomes(agent, noted["vanilla"], "CONFIRMED")
    agent.cli("order", "deliver", noted["vanilla"], "--operator", "lucy")
    strawberry = falls(agent, "strawberry", 4)
    assert strawberry["total_cents"] == 800
    agent.cli("order", "approve", strawberry["digest"], "--operator", "lucy")
    becomes(agent, strawberry["id"], "CONFIRMED")
    noted["strawberry"] = strawberry["id"]
    accepted = {one["operation_id"]: one["total_cents"] for one in account.receipts()}
    assert accepted == {noted["vanilla"]: 1800, noted["strawberry"]: 800}
    assert {sku: one["on_hand"] for sku, one in stock(agent).items()} == COUNTED


def test_the_controller_is_lost_in_the_middle_of_the_restore(
    controller: Controller, agent: Host, noted: dict[str, Any]
) -> None:
    """What it began goes on or not: the store is the old one or the new one, and the next run finishes it."""
    before = books(agent)
    dies(
        controller,
        agent,
        "restore",
        "Stop | The unit has stopped",
        {"restore_from": noted["morning"]},
        late=0,
    )
    assert service(agent).active == "inactive"
    assert books(agent) == before
    # As after an upgrade that stopped for good: the restore that goes on from here puts it back, too.
    ctl(agent, "disable")
    task = "Restore | The backup is in the place of the state, paused"
    dies(controller, agent, "restore", task, {"restore_from": noted["morning"]})


def kept_before(host: Host, seen: Mapping[str, str]) -> None:
    """What the receipt of a restore names as the state before it is a good backup of that state."""
    (name,) = re.findall(r"; kept before it: /srv/lucy/backups/([^;/ ]+)", seen["restore"])
    assert host.cli("--check", "backup", "verify", name)["ok"] is True


def test_the_morning_is_restored_by_the_page_and_paused(
    controller: Controller,
    agent: Host,
    runbook: Callable[[str, Host], Executor],
    old_worker: Callable[[], OldWorker],
    noted: dict[str, Any],
) -> None:
    (controller.folder / "chosen-backup.txt").write_text(noted["morning"] + "\n")
    runbook("restore", agent).run("Preconditions", "Diagnosis", "Act", "Verify")
    assert agent.run(["stat", "--format=%i", "/srv/lucy/state/agent.sqlite"]).stdout == noted["inode"]
    health = agent.cli("health", rc=4)
    assert health["paused"] is True
    assert health["epoch"] != noted["epoch"]
    assert running(agent).restarts == 0
    assert properties(agent, "UnitFileState")["UnitFileState"] == "enabled"
    assert old_worker().tries("see") == f"{health['epoch']} paused"
    assert old_worker().tries("write") == SENTENCE
    last = list(receipts(agent).values())[-1]
    assert (last["operation"], last["verdict"]) == ("restore", "done")
    seen = {row["name"]: row["observed"] for row in last["checks"]}
    assert seen["epoch"] == health["epoch"]
    kept_before(agent, seen)
    assert order(agent, noted["vanilla"])["status"] == "REVOKED"
    assert {sku: one["on_hand"] for sku, one in stock(agent).items()} == {**COUNTED, "vanilla": 2}


def test_the_restore_again_changes_nothing(
    controller: Controller, agent: Host, noted: dict[str, Any]
) -> None:
    before, state = len(receipts(agent)), running(agent)
    good(controller.playbook("restore", "--diff", extra_vars={"restore_from": noted["morning"]}), changed=0)
    assert len(receipts(agent)) == before
    assert running(agent) == state


def test_a_request_made_while_paused_waits(agent: Host, noted: dict[str, Any]) -> None:
    noted["waiting"] = agent.cli("work", "add", "How is the stock?", "--session", "window")["work"]
    refused = agent.cli("canary", rc=3)
    assert refused["refused"]["code"] == "paused"
    assert agent.cli("work", "show", noted["waiting"])["work"]["status"] == "READY"


def test_the_state_is_older_than_the_world_by_the_page(
    agent: Host, runbook: Callable[[str, Host], Executor]
) -> None:
    before = books(agent)
    runbook("state-older-than-the-world", agent).run()
    assert books(agent) == before


def test_the_account_is_inspected_by_the_page(
    controller: Controller,
    agent: Host,
    runbook: Callable[[str, Host], Executor],
    old_worker: Callable[[], OldWorker],
    noted: dict[str, Any],
) -> None:
    """From here on the account refuses the old client; the plan asks what no supplier can tell."""
    # The controller is lost before it has the plan: what is left of that on the host goes with the next run.
    given = {"recover_operator": "lucy"}
    dies(
        controller,
        agent,
        "recover",
        "Inspect | The controller has a folder that nobody else can enter",
        given,
    )
    assert agent.run(PLANS).stdout != ""
    runbook("recover-the-account", agent).run("Preconditions", "Diagnosis", "Act: inspect")
    assert old_worker().tries("order").startswith("stale_epoch")
    (plan,) = (controller.folder / "plans/agent").iterdir()
    assert stat.S_IMODE(plan.stat().st_mode) == 0o600
    noted["plan"] = plan
    content = json.loads(plan.read_text())
    assert content["receipts"] == sorted([noted["vanilla"], noted["strawberry"]])
    assert {one["on_hand"] for one in content["inventory"].values()} == {None}
    assert {one["received"] for one in content["deliveries"].values()} == {None}
    assert content["interrupted"] == {noted["running"]: "report"}
    assert agent.run(PLANS).stdout == ""


def filled(plan: Path, noted: dict[str, Any]) -> dict[str, Any]:
    """What a look into the freezer tells: vanilla has come, strawberry has not."""
    content: dict[str, Any] = json.loads(plan.read_text())
    for sku, one in content["inventory"].items():
        one["on_hand"] = COUNTED[sku]
    for operation, one in content["deliveries"].items():
        one["received"] = operation == noted["vanilla"]
    return content


def test_a_plan_that_is_not_right_is_refused_and_changes_nothing(
    controller: Controller, agent: Host, noted: dict[str, Any]
) -> None:
    """Incomplete, stale, of another operator, or other bytes than were reviewed."""
    before, known = books(agent), len(receipts(agent))
    right = filled(noted["plan"], noted)
    wrong = {
        "incomplete": (json.loads(noted["plan"].read_text()), "lucy", 2),
        "stale": ({**right, "observed_at": "2026-01-01T00:00:00Z"}, "lucy", 3),
        "mallory": (right, "mallory", 3),
    }
    for name, (content, operator, rc) in wrong.items():
        path = f"/srv/lucy/state/{name}.json"
        text = json.dumps(content)
        agent.as_user("lucy", ["tee", path], stdin=text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        agent.cli("recover", "--plan", path, "--digest", digest, "--operator", operator, rc=rc)
        agent.run(["rm", path])
        assert books(agent) == before, name
    # One byte, through the playbook: it is not even copied.
    changed = controller.folder / "changed.json"
    changed.write_text(json.dumps(right) + " ")
    digest = hashlib.sha256(json.dumps(right).encode()).hexdigest()
    given = {"recover_plan": str(changed), "recover_digest": digest}
    play = controller.playbook("recover", extra_vars=given)
    assert play.rc != 0
    assert "not the reviewed one" in play.output
    # And another operator, through the playbook: asked on the host, and refused before anything is changed.
    changed.write_text(json.dumps(right))
    play = controller.playbook("recover", extra_vars={**given, "recover_operator": "mallory"})
    assert play.rc != 0
    assert "Refused: " in play.output
    assert books(agent) == before
    kept = [one for one in receipts(agent).values() if one["operation"] == "recover"]
    assert [one["verdict"] for one in kept] == ["refused"]
    assert len(receipts(agent)) == known + 1


def test_the_right_plan_is_applied_once_by_the_page(
    agent: Host,
    runbook: Callable[[str, Host], Executor],
    old_worker: Callable[[], OldWorker],
    account: Account,
    noted: dict[str, Any],
) -> None:
    page = runbook("recover-the-account", agent)
    text = json.dumps(filled(noted["plan"], noted))
    noted["plan"].write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (page.controller.folder / "plan-digest.txt").write_text(f"{digest}\n")
    given = {"recover_plan": str(noted["plan"]), "recover_digest": digest}
    # The controller is lost as the plan is being applied: the page's own run goes on from there.
    dies(page.controller, agent, "recover", "Apply | It is applied", given)
    page.run("Act: apply", "Verify")
    assert agent.run(PLANS).stdout == ""
    noted["given"] = given
    orders = {one["id"]: one for one in agent.cli("order", "list")["orders"]}
    assert {one: orders[one]["status"] for one in (noted["vanilla"], noted["strawberry"])} == {
        noted["vanilla"]: "DELIVERED",
        noted["strawberry"]: "CONFIRMED",
    }
    assert sum(one["spent_cents"] for one in orders.values()) == 2600
    assert agent.cli("health")["spending"]["spent_cents"] == 2600
    now = stock(agent)
    assert {sku: one["on_hand"] for sku, one in now.items()} == COUNTED
    assert now["strawberry"]["on_order"] == 4
    (report,) = agent.cli("report", "list", "--work", noted["running"])["reports"]
    assert "restored from a backup" in report["body"]
    assert old_worker().tries("write") == SENTENCE
    assert len(account.receipts()) == 2
    last = list(receipts(agent).values())[-1]
    assert (last["operation"], last["verdict"]) == ("recover", "done")
    assert last["canary"]["run"]["pid"] == running(agent).main_pid


def test_the_request_that_waited_is_finished(agent: Host, noted: dict[str, Any]) -> None:
    wait_until(
        lambda: agent.cli("work", "show", noted["waiting"])["work"]["status"] == "DONE", 60, "it is finished"
    )


def test_the_plan_again_is_a_duplicate(controller: Controller, agent: Host, noted: dict[str, Any]) -> None:
    before = len(receipts(agent))
    good(controller.playbook("recover", "--diff", extra_vars=noted["given"]), changed=0)
    assert len(receipts(agent)) == before


def test_check_mode_looks_ahead_and_changes_nothing(
    controller: Controller, agent: Host, noted: dict[str, Any]
) -> None:
    def seen() -> set[str]:
        return listing(
            agent, "/srv/lucy/backups", "/srv/lucy/receipts", "/home/lucy/.config", "/var/lib/standfast"
        )

    before, working = seen(), running(agent)
    for playbook in ("backup", "rehearse"):
        good(controller.playbook(playbook, check=True))
    good(controller.playbook("restore", check=True, extra_vars={"restore_from": noted["morning"]}))
    good(controller.playbook("recover", check=True, extra_vars=noted["given"]), changed=0)
    assert (seen(), running(agent)) == (before, working)


def test_a_rehearsal_by_the_page_and_the_status_tells_of_it(
    agent: Host, controller: Controller, runbook: Callable[[str, Host], Executor]
) -> None:
    def copies() -> set[str]:
        return {path.name for path in (controller.folder / "receipts/agent").glob("*rehearse*")}

    # The controller is lost as the backup is being read: what that needed is gone, and nothing is in the way.
    # On a fast machine it is lost when that is over and told.
    dies(controller, agent, "rehearse", "Rehearse | The backup was restored somewhere else and read", {})
    assert agent.run("ls /srv/lucy/backups | grep rehearsal/", check=False).stdout == ""
    before = copies()
    runbook("rehearse", agent).run()
    status = controller.playbook("status")
    told = " ".join(status.output.split())
    assert "backup /srv/lucy/backups/" in told
    assert "rehearsal good" in told
    assert len(copies() - before) == 1


INCOMING = "/var/lib/standfast/incoming/lucy-agent"


def test_an_upload_that_cannot_be_removed_is_told(
    controller: Controller, agent: Host, noted: dict[str, Any]
) -> None:
    """The run fails where it failed, says so and leaves its receipt, though its clearing up fails, too."""
    before = books(agent)
    agent.run(["mkdir", "-p", INCOMING])
    agent.outside("mount", "-t", "tmpfs", "tmpfs", INCOMING)
    given = {"restore_upload": str(controller.folder / "backups/agent/lucy-agent" / noted["morning"])}
    play = controller.playbook("restore", extra_vars=given)
    agent.outside("umount", INCOMING)
    assert play.rc != 0
    assert "Stopped at: Clear | What was uploaded is gone" in play.output
    last = list(receipts(agent).values())[-1]
    assert (last["operation"], last["verdict"]) == ("restore", "failed")
    assert INCOMING in {row["name"]: row["observed"] for row in last["checks"]}["upload"]
    assert not agent.testinfra.file(LOCK).exists
    assert books(agent) == before


def test_an_upload_that_outlived_its_lock_is_not_used(
    controller: Controller, agent: Host, noted: dict[str, Any]
) -> None:
    """Another run has taken the lock over meanwhile: this one stops, and gives nothing away."""
    before = books(agent)
    takes = f"until [ -e {INCOMING}/*/*/snapshot.sqlite ]; do sleep 0.1; done; "
    takes += f"""sed -i 's/"run_id": "[^"]*"/"run_id": "another"/' {LOCK}"""
    agent.run(["systemd-run", "--quiet", "--unit=another", "bash", "-c", takes])
    given = {"restore_upload": str(controller.folder / "backups/agent/lucy-agent" / noted["morning"])}
    play = controller.playbook("restore", extra_vars=given)
    assert play.rc != 0
    assert "Stopped at: Host | The deploy lock is renewed" in play.output
    assert set(agent.run(f"find {INCOMING} -printf '%u\n'").stdout.split()) == {"root"}
    assert '"run_id": "another"' in agent.run(["cat", LOCK]).stdout
    agent.run(["rm", "-r", LOCK, INCOMING])
    assert books(agent) == before


@full
@pytest.mark.parametrize("playbook", ["backup", "rehearse"])
def test_the_controller_is_lost_at_every_third_task(
    controller: Controller, agent: Host, playbook: str
) -> None:
    """The next run comes to its end, and leaves backups that are whole."""
    before = running(agent)
    whole = controller.playbook(playbook)
    good(whole)
    for number in range(1, len(whole.tasks) + 1, 3):
        dies(controller, agent, playbook, number, {}, late=0)
        good(controller.playbook(playbook, extra_vars=SHORT))
        listed = agent.cli("backup", "list")
        problems = {one["problem"] for one in listed["backups"]}
        assert (listed["junk"], problems) == ([], {None}), whole.tasks[number - 1]
        assert agent.run("ls -A /var/lib/standfast/outgoing").stdout == ""
    assert running(agent) == before


BY_HAND = "/srv/lucy/state/by-hand.json"


def planned(host: Host, inventory: Mapping[str, int], received: Callable[[str], bool]) -> tuple[str, str]:
    """A plan with every answer, as an operator makes it at the host's own terminal, and its digest."""
    host.cli("account", "inspect", "--operator", "lucy", "--out", BY_HAND)
    content = json.loads(host.run(["cat", BY_HAND]).stdout)
    host.run(["rm", BY_HAND])
    content["inventory"] = {sku: {"on_hand": count} for sku, count in inventory.items()}
    for operation, one in content["deliveries"].items():
        one["received"] = received(operation)
    text = json.dumps(content)
    return text, hashlib.sha256(text.encode()).hexdigest()


def recovered(host: Host, inventory: Mapping[str, int], received: Callable[[str], bool]) -> dict[str, Any]:
    """As an operator would at the host's own terminal, for what is not told by a page a second time."""
    text, digest = planned(host, inventory, received)
    host.as_user("lucy", ["tee", BY_HAND], stdin=text)
    result = host.cli("recover", "--plan", BY_HAND, "--digest", digest, "--operator", "lucy")
    host.run(["rm", BY_HAND])
    return result


def at_every_task(
    controller: Controller,
    host: Host,
    playbook: str,
    ready: Callable[[], dict[str, Any]],
    ends: Callable[[dict[str, Any], str | None], None],
) -> None:
    """The controller is lost at each task of a run, and `ends` says what the next run comes to.

    `ready` says with which variables. Before the lock is taken a dead run leaves nothing at all, so there is
    nothing for a next one. All of them are tried, so that one run says which are wrong.
    """
    whole = controller.playbook(playbook, extra_vars=ready())
    good(whole)
    locks = next(at for at, task in enumerate(whole.tasks, 1) if task.endswith("The deploy lock is ours"))
    given, failures = ready(), []
    before = (books(host), len(receipts(host)))
    for number, task in points(whole):
        try:
            if number < locks:
                assert dies(controller, host, playbook, number, given, late=0) is None
                assert (books(host), len(receipts(host))) == before
            else:
                given = ready()
                ends(given, dies(controller, host, playbook, number, given, late=0.5))
        except AssertionError as failure:
            failures.append(f"{number}, {task}: {failure}")
    assert not failures, "\n".join(failures)


def ended(host: Host, operation: str, held: str | None) -> dict[str, str]:
    """What the last receipt has seen: the next run's, or that of one that was lost after it.

    Nothing else is left of them.
    """
    assert host.run(PLANS).stdout == ""
    assert host.run("cd /var/lib/standfast && find incoming outgoing -mindepth 2", check=False).stdout == ""
    assert not host.testinfra.file(LOCK).exists
    assert not host.testinfra.file("/srv/lucy/state/.restoring").exists
    running(host)
    last = list(receipts(host).values())[-1]
    assert (last["operation"], last["verdict"]) == (operation, "done")
    seen = {check["name"]: check["observed"] for check in last["checks"]}
    assert held is None or last["run_id"] == held or held in seen["lock"]
    return seen


def works(host: Host, account: Account, noted: dict[str, Any]) -> None:
    """The paused agent is recovered by hand: both orders were bought once, whatever runs were lost."""
    done = recovered(host, COUNTED, lambda operation: operation == noted["vanilla"])
    assert (done["status"], done["orders"], done["spent_cents"]) == ("ACTIVE", 2, 2600)
    assert len(account.receipts()) == 2


@full
def test_the_controller_is_lost_at_every_task_of_a_restore(
    controller: Controller, agent: Host, account: Account, noted: dict[str, Any]
) -> None:
    """The store is the old one or the new one each time, and the next run comes to its end."""
    given = {"restore_upload": str(controller.folder / "backups/agent/lucy-agent" / noted["morning"])}
    inode = agent.run(["stat", "--format=%i", "/srv/lucy/state/agent.sqlite"]).stdout
    epochs = []

    def ready() -> dict[str, Any]:
        if era(agent)[1]:
            works(agent, account, noted)
        epochs.append(era(agent)[0])
        ctl(agent, "disable")
        return given

    def ends(given: dict[str, Any], held: str | None) -> None:
        epoch, paused = era(agent)
        assert paused == (epoch != epochs[-1])
        good(controller.playbook("restore", extra_vars={**SHORT, **given}))
        seen = ended(agent, "restore", held)
        assert era(agent) == (seen["epoch"], True)
        assert seen["epoch"] not in epochs
        assert not paused or seen["epoch"] == epoch  # it was not done twice
        assert noted["morning"] in agent.cli("health", rc=4)["reason"]
        kept_before(agent, seen)
        assert properties(agent, "UnitFileState")["UnitFileState"] == "enabled"
        assert agent.run(["stat", "--format=%i", "/srv/lucy/state/agent.sqlite"]).stdout == inode

    at_every_task(controller, agent, "restore", ready, ends)


@full
def test_the_controller_is_lost_at_every_task_of_an_inspection(
    controller: Controller, agent: Host, noted: dict[str, Any]
) -> None:
    """The account is fenced or not; the next run brings a plan."""
    given = {"recover_operator": "lucy"}
    epoch = agent.cli("restore", "--live", noted["morning"])["epoch"]
    plans = controller.folder / "plans/agent"

    def ends(given: dict[str, Any], held: str | None) -> None:
        assert era(agent) == (epoch, True)
        known = set(plans.iterdir())
        good(controller.playbook("recover", extra_vars={**SHORT, **given}))
        assert ended(agent, "inspect", held)["epoch"] == epoch
        (plan,) = set(plans.iterdir()) - known
        content = json.loads(plan.read_text())
        assert content["authority"] == epoch
        assert content["receipts"] == sorted([noted["vanilla"], noted["strawberry"]])
        assert era(agent) == (epoch, True)

    at_every_task(controller, agent, "recover", lambda: given, ends)


@full
def test_the_controller_is_lost_at_every_task_of_a_recovery(
    controller: Controller, agent: Host, account: Account, noted: dict[str, Any]
) -> None:
    """The plan is applied once, by the dead run or by the next one, which says so in its receipt."""
    plan = controller.folder / "of-every-task.json"

    def ready() -> dict[str, Any]:
        agent.cli("restore", "--live", noted["morning"])
        text, digest = planned(agent, COUNTED, lambda operation: operation == noted["vanilla"])
        plan.write_text(text)
        return {"recover_plan": str(plan), "recover_digest": digest}

    def ends(given: dict[str, Any], held: str | None) -> None:
        epoch, paused = era(agent)
        good(controller.playbook("recover", extra_vars={**SHORT, **given}))
        seen = ended(agent, "recover", held)
        assert seen["plan"] == given["recover_digest"]
        told = held is not None and held in seen["lock"]  # by the next run, and not by the lost one itself
        assert ("applied before" in seen["recover"]) == (told and not paused)
        assert era(agent) == (epoch, False)
        assert agent.cli("health")["spending"]["spent_cents"] == 2600
        assert len(account.receipts()) == 2
        assert {sku: one["on_hand"] for sku, one in stock(agent).items()} == COUNTED

    at_every_task(controller, agent, "recover", ready, ends)


def test_a_lost_marker_by_the_page(
    agent: Host, runbook: Callable[[str, Host], Executor], noted: dict[str, Any]
) -> None:
    epoch = agent.cli("health")["epoch"]
    agent.run("rm /srv/lucy/state/agent.authority")
    runbook("marker-missing", agent).run()
    assert agent.cli("health", rc=4)["epoch"] != epoch
    done = recovered(agent, COUNTED, lambda operation: operation == noted["vanilla"])
    assert (done["status"], done["orders"], done["spent_cents"]) == ("ACTIVE", 2, 2600)
    canary(agent, running(agent).main_pid)


def test_another_release_takes_the_timers_along(controller: Controller, agent: Host) -> None:
    """They name the release that they run; an edited one would be refused, so they are written anew."""
    archive = consistent(controller.archive, controller.folder / "dist/other.tar", rollback_floor="0.0.9")
    good(controller.playbook("upgrade", extra_vars={"release_archive": str(archive)}))
    current = agent.run(["readlink", "/srv/lucy/current"]).stdout.strip()
    for job in ("backup", "rehearse"):
        text = agent.run(["cat", f"/home/lucy/.config/systemd/user/lucy-agent-{job}.service"]).stdout
        assert f"/srv/lucy/{current}/venv/bin/python" in text
    agent.as_user("lucy", ["systemctl", "--user", "start", "lucy-agent-backup.service"], timeout=120)
    assert agent.cli("backup", "list")["backups"][0]["release"] == current.removeprefix("releases/")


def test_the_move_to_a_new_host_by_the_page(
    controller: Controller,
    hosts: dict[str, Host],
    token: str,
    runbook: Callable[[str, Host], Executor],
    noted: dict[str, Any],
) -> None:
    """The new host goes on with the whole history; the old one is stopped, and refused from then on."""
    new = hosts["new"]
    controller.write_inventory("new", {"new": {}})
    pairs = json.dumps({"STANDFAST_SUPPLIER_URL": URL, "STANDFAST_SUPPLIER_TOKEN": token})
    new.run("umask 077 && cat > /root/agent-env.json", stdin=pairs)
    runbook("move-to-a-new-host", new).run()
    assert hosts["agent"].user_service("lucy", "lucy-agent.service").active == "inactive"
    assert new.run("ls /var/lib/standfast/incoming", check=False).stdout == ""
    done = recovered(new, COUNTED, lambda operation: operation == noted["vanilla"])
    assert (done["orders"], done["spent_cents"], done["imported"]) == (2, 2600, [])
    canary(new, running(new).main_pid)
    assert order(new, noted["strawberry"])["status"] == "CONFIRMED"
    assert stock(new)["strawberry"]["on_order"] == 4


def test_the_records_are_whole_and_the_timers_go_with_the_instance(
    controller: Controller, agent: Host
) -> None:
    assert agent.cli("receipt", "verify")["verified"] is True
    good(controller.playbook("uninstall"))
    units = agent.run("find /home/lucy/.config/systemd/user -name 'lucy-agent*'").stdout
    assert units == ""
