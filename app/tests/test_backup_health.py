"""Health tells of the last backup and the last rehearsal, and when either asks for a person."""

import json
import os
import time
from pathlib import Path

import pytest
from backing import dated, edit, made
from support import Instance

from standfast.errors import Refused
from standfast.operations.backup import folders, standing
from standfast.operations.backup.rehearsing import rehearse
from standfast.operations.backup.sending import Repository, send
from standfast.operations.backup.standing import BACKUP_SECONDS, REHEARSAL_SECONDS
from standfast.operations.health import Health, look


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    made = Instance.make(tmp_path)
    made.layout.receipts.mkdir(mode=0o700)
    return made


def rules(found: Health) -> set[str]:
    return {str(told.rule) for told in found.attention} - {"service_down"}


def test_an_instance_that_makes_no_backups_is_not_asked_for_them(instance: Instance) -> None:
    found = look(instance.layout, time.time() + 10 * BACKUP_SECONDS)
    assert rules(found) == set()
    assert (found.last_backup, found.last_rehearsal) == (None, None)
    assert "there is no backup yet" in found.notes


def test_a_timer_that_never_made_one_is_attention(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = instance.layout.root / "lucy-agent-backup.timer"
    timer.touch()
    monkeypatch.setattr(standing, "timer_of", lambda *_: timer)
    assert rules(look(instance.layout, time.time())) == set()
    found = look(instance.layout, time.time() + BACKUP_SECONDS + 5)
    assert rules(found) == {"backup_old"}


def test_the_last_backup_is_told_with_what_was_seen_of_it(instance: Instance) -> None:
    entry = made(instance)
    found = look(instance.layout, time.time() + 60)
    assert rules(found) == set()
    assert found.last_backup is not None
    assert (found.last_backup.path, found.last_backup.sequence) == (entry.path, 1)
    assert found.last_backup.verified is None
    assert 60 <= found.last_backup.age_seconds < 120
    assert "there is no backup yet" not in found.notes


@pytest.mark.parametrize(("late", "expected"), [(-5, set()), (5, {"backup_old"})])
def test_an_old_backup_is_attention(instance: Instance, late: float, expected: set[str]) -> None:
    entry, now = made(instance), time.time()
    dated(entry.path, now - BACKUP_SECONDS - late)
    assert rules(look(instance.layout, now)) == expected


def test_a_clock_that_jumped_back_makes_no_older_backup_the_newest(instance: Instance) -> None:
    """Sequence decides: the newest is dated a year before the one that it followed."""
    first, second, now = made(instance), made(instance), time.time()
    dated(second.path, now - 365 * 86400)
    found = look(instance.layout, now)
    assert found.last_backup is not None
    assert found.last_backup.sequence == 2
    dated(first.path, now)
    found = look(instance.layout, now)
    assert found.last_backup is not None
    assert found.last_backup.sequence == 2


def test_a_backup_from_the_future_is_attention_not_forever_young(instance: Instance) -> None:
    entry, now = made(instance), time.time()
    dated(entry.path, now + 86400)
    found = look(instance.layout, now)
    assert rules(found) == {"backup_old"}
    assert "in the future" in found.attention[-1].observed


def test_a_failed_attempt_is_attention_until_one_succeeds(instance: Instance) -> None:
    made(instance)
    failed = instance.layout.backups / folders.FAILED
    failed.write_text(json.dumps({"at": "2026-03-01T00:00:00.000Z", "reason": "the disk was full"}))
    found = look(instance.layout, time.time())
    assert rules(found) == {"backup_failed"}
    assert "the disk was full" in found.attention[-1].observed
    made(instance)
    assert rules(look(instance.layout, time.time())) == set()
    assert not failed.exists()


def test_a_run_that_was_killed_is_attention_but_a_running_one_is_not(instance: Instance) -> None:
    made(instance)
    cut = instance.layout.backups / "000002-20260301T000000Z-source"
    cut.mkdir(mode=0o700)
    (cut / folders.MAKING).touch()
    with folders.alone(instance.layout.backups):
        assert rules(look(instance.layout, time.time())) == set()
    assert rules(look(instance.layout, time.time())) == {"backup_failed"}


def test_a_newest_backup_that_is_no_good_is_attention(instance: Instance) -> None:
    entry = made(instance)
    (Path(entry.path) / folders.SNAPSHOT).unlink()
    assert rules(look(instance.layout, time.time())) == {"backup_failed"}


def test_a_copy_that_failed_is_attention_until_one_succeeds(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(instance)
    key = instance.layout.root / "restic.key"
    key.touch(0o600)
    key.write_text("secret\n")
    monkeypatch.setenv("PATH", "/nowhere")
    to = Repository(str(instance.layout.root / "vault"), key, make=True)
    with pytest.raises(Refused, match="no restic"):
        send(instance.layout, None, to, now=time.time(), check=True)
    assert rules(look(instance.layout, time.time())) == set()
    with pytest.raises(Refused, match="no restic"):
        send(instance.layout, None, to, now=time.time())
    found = look(instance.layout, time.time())
    assert rules(found) == {"copy_failed"}
    assert "there is no restic on this host" in found.attention[-1].observed
    with folders.told_of_failure(instance.layout.backups / folders.SEND_FAILED):
        pass  # as a copy that succeeds
    assert rules(look(instance.layout, time.time())) == set()


def test_rehearsals_are_asked_for_once_there_are_backups(instance: Instance) -> None:
    entry, now = made(instance), time.time()
    dated(entry.path, now - REHEARSAL_SECONDS - 5)
    made(instance)
    found = look(instance.layout, now)
    assert rules(found) == {"rehearsal_old"}
    assert "ever rehearsed" in found.attention[-1].observed
    done = rehearse(instance.layout, None)
    assert done.ok
    found = look(instance.layout, time.time())
    assert rules(found) == set()
    assert found.last_rehearsal is not None
    assert (found.last_rehearsal.path, found.last_rehearsal.ok) == (done.path, True)
    assert rules(look(instance.layout, time.time() + REHEARSAL_SECONDS + 5)) == {
        "rehearsal_old",
        "backup_old",
    }


def test_a_failed_rehearsal_is_attention(instance: Instance) -> None:
    entry = made(instance)
    edit(entry.path, epoch="0" * 32)
    assert rehearse(instance.layout, None).ok is False
    assert "rehearsal_failed" in rules(look(instance.layout, time.time()))


def test_a_folder_full_of_junk_hurts_nobody(instance: Instance) -> None:
    entry = made(instance)
    home = instance.layout.backups
    (home / "notes.txt").write_text("mine")
    (home / "000009-20260301T000000Z-source").symlink_to("/etc")
    os.mkfifo(home / "000010-20260301T000000Z-source")
    (home / "000011-20260301T000000Z-source").mkdir()
    (home / "000011-20260301T000000Z-source" / "manifest.json").symlink_to("/dev/zero")
    (home / "000012-20260301T000000Z-source").mkdir()
    os.mkfifo(home / "000012-20260301T000000Z-source" / "manifest.json")
    (home / "000013-20260301T000000Z-source").mkdir()
    (home / "000013-20260301T000000Z-source" / "manifest.json").write_bytes(b"\xff{" * 1000)
    (home / "failed.json").mkdir()
    (home / "rehearsed.json").write_text("[]")
    found = look(instance.layout, time.time())
    assert found.last_backup is not None
    assert found.last_backup.path == entry.path
    assert found.last_rehearsal is None
