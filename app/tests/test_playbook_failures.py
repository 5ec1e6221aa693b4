"""What a failed run says, as Ansible says it: the shared first and last tasks of the playbooks, run here.

In check mode, so that no host is asked and no receipt is kept: only the words are looked at.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
TASKS = CHECKOUT / "playbooks/tasks"
VARIABLES = {"instance_name": "lucy-agent", "instance_user": "lucy", "instance_root": "/srv/lucy"}


def play(folder: Path, hosts: list[str], serial: int, tasks: list[dict[str, Any]]) -> str:
    """What a play of these tasks prints, on one line; it must fail."""
    content = {
        "hosts": "all",
        "serial": serial,
        "gather_facts": False,
        "connection": "local",
        "vars": {**VARIABLES, "ansible_python_interpreter": sys.executable},
        "tasks": tasks,
    }
    (folder / "play.yml").write_text(yaml.safe_dump([content]))
    inventory = ",".join(hosts) + ","
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            "--check",
            "-i",
            inventory,
            str(folder / "play.yml"),
        ],
        cwd=CHECKOUT,
        env=os.environ | {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_ROLES_PATH": str(CHECKOUT / "roles")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0, done.stdout
    return re.sub(r"\s+", " ", done.stdout)


def test_a_failed_item_of_a_loop_is_told_with_its_own_words(tmp_path: Path) -> None:
    broken: dict[str, Any] = {
        "block": [
            {"ansible.builtin.import_tasks": str(TASKS / "begin.yml")},
            {
                "name": "Folder | Exists",
                "ansible.builtin.fail": {"msg": "there is no room for {{ item }}"},
                "loop": ["state", "backups"],
                "when": "item == 'backups'",
            },
        ],
        "rescue": [{"ansible.builtin.import_tasks": str(TASKS / "failed.yml")}],
    }
    said = play(tmp_path, ["a", "b", "c"], 1, [broken])
    last = said.rpartition("The run stops here")[2]
    assert "backups: there is no room for backups" in last
    assert "One or more items failed" not in last
    assert "Stopped at: Folder | Exists (host a, instance lucy-agent)." in last
    assert "Not attempted: b, c." in last


def test_a_failure_says_what_was_changed_before_it(tmp_path: Path) -> None:
    broken: dict[str, Any] = {
        "block": [
            {"ansible.builtin.import_tasks": str(TASKS / "begin.yml")},
            *(
                {"ansible.builtin.debug": {"msg": "-"}, "changed_when": changed, "register": name}
                for name, changed in (
                    ("__instance_account", True),
                    ("__release_made", True),
                    ("__state_init", False),
                )
            ),
            {"ansible.builtin.fail": {"msg": "Refused: too late"}},
        ],
        "rescue": [{"ansible.builtin.import_tasks": str(TASKS / "failed.yml")}],
    }
    last = play(tmp_path, ["a"], 1, [broken]).rpartition("The run stops here")[2]
    assert "Refused: too late" in last
    assert "Changed before that: the account, a release folder." in last
    assert "Not attempted: no other host." in last


def test_a_batch_after_a_lost_host_names_the_hosts_that_are_not_attempted(tmp_path: Path) -> None:
    tasks: list[dict[str, Any]] = [
        {"ansible.builtin.import_tasks": str(TASKS / "begin.yml")},
        {"ansible.builtin.fail": {"msg": "gone"}, "when": "inventory_hostname == 'a'"},
    ]
    said = play(tmp_path, ["a", "b", "c", "d", "e"], 2, tasks)
    assert "a failed or became unreachable earlier in this run. Not attempted: c, d, e." in said
