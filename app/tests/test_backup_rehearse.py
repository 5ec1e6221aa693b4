"""A rehearsal restores a backup elsewhere and reads it; a migration brings a copy of an older one forward."""

import json
import os
import time
from contextlib import closing
from pathlib import Path

import pytest
from backing import edit, made, names
from support import Instance
from test_backup_faults import at, no_file_may_grow
from test_backup_verify import resealed, tree
from world import World, dump

from standfast.cli import main as cli
from standfast.errors import Refused
from standfast.layout import Layout
from standfast.operations.backup import folders
from standfast.operations.backup.folders import MANIFEST, REHEARSED, SNAPSHOT, VERIFIED
from standfast.operations.backup.limits import Limits
from standfast.operations.backup.listing import listing
from standfast.operations.backup.manifest import read_manifest
from standfast.operations.backup.migrating import migrate
from standfast.operations.backup.rehearsing import SCRATCH, rehearse
from standfast.operations.backup.snapshot import sealed
from standfast.operations.backup.verifying import verify
from standfast.operations.schema import COMPONENTS, understood
from standfast.receipts import chain
from standfast.store import immediate, open_store, triggers


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    made = Instance.make(tmp_path)
    made.layout.receipts.mkdir(mode=0o700)
    return made


def failing(instance: Instance) -> list[str]:
    done = rehearse(instance.layout, None)
    assert done.ok is False
    return [one.name for one in done.checks if one.outcome == "fail"]


def test_a_good_backup_is_restored_read_and_recorded(instance: Instance) -> None:
    instance.add("interrupted")
    instance.claim()
    entry = made(instance)
    with instance.store() as store:
        before = dump(store)
    marker, files = instance.layout.marker.read_bytes(), tree(Path(entry.path))
    done = rehearse(instance.layout, None)
    assert done.ok
    assert done.path == entry.path
    told = {one.name: one.observed for one in done.checks}
    assert "1 interrupted items" in told["plan"]
    assert "vanilla" in told["plan"]
    assert done.receipt is not None
    receipt = chain.find(instance.layout.receipts, None)
    assert (receipt.operation, receipt.verdict) == ("rehearse", "done")
    assert entry.sha256 in receipt.checks[0].observed
    assert chain.verify(instance.layout.receipts).verified
    with instance.store() as store:
        assert dump(store) == before, "the live store is not touched"
    assert instance.layout.marker.read_bytes() == marker
    assert {name: digest for name, digest in tree(Path(entry.path)).items() if name != REHEARSED} == files
    assert SCRATCH not in names(instance.layout.backups)
    [kept] = listing(instance.layout, time.time()).backups
    assert kept.rehearsed is not None
    assert kept.rehearsed.ok


@pytest.mark.parametrize(
    ("statements", "values", "expected"),
    [
        (["UPDATE stock_events SET delta = 100 WHERE sku = 'vanilla'"], {}, ["totals"]),
        ([], {"epoch": "0" * 32}, ["epoch"]),
        (
            ["UPDATE meta SET version = 99 WHERE component = 'shop'"],
            {"schema": {**understood(), "shop": 99}},
            ["opened by this release"],
        ),
        (["DROP TABLE skills", "DROP TABLE episodes"], {}, ["rows"]),
    ],
)
def test_a_bad_backup_is_a_failed_rehearsal_with_its_receipt(
    instance: Instance, statements: list[str], values: dict[str, object], expected: list[str]
) -> None:
    folder = Path(made(instance).path)
    resealed(folder, *statements)
    edit(folder, **values)
    assert failing(instance) == expected
    receipt = chain.find(instance.layout.receipts, None)
    assert (receipt.verdict, receipt.stopped_at) == ("failed", expected[0])
    assert SCRATCH not in names(instance.layout.backups)


@pytest.mark.parametrize(
    ("expected", "deed"),
    [
        (
            "era ends paused",
            "UPDATE operations SET paused = 0",
        ),
        (
            "business unchanged",
            "INSERT INTO stock_events VALUES ('x', 'vanilla', 1, 'r', 1)",
        ),
    ],
)
def test_what_a_restore_would_do_to_it_is_looked_at(instance: Instance, expected: str, deed: str) -> None:
    """A store in which the end of an era does something else than it should."""
    with instance.store() as store:
        store.execute(f"CREATE TRIGGER t AFTER UPDATE OF epoch ON operations BEGIN {deed}; END")
    made(instance)
    assert expected in failing(instance)


def test_without_a_place_for_receipts_nothing_is_done(instance: Instance) -> None:
    made(instance)
    instance.layout.receipts.rmdir()
    before = tree(instance.layout.backups)
    with pytest.raises(Refused) as caught:
        rehearse(instance.layout, None)
    assert caught.value.code == "no_receipts"
    assert tree(instance.layout.backups) == before


def test_check_does_nothing(instance: Instance) -> None:
    made(instance)
    before = tree(instance.layout.backups)
    done = rehearse(instance.layout, None, check=True)
    assert (done.ok, done.receipt, done.checks) == (None, None, [])
    assert tree(instance.layout.backups) == before
    assert names(instance.layout.receipts) == []


def test_a_killed_rehearsal_is_cleaned_up_by_the_next_and_a_running_one_is_left_alone(
    instance: Instance,
) -> None:
    made(instance)
    child = os.fork()
    if child == 0:
        triggers.arm(lambda point: os._exit(9) if point == "rehearse.restored" else None)
        rehearse(instance.layout, None)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    left = instance.layout.backups / SCRATCH
    assert left.is_dir()
    with folders.in_use(left):
        with pytest.raises(Refused) as caught:
            rehearse(instance.layout, None)
        assert caught.value.code == "rehearsal_running"
    assert rehearse(instance.layout, None).ok
    assert not left.exists()


def test_a_backup_elsewhere_is_rehearsed_by_its_path(instance: Instance, tmp_path: Path) -> None:
    entry = made(instance, to=str(tmp_path / "elsewhere"))
    assert rehearse(instance.layout, entry.path).ok


def test_the_command_answers_4_for_a_bad_backup(instance: Instance) -> None:
    call = ["--state", str(instance.layout.state), "backup", "rehearse"]
    assert cli.main(call) == 3
    folder = Path(made(instance).path)
    assert cli.main(call) == 0
    edit(folder, epoch="0" * 32)
    assert cli.main(call) == 4


FULL_AT = ("backup.step", "backup.copied", "rehearse.restored", "rehearse.check", "rehearse.committed")


@pytest.mark.parametrize("point", FULL_AT)
def test_a_full_disk_ends_it_and_leaves_nothing(
    instance: Instance, point: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made(instance)
    before = names(instance.layout.backups)
    call = ["--json", "--state", str(instance.layout.state), "backup", "rehearse"]
    with no_file_may_grow() as full, at(point, full):
        code = cli.main(call)
    assert (code, json.loads(capsys.readouterr().out)["refused"]["code"]) == (1, "disk_full")
    assert names(instance.layout.backups) == before
    assert cli.main(call) == 0


# --- migrating ---


OLDER = tuple(one for one in COMPONENTS if one.name != "recovery")


@pytest.fixture
def older(tmp_path: Path) -> Instance:
    """An instance that was never brought forward to the newest component."""
    layout = Layout(tmp_path / "old" / "state")
    layout.root.mkdir()
    layout.receipts.mkdir(mode=0o700)
    world = World(layout, components=OLDER)
    world.admit()
    world.connection.close()
    return Instance(layout)


def test_an_older_backup_is_brought_forward_as_a_copy(older: Instance, tmp_path: Path) -> None:
    source = made(older)
    assert "recovery" not in read_manifest(Path(source.path)).schema_versions
    before = tree(Path(source.path))
    place = str(tmp_path / "forward")
    assert migrate(older.layout, source.name, place, limits=Limits(), check=True).backup is None
    assert not Path(place).exists()
    done = migrate(older.layout, source.name, place, limits=Limits())
    assert done.backup is not None
    assert tree(Path(source.path)) == before, "the original stays as evidence"
    old, new = read_manifest(Path(source.path)), read_manifest(Path(place))
    assert new.schema_versions == understood()
    assert (new.sequence, new.made_at, new.epoch, new.totals) == (
        old.sequence,
        old.made_at,
        old.epoch,
        old.totals,
    )
    assert {name: new.rows[name] for name in old.rows if name != "meta"} == {
        name: rows for name, rows in old.rows.items() if name != "meta"
    }
    assert new.migrated is not None
    assert (new.migrated.from_sha256, new.migrated.from_schema) == (old.sha256, old.schema_versions)
    assert verify(Path(place)).ok
    assert set(names(Path(place))) == {MANIFEST, SNAPSHOT, VERIFIED}


def test_what_needs_no_migration_or_cannot_be_migrated_is_refused(instance: Instance, tmp_path: Path) -> None:
    entry = made(instance)
    place = tmp_path / "forward"

    def code(which: str, to: Path = place) -> str:
        with pytest.raises(Refused) as caught:
            migrate(instance.layout, which, str(to), limits=Limits())
        assert not place.exists()
        return caught.value.code

    assert code(entry.name) == "nothing_to_migrate"
    assert code(entry.name, tmp_path) == "destination_taken"
    resealed(Path(entry.path), "UPDATE meta SET version = 99 WHERE component = 'shop'")
    edit(entry.path, schema={**understood(), "shop": 99})
    assert code(entry.name) == "store_newer"
    (Path(entry.path) / SNAPSHOT).write_bytes(b"x")
    assert code(entry.name) == "backup_not_good"


def test_a_migration_that_fails_leaves_nothing(older: Instance, tmp_path: Path) -> None:
    with closing(open_store(older.layout.database, OLDER)) as store, immediate(store):
        store.execute("CREATE TABLE eras (taken TEXT)")
    source = made(older)
    place = tmp_path / "forward"
    with pytest.raises(Exception, match="eras"):
        migrate(older.layout, source.name, str(place), limits=Limits())
    assert not place.exists()
    with sealed(Path(source.path) / SNAPSHOT) as copy:
        assert copy.execute("SELECT count(*) FROM work").fetchone() == (1,)


@pytest.mark.parametrize("point", ["backup.folder", "backup.partial", "backup.checked", "backup.published"])
def test_a_migration_that_meets_a_full_disk_leaves_nothing(
    older: Instance, tmp_path: Path, point: str
) -> None:
    source = made(older)
    before, place = tree(Path(source.path)), tmp_path / "forward"
    with no_file_may_grow() as full, at(point, full), pytest.raises(Refused) as caught:
        migrate(older.layout, source.name, str(place), limits=Limits())
    assert caught.value.code == "backup_no_space"
    assert not place.exists()
    assert tree(Path(source.path)) == before
    assert migrate(older.layout, source.name, str(place), limits=Limits()).backup is not None
