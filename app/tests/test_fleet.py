"""The end of a run over many hosts: its summary and its fleet receipt, as Ansible's own runs give them.

The plays are small, and use the shared first and last tasks of the playbooks; their hosts are this machine.
"""

import base64
import getpass
import importlib.util
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleError, AnsibleFilterError

CHECKOUT = Path(__file__).resolve().parents[2]
TASKS = CHECKOUT / "playbooks/tasks"
PLAYBOOKS = CHECKOUT / "playbooks"
HOSTS = ["one", "two", "three", "four", "five"]
HIDDEN = "its words are hidden, because it handles credentials"
SECRET = "a-credential-0123456789"
DEFAULT = "{{ standfast_serial | default([1, '25%', '100%']) | batches }}"


def loaded(path: str) -> ModuleType:
    """A plug-in as a module, for its plain functions."""
    spec = importlib.util.spec_from_file_location(f"{Path(path).stem}_under_test", CHECKOUT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def fleet() -> ModuleType:
    return loaded("playbooks/callback_plugins/fleet.py")


class Fleet:
    """Five hosts that are this machine, and a folder for receipts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.receipts = folder, folder / "receipts"
        self.inventory = {name: {"ansible_connection": "local"} for name in HOSTS}

    def command(self, work: list[dict[str, Any]], *arguments: str, serial: object = DEFAULT) -> list[str]:
        block = [
            *work,
            {
                "ansible.builtin.import_tasks": str(TASKS / "result.yml"),
                "vars": {"result_after": "0.2.0-bbbb"},
            },
        ]
        variables = {
            "instance_name": "lucy-agent",
            "instance_user": "lucy",
            "instance_root": "/srv/lucy",
            "ansible_python_interpreter": sys.executable,
            "receipt_operation": "upgrade",
            "receipt_controller_folder": str(self.receipts),
            "__release_id": "0.2.0-bbbb",
            "__fleet_rolls": True,
            "host_holder": "me@here",
        }
        play = {
            "name": "Upgrade | Tried here",
            "hosts": "all",
            "serial": serial,
            "gather_facts": False,
            "vars": variables,
            "tasks": [
                {"ansible.builtin.import_tasks": str(TASKS / "begin.yml")},
                {"block": block, "rescue": [{"ansible.builtin.import_tasks": str(TASKS / "failed.yml")}]},
            ],
        }
        (self.folder / "play.yml").write_text(yaml.safe_dump([play]))
        (self.folder / "hosts.yml").write_text(
            yaml.safe_dump({"all": {"hosts": self.inventory}}, sort_keys=False)
        )
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        return [program, "-i", str(self.folder / "hosts.yml"), str(self.folder / "play.yml"), *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_ROLES_PATH": str(CHECKOUT / "roles"),
            "ANSIBLE_CALLBACK_PLUGINS": str(PLAYBOOKS / "callback_plugins"),
            "ANSIBLE_FILTER_PLUGINS": str(PLAYBOOKS / "filter_plugins"),
            "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"),
            "HIDDEN": SECRET,
        }

    def run(self, work: list[dict[str, Any]], *arguments: str, rc: int, serial: object = DEFAULT) -> str:
        done = subprocess.run(
            self.command(work, *arguments, serial=serial),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == rc, done.stdout + done.stderr
        return done.stdout + done.stderr

    def kept(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.receipts.glob("fleet-*.json"))]

    def outcomes(self) -> dict[str, str]:
        return {row["host"]: row["outcome"] for row in self.kept()[-1]["hosts"]}


@pytest.fixture
def five(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def refuse(*hosts: str) -> dict[str, Any]:
    words = {"msg": "Refused: there is no room. To do: make some"}
    return {"ansible.builtin.fail": words, "when": f"inventory_hostname in {list(hosts)}"}


CHANGE = {"ansible.builtin.command": "true", "changed_when": True}
REACH = {"ansible.builtin.raw": "true", "changed_when": False}


def table_of(said: str) -> dict[str, str]:
    """The rows of the summary, by host."""
    lines = said.partition("HOST ")[2].splitlines()[1:]
    rows = [line for line in lines[: lines.index("")] if line]
    return {line.split()[0]: line for line in rows}


def test_a_bad_canary_stops_the_roll_and_one_summary_names_the_hosts_not_attempted(five: Fleet) -> None:
    said = five.run([refuse("one"), CHANGE], rc=2)
    assert said.count("HOST ") == said.count("FLEET: ") == 1
    assert "FLEET: 5 hosts in batches of 1, 1, 3; one comes first." in said
    rows = table_of(said)
    assert list(rows) == HOSTS
    assert "refused        there is no room. To do: make some" in rows["one"]
    assert all(" not attempted " in rows[name] for name in HOSTS[1:])
    assert "upgrade: 5 hosts, 1 refused, 4 not attempted." in said
    assert "--limit @receipts/rest-of-upgrade" in said
    assert (five.receipts / "rest-of-upgrade").read_text().split() == HOSTS
    (receipt,) = five.kept()
    assert (receipt["verdict"], receipt["target"], receipt["continues"]) == ("stopped", "0.2.0-bbbb", None)
    assert receipt["counts"] == {"refused": 1, "not attempted": 4}
    assert receipt["hosts"][0]["run_id"]


def test_the_rest_continues_the_roll_and_the_last_one_of_it_too(five: Fleet) -> None:
    five.run([refuse("three"), CHANGE], rc=2)
    assert list(five.outcomes().values()) == ["done", "done", "refused", "done", "done"]
    said = five.run([CHANGE], "--limit", "@receipts/rest-of-upgrade", rc=0)
    assert not (five.receipts / "rest-of-upgrade").exists()
    first = min(five.receipts.glob("fleet-*.json"))
    assert f"Continues {first.name}." in said
    assert table_of(said)["one"].split()[4:6] == ["done", "earlier"]
    receipt = five.kept()[-1]
    assert receipt["continues"]["file"] == first.name
    assert receipt["verdict"] == "done"
    assert [row["earlier"] for row in receipt["hosts"]] == [first.name] * 2 + [None] + [first.name] * 2
    alone = five.run([CHANGE], "--limit", "three", rc=0)  # after its roll has ended: no fleet
    assert "HOST " not in alone
    assert len(five.kept()) == 2


def test_a_host_that_is_lost_in_the_middle_stops_the_roll(five: Fleet) -> None:
    five.inventory["two"] = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": "1"}
    said = five.run([REACH, CHANGE], rc=4, serial=[1, 2])
    # Its batch mate is brought to its end; the batch after them is not begun.
    assert list(five.outcomes().values()) == ["done", "unreachable", "done", *["not attempted"] * 2]
    assert "unreachable" in table_of(said)["two"]


def test_a_host_whose_play_was_cut_off_is_not_told_as_done(five: Fleet) -> None:
    """Whatever cut it off: here an end that no task of ours has asked for."""
    ends = {"ansible.builtin.meta": "end_host", "when": "inventory_hostname == 'two'"}
    said = five.run([REACH, ends, CHANGE], rc=0)
    assert list(five.outcomes().values()) == ["done", "failed", *["done"] * 3]
    assert "cut off while at work" in table_of(said)["two"]
    assert (five.receipts / "rest-of-upgrade").read_text().split() == ["two"]


def test_the_receipt_is_private_and_holds_no_credential(five: Fleet) -> None:
    hidden = {
        "ansible.builtin.command": 'sh -c \'echo {{ lookup("ansible.builtin.env", "HIDDEN") }} >&2; exit 1\'',
        "no_log": True,
        "when": "inventory_hostname == 'two'",
    }
    said = five.run([hidden], rc=2)
    (path,) = five.receipts.glob("fleet-*.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SECRET not in path.read_text()
    assert SECRET not in said
    assert (five.outcomes()["two"], five.kept()[0]["hosts"][1]["reason"]) == ("failed", HIDDEN)


def test_a_dry_run_shows_the_table_and_keeps_nothing(five: Fleet) -> None:
    said = five.run([refuse("two")], "--check", rc=2)
    assert "check mode: nothing was changed" in said
    assert "refused" in table_of(said)["two"]
    assert "--limit 'two,three,four,five'" in said
    assert not five.receipts.exists()


def test_an_interrupted_run_still_tells_what_became_of_each_host(five: Fleet) -> None:
    begun = five.folder / "begun"
    waits = {
        "name": "Wait | Long",
        "ansible.builtin.command": {"argv": ["sh", "-c", f"touch {begun}; exec sleep 60"]},
        "when": "inventory_hostname == 'two'",
    }
    with subprocess.Popen(
        # What was started in the background of a shell would ignore it.
        ["env", "--default-signal=INT", *five.command([waits, CHANGE])],
        cwd=five.folder,
        env=five.environment | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        until = time.monotonic() + 60
        while not begun.exists() and time.monotonic() < until:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(timeout=30) != 0
    assert list(five.outcomes().values()) == ["done", "failed", *["not attempted"] * 3], rest
    assert five.kept()[-1]["verdict"] == "interrupted"
    assert "interrupted while at work" in table_of(rest)["two"]


ROW = {
    "instance": "lucy-agent",
    "release": "0.1.0-aaaaaaaa-cccccccc",
    "schema": {"work": 3, "orders": 2},
    "schema_due": 0,
    "paused": False,
    "oldest_work": 4.2,
    "uncertain_orders": 0,
    "uncertain_reports": 0,
    "backup_age": 7_200.0,
    "rehearsal_age": None,
    "canary_age": 600.0,
    "restarts": 0,
}


def well(**changes: Any) -> dict[str, Any]:
    return {"row": ROW | changes, "report": ["instance  lucy-agent"], "attention": []}


def test_the_table_of_status_has_every_host_and_what_asks_for_a_person_below_it(fleet: ModuleType) -> None:
    newer = well(release="0.2.0-bbbbbbbb-cccccccc", schema={"work": 4, "orders": 2}, schema_due=1)
    newer["attention"] = ["ATTENTION health: paused: since T. To do: recover"]
    answers = {"one": well(), "two": newer, "three": fleet.lost_answer("no route\n to it")}
    lines = fleet.told_status(answers)
    assert lines[1].split() == list(fleet.STATUS_COLUMNS)
    assert lines[2].split() == [
        *("one", "lucy-agent", "0.1.0-aaaaaaaa", "5", "no", "4s", "no", "2h", "-", "10m", "0", "-")
    ]
    assert lines[3].split()[2:4] == ["0.2.0-bbbbbbbb", "6+1"]
    assert lines[4].split()[:3] == ["three", "UNREACHABLE", "-"]
    assert "Mixed releases: 0.1.0-aaaaaaaa-cccccccc on 1, 0.2.0-bbbbbbbb-cccccccc on 1." in lines
    below = lines[5:]
    assert "  ATTENTION health: paused: since T. To do: recover" in below
    assert "  ATTENTION unreachable: no route to it" in below
    assert "one:" not in below  # nothing to say of it
    assert lines[-1] == "status: 3 hosts, 2 need attention."
    content = fleet.status_content(answers, 0)
    assert (content["ok"], content["at"]) == (False, "1970-01-01T00:00:00Z")
    assert [one["reachable"] for one in content["hosts"]] == [True, True, False]
    assert content["hosts"][1]["attention"] == ["health: paused: since T. To do: recover"]


def test_a_single_host_has_room_for_its_whole_report_and_twenty_fit_one_screen(fleet: ModuleType) -> None:
    assert "  instance  lucy-agent" in fleet.told_status({"one": well()})
    many = fleet.told_status({f"agent-{number}.example.org": well() for number in range(20)})
    assert len(many) <= 25
    assert max(map(len, many)) <= 132


def test_an_answer_is_the_last_object_and_a_host_without_one_is_told_by_its_words(fleet: ModuleType) -> None:
    answer = fleet.answer_of({"stdout": 'a banner\r\n{"row": {}, "report": [], "attention": []}\r\n'})
    assert answer["attention"] == []
    broken = fleet.answer_of({"stdout": "Refused: python: no Python 3\r\n", "rc": 3})
    assert broken["attention"] == ["ATTENTION status: Refused: python: no Python 3"]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(None, "-"), (0.4, "0s"), (59.0, "59s"), (61.0, "1m"), (7_200.0, "2h"), (172_900.0, "2d")],
)
def test_ages(fleet: ModuleType, seconds: float | None, told: str) -> None:
    assert fleet.age(seconds) == told


def test_releases_are_cut_short_where_that_still_tells_them_apart(fleet: ModuleType) -> None:
    ids = ["0.1.0-aa-cc", "0.1.0-aa-dd", "0.2.0-bb-cc"]
    assert fleet.short_releases(ids) == {ids[0]: ids[0], ids[1]: ids[1], ids[2]: "0.2.0-bb"}


@pytest.mark.parametrize(
    ("hosts", "serial", "sizes"),
    [
        (5, [1, "25%", "100%"], [1, 1, 3]),
        (20, [1, "25%", "100%"], [1, 5, 14]),
        (2, [1, "25%", "100%"], [1, 1]),
        (7, ["1", "2"], [1, 2, 2, 2]),
        (3, [0], [3]),
    ],
)
def test_the_batches_that_are_announced(
    fleet: ModuleType, hosts: int, serial: list[Any], sizes: list[int]
) -> None:
    assert fleet.batches_of(hosts, serial) == sizes


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        (1, [1]),
        ("2", [2]),
        ("50%", ["50%"]),
        ([1, "25%", "100%"], [1, "25%", "100%"]),
        ('[1, "25%"]', [1, "25%"]),  # -e standfast_serial='[1, "25%"]' is a text
    ],
)
def test_what_an_operator_gives_as_batches(given: object, sizes: list[int | str]) -> None:
    assert loaded("playbooks/filter_plugins/batches.py").batches(given) == sizes


@pytest.mark.parametrize("given", ["", "abc", "1,2", "[1,", [], 0, "0%", "101%", -1, True, None, [1, None]])
def test_batches_that_are_none_are_refused_by_their_variable(given: object) -> None:
    with pytest.raises(AnsibleFilterError, match=r"Refused: standfast_serial is .* no host was asked"):
        loaded("playbooks/filter_plugins/batches.py").batches(given)


@pytest.mark.parametrize("serial", [[1, "25%", "100%"], [2, 3], 1, "50%", [1, 2]])
def test_a_host_s_batch_is_the_one_that_was_announced(fleet: ModuleType, serial: object) -> None:
    plugin = loaded("playbooks/filter_plugins/batches.py")
    sizes = plugin.batches(serial)
    found = [plugin.batch_of(HOSTS, sizes, host) for host in HOSTS]
    firsts = list(dict.fromkeys(batch[0] for batch in found))
    announced = fleet.batches_of(len(HOSTS), sizes)
    assert [len(found[HOSTS.index(first)]) for first in firsts] == announced


def test_batches_that_the_inventory_names_are_refused_and_not_silently_others(five: Fleet) -> None:
    for host in five.inventory.values():
        host["standfast_serial"] = "2"
    said = five.run([CHANGE], rc=2)
    assert "Refused: standfast_serial is 2 in the inventory, where it has no effect" in said
    assert """-e '{"standfast_serial": "2"}'; nothing was touched.""" in said.replace("\\", "")
    assert five.kept() == []
    five.run([CHANGE], "-e", '{"standfast_serial": 2}', rc=0)
    assert set(five.outcomes().values()) == {"done"}


def test_a_host_that_failed_names_the_hosts_after_its_batch(five: Fleet) -> None:
    said = five.run([refuse("two"), CHANGE], rc=2, serial=[3, 2])
    assert "Not attempted: four, five." in said
    assert five.outcomes()["three"] == "done"


def test_what_a_host_is_sent_is_the_text_again_and_needs_no_quotes() -> None:
    text = (CHECKOUT / "roles/host/files/hostcheck.py").read_text()
    packed = loaded("roles/host/filter_plugins/packed.py").packed(text)
    assert zlib.decompress(base64.b64decode(packed)).decode() == text
    assert re.fullmatch("[A-Za-z0-9+/=]+", packed)
    assert len(packed) < 64_000  # one argument of a shell may be 128 KiB long, and sudo quotes it


def test_what_many_hosts_need_of_the_controller_is_asked_once(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    script = f"sleep 0.3; echo x >> {asked}; echo out; echo err >&2; exit 3"
    program = (
        "import importlib.util, json, sys, pathlib;"
        "spec = importlib.util.spec_from_file_location('asked_once', sys.argv[1]);"
        "plugin = importlib.util.module_from_spec(spec); spec.loader.exec_module(plugin);"
        "print(json.dumps(plugin.asked_once(sys.argv[3:], pathlib.Path(sys.argv[2]))))"
    )
    plugin, folder = CHECKOUT / "roles/release/lookup_plugins/asked_once.py", tmp_path / "run"
    folder.mkdir()
    command = [sys.executable, "-c", program, str(plugin), str(folder), "sh", "-c", script]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
    answers = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    assert answers == [{"rc": 3, "stdout": "out\n", "stderr": "err\n"}] * 4
    assert asked.read_text() == "x\n"
    asked_once = loaded("roles/release/lookup_plugins/asked_once.py").asked_once
    assert asked_once(["sh", "-c", "exit 1"], folder)["rc"] == 1
    absent = asked_once(["/opt/nowhere"], folder)
    assert absent["rc"] == 127
    assert "/opt/nowhere" in absent["stderr"]


def test_half_an_answer_is_asked_again(tmp_path: Path) -> None:
    asked_once = loaded("roles/release/lookup_plugins/asked_once.py").asked_once
    command = ["sh", "-c", "echo out"]
    whole = asked_once(command, tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_text(kept.read_text()[:-5])
    assert asked_once(command, tmp_path) == whole
    assert json.loads(kept.read_text()) == whole


def test_no_room_to_ask_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = loaded("roles/release/lookup_plugins/asked_once.py")
    monkeypatch.setattr(plugin.constants, "DEFAULT_LOCAL_TMP", str(tmp_path / "gone"))
    with pytest.raises(AnsibleError, match=f"temporary folder {tmp_path / 'gone'}"):
        plugin.LookupModule().run(["true"])


def test_what_a_killed_run_left_is_not_in_the_way_of_a_private_file(
    fleet: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "status.json"
    (tmp_path / ".status.json.new").write_text("half")
    fleet.write_private(path, "whole\n")
    with pytest.raises(TypeError):
        fleet.write_private(path, 7)
    assert path.read_text() == "whole\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(one.name for one in tmp_path.iterdir()) == [".status.json.new", "status.json"]


def test_a_receipt_on_the_controller_is_whole_and_private(tmp_path: Path) -> None:
    keep = loaded("roles/receipt/action_plugins/keep_receipt.py").keep
    path = tmp_path / "receipts/host-1/lucy-agent-000001.json"
    before = os.umask(0o077)
    try:
        os.umask(0)
        keep(path, {"verdict": "failed"})
        keep(path, {"verdict": "done", "boot": None})
        with pytest.raises(TypeError):
            keep(path, {"verdict": object()})
    finally:
        os.umask(before)
    assert json.loads(path.read_text()) == {"boot": None, "verdict": "done"}
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (path.parent.parent, path.parent, path)]
    assert modes == [0o700, 0o700, 0o600]
    assert list(path.parent.iterdir()) == [path]


def test_a_user_without_a_name_is_told_by_its_number(
    fleet: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fleet.who() == getpass.getuser()
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54_321)  # no account of this machine
    assert fleet.who() == "54321"


def test_a_reason_is_one_line_with_an_end(fleet: ModuleType) -> None:
    assert fleet.clean("a\x1b[31m b\n  c", 80) == "a [31m b c"
    assert fleet.clean("x" * 100, 20) == "x" * 17 + "..."


def test_a_spoilt_receipt_in_the_folder_is_not_continued(fleet: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "fleet-20991231T000000Z-aaaaaaaaaaaa.json").write_text("{")
    (tmp_path / "fleet-20991230T000000Z-aaaaaaaaaaaa.json").write_text("[]")
    assert fleet.newest_receipt(tmp_path, "upgrade") is None


@pytest.mark.parametrize(
    ("operation", "target", "hosts", "goes_on"),
    [
        ("upgrade", "0.2.0-bbbb", ["two", "three"], True),
        ("upgrade", "0.2.0-bbbb", ["three"], True),
        ("upgrade", None, ["two"], True),  # lost before it could say which release
        ("upgrade", "0.3.0-cccc", ["two", "three"], False),  # another release is another roll
        ("upgrade", "0.2.0-bbbb", ["one", "two"], False),  # not only the rest
        ("upgrade", "0.2.0-bbbb", ["four"], False),  # a host of no roll
        ("backup", None, ["two"], False),
    ],
)
def test_the_rest_of_the_newest_roll_goes_on_from_it(
    fleet: ModuleType, tmp_path: Path, *, operation: str, target: str | None, hosts: list[str], goes_on: bool
) -> None:
    ends = {"one": "done", "two": "refused", "three": "not attempted"}
    earlier = {
        "operation": "upgrade",
        "target": "0.2.0-bbbb",
        "hosts": [{"host": host, "outcome": outcome} for host, outcome in ends.items()],
    }
    (tmp_path / "fleet-20260101T000000Z-aaaaaaaaaaaa.json").write_text(json.dumps(earlier))
    rows = [{"host": host, "target": target, "outcome": "done"} for host in hosts]
    found = fleet.continued(tmp_path, operation, rows)
    assert (found is not None) == goes_on
    if found is not None:
        whole = fleet.with_earlier(rows, *found)
        assert [row["host"] for row in whole] == list(ends)
        assert whole[0]["earlier"] == "fleet-20260101T000000Z-aaaaaaaaaaaa.json"
        assert fleet.verdict_of(whole, interrupted=False) == ("done" if len(hosts) == 2 else "stopped")


def test_no_playbook_gathers_facts_and_every_task_goes_through_one_connection() -> None:
    """A host is asked for what is used, by hostcheck; one that says how it is, by `raw` in one round trip."""
    found = sorted((CHECKOUT / "playbooks").glob("*.yml"))
    assert len(found) > 10
    for path in found:
        (play,) = yaml.safe_load(path.read_text())
        assert play["gather_facts"] is False, path.name
        assert play["vars"].get("ansible_pipelining", False) == (path.name != "status.yml"), path.name
    for path in CHECKOUT.glob("roles/*/tasks/*.yml"):
        assert not re.search(r"builtin\.(setup|gather_facts|package_facts|service_facts)\b", path.read_text())


def test_every_playbook_over_several_hosts_begins_with_the_gate() -> None:
    for path in sorted((CHECKOUT / "playbooks").glob("*.yml")):
        (play,) = yaml.safe_load(path.read_text())
        if "serial" in play:
            assert play["tasks"][0]["ansible.builtin.import_tasks"] == "tasks/begin.yml", path.name
            assert play["vars"]["receipt_operation"], path.name
            assert play["serial"] in {1, DEFAULT}, path.name
            # A controller's own setting may be otherwise, and then healthy batch mates are rescued, too.
            assert play["any_errors_fatal"] is False, path.name
            # And a task that is given up on goes on at the host: each command has its own bound there.
            assert play["timeout"] == 0, path.name
        else:
            assert re.search("status|preflight", path.name), path.name
