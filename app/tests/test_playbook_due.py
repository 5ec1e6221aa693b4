"""What the next run does: decided by the roles from what is on the host, here from surveys of all kinds.

Each survey is a host of one play; what the roles make of it is written to a file.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
OLD, NEW = "0.1.0-aaaaaaaa-cccccccc", "0.2.0-bbbbbbbb-cccccccc"
SAYS = {
    "due": [f"__upgrade_{what}" for what in ("switch", "prove", "unfinished", "untold", "from")],
    "first": [],
    "target": ["__release_id", "__rollback_stands", "__rollback_begun", "__rollback_resumes"],
}


def survey(runs: str = OLD, **changes: Any) -> dict[str, Any]:
    """Of a host where one release works, and was shown to."""
    found = {
        "current": runs,
        "unit": {"release": runs},
        "service": {"release": runs},
        "start": {"up": True},
        "unproven": [],
        "upgrade": None,
        "releases": [{"id": OLD, "sealed": True}, {"id": NEW, "sealed": True}],
        "receipts": {"moved": None},
        "previous_good": None,
    }
    return found | changes


def left(step: str, outcome: str | None, to: str = NEW, start: str = OLD) -> dict[str, Any]:
    """The journal of an earlier switch."""
    return {"step": step, "outcome": outcome, "from": start, "to": to}


def decided(
    folder: Path, role: str, tasks: str, cases: dict[str, dict[str, Any]], variables: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """For each case what the role's tasks say of its survey, or `refused` with the words."""
    wanted = ", ".join(f"{name!r}: {name} | default(none)" for name in SAYS[tasks])
    write = {
        "content": f"{{{{ {{'refused': refused | default(none), {wanted}}} | to_json }}}}",
        "dest": f"{folder}/{{{{ inventory_hostname }}}}",
        "mode": "0600",
    }
    play = {
        "hosts": "all",
        "gather_facts": False,
        "connection": "local",
        "vars": {
            "ansible_python_interpreter": sys.executable,
            "instance_name": "lucy-agent",
            "instance_root": "/srv/lucy",
            "__host_checks": [],
            **variables,
        },
        "tasks": [
            {
                "block": [{"ansible.builtin.import_role": {"name": role, "tasks_from": tasks}}],
                "rescue": [{"ansible.builtin.set_fact": {"refused": "{{ ansible_failed_result.msg }}"}}],
            },
            {"ansible.builtin.copy": write},
        ],
    }
    hosts = {name: {"__host_survey": found} for name, found in cases.items()}
    (folder / "play.yml").write_text(yaml.safe_dump([play]))
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    program = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run(
        [program, "-i", folder / "hosts.yml", folder / "play.yml"],
        cwd=CHECKOUT,
        env=os.environ | {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_ROLES_PATH": str(CHECKOUT / "roles")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: json.loads((folder / name).read_text()) for name in cases}


def test_the_next_run_of_an_upgrade_by_what_the_one_before_left(tmp_path: Path) -> None:
    """Also of a run whose controller was lost before the switch, or after it at any task."""
    told = ["the last receipt does not say that it was installed"]
    found = decided(
        tmp_path,
        "upgrade",
        "due",
        {
            "another": survey(),
            "the-same-again": survey(NEW),
            "never-shown": survey(NEW, unproven=["no run has shown it to work"]),
            "staged-only": survey(upgrade=left("done", "upgraded", to=OLD, start="0.0.9-d-d")),
            "cut-short": survey(NEW, current=OLD, upgrade=left("start", None)),
            "before-current": survey(
                NEW, current=OLD, unproven=["it is not the current release"], upgrade=left("done", "upgraded")
            ),
            "before-its-receipt": survey(NEW, unproven=told, upgrade=left("done", "upgraded")),
            "told": survey(NEW, upgrade=left("done", "upgraded")),
            "taken-back": survey(unproven=told, upgrade=left("done", "rolled_back")),
            "stopped": survey(service=None, start={"up": False}, upgrade=left("done", "stopped")),
            "of-another": survey(upgrade=left("migrate", None, to="0.3.0-e-e")),
            "dead": survey(NEW, service=None, start={"up": False}),
        },
        {"__release_id": NEW, "__host_purpose": "upgrade"},
    )
    names = {"__upgrade_switch": "switch", "__upgrade_prove": "prove"}
    names |= {"__upgrade_unfinished": "unfinished", "__upgrade_untold": "untold"}
    does = {case: {short for name, short in names.items() if one[name]} for case, one in found.items()}
    refused = {case: one["refused"] for case, one in found.items() if one["refused"]}
    assert set(refused) == {"of-another", "dead"}
    assert "was cut short at the step migrate" in " ".join(refused["of-another"].split())
    assert "its service does not work" in " ".join(refused["dead"].split())
    assert {case: done for case, done in does.items() if case not in refused} == {
        "another": {"switch"},
        "the-same-again": set(),
        "never-shown": {"prove"},
        "staged-only": {"switch"},
        "cut-short": {"switch", "unfinished"},
        "before-current": {"switch", "untold"},
        "before-its-receipt": {"switch", "untold"},
        "told": set(),
        "taken-back": {"switch"},
        "stopped": {"switch"},
    }
    switched = [case for case, done in does.items() if "switch" in done and case not in refused]
    assert {found[case]["__upgrade_from"] for case in switched} == {OLD}


def test_a_release_is_staged_also_beside_a_switch_to_another_that_was_cut_short(tmp_path: Path) -> None:
    """It may be the one that gives the other up."""
    left_by = survey(upgrade=left("migrate", None, to="0.3.0-e-e"))
    staging = {"__release_id": NEW, "__host_purpose": "upgrade", "__upgrade_stages": True}
    assert decided(tmp_path, "upgrade", "due", {"beside": left_by}, staging)["beside"]["refused"] is None
    known = {"__upgrade_unfinished": True, "__upgrade_left": left_by["upgrade"]}
    found = decided(tmp_path, "upgrade", "first", {"after": left_by}, staging | known)
    assert "was cut short at the step migrate" in " ".join(found["after"]["refused"].split())


def test_a_rollback_without_a_name_goes_to_the_previous_good_one_and_then_stands(tmp_path: Path) -> None:
    """Whatever was refused, failed or installed anew since: it goes neither back further nor forth."""
    went = {"operation": "rollback", "verdict": "done", "release_after": OLD}
    came = {"operation": "upgrade", "verdict": "done", "release_after": NEW}
    found = decided(
        tmp_path,
        "rollback",
        "target",
        {
            "first": survey(NEW, previous_good=OLD, receipts={"moved": came}),
            "again": survey(previous_good=NEW, receipts={"moved": went}),
            "later": survey(NEW, previous_good=OLD, receipts={"moved": went}),
            "begun": survey(NEW, previous_good=None, upgrade=left("unit", None, to=OLD, start=NEW)),
            "only-one": survey(),
        },
        {"rollback_to": "", "rollback_below_floor": "", "rollback_reason": ""},
    )
    goes = {case: (one["__release_id"], one["__rollback_stands"]) for case, one in found.items()}
    assert goes.pop("only-one")[0] == ""
    assert goes == {
        "first": (OLD, False),
        "again": (OLD, True),
        "later": (OLD, False),
        "begun": (OLD, False),
    }
    assert "was ever shown to work here" in found["only-one"]["refused"]


def test_a_rollback_of_what_stays_stopped_starts_the_release_that_was_left(tmp_path: Path) -> None:
    """As the switch's ways on say, where nothing was migrated: not the one before that."""
    older = "0.0.9-dddddddd-cccccccc"
    down: dict[str, Any] = {"service": None, "start": {"up": False}, "previous_good": older}
    cases = {
        "stopped": survey(upgrade=left("done", "stopped"), **down),
        "a-rollback": survey(upgrade=left("done", "stopped", to=older), **down),
        "restored-since": survey(upgrade=left("done", "stopped"), previous_good=older),
        "only-down": survey(upgrade=left("done", "upgraded", to=OLD, start=older), **down),
    }
    none = {"rollback_to": "", "rollback_below_floor": "", "rollback_reason": ""}
    found = decided(tmp_path, "rollback", "target", cases, none)
    goes = {case: (one["__release_id"], one["__rollback_resumes"]) for case, one in found.items()}
    assert goes == {
        "stopped": (OLD, True),
        "a-rollback": (OLD, True),
        "restored-since": (older, False),
        "only-down": (older, False),
    }
    asked = {"__release_id": OLD, "__host_purpose": "rollback"}
    of_stopped = {"stopped": cases["stopped"]}
    may = decided(tmp_path, "upgrade", "due", of_stopped, asked | {"__rollback_resumes": True})["stopped"]
    assert (may["refused"], may["__upgrade_switch"]) == (None, True)
    down_only = {"only-down": cases["only-down"]}
    no = decided(tmp_path, "upgrade", "due", down_only, asked | {"__rollback_resumes": False})["only-down"]
    assert "its service does not work" in " ".join(no["refused"].split())
