"""A backup is consistent, private, exclusive, checked, synced and described, or it is not there."""

import errno
import hashlib
import json
import os
import pty
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from backing import DANGLING, SMALL, made, names
from support import Instance

from standfast.authority import operations
from standfast.cli import main as cli
from standfast.errors import BadInput, Refused, StandfastError
from standfast.operations.backup import folders, snapshot
from standfast.operations.backup.companions import Wanted
from standfast.operations.backup.creating import Request, create
from standfast.operations.backup.encryption import is_encrypted
from standfast.operations.backup.folders import MANIFEST, SNAPSHOT
from standfast.operations.backup.listing import listing
from standfast.operations.backup.manifest import read_manifest
from standfast.operations.backup.verifying import verify
from standfast.store import triggers


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    yield Instance.make(tmp_path)
    triggers.disarm()


def code(instance: Instance, **wanted: object) -> str:
    with pytest.raises(Refused) as caught:
        made(instance, **wanted)
    return caught.value.code


@pytest.mark.parametrize("mapped", [True, False])
def test_only_a_database_that_is_small_enough_is_read_through_a_map(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    file = Path(made(instance).path) / SNAPSHOT
    monkeypatch.setattr(snapshot, "MAPPED", file.stat().st_size - (not mapped))
    with snapshot.sealed(file) as copy:
        copy.execute("SELECT count(*) FROM work").fetchone()
        maps = Path("/proc/self/maps").read_text()
    assert (str(file) in maps) is mapped


def test_a_backup_says_what_is_in_it(instance: Instance) -> None:
    instance.add("the only request")
    entry = made(instance, asked_by="lucy", release_after="next")
    manifest = read_manifest(Path(entry.path))
    file = Path(entry.path) / SNAPSHOT
    assert entry.sequence == manifest.sequence == 1
    assert manifest.rows["work"] == 1
    assert manifest.totals.stock == {"vanilla": 2, "strawberry": 1, "chocolate": 9}
    assert (manifest.totals.spent_cents, manifest.totals.reserved_cents) == (0, 0)
    assert manifest.asked_by == "lucy"
    assert manifest.releases is not None
    assert (manifest.releases.before, manifest.releases.after) == ("source", "next")
    with instance.store() as store:
        assert manifest.epoch == operations(store).epoch
    assert manifest.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert manifest.bytes == file.stat().st_size
    assert manifest.application_id == 0x53464153
    assert manifest.sqlite == sqlite3.sqlite_version
    assert names(Path(entry.path)) == ["companions", MANIFEST, SNAPSHOT]
    assert verify(Path(entry.path)).ok


def test_the_copy_is_one_plain_file(instance: Instance) -> None:
    file = Path(made(instance).path) / SNAPSHOT
    assert file.read_bytes()[18:20] == b"\x01\x01"
    assert snapshot.sidecars(file) == []


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_it_is_private_from_the_first_byte_whatever_the_umask(instance: Instance, umask: int) -> None:
    seen: list[str] = []

    def private(point: str) -> None:
        seen.append(point)
        for path in [instance.layout.backups, *instance.layout.backups.rglob("*")]:
            assert stat.S_IMODE(path.lstat().st_mode) == (0o700 if path.is_dir() else 0o600), (point, path)

    triggers.arm(private)
    before = os.umask(umask)
    try:
        made(instance, told=["reports"], copied=["skills"])
    finally:
        os.umask(before)
    assert {"backup.partial", "backup.step", "backup.published", "backup.finished"} <= set(seen)
    private("afterwards")


def test_names_follow_the_sequence_which_is_never_given_out_twice(instance: Instance) -> None:
    made_names = [made(instance).name for _ in range(3)]
    assert [name[:7] for name in made_names] == ["000001-", "000002-", "000003-"]
    assert [one.name for one in listing(instance.layout, 0).backups] == made_names[::-1]
    shutil.rmtree(instance.layout.backups / made_names[-1])
    assert made(instance, to=str(instance.layout.root / "elsewhere")).sequence == 4
    assert made(instance).sequence == 5
    (instance.layout.backups / folders.SEQUENCE).unlink()
    assert made(instance).sequence == 6


def test_a_number_that_no_name_can_hold_is_refused_and_nothing_is_lost(instance: Instance) -> None:
    """A backup with a name that the listing does not know would be taken for junk."""
    made(instance)
    junk = instance.layout.backups / "999999999999-20260301T060000Z-x"
    junk.mkdir()
    (junk / "notes").touch()
    with pytest.raises(Refused) as caught:
        made(instance)
    assert caught.value.code == "backups_numbered_out"
    assert len(listing(instance.layout, 0).backups) == 1
    shutil.rmtree(junk)
    (instance.layout.backups / folders.SEQUENCE).write_text("-7\n")
    assert made(instance).sequence == 2


def test_check_changes_nothing(instance: Instance) -> None:
    done = create(instance.layout, Request.of(), check=True)
    assert (done.changed, done.check, done.backup) == (True, True, None)
    assert not instance.layout.backups.exists()
    made(instance)
    before = names(instance.layout.backups)
    create(instance.layout, Request.of(), check=True)
    assert names(instance.layout.backups) == before


# --- places ---


def test_a_taken_destination_is_refused_and_left_alone(instance: Instance, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "theirs").write_text("theirs")
    assert code(instance, to=str(place)) == "destination_taken"
    assert names(place) == ["theirs"]
    file = tmp_path / "file"
    file.write_text("theirs")
    assert code(instance, to=str(file)) == "destination_taken"
    assert file.read_text() == "theirs"


def test_a_destination_that_is_taken_meanwhile_is_left_alone(instance: Instance, tmp_path: Path) -> None:
    """Nothing but the making of the folder itself decides whether it is free."""
    place, real = tmp_path / "place", folders.keep_sequence

    def meanwhile(home: Path, sequence: int) -> None:
        real(home, sequence)
        place.mkdir()
        (place / "theirs").write_text("theirs")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "keep_sequence", meanwhile)
        assert code(instance, to=str(place)) == "destination_taken"
    assert names(place) == ["theirs"]


def test_a_left_over_elsewhere_is_named_as_what_it_is(instance: Instance, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / folders.MAKING).touch()
    with pytest.raises(Refused) as caught:
        made(instance, to=str(place))
    assert "cut short" in str(caught.value.observed)


@pytest.mark.parametrize("dangling", [True, False])
def test_a_symlinked_destination_is_refused(instance: Instance, tmp_path: Path, dangling: bool) -> None:
    real = tmp_path / "real"
    if not dangling:
        real.mkdir()
    (tmp_path / "link").symlink_to(real)
    assert code(instance, to=str(tmp_path / "link")) == "destination_linked"
    if not dangling:
        assert code(instance, to=str(tmp_path / "link" / "backup")) == "destination_linked"
        assert names(real) == []


def test_places_of_another_use_are_refused(instance: Instance) -> None:
    for place in (instance.layout.state / "x", instance.layout.backups / "mine"):
        place.parent.mkdir(mode=0o700, exist_ok=True)
        assert code(instance, to=str(place)) == "destination_inside"
    assert code(instance, to=str(instance.layout.root / "absent" / "x")) == "destination_absent"
    for bad in ("relative", "/srv/../x", "/srv/a b"):
        with pytest.raises(BadInput):
            Request.of(to=bad)


def test_another_file_system_is_a_place_like_any(instance: Instance) -> None:
    place = Path("/dev/shm") / f"standfast-{os.getpid()}"
    if place.parent.stat().st_dev == instance.layout.root.stat().st_dev:
        pytest.skip("this machine has one file system only")
    try:
        entry = made(instance, to=str(place), limits=SMALL)
        assert verify(place).ok
        assert entry.path == str(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda home: home.chmod(0o755), "backups_mode"),
        (lambda home: (home.rmdir(), home.symlink_to("/tmp")), "backups_folder"),
        (lambda home: (home.rmdir(), home.write_text("")), "backups_folder"),
    ],
)
def test_a_folder_of_backups_that_is_not_private_is_refused(
    instance: Instance, spoil: object, expected: str
) -> None:
    instance.layout.backups.mkdir(mode=0o700)
    assert callable(spoil)
    spoil(instance.layout.backups)
    assert code(instance) == expected


# --- sources ---


def test_a_source_that_is_no_store_of_ours_is_refused(instance: Instance) -> None:
    database = instance.layout.database
    for content, expected in (
        (None, "store_absent"),
        (b"", "store_absent"),
        (b"not a database at all" * 100, "store_foreign"),
        (b"SQLite", "store_foreign"),
    ):
        for path in instance.layout.state.glob("agent.sqlite*"):
            path.unlink()
        if content is not None:
            database.write_bytes(content)
        assert code(instance) == expected
        assert database.exists() == (content is not None)
        assert set(names(instance.layout.backups)) <= folders.OWN_FILES


def test_a_newer_store_is_refused(instance: Instance) -> None:
    with instance.store() as store:
        store.execute("UPDATE meta SET version = 99 WHERE component = 'shop'")
    assert code(instance) == "store_newer"


def test_a_damaged_store_gives_no_backup(instance: Instance) -> None:
    kept = made(instance).name
    with instance.store() as store:
        store.execute("PRAGMA foreign_keys = OFF")
        store.execute(DANGLING)
    with pytest.raises(Refused) as caught:
        made(instance)
    assert caught.value.code == "backup_damaged"
    assert "reports" in caught.value.observed[0]
    assert set(names(instance.layout.backups)) - folders.OWN_FILES == {kept}


# --- the order in which things reach the disk ---


def check_order(steps: list[tuple[str, str]], folder: str) -> None:
    """File, its name, the folder, and then the manifest: the same three again."""
    wanted = [
        ("sync", f"{folder}/{folders.PARTIAL}"),
        ("link", f"{folder}/{SNAPSHOT}"),
        ("sync", folder),
        ("sync", f"{folder}/.{MANIFEST}"),
        ("link", f"{folder}/{MANIFEST}"),
        ("sync", folder),
    ]
    rest = iter(steps)
    for step in wanted:
        assert step in rest, f"{step} does not come in its turn in {steps}"
    names_given = [name for step, name in steps if step == "link"]
    assert names_given[-1] == f"{folder}/{MANIFEST}", "the manifest comes last"
    assert names_given.count(f"{folder}/{MANIFEST}") == 1
    parent = str(Path(folder).parent)
    assert steps.index(("sync", parent)) < steps.index(wanted[0]), "the folder's own name is synced, too"


def short(path: str) -> str:
    return re.sub(r"(\.manifest\.json)\.[0-9a-f]+\.tmp", r"\1", path)


def test_the_order_is_file_name_folder_manifest(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[str, str]] = []
    sync, link = os.fsync, os.link

    def fsync(descriptor: int) -> None:
        steps.append(("sync", short(str(Path(f"/proc/self/fd/{descriptor}").readlink()))))
        sync(descriptor)

    def linked(source: Path, target: Path) -> None:
        steps.append(("link", str(target)))
        link(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", linked)
    check_order(steps, made(instance).path)


def test_a_snapshot_that_cannot_be_synced_is_no_backup(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread syncs it; the last one stays whole."""
    kept, sync = made(instance), os.fsync

    def fsync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == folders.PARTIAL:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StandfastError, match="what was made of it is removed"):
        made(instance)
    monkeypatch.undo()
    found = listing(instance.layout, time.time())
    assert ([one.path for one in found.backups], found.junk) == ([kept.path], [])


def ended(lines: list[str]) -> Iterator[str]:
    """The calls of all threads, as they ended: one during which another began is told in two lines."""
    begun: dict[str, str] = {}
    for line in lines:
        thread, _, call = line.partition(" ")
        if call.endswith(" <unfinished ...>"):
            begun[thread] = call.removesuffix(" <unfinished ...>")
        elif rest := re.match(r"\s*<... \w+ resumed>(.*)", call):
            yield begun.pop(thread) + rest[1]
        else:
            yield call


@pytest.mark.skipif(
    shutil.which("strace") is None, reason="no strace here; the test above sees the same calls"
)
def test_the_kernel_sees_that_order(instance: Instance, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    done = subprocess.run(
        [
            *("strace", "-f", "-y", "-s", "300", "-o", trace, "-e", "trace=fsync,fdatasync,link,linkat"),
            *(sys.executable, "-m", "standfast", "--state", str(instance.layout.state), "backup", "create"),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "PTRACE" in done.stderr:
        pytest.skip("this machine lets nobody trace")
    assert done.returncode == 0, done.stderr
    steps = []
    for line in ended(trace.read_text().splitlines()):
        if synced := re.search(r"f(?:data)?sync\(\d+<(.*)>\)\s+= 0", line):
            steps.append(("sync", short(synced[1])))
        elif linked := re.search(r'link(?:at)?\(.*"([^"]+)"(?:, 0)?\)\s+= 0', line):
            steps.append(("link", linked[1]))
    check_order(steps, listing(instance.layout, time.time()).backups[0].path)


# --- companions ---


def test_the_suppliers_ledger_is_never_in_it(instance: Instance) -> None:
    every = ["skills", "reports", "receipts", "units"]
    for told, copied in (([], []), (every, every)):
        manifest = read_manifest(Path(made(instance, told=told, copied=copied).path))
        assert any("supplier's own ledger" in text for text in manifest.not_included)
    assert any("agent.env" in text for text in manifest.not_included)


def test_companions_are_told_of_and_copied_where_asked(instance: Instance) -> None:
    instance.add("stock")
    instance.settle()
    [report] = list(instance.layout.outbox.iterdir())
    report.chmod(0o640)
    (instance.layout.outbox / "link").symlink_to("/etc/passwd")
    folder = Path(made(instance, told=["reports"]).path)
    [told] = [one for one in read_manifest(folder).companions if one.kind == "reports"]
    assert (told.path, told.mode, told.bytes) == (str(report), "0640", report.stat().st_size)
    assert told.sha256 == hashlib.sha256(report.read_bytes()).hexdigest()
    assert told.copied is None
    assert names(folder / "companions") == ["shop"]

    folder = Path(made(instance, copied=["reports", "skills"]).path)
    copied = {one.kind: one for one in read_manifest(folder).companions}
    assert (folder / str(copied["reports"].copied)).read_bytes() == report.read_bytes()
    assert (folder / str(copied["shop"].copied)).read_bytes() == instance.layout.shop.read_bytes()
    assert (folder / "companions/skills/opening.txt").read_text()
    assert verify(folder).ok
    (folder / str(copied["reports"].copied)).write_text("changed")
    assert [one.name for one in verify(folder).checks if one.outcome == "fail"] == ["companions"]


SECRET = "sk-not-for-anybody-else"


def test_credentials_are_not_copied_to_a_place_that_is_not_encrypted(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance.layout.environment.write_text(f'KEY="{SECRET}"\n')
    instance.layout.environment.chmod(0o600)
    if not is_encrypted(instance.layout.root):
        assert code(instance, copied=["env"]) == "not_encrypted"
        assert set(names(instance.layout.backups)) <= folders.OWN_FILES
    monkeypatch.setattr("standfast.operations.backup.companions.is_encrypted", lambda _: True)
    folder = Path(made(instance, copied=["env"]).path)
    assert SECRET in (folder / "companions/env/agent.env").read_text()
    assert not any("agent.env" in text for text in read_manifest(folder).not_included)


def test_credentials_are_told_of_without_anything_that_could_give_them_away(instance: Instance) -> None:
    content = f'KEY="{SECRET}"\n'
    instance.layout.environment.write_text(content)
    instance.layout.environment.chmod(0o600)
    folder = Path(made(instance, told=["env"]).path)
    [told] = [one for one in read_manifest(folder).companions if one.kind == "env"]
    assert (told.mode, told.sha256, told.copied) == ("0600", None, None)
    digest = hashlib.sha256(content.encode()).hexdigest()
    for path in folder.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes()
            assert digest.encode() not in path.read_bytes()


def test_an_unknown_kind_of_companion_is_bad_input() -> None:
    with pytest.raises(BadInput, match="secrets"):
        Wanted.of(["secrets"], [])


@pytest.mark.parametrize(
    ("kind", "uuid", "below", "expected"),
    [
        ("ext4", "CRYPT-LUKS2-0a1b", {}, True),
        ("ext4", "LVM-0a1b", {"8:1": "CRYPT-LUKS2-0a1b"}, True),
        ("ext4", "LVM-0a1b", {"8:1": "CRYPT-LUKS2-0a1b", "8:2": "LVM-x"}, False),
        ("ext4", "LVM-0a1b", {}, False),
        ("ext4", None, {}, False),
        ("fuse.gocryptfs", None, {}, True),
    ],
)
def test_what_the_kernel_says_of_encryption(
    tmp_path: Path, kind: str, uuid: str | None, below: dict[str, str], expected: bool
) -> None:
    found = tmp_path.stat().st_dev
    number = f"{os.major(found)}:{os.minor(found)}"
    mounts, blocks = tmp_path / "mountinfo", tmp_path / "block"
    mounts.write_text(
        f"1 0 0:99 / /other rw - tmpfs x rw\n22 1 {number} / / rw,x shared:1 - {kind} none rw\n"
    )
    (blocks / number / "dm").mkdir(parents=True)
    if uuid:
        (blocks / number / "dm/uuid").write_text(uuid)
    for device, text in below.items():
        (blocks / number / "slaves" / device.replace(":", "-")).mkdir(parents=True)
        (blocks / number / "slaves" / device.replace(":", "-") / "dev").write_text(device + "\n")
        (blocks / device / "dm").mkdir(parents=True)
        (blocks / device / "dm/uuid").write_text(text)
    assert is_encrypted(tmp_path, mounts=mounts, blocks=blocks) is expected


# --- the command ---


def test_the_command_makes_lists_and_verifies(instance: Instance, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*words: str) -> tuple[int, Any]:
        code = cli.main(["--json", "--state", str(instance.layout.state), "backup", *words])
        return code, json.loads(capsys.readouterr().out)

    assert call("verify")[0] == 3
    exit_code, told = call("create", "--with", "reports, receipts", "--asked-by", "lucy")
    assert (exit_code, told["changed"]) == (0, True)
    _, found = call("list")
    assert found["junk"] == []
    entry: dict[str, Any] = found["backups"][0]
    assert (entry["sequence"], entry["problem"], entry["verified"]) == (1, None, None)
    assert call("verify", entry["name"])[1]["ok"] is True
    assert call("verify", entry["path"])[0] == 0
    (Path(entry["path"]) / SNAPSHOT).write_bytes(b"x")
    assert call("verify")[0] == 4
    assert call("verify", "nonsense")[0] == 2
    assert call("verify", "000099-20260301T000000Z-source")[0] == 3
    assert call("create", "--with", "everything")[0] == 2
    assert call("create", "--deadline", "0")[0] == 2


def test_a_terminal_sees_how_far_it_is(instance: Instance) -> None:
    ours, theirs = pty.openpty()
    words = ["--state", str(instance.layout.state), "backup", "create"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "standfast", *words],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=theirs,
            check=False,
        )
        os.close(theirs)
        shown = os.read(ours, 65536)
    finally:
        os.close(ours)
    assert done.returncode == 0
    assert b"copy 100 %" in shown
