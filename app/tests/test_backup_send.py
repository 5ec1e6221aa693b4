"""Copies in a restic repository: a real restic, a real repository; secrets nowhere but in their file."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import Instance

from standfast.errors import BadInput, Refused, StandfastError
from standfast.operations.backup import sending
from standfast.operations.backup.creating import Request, create
from standfast.operations.backup.folders import SNAPSHOT
from standfast.operations.backup.sending import Repository, Sent, send
from standfast.store import triggers

pytestmark = pytest.mark.skipif(shutil.which("restic") is None, reason="there is no restic on this machine")

PASSWORD = "a-password-that-nobody-may-see-4711"
NOW = 1_800_000_000.0


class Shop:
    def __init__(self, root: Path) -> None:
        self.instance = Instance.make(root)
        self.layout = self.instance.layout
        self.password = root / "restic.key"
        self.password.touch(0o600)
        self.password.write_text(PASSWORD + "\n")
        self.repository = Repository(str(root / "vault"), self.password, make=True)

    def backup(self) -> str:
        return Path(create(self.layout, Request.of(asked_by="a test")).folder).name

    def send(self, which: str | None = None, **options: Any) -> Sent:
        return send(self.layout, which, options.pop("to", self.repository), now=NOW, **options)

    def restic(self, *words: str) -> str:
        environment = {
            **os.environ,
            "RESTIC_REPOSITORY": self.repository.address,
            "RESTIC_PASSWORD_FILE": str(self.password),
        }
        command = ["restic", "--no-cache", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    def copies(self) -> list[dict[str, Any]]:
        return list(json.loads(self.restic("snapshots", "--json")))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_a_copy_is_read_back_and_can_be_restored(shop: Shop, tmp_path: Path) -> None:
    name = shop.backup()
    foreseen = shop.send(check=True)
    assert (foreseen.made_repository, foreseen.read_back, foreseen.snapshot) == (True, False, None)
    assert not Path(shop.repository.address).exists()
    sent = shop.send()
    assert (sent.changed, sent.made_repository, sent.read_back, sent.kept) == (True, True, True, [name])
    again = shop.send()
    assert (again.changed, again.snapshot) == (False, sent.snapshot)
    assert len(shop.copies()) == 1
    shop.restic("restore", sent.snapshot or "", "--target", str(tmp_path / "back"))
    folder = tmp_path / "back" / str(shop.layout.backups / name).lstrip("/")
    original = shop.layout.backups / name
    assert (folder / SNAPSHOT).read_bytes() == (original / SNAPSHOT).read_bytes()
    assert (folder / "companions/shop/shop.toml").is_file()
    assert not (folder / "verified.json").exists()


def test_old_copies_go_by_sequence_and_one_that_is_good_stays(shop: Shop) -> None:
    names = []
    for _ in range(3):
        names.append(shop.backup())
        shop.send()
    foreseen = shop.send(keep=2, check=True)
    assert foreseen.removed == [names[0]]
    assert len(shop.copies()) == 3
    assert shop.send(keep=2).removed == [names[0]]
    assert len(shop.copies()) == 2
    assert shop.send(keep=1, days=100_000).removed == [], "young ones stay"
    for one in shop.copies():  # as if only the older one had been read back
        if f"backup={names[2]}" in one["tags"]:
            shop.restic("tag", "--remove", "read-back", one["id"])
    found = sending._Restic(shop.repository).copies(shop.layout.instance().instance)
    assert sending._doomed(found, 1, 0.0, NOW) == []


def test_a_copy_that_is_not_what_was_sent_forgets_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.backup()
    shop.send()
    shop.backup()
    monkeypatch.setattr(sending._Restic, "_digest", lambda *_: "0" * 64)
    with pytest.raises(StandfastError, match="is not what was sent; nothing was forgotten"):
        shop.send(keep=1)
    monkeypatch.undo()
    assert len(shop.copies()) == 2
    assert [("read-back" in one["tags"]) for one in shop.copies()] == [True, False]
    sent = shop.send(keep=1)
    assert (sent.read_back, len(sent.removed)) == (True, 1), "the copy that was left is read back"
    assert len(shop.copies()) == 1


def test_a_backup_that_is_no_good_is_never_sent(shop: Shop) -> None:
    name = shop.backup()
    snapshot = shop.layout.backups / name / SNAPSHOT
    snapshot.write_bytes(snapshot.read_bytes()[:-1] + b"!")
    with pytest.raises(Refused) as caught:
        shop.send()
    assert caught.value.code == "backup_bad"
    assert not Path(shop.repository.address).exists()


def test_what_is_refused_before_anything_is_sent(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.backup()

    def code(**options: Any) -> str:
        with pytest.raises(Refused) as caught:
            shop.send(**options)
        assert caught.value.remedy
        assert PASSWORD not in str(vars(caught.value))
        return caught.value.code

    address, key = shop.repository.address, shop.password
    assert code(to=Repository(address, key)) == "repository_absent"
    assert code(to=Repository(f"rest:http://lucy:{PASSWORD}@vault.test/", key)) == "repository_secret"
    key.chmod(0o640)
    assert code() == "password_file"
    key.chmod(0o600)
    shop.send()
    key.write_text("another\n")
    assert code() == "repository_password"
    key.write_text("")
    for options in ({}, {"keep": 0}, {"days": -1}, {"to": Repository(address, key.with_name("none"))}):
        with pytest.raises(BadInput):
            shop.send(**options)
    key.write_text(PASSWORD + "\n")
    monkeypatch.setenv("PATH", "/nowhere")
    assert code() == "restic_absent"


def test_no_argument_of_a_process_is_a_secret(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is anything that is printed; what the agent's environment holds is not passed on."""
    monkeypatch.setenv("STANDFAST_SUPPLIER_TOKEN", "a-token-of-the-supplier")
    shop.backup()
    seen: list[tuple[list[str], dict[str, str]]] = []
    real = subprocess.Popen.__init__

    def spy(self: Any, command: list[str], *arguments: Any, **options: Any) -> None:
        seen.append((list(map(str, command)), dict(options["env"])))
        real(self, command, *arguments, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", spy)
    sent = shop.send()
    assert {words[3] for words, _ in seen} >= {"cat", "init", "backup", "dump", "tag", "snapshots"}
    told = json.dumps([words for words, _ in seen]) + sent.model_dump_json()
    assert PASSWORD not in told
    assert PASSWORD not in json.dumps([environment for _, environment in seen])
    assert all("STANDFAST_SUPPLIER_TOKEN" not in environment for _, environment in seen)


def test_a_run_that_was_cut_short_is_gone_on_with(shop: Shop) -> None:
    shop.backup()

    def die(reached: str) -> None:
        if reached == "send.copied":
            raise KeyboardInterrupt

    triggers.arm(die)
    with pytest.raises(KeyboardInterrupt):
        shop.send()
    triggers.disarm()
    sent = shop.send()
    assert sent.read_back
    assert len(shop.copies()) == 1
