"""Restore: whatever is refused changes nothing; what is restored is one commit into the same file, paused."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from daily import Day, day, sha256
from support import Instance, Process
from world import dump

from standfast import authority, orders, work
from standfast.authority import StaleClaim
from standfast.authority import marker as markers
from standfast.authority.marker import Marker
from standfast.errors import BadInput, Refused, StandfastError
from standfast.operations.backup.folders import MANIFEST, SNAPSHOT, alone
from standfast.operations.backup.manifest import read_manifest
from standfast.operations.backup.verifying import verify
from standfast.operations.initialise import initialise_instance
from standfast.operations.restore import copying, restoring
from standfast.operations.restore.restoring import RestoreResult, restore
from standfast.store import triggers


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    triggers.disarm()


@pytest.fixture
def shop(tmp_path: Path) -> Day:
    """The morning, and one request more; there is no supplier to ask."""
    made = Day(Instance.make(tmp_path), supplier=None)  # type: ignore[arg-type]
    made.layout.receipts.mkdir(mode=0o700)
    made.begin()
    made.instance.add("after the backup")
    return made


def folder(shop: Day) -> Path:
    return shop.layout.backups / shop.morning


def seen(shop: Day) -> dict[str, Any]:
    """Everything that a refusal must leave as it is."""
    database = shop.layout.database
    rows: Any = None
    if database.is_file():
        try:
            with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
                rows = dump(connection)
        except sqlite3.DatabaseError:
            rows = database.read_bytes()
    marker = shop.layout.marker
    return {
        "rows": rows,
        "inode": database.lstat().st_ino if os.path.lexists(database) else None,
        "marker": marker.read_bytes() if marker.is_file() else None,
        "state": sorted(
            path.name
            for path in shop.layout.state.iterdir()
            if not path.name.endswith(("-wal", "-shm", ".lock"))
        ),
        "backups": sorted(path.name for path in shop.layout.backups.iterdir()),
    }


def refused(shop: Day, code: str, source: object = "", **options: Any) -> Refused:
    """The refusal, after which everything is as it was; the same with --check."""
    before = seen(shop)
    for check in (True, False):
        with pytest.raises(Refused) as caught:
            restore(shop.layout, str(source or folder(shop)), now=time.time(), check=check, **options)
        assert caught.value.code == code
        assert caught.value.remedy
        assert seen(shop) == before
    return caught.value


def describe(path: Path, **changed: Any) -> None:
    """Make the manifest fit a snapshot that was tampered with, and change what is told."""
    manifest = json.loads((path / MANIFEST).read_bytes())
    snapshot = (path / SNAPSHOT).read_bytes()
    manifest |= {"bytes": len(snapshot), "sha256": sha256(snapshot)} | changed
    (path / MANIFEST).write_text(json.dumps(manifest))


def inside(path: Path, *statements: str) -> None:
    """Change a snapshot, as nobody should; sealed again afterwards."""
    with closing(sqlite3.connect(path / SNAPSHOT, autocommit=True)) as connection:
        for statement in statements:
            connection.execute(statement).fetchall()


class TestTheSource:
    def test_the_live_file_itself_by_hard_link(self, shop: Day) -> None:
        (folder(shop) / SNAPSHOT).unlink()
        (folder(shop) / SNAPSHOT).hardlink_to(shop.layout.database)
        refused(shop, "same_file")

    def test_the_live_file_itself_by_symbolic_link(self, shop: Day) -> None:
        (folder(shop) / SNAPSHOT).unlink()
        (folder(shop) / SNAPSHOT).symlink_to(shop.layout.database)
        refused(shop, "same_file")

    def test_the_state_directory_by_path(self, shop: Day) -> None:
        before = seen(shop)
        with pytest.raises((BadInput, Refused)):
            restore(shop.layout, str(shop.layout.state), now=time.time())
        assert seen(shop) == before

    def test_the_live_file_through_a_linked_folder(self, shop: Day, tmp_path: Path) -> None:
        place = tmp_path / "place"
        shutil.copytree(folder(shop), place)
        (place / SNAPSHOT).unlink()
        (place / SNAPSHOT).hardlink_to(shop.layout.database)
        refused(shop, "same_file", place)

    @pytest.mark.parametrize("linked", ["snapshot", "folder"])
    def test_a_symbolic_link_to_a_backup(self, shop: Day, tmp_path: Path, linked: str) -> None:
        place = tmp_path / "place"
        if linked == "folder":
            place.symlink_to(folder(shop))
            refused(shop, "backup_unknown", place)
            return
        shutil.copytree(folder(shop), place)
        (place / SNAPSHOT).unlink()
        (place / SNAPSHOT).symlink_to(folder(shop) / SNAPSHOT)
        refused(shop, "source_linked", place)

    def test_a_missing_one_and_one_without_a_manifest(self, shop: Day, tmp_path: Path) -> None:
        refused(shop, "backup_unknown", tmp_path / "nowhere")
        refused(shop, "backup_unknown", "000099-20260301T060000Z-source")
        kept = folder(shop) / SNAPSHOT
        kept.rename(tmp_path / "elsewhere")
        assert f"private: {kept} is missing" in str(refused(shop, "source_private").observed)
        (folder(shop) / MANIFEST).unlink()
        refused(shop, "backup_incomplete")

    def test_one_that_was_copied_here_by_hand(self, shop: Day, tmp_path: Path) -> None:
        """With the modes of any copy: the words that make it private are said, and are enough."""
        place = tmp_path / "brought"
        shutil.copytree(folder(shop), place)
        for path in (place, *place.rglob("*")):
            path.chmod(0o755)  # a medium of another system gives files that, too
        told = refused(shop, "source_private", place).observed
        words = str(told[0]).partition("if you put it there yourself: ")[2].split()
        assert words[:2] == ["chmod", "-R"]
        subprocess.run(words, check=True)
        assert restore(shop.layout, str(place), now=time.time()).changed

    def test_a_name_that_is_none(self, shop: Day) -> None:
        before = seen(shop)
        by_the_parent = str(shop.layout.state / ".." / "backups" / shop.morning)
        for name in ("../x", "morning", "", by_the_parent, "/mnt/a b", "/mnt/50%"):
            with pytest.raises(BadInput):
                restore(shop.layout, name, now=time.time())
        assert seen(shop) == before

    @pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
    def test_a_side_file(self, shop: Day, suffix: str) -> None:
        (folder(shop) / (SNAPSHOT + suffix)).write_bytes(b"")
        refused(shop, "source_sealed")

    @pytest.mark.parametrize(
        ("content", "code"),
        [
            (lambda _: b"", "source_sealed"),
            (lambda _: b"garbage" * 1000, "source_sealed"),
            (lambda old: old[: len(old) // 2], "source_bytes"),
            (lambda old: old[:-1] + bytes([old[-1] ^ 1]), "source_sha256"),
            (lambda old: old[:5000] + b"\xa5" * 8 + old[5008:], "source_sha256"),
            (lambda old: old + b"\0", "source_bytes"),
        ],
        ids=["zero bytes", "garbage", "truncated", "a bit", "eight bytes", "longer"],
    )
    def test_other_bytes_than_the_manifest_says(
        self, shop: Day, content: Callable[[bytes], bytes], code: str
    ) -> None:
        snapshot = folder(shop) / SNAPSHOT
        snapshot.write_bytes(content(snapshot.read_bytes()))
        refused(shop, code)

    def test_zero_pages_that_a_manifest_vouches_for(self, shop: Day) -> None:
        (folder(shop) / SNAPSHOT).write_bytes(b"")
        describe(folder(shop), bytes=512)
        refused(shop, "source_sealed")

    def test_damage_that_a_manifest_vouches_for(self, shop: Day) -> None:
        snapshot = folder(shop) / SNAPSHOT
        data = bytearray(snapshot.read_bytes())
        page = read_manifest(folder(shop)).page_size
        data[3 * page : 4 * page] = b"\x55" * page
        snapshot.write_bytes(data)
        describe(folder(shop))
        told = refused(shop, "source_integrity")
        assert "integrity" in str(told.observed)

    def test_a_write_ahead_log_in_its_header(self, shop: Day) -> None:
        snapshot = folder(shop) / SNAPSHOT
        data = bytearray(snapshot.read_bytes())
        data[18:20] = b"\x02\x02"
        snapshot.write_bytes(data)
        describe(folder(shop))
        refused(shop, "source_sealed")

    def test_another_applications_database(self, shop: Day) -> None:
        inside(folder(shop), "PRAGMA application_id = 7")
        describe(folder(shop))
        refused(shop, "source_foreign")

    def test_a_reference_to_a_row_that_is_not_there(self, shop: Day) -> None:
        inside(
            folder(shop),
            "INSERT INTO transcript (work, generation, message, written_at) VALUES ('nobody', 1, 'x', 0)",
        )
        manifest = read_manifest(folder(shop))
        describe(folder(shop), rows=manifest.rows | {"transcript": manifest.rows["transcript"] + 1})
        refused(shop, "source_foreign_keys")

    @pytest.mark.parametrize(
        ("version", "code"), [({"work": 99}, "source_newer"), ({"work": 1}, "source_older")]
    )
    def test_another_schema(self, shop: Day, version: dict[str, int], code: str) -> None:
        manifest = read_manifest(folder(shop))
        describe(folder(shop), schema=manifest.schema_versions | version)
        told = refused(shop, code)
        assert "work" in str(told.observed)

    def test_a_component_that_this_release_does_not_know(self, shop: Day) -> None:
        manifest = read_manifest(folder(shop))
        describe(folder(shop), schema=manifest.schema_versions | {"later": 1})
        refused(shop, "source_newer")

    def test_a_schema_that_the_manifest_lies_about(self, shop: Day) -> None:
        inside(folder(shop), "UPDATE meta SET version = 99 WHERE component = 'work'")
        describe(folder(shop))
        refused(shop, "source_differs")

    def test_totals_that_the_manifest_lies_about(self, shop: Day) -> None:
        inside(folder(shop), "UPDATE stock_events SET delta = 200 WHERE sku = 'vanilla'")
        describe(folder(shop))
        refused(shop, "source_totals")

    def test_another_page_size(self, shop: Day) -> None:
        inside(folder(shop), "PRAGMA page_size = 8192", "VACUUM")
        describe(folder(shop), page_size=8192)
        refused(shop, "page_size_differs")

    def test_a_snapshot_that_changes_while_it_is_read(self, shop: Day) -> None:
        snapshot = folder(shop) / SNAPSHOT
        good = snapshot.read_bytes()

        def change(reached: str) -> None:
            if reached == "restore.safety_made":
                snapshot.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))

        before = seen(shop)
        triggers.arm(change)
        with pytest.raises(Refused) as caught:
            shop.restore_here()
        assert caught.value.code == "source_changed"
        after = seen(shop)
        assert {**after, "backups": None} == {**before, "backups": None}, "not even paused"


class TestTheLiveStore:
    def test_a_running_service(self, shop: Day) -> None:
        with Process(shop.instance) as process:
            process.ready()
            before = shop.control()
            for check in (True, False):
                with pytest.raises(Refused) as caught:
                    shop.restore_here(check=check)
                assert caught.value.code == "writer_held"
            assert shop.control() == before

    def test_a_running_service_goes_on_under_the_new_era_with_live(self, shop: Day) -> None:
        with Process(shop.instance) as process:
            process.ready()
            inode = shop.layout.database.stat().st_ino
            told = shop.restore_here(live=True)
            assert shop.layout.database.stat().st_ino == inode
            end = time.monotonic() + 20
            while not any("paused: restored from" in line for line in process.messages()):
                assert time.monotonic() < end, process.log
                time.sleep(0.05)
            waiting = shop.instance.add("waits").work
            time.sleep(1.0)
            assert shop.instance.status(waiting) == ("READY", 0)
            assert process.terminate() == 0
        assert shop.control().epoch == told.epoch
        assert shop.control().paused

    def test_two_restores_at_once(self, shop: Day) -> None:
        with restoring._alone(shop.layout):
            before = seen(shop)
            with pytest.raises(Refused) as caught:
                shop.restore_here()
            assert caught.value.code == "restore_running"
            assert seen(shop) == before

    def test_a_link_in_its_place(self, shop: Day, tmp_path: Path) -> None:
        shop.layout.database.rename(tmp_path / "elsewhere.sqlite")
        shop.layout.database.symlink_to(tmp_path / "elsewhere.sqlite")
        refused(shop, "store_linked")

    def test_another_applications_database(self, shop: Day) -> None:
        for path in shop.layout.state.glob("agent.sqlite*"):
            path.unlink()
        with closing(sqlite3.connect(shop.layout.database)) as connection:
            connection.execute("CREATE TABLE theirs (x)")
        refused(shop, "store_foreign")

    def test_a_newer_store(self, shop: Day) -> None:
        with closing(sqlite3.connect(shop.layout.database, autocommit=True)) as connection:
            connection.execute("UPDATE meta SET version = 99 WHERE component = 'work'")
        told = refused(shop, "store_newer")
        assert "--newer-aside" in told.remedy

    def test_a_newer_store_is_put_aside_where_that_is_asked_for(self, shop: Day) -> None:
        with closing(sqlite3.connect(shop.layout.database, autocommit=True)) as connection:
            connection.execute("UPDATE meta SET version = 99 WHERE component = 'work'")
        before = shop.layout.database.read_bytes()
        told = shop.restore_here(newer_aside=True)
        assert told.changed
        assert told.safety_backup is None
        assert told.evidence is not None
        assert "work 99" in str(told.lost)
        assert Path(told.evidence).name.startswith("newer-")
        assert (Path(told.evidence) / shop.layout.database.name).read_bytes() == before
        assert shop.instance.rows("SELECT paused, epoch FROM operations") == [(1, told.epoch)]
        assert shop.instance.rows("SELECT version FROM meta WHERE component = 'work'") != [(99,)]
        assert not shop.restore_here(newer_aside=True).changed

    def test_too_little_space(self, shop: Day, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(restoring, "MARGIN", 1 << 60)
        told = refused(shop, "restore_no_space")
        assert "bytes are free" in str(told.observed)

    def test_a_folder_where_the_marker_belongs(self, shop: Day) -> None:
        shop.layout.marker.unlink()
        shop.layout.marker.mkdir()
        refused(shop, "marker_blocked")

    @pytest.mark.parametrize("blocked", ["a link", "a dangling link", "a file"])
    def test_something_else_where_the_image_is_made(self, shop: Day, tmp_path: Path, blocked: str) -> None:
        place = shop.layout.state / ".restoring"
        if blocked == "a file":
            place.touch()
        else:
            place.symlink_to(tmp_path if blocked == "a link" else tmp_path / "nowhere")
        refused(shop, "staging_blocked")

    def test_another_user(self, shop: Day, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(Refused) as caught:
            shop.restore_here()
        assert caught.value.code == "other_user"

    def test_a_writer_that_keeps_the_lock(self, shop: Day, monkeypatch: pytest.MonkeyPatch) -> None:
        """After the pause: nothing is copied, the old state stays, paused under its old epoch."""
        monkeypatch.setattr(copying, "BUSY_SECONDS", 0.3)
        before = shop.control()
        with closing(sqlite3.connect(shop.layout.database, autocommit=True)) as other:

            def hold(reached: str) -> None:
                if reached == "restore.paused":
                    other.execute("BEGIN IMMEDIATE")

            triggers.arm(hold)
            with pytest.raises(StandfastError, match="paused under its old epoch") as caught:
                shop.restore_here()
            other.execute("ROLLBACK")
        triggers.disarm()
        assert not isinstance(caught.value, Refused)
        after = shop.control()
        assert (after.epoch, after.paused) == (before.epoch, True)
        assert not (shop.layout.state / ".restoring").exists()
        with shop.instance.store() as connection, pytest.raises(Refused, match="operations are paused"):
            orders.connect(connection, None, shop.layout.marker)  # type: ignore[arg-type]
        told = shop.restore_here()
        assert told.changed
        assert shop.control().epoch == told.epoch

    def test_what_others_write_meanwhile_is_in_a_safety_backup(self, shop: Day) -> None:
        """An acknowledged request is never lost without a trace: the safety backup is made once more."""
        admitted: list[str] = []

        def write(reached: str) -> None:
            if reached == "restore.paused" and not admitted:
                admitted.append(shop.instance.add("while the restore runs").work)

        triggers.arm(write)
        told = shop.restore_here()
        assert told.safety_backup is not None
        safety = Path(told.safety_backup) / SNAPSHOT
        with closing(sqlite3.connect(f"file:{safety}?mode=ro&immutable=1", uri=True)) as connection:
            rows = connection.execute("SELECT 1 FROM work WHERE id = ?", admitted).fetchall()
        assert rows == [(1,)]
        assert len(list(shop.layout.backups.glob("0*"))) == 3

    def test_what_is_refused_after_the_pause_is_a_failure_that_says_so(self, shop: Day) -> None:
        """Somebody writes, so the safety backup is made once more; but a nightly backup has begun."""
        with ExitStack() as nightly:

            def write(reached: str) -> None:
                if reached == "restore.paused":
                    shop.instance.add("while the restore runs")
                    nightly.enter_context(alone(shop.layout.backups))

            triggers.arm(write)
            before = shop.control().epoch
            with pytest.raises(
                StandfastError, match=r"paused under its old epoch.* another backup"
            ) as caught:
                shop.restore_here()
        assert not isinstance(caught.value, Refused)
        assert (shop.control().epoch, shop.control().paused) == (before, True)

    def test_whoever_never_stops_writing_wins(self, shop: Day) -> None:
        def write(reached: str) -> None:
            if reached == "restore.paused":
                shop.instance.add("again")

        triggers.arm(write)
        before = shop.control().epoch
        with pytest.raises(StandfastError, match="others kept writing"):
            shop.restore_here()
        assert (shop.control().epoch, shop.control().paused) == (before, True)


class TestWhatIsRestored:
    def test_the_snapshots_business_under_a_new_paused_era(self, shop: Day) -> None:
        assert shop.running is not None
        before, inode = shop.control(), shop.layout.database.stat().st_ino
        foreseen = shop.restore_here(check=True)
        assert shop.control() == before
        told = shop.restore_here()
        assert (foreseen.interrupted, foreseen.revoked_orders) == (told.interrupted, told.revoked_orders)
        control = shop.control()
        assert (control.epoch, control.paused) == (told.epoch, True)
        assert control.reason == f"restored from {shop.morning}"
        assert told.epoch not in {before.epoch, read_manifest(folder(shop)).epoch}
        assert shop.layout.database.stat().st_ino == inode
        assert told.checkpointed
        assert markers.read(shop.layout.marker) == Marker(control.epoch, authority.host_identity())
        assert shop.instance.status(shop.running.work) == ("READY", 2)
        rows = shop.instance.rows(
            "SELECT owner, lease_until, interrupted_epoch FROM work WHERE id = ?", told.interrupted[0]
        )
        assert rows == [(None, None, told.epoch)]
        assert told.revoked_orders == [shop.vanilla]
        order = shop.order(shop.vanilla)
        assert (order.status, order.reserved_cents) == ("REVOKED", 0)
        assert shop.instance.rows("SELECT 1 FROM approvals WHERE revoked = 0") == []
        assert shop.instance.rows("SELECT count(*) FROM work WHERE prompt = 'after the backup'") == [(0,)]
        assert shop.instance.rows("PRAGMA integrity_check") == [("ok",)]
        assert shop.instance.rows("PRAGMA journal_mode") == [("wal",)]
        assert [row[2] for row in shop.instance.rows("SELECT * FROM restores")] == [told.source_sha256]

    def test_sent_orders_stay_and_deliveries_in_flight_become_unknown(self, tmp_path: Path) -> None:
        with day(tmp_path) as made:
            order = made.approved("vanilla", 6).id
            made.supplier.fault("drop_after_accept")
            made.send(order)
            with closing(sqlite3.connect(made.layout.database, autocommit=True)) as connection:
                connection.execute("UPDATE reports SET delivery = 'sending'")
            made.restore_here(made.backup())
            assert (made.order(order).status, made.order(order).reserved_cents) == ("UNKNOWN", 0)
            assert made.instance.rows("SELECT DISTINCT delivery FROM reports") == [("unknown",)]

    def test_the_present_state_is_kept_as_a_verified_backup(self, shop: Day) -> None:
        with shop.instance.store() as connection:
            before = dump(connection)
        told = shop.restore_here()
        assert told.safety_backup is not None
        assert verify(Path(told.safety_backup)).ok
        safety = Path(told.safety_backup) / SNAPSHOT
        with closing(sqlite3.connect(f"file:{safety}?mode=ro&immutable=1", uri=True)) as connection:
            assert dump(connection) == before
        assert read_manifest(Path(told.safety_backup)).asked_by.startswith("restore of ")

    def test_the_source_is_as_it_was(self, shop: Day) -> None:
        before = {path.name: path.read_bytes() for path in folder(shop).iterdir() if path.is_file()}
        shop.restore_here()
        assert {path.name: path.read_bytes() for path in folder(shop).iterdir() if path.is_file()} == before

    def test_the_same_again_changes_nothing(self, shop: Day) -> None:
        first = shop.restore_here()
        before = seen(shop)
        again = shop.restore_here()
        assert (again.changed, again.epoch, again.safety_backup) == (False, first.epoch, first.safety_backup)
        assert seen(shop) == before
        other = shop.restore_here(Path(first.safety_backup or "").name)
        assert other.changed

    def test_an_era_that_was_recovered_is_restored_afresh(self, tmp_path: Path) -> None:
        with day(tmp_path) as made:
            made.begin()
            first = made.restore_here()
            made.recover_here(made.answered())
            again = made.restore_here()
            assert again.changed
            assert again.epoch != first.epoch

    def test_nothing_resumes_it(self, shop: Day) -> None:
        shop.restore_here()
        waiting = shop.instance.add("waits").work
        shop.instance.clock.pass_time(90_000)
        shop.instance.settle()
        assert shop.control().paused
        assert shop.instance.status(waiting) == ("READY", 0)
        assert shop.instance.rows("SELECT 1 FROM reports WHERE delivery = 'sent'") == []
        told = initialise_instance(shop.layout, now=shop.now())
        assert not told.changed
        assert shop.control().paused

    @pytest.mark.parametrize("marker", ["missing", "empty", "other", "unreadable", "garbage"])
    def test_whatever_the_marker_was(self, shop: Day, marker: str) -> None:
        path = shop.layout.marker
        if marker == "missing":
            path.unlink()
        elif marker == "empty":
            path.write_bytes(b"")
        elif marker == "garbage":
            path.write_bytes(b"\xff\xfe\0")
        elif marker == "unreadable":
            path.chmod(0)
        else:
            markers.write(path, Marker("f" * 32, "e" * 64))
        told = shop.restore_here()
        assert markers.read(path) == Marker(told.epoch or "", authority.host_identity())
        assert path.stat().st_mode & 0o777 == 0o600
        assert shop.control().paused

    def test_a_store_whose_marker_was_not_written_any_more_is_restored_again(self, shop: Day) -> None:
        first = shop.restore_here()
        markers.write(shop.layout.marker, Marker("f" * 32, authority.host_identity()))
        again = shop.restore_here()
        assert again.changed
        assert again.epoch != first.epoch
        with closing(sqlite3.connect(shop.layout.database)) as connection:
            assert authority.agrees(connection, shop.layout.marker)

    def test_a_reader_keeps_its_snapshot_and_its_next_transaction_sees_the_new_era(self, shop: Day) -> None:
        """It also keeps the log from being emptied; that is told, and is no failure."""
        claim = shop.running
        assert claim is not None
        before = shop.control()
        with shop.instance.store() as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT epoch FROM operations").fetchone() == (before.epoch,)
            told = shop.restore_here()
            assert reader.execute("SELECT epoch FROM operations").fetchone() == (before.epoch,)
            assert reader.execute("SELECT count(*) FROM work").fetchone() == (3,)
            reader.execute("COMMIT")
            assert reader.execute("SELECT epoch, paused FROM operations").fetchone() == (told.epoch, 1)
            assert reader.execute("SELECT count(*) FROM work").fetchone() == (2,)
            with pytest.raises(StaleClaim, match=r"^runtime paused or replaced by restore$"):
                work.observe(reader, claim, "x", clock=shop.instance.clock, marker=shop.layout.marker)
        assert not told.checkpointed

    def test_a_backup_on_another_file_system(self, shop: Day) -> None:
        place = Path("/dev/shm") / f"standfast-{os.getpid()}"
        if not place.parent.is_dir() or place.parent.stat().st_dev == shop.layout.state.stat().st_dev:
            pytest.skip("there is no second file system here")
        shutil.copytree(folder(shop), place)
        try:
            assert shop.restore_here(str(place)).changed
        finally:
            shutil.rmtree(place)


class TestALostState:
    """The disk ate it: what can be read is kept, the rest is put aside, and the restore goes on."""

    def restored(self, shop: Day) -> RestoreResult:
        told = shop.restore_here()
        assert told.changed
        assert told.safety_backup is None
        assert told.lost
        assert shop.control().paused
        assert shop.control().epoch == told.epoch
        assert shop.layout.database.stat().st_mode & 0o777 == 0o600
        assert shop.instance.rows("PRAGMA journal_mode") == [("wal",)]
        assert shop.instance.rows("PRAGMA integrity_check") == [("ok",)]
        assert shop.instance.rows("SELECT count(*) FROM work") == [(2,)]
        assert shop.restore_here().changed is False
        return told

    def lose(self, shop: Day) -> None:
        for path in shop.layout.state.glob("agent.sqlite*"):
            path.unlink()

    def test_missing(self, shop: Day) -> None:
        self.lose(shop)
        assert self.restored(shop).evidence is None

    def test_missing_with_its_marker(self, shop: Day) -> None:
        self.lose(shop)
        shop.layout.marker.unlink()
        self.restored(shop)

    def test_empty(self, shop: Day) -> None:
        self.lose(shop)
        shop.layout.database.touch(0o600)
        self.restored(shop)

    @pytest.mark.parametrize("content", [b"x", b"garbage" * 4000, b"SQLite format 3\0" + b"\xff" * 8000])
    def test_garbage(self, shop: Day, content: bytes) -> None:
        self.lose(shop)
        shop.layout.database.write_bytes(content)
        told = self.restored(shop)
        assert told.evidence is not None
        assert (Path(told.evidence) / "agent.sqlite").read_bytes() == content
        assert Path(told.evidence).stat().st_mode & 0o777 == 0o700

    def test_damaged_further_in(self, shop: Day) -> None:
        """It opens, so only the safety backup finds out."""
        page = shop.instance.rows("PRAGMA page_size")[0][0]
        root = shop.instance.rows("SELECT rootpage FROM sqlite_schema WHERE name = 'transcript'")[0][0]
        with closing(sqlite3.connect(shop.layout.database, autocommit=True)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        with shop.layout.database.open("r+b") as file:
            file.seek((root - 1) * page)
            file.write(b"\x55" * page)
        told = self.restored(shop)
        assert told.evidence is not None
        assert "transcript" in str(told.lost) or "age" in str(told.lost)

    @pytest.mark.parametrize("suffix", ["-wal", "-journal"])
    def test_a_stale_side_file_is_never_replayed(self, shop: Day, suffix: str) -> None:
        wal = shop.layout.database.with_name("agent.sqlite-wal")
        with shop.instance.store() as connection:
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute("UPDATE work SET reason = 'only in the log'")
            stale = wal.read_bytes()
        self.lose(shop)
        shop.layout.database.with_name(f"agent.sqlite{suffix}").write_bytes(stale)
        told = self.restored(shop)
        assert told.evidence is not None
        assert [path.name for path in Path(told.evidence).iterdir()] == [f"agent.sqlite{suffix}"]
        assert shop.instance.rows("SELECT 1 FROM work WHERE reason = 'only in the log'") == []

    def test_never_while_a_process_holds_it(self, shop: Day) -> None:
        self.lose(shop)
        shop.layout.database.write_bytes(b"garbage" * 4000)
        before = seen(shop)
        with subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys; file = open(sys.argv[1]); print(); input()",
                shop.layout.database,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()
            try:
                with pytest.raises(Refused) as caught:
                    shop.restore_here()
                assert caught.value.code == "store_held"
                assert str(holder.pid) in str(caught.value.observed)
                assert seen(shop) == before
            finally:
                holder.kill()
        assert shop.restore_here().changed

    def test_never_beside_a_running_service(self, shop: Day) -> None:
        self.lose(shop)
        refused(shop, "store_held", live=True)

    def test_a_store_without_an_era(self, shop: Day) -> None:
        with closing(sqlite3.connect(shop.layout.database, autocommit=True)) as connection:
            connection.execute("DELETE FROM operations")
        assert self.restored(shop).evidence is not None


def test_a_loss_is_of_the_day_on_which_the_image_is_made(shop: Day) -> None:
    """A restore beside a running service may begin before midnight and end after it."""
    midnight = 1_900_022_400.0
    triggers.arm(lambda reached: time.sleep(1.0) if reached == "restore.safety_made" else None)
    shop.restore_here(now=midnight - 0.5)
    [(day_of_loss,)] = shop.instance.rows("SELECT day FROM usage_losses")
    assert day_of_loss == time.strftime("%Y-%m-%d", time.gmtime(midnight))


def test_a_backup_moves_to_another_host(shop: Day, tmp_path: Path) -> None:
    """A new state directory, initialised or not, takes up the backup under its own host's marker."""
    (tmp_path / "other").mkdir()
    other = Instance.make(tmp_path / "other")
    told = restore(other.layout, str(folder(shop)), now=time.time())
    assert told.changed
    assert told.safety_backup is not None
    assert markers.read(other.layout.marker) == Marker(told.epoch or "", authority.host_identity())
    assert other.rows("SELECT count(*) FROM work") == [(2,)]
