"""Verifying finds whatever happened to a backup, names it, and touches nothing; pruning keeps a good one."""

import hashlib
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from backing import DANGLING, dated, edit, made, names
from support import Instance

from standfast.clock import rfc3339
from standfast.errors import BadInput, Refused
from standfast.operations.backup import folders
from standfast.operations.backup.creating import Request, create
from standfast.operations.backup.folders import MANIFEST, REHEARSED, SNAPSHOT, VERIFIED
from standfast.operations.backup.listing import listing
from standfast.operations.backup.manifest import read_manifest, write_result
from standfast.operations.backup.retention import prune, remove
from standfast.operations.backup.snapshot import sealed
from standfast.operations.backup.verifying import verify
from standfast.store import triggers


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance.make(tmp_path)


@pytest.fixture
def folder(instance: Instance) -> Path:
    instance.add("something to lose")
    return Path(made(instance).path)


def tree(folder: Path) -> dict[str, str]:
    """Every name with its content, but for the result that a verification keeps."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in folder.rglob("*")
        if path.name != VERIFIED
    }


def resealed(folder: Path, *statements: str) -> None:
    """Change the database and let the manifest agree with its bytes: only its meaning gives it away."""
    with closing(sqlite3.connect(folder / SNAPSHOT, autocommit=True)) as connection:
        for statement in statements:
            connection.execute(statement)
    data = (folder / SNAPSHOT).read_bytes()
    edit(folder, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))


def write(folder: Path, content: bytes) -> None:
    (folder / SNAPSHOT).write_bytes(content)


def flipped(folder: Path) -> None:
    data = bytearray((folder / SNAPSHOT).read_bytes())
    data[len(data) // 2] ^= 1
    write(folder, bytes(data))


def patched(folder: Path, offset: int, content: bytes) -> None:
    """Other bytes at a place, and a manifest that agrees with them."""
    data = bytearray((folder / SNAPSHOT).read_bytes())
    data[offset : offset + len(content)] = content
    write(folder, bytes(data))
    edit(folder, sha256=hashlib.sha256(data).hexdigest())


def linked(folder: Path) -> None:
    (folder / SNAPSHOT).rename(folder.parent / "elsewhere")
    (folder / SNAPSHOT).symlink_to(folder.parent / "elsewhere")


def of_another(folder: Path) -> None:
    """Another application's database, with a manifest that says so."""
    resealed(folder, "PRAGMA application_id = 7")
    edit(folder, application_id=7)


def companion(copied: str) -> dict[str, object]:
    """An empty copy, as a manifest tells of it."""
    return {"kind": "shop", "path": "x", "mode": "0600", "bytes": 0, "sha256": None, "copied": copied}


def piped(folder: Path) -> None:
    os.mkfifo(folder / "pipe", 0o600)
    edit(folder, companions=[companion("pipe") | {"sha256": hashlib.sha256().hexdigest()}])


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "garbage": (lambda at: write(at, os.urandom(read_manifest(at).bytes)), "sealed"),
    "truncated": (lambda at: write(at, (at / SNAPSHOT).read_bytes()[:-4096]), "bytes"),
    "zero bytes": (lambda at: write(at, b""), "sealed"),
    "missing": (lambda at: (at / SNAPSHOT).unlink(), "private"),
    "a link": (linked, "private"),
    "one bit": (flipped, "sha256"),
    "open to others": (lambda at: (at / SNAPSHOT).chmod(0o640), "private"),
    "folder open to others": (lambda at: at.chmod(0o750), "private"),
    "a log beside it": (lambda at: (at / f"{SNAPSHOT}-wal").touch(), "sealed"),
    "a hot journal beside it": (lambda at: (at / f"{SNAPSHOT}-journal").write_bytes(b"x"), "sealed"),
    "a WAL-mode header": (lambda at: patched(at, 18, b"\x02\x02"), "sealed"),
    "another application's": (
        of_another,
        "application",
    ),
    "a newer schema": (lambda at: resealed(at, "UPDATE meta SET version = 99"), "schema"),
    "an older schema": (lambda at: resealed(at, "UPDATE meta SET version = 1"), "schema"),
    "an index with a row too many": (
        lambda at: resealed(
            at,
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_schema SET sql = replace(sql, '''READY''', '''DONE''') WHERE name = 'work_open'",
        ),
        "integrity",
    ),
    "another epoch": (lambda at: resealed(at, "UPDATE operations SET epoch = 'f'"), "epoch"),
    "a row more": (lambda at: resealed(at, "INSERT INTO runs VALUES ('a', 'b', 1, '', 1)"), "rows"),
    "another stock": (lambda at: resealed(at, "UPDATE stock_events SET delta = 5"), "totals"),
    "a dangling reference": (
        lambda at: resealed(
            at,
            DANGLING,
        ),
        "foreign keys",
    ),
    "no manifest": (lambda at: (at / MANIFEST).unlink(), "manifest"),
    "a manifest of nothing": (lambda at: (at / MANIFEST).write_text("{}"), "manifest"),
    "a manifest that is a link": (
        lambda at: (at / MANIFEST).symlink_to((at / MANIFEST).rename(at / "other")),
        "manifest",
    ),
    "a manifest of a later format": (lambda at: edit(at, format=2), "manifest"),
    "a manifest with a number for a digest": (lambda at: edit(at, sha256=7), "manifest"),
    "a copy whose name is none": (lambda at: edit(at, companions=[companion("a\0b")]), "companions"),
    "a pipe for a copy": (piped, "companions"),
    "a copy outside": (lambda at: edit(at, companions=[companion("../sequence")]), "companions"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_is_named_by_its_check_and_nothing_is_touched(folder: Path, damage: str) -> None:
    spoil, expected = DAMAGES[damage]
    spoil(folder)
    before = tree(folder)
    found = verify(folder)
    assert not found.ok
    assert expected in [one.name for one in found.checks if one.outcome == "fail"], found.checks
    assert tree(folder) == before


def test_a_damaged_index_is_found_in_a_file_that_its_digest_vouches_for(folder: Path) -> None:
    with closing(sqlite3.connect(folder / SNAPSHOT, autocommit=True)) as connection:
        page = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'stock_events'"
        ).fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    patched(folder, (page - 1) * size, b"\xff" * 64)
    assert "integrity" in [one.name for one in verify(folder).checks if one.outcome == "fail"]


def test_verifying_leaves_no_sidecars_and_takes_no_write(folder: Path) -> None:
    before = tree(folder)
    assert verify(folder).ok
    assert tree(folder) == before
    assert set(names(folder)) == {"companions", MANIFEST, SNAPSHOT, VERIFIED}
    assert verify(folder, record=False).ok


def test_reading_a_sealed_copy_takes_no_lock(folder: Path) -> None:
    """So a backup on a medium that cannot be written, or that another process reads, is read all the same."""
    with sealed(folder / SNAPSHOT) as copy:
        copy.execute("BEGIN")
        assert copy.execute("SELECT count(*) FROM work").fetchone() == (1,)
        held = [line for line in Path("/proc/locks").read_text().splitlines() if f" {os.getpid()} " in line]
    assert held == []


def test_the_result_is_kept_and_bound_to_the_manifest(instance: Instance, folder: Path) -> None:
    def kept() -> bool | None:
        [entry] = listing(instance.layout, time.time()).backups
        return None if entry.verified is None else entry.verified.ok

    assert kept() is None
    verify(folder)
    assert kept() is True
    edit(folder, asked_by="somebody else")
    assert kept() is None, "it was made of another manifest"
    flipped(folder)
    verify(folder)
    assert kept() is False
    assert "verification failed" in str(listing(instance.layout, time.time()).backups[0].problem)


def test_junk_is_shown_and_left_alone(instance: Instance, folder: Path) -> None:
    home = instance.layout.backups
    (home / "notes.txt").write_text("mine")
    no_mark = home / "000007-20260301T000000Z-source"
    no_mark.mkdir()
    (no_mark / SNAPSHOT).write_text("somebody's")
    (home / "000008-20260301T000000Z-source").symlink_to(folder)
    junk = ["000007-20260301T000000Z-source", "000008-20260301T000000Z-source", "notes.txt"]
    assert listing(instance.layout, time.time()).junk == junk
    done = create(instance.layout, Request.of())
    assert done.cleaned == [], "only what a killed run has marked is removed"
    assert done.backup is not None
    assert done.backup.sequence == 9
    assert listing(instance.layout, time.time()).junk == junk
    assert (no_mark / SNAPSHOT).read_text() == "somebody's"


# --- retention ---


def kept_after(instance: Instance, now: float | None = None, **rules: float) -> list[int]:
    prune(instance.layout, now=now or time.time(), **rules)  # type: ignore[arg-type]
    return [one.sequence for one in listing(instance.layout, time.time()).backups]


def test_the_newest_stay_by_count(instance: Instance) -> None:
    for _ in range(4):
        made(instance)
    assert kept_after(instance, keep=2) == [4, 3]
    assert kept_after(instance, keep=2) == [4, 3]


def test_what_is_young_stays_too(instance: Instance) -> None:
    now = time.time()
    for age in (40, 20, 5, 1):
        dated(made(instance).path, now - age * 86400)
    assert kept_after(instance, now, keep=1, days=30) == [4, 3, 2]
    assert kept_after(instance, now, keep=1, days=3) == [4]


def test_a_clock_that_was_behind_makes_nothing_old(instance: Instance) -> None:
    """Sequence decides which is newest; a backup is no older than those that were made before it."""
    now = time.time()
    first, second, third = (made(instance).path for _ in range(3))
    dated(first, now - 86400)
    dated(second, now - 3650 * 86400)
    dated(third, now - 7000 * 86400)
    assert kept_after(instance, now, keep=1, days=10) == [3, 2, 1]
    assert kept_after(instance, now, keep=1) == [3]


def test_the_last_good_one_stays_however_old(instance: Instance) -> None:
    for _ in range(4):
        made(instance)
    for sequence in (3, 4):
        [path] = instance.layout.backups.glob(f"00000{sequence}-*")
        (path / SNAPSHOT).write_bytes(b"x")
    done = prune(instance.layout, now=time.time(), keep=1)
    assert done.good is not None
    assert done.good.startswith("000002-")
    assert [name[:6] for name in done.removed] == ["000003", "000001"]
    assert [name[:6] for name in done.kept] == ["000004", "000002"]


def test_the_newest_rehearsed_one_stays_too(instance: Instance) -> None:
    """Only what was rehearsed counts; a rehearsal that failed protects nothing."""
    for _ in range(5):
        made(instance)
    for sequence, ok in ((1, True), (2, True), (3, False)):
        [path] = instance.layout.backups.glob(f"00000{sequence}-*")
        write_result(path, REHEARSED, ok=ok, at=rfc3339(time.time()), manifest=(path / MANIFEST).read_bytes())
    assert kept_after(instance, keep=1) == [5, 2]


def test_without_a_good_one_nothing_is_removed(instance: Instance) -> None:
    for _ in range(3):
        (Path(made(instance).path) / SNAPSHOT).write_bytes(b"x")
    with pytest.raises(Refused) as caught:
        prune(instance.layout, now=time.time(), keep=1)
    assert caught.value.code == "no_good_backup"
    assert len(listing(instance.layout, time.time()).backups) == 3


def test_one_that_is_being_read_stays(instance: Instance) -> None:
    paths = [Path(made(instance).path) for _ in range(3)]
    with folders.in_use(paths[0]):
        assert kept_after(instance, keep=1) == [3, 1]
    assert kept_after(instance, keep=1) == [3]


def test_check_removes_nothing(instance: Instance) -> None:
    for _ in range(3):
        made(instance)
    before = tree(instance.layout.backups)
    done = prune(instance.layout, now=time.time(), keep=1, check=True)
    assert (len(done.removed), done.check) == (2, True)
    assert tree(instance.layout.backups) == before
    assert not prune(instance.layout, now=time.time(), keep=3).changed


def test_a_kill_in_the_middle_of_a_removal_is_cleaned_up(instance: Instance, folder: Path) -> None:
    child = os.fork()
    if child == 0:
        triggers.arm(lambda point: os._exit(9) if point == "backup.unmade" else None)
        remove(folder)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert (folder / SNAPSHOT).exists()
    assert listing(instance.layout, time.time()).backups == []
    assert create(instance.layout, Request.of()).cleaned == [folder.name]


def test_bad_rules_are_bad_input(instance: Instance) -> None:
    for rules in ({"keep": 0}, {"days": -1.0}):
        with pytest.raises(BadInput):
            prune(instance.layout, now=time.time(), **rules)


def test_a_folder_with_an_old_name_that_holds_a_newer_backup_is_told(
    instance: Instance, folder: Path
) -> None:
    copy = folder.with_name("000001-20200101T000000Z-source")
    shutil.copytree(folder, copy)
    edit(copy, sequence=5)
    entry = listing(instance.layout, time.time()).backups[0]
    assert entry.problem == "its manifest says sequence 5"
