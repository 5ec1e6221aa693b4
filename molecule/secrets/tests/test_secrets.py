"""A credential from the inventory reaches the service and nothing else, whatever goes wrong on the way.

Every run is as talkative as Ansible gets (`--diff -vvv`). While it runs, the arguments and the environment of
every process of the controller and of the host are sampled. The tests go on from each other, in their order.
"""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from evidence import canary, copies, good, receipts, running

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from target import Controller, Host, Play

ENV = "/srv/lucy/state/agent.env"
WORDS = ("vaulted", "plain", "number", "newline", "listed", "malformed", "by-hand", "adopted")
# Around each marker: what shells, YAML, JSON and systemd treat in ways of their own.
AROUND = " \"q\" 'p' $HOME ${USER} %n # ; \\ caf\u00e9 {{ 1 + 1 }} "


def spellings(marker: str) -> list[bytes]:
    """The marker itself and the three ways in which base64 may carry it."""
    found = [marker.encode()]
    for shift in range(3):
        carried = base64.b64encode(b"-" * shift + marker.encode())
        found.append(carried[4 if shift else 0 : -4])
    return found


class Markers:
    """One unguessable word for each value, so that a leak says which run let it out."""

    def __init__(self) -> None:
        self.of = {word: f"CANARY{secrets.token_hex(12)}" for word in WORDS}

    def value(self, word: str) -> str:
        return f" {self.of[word]}{AROUND}"

    def within(self, data: bytes) -> list[str]:
        """The words whose marker `data` holds."""
        return [word for word, marker in self.of.items() if any(s in data for s in spellings(marker))]


class Watcher(threading.Thread):
    """Samples the arguments and environments of all processes; the host's are among the machine's.

    A process is read again and again while it is young, since what it runs changes with its exec.
    """

    YOUNG = 2.0

    def __init__(self, markers: Markers) -> None:
        super().__init__(daemon=True)
        self.markers = markers
        self.seen: set[tuple[str, str, str]] = set()
        self.samples = 0
        self.ended = threading.Event()

    def run(self) -> None:
        first_seen: dict[str, float] = {}
        while not self.ended.wait(0.004):
            now = time.monotonic()
            pids = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]
            first_seen = {pid: first_seen.get(pid, now) for pid in pids}
            for pid in pids:
                if now - first_seen[pid] < self.YOUNG:
                    self._look(Path("/proc", pid))
            self.samples += 1

    def _look(self, entry: Path) -> None:
        try:
            # In this order: an exec between the two readings must not show its environment without its name.
            given = (entry / "environ").read_bytes()
            arguments = (entry / "cmdline").read_bytes()
        except OSError:
            return
        name = arguments.replace(b"\0", b" ").decode("utf-8", "replace")
        for word in self.markers.within(arguments):
            self.seen.add((word, "arguments", name))
        for word in self.markers.within(given):
            self.seen.add((word, "environment", name))

    def leaks(self) -> set[tuple[str, str, str]]:
        """All sightings but the two processes that systemd gives agent.env to: the service, and the proof."""
        return {
            (word, where, name)
            for word, where, name in self.seen
            if where == "arguments"
            or "/venv/bin/python -I -m standfast --state /srv/lucy/state " not in name
            or not name.rstrip().endswith(("state serve", "env compare"))
        }


@pytest.fixture(scope="module")
def markers() -> Markers:
    return Markers()


@pytest.fixture(scope="module")
def watcher(markers: Markers) -> Generator[Watcher]:
    thread = Watcher(markers)
    thread.start()
    yield thread
    thread.ended.set()
    thread.join()


@pytest.fixture(scope="module")
def install(agent: Host, controller: Controller, markers: Markers, watcher: Watcher) -> Callable[..., Play]:
    """Run install.yml with these inventory variables; what it prints must hold none of the markers."""

    def run(variables: dict[str, Any], *arguments: str, check: bool = False) -> Play:
        controller.write_inventory("yours", {"agent": {"ansible_user": "admin"}}, variables)
        settings = {
            "ANSIBLE_LOG_PATH": str(controller.folder / "ansible.log"),
            "ANSIBLE_HOME": str(controller.folder / "ansible-home"),
        }
        # The folder too: what lies beside an inventory must not be read as one.
        folder = ("-i", "inventories/yours")
        play = controller.playbook(
            "install", "--diff", "-vvv", *folder, *arguments, check=check, env=settings
        )
        assert "TASK [" in play.output
        assert set(play.hosts) <= {"agent"}
        assert markers.within(play.output.encode()) == []
        assert watcher.leaks() == set()
        return play

    return run


def given_to_the_service(host: Host) -> dict[str, str]:
    """The environment of the service's process, read as the service user."""
    pid = running(host).main_pid
    pairs = host.as_user("lucy", ["cat", f"/proc/{pid}/environ"]).stdout.split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


@pytest.fixture(scope="module")
def vaulted(controller: Controller, markers: Markers) -> dict[str, Any]:
    """A vault-encrypted file of pairs."""
    password = controller.folder / "vault-password"
    password.write_text(secrets.token_hex(16) + "\n")
    password.chmod(0o600)
    file = controller.folder / "inventories/yours/files/agent-env.yml"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"SHOP_TOKEN": markers.value("vaulted"), "EMPTY": ""}))
    subprocess.run(
        ["ansible-vault", "encrypt", "--vault-password-file", password, file], check=True, capture_output=True
    )
    assert markers.within(file.read_bytes()) == []
    return {"state_env_file": str(file)}


def test_the_watcher_sees_arguments_and_environments_here_and_on_the_host(agent: Host) -> None:
    """Else its silence would mean nothing."""
    known = Markers()
    watcher = Watcher(known)
    watcher.start()
    here = subprocess.Popen(["sleep", "3"], env={"HERE": known.of["plain"]})
    agent.run(["bash", "-c", "sleep 1; :", "x", known.of["vaulted"]])
    agent.run(["sleep", "1"], env={"THERE": base64.b64encode(known.of["number"].encode()).decode()})
    here.kill()
    here.wait()
    watcher.ended.set()
    watcher.join()
    assert {(word, where) for word, where, _ in watcher.leaks()} >= {
        ("plain", "environment"), ("vaulted", "arguments"), ("number", "environment"),
    }  # fmt: skip


def test_a_dry_run_on_the_bare_host(
    install: Callable[..., Play], controller: Controller, vaulted: dict[str, Any], agent: Host
) -> None:
    play = install(vaulted, "--vault-password-file", "vault-password", check=True)
    good(play)
    assert not agent.testinfra.file("/srv/lucy").exists


def test_an_install_with_a_vaulted_file(
    install: Callable[..., Play], vaulted: dict[str, Any], agent: Host, markers: Markers
) -> None:
    play = install(vaulted, "--vault-password-file", "vault-password")
    good(play)
    file = agent.testinfra.file(ENV)
    assert (file.user, file.group, file.mode) == ("lucy", "lucy", 0o600)
    assert given_to_the_service(agent)["SHOP_TOKEN"] == markers.value("vaulted")
    assert given_to_the_service(agent)["EMPTY"] == ""
    canary(agent, running(agent).main_pid)


def test_a_second_run_with_the_same_pairs_changes_nothing(
    install: Callable[..., Play], vaulted: dict[str, Any], agent: Host
) -> None:
    before = running(agent)
    play = install(vaulted, "--vault-password-file", "vault-password")
    good(play, changed=0)
    assert running(agent) == before


def test_another_value_from_the_inventory_itself(
    install: Callable[..., Play], agent: Host, markers: Markers
) -> None:
    before = running(agent)
    pairs = {"state_env_pairs": {"SHOP_TOKEN": {"__ansible_unsafe": markers.value("plain")}}}
    dry = install(pairs, check=True)
    good(dry)
    assert running(agent) == before
    assert given_to_the_service(agent)["SHOP_TOKEN"] == markers.value("vaulted")
    play = install(pairs)
    good(play)
    given = given_to_the_service(agent)
    assert given["SHOP_TOKEN"] == markers.value("plain")
    assert "EMPTY" not in given
    assert running(agent).main_pid != before.main_pid


# How a credential can be wrong, by the word whose marker it holds, and what a refusal may name.
WRONG: dict[str, tuple[Callable[[str], object], str]] = {
    "number": (lambda marker: {"SHOP_TOKEN": [marker]}, "SHOP_TOKEN"),
    "newline": (lambda marker: {"SHOP_TOKEN": f"{marker}\nLD_PRELOAD=x"}, "SHOP_TOKEN"),
    "listed": (lambda marker: [f"SHOP_TOKEN={marker}"], "mapping"),
}


@pytest.mark.parametrize("word", WRONG)
def test_a_value_that_cannot_be_written_is_refused_by_name(
    install: Callable[..., Play], agent: Host, markers: Markers, word: str
) -> None:
    before, file = running(agent), agent.run(["sha256sum", ENV]).stdout
    shape, named = WRONG[word]
    play = install({"state_env_pairs": shape(markers.of[word])})
    assert play.rc != 0
    assert named in play.output.split("Refused", 1)[1]
    assert running(agent) == before
    assert agent.run(["sha256sum", ENV]).stdout == file


def test_a_file_that_is_not_yaml_is_refused_without_its_lines(
    install: Callable[..., Play], controller: Controller, agent: Host, markers: Markers
) -> None:
    before = running(agent)
    file = controller.folder / "inventories/yours/files/broken.yml"
    file.write_text(f'SHOP_TOKEN: "{markers.of["malformed"]}\n  : [\n')
    play = install({"state_env_file": str(file)})
    file.unlink()
    assert play.rc != 0
    assert running(agent) == before


def test_a_file_edited_by_hand_is_refused_until_it_is_adopted(
    install: Callable[..., Play], agent: Host, markers: Markers
) -> None:
    agent.run(["tee", "-a", ENV], stdin=f"BY_HAND={markers.of['by-hand']}\n")
    edited, before = agent.run(["sha256sum", ENV]).stdout, running(agent)
    pairs = {"state_env_pairs": {"SHOP_TOKEN": markers.of["adopted"]}}
    refused = install(pairs)
    assert refused.rc != 0
    assert "Refused: agent.env" in refused.output
    assert agent.run(["sha256sum", ENV]).stdout == edited
    assert running(agent) == before
    adopted = install({**pairs, "state_env_adopt": True})
    good(adopted)
    given = given_to_the_service(agent)
    assert given["SHOP_TOKEN"] == markers.of["adopted"]
    assert "BY_HAND" not in given


def test_the_other_playbooks(controller: Controller, agent: Host, markers: Markers, watcher: Watcher) -> None:
    status = controller.playbook("status", "--diff", "-vvv")
    good(status)
    assert markers.within(status.output.encode()) == []
    assert watcher.leaks() == set()


def test_nothing_is_left_on_the_host(agent: Host, markers: Markers) -> None:
    patterns = "\n".join(s.decode() for marker in markers.of.values() for s in spellings(marker)) + "\n"
    swept = agent.run(
        "grep -rlaF -f - / --exclude-dir=proc --exclude-dir=sys --exclude-dir=dev 2>/dev/null",
        stdin=patterns,
        check=False,
        timeout=120,
    )
    assert swept.stdout.split() == [ENV]
    journal = agent.run(["journalctl", "--all", "--output=export", "--no-pager"], timeout=120).stdout
    assert "lucy-agent" in journal
    assert markers.within(journal.encode()) == []
    assert not agent.run("ls -A /run/user/*/standfast 2>/dev/null", check=False).stdout.count("env")


def test_receipts_name_keys_at_most(agent: Host, controller: Controller, markers: Markers) -> None:
    kept = receipts(agent)
    copied = copies(controller.folder / "receipts/agent")
    assert {receipt["verdict"] for receipt in kept.values()} == {"done", "refused"}
    assert len(copied) >= len(kept)
    assert markers.within(json.dumps([kept, copied], ensure_ascii=False).encode()) == []
    assert agent.cli("receipt", "verify")["verified"] is True


def test_nothing_is_left_on_the_controller(controller: Controller, markers: Markers) -> None:
    """But in the inventory, which is where the operator put it."""
    assert (controller.folder / "ansible.log").stat().st_size > 100_000
    assert markers.within((controller.folder / "ansible.log").read_bytes()) == []
    mine = controller.folder / "inventories"
    for path in controller.folder.rglob("*"):
        if path.is_file() and mine not in path.parents and path.suffix != ".tar":
            assert markers.within(path.read_bytes()) == [], path


def test_no_process_but_those_of_systemd_was_given_one(watcher: Watcher) -> None:
    assert watcher.samples > 200
    where = {place for _, place, _ in watcher.seen}
    assert where == {"environment"}  # the service itself was seen: the watcher was looking
    assert watcher.leaks() == set()
