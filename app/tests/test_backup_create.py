"""A backup is consistent, private, exclusive, checked, synced and described, or it is not there."""

import hashlib
import os
import stat
from pathlib import Path

import pytest
from support import Instance

from standfast.errors import Refused
from standfast.operations.backup.creating import Created, Request, create
from standfast.operations.backup.folders import MANIFEST, SNAPSHOT
from standfast.operations.backup.listing import BackupEntry, listing
from standfast.operations.backup.manifest import read_manifest
from standfast.operations.backup.verifying import verify


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance.make(tmp_path)


def made(instance: Instance, **wanted: object) -> BackupEntry:
    done = create(instance.layout, Request.of(**wanted))  # type: ignore[arg-type]
    assert isinstance(done, Created)
    assert done.backup is not None
    return done.backup


def test_a_backup_says_what_is_in_it(instance: Instance) -> None:
    instance.add("the only request")
    entry = made(instance, asked_by="lucy", release_after="next")
    manifest = read_manifest(Path(entry.path))
    snapshot = Path(entry.path) / SNAPSHOT
    assert entry.sequence == manifest.sequence == 1
    assert manifest.rows["work"] == 1
    assert manifest.totals.stock == {"vanilla": 2, "strawberry": 1, "chocolate": 9}
    assert manifest.asked_by == "lucy"
    assert manifest.releases is not None
    assert (manifest.releases.before, manifest.releases.after) == ("source", "next")
    assert manifest.sha256 == hashlib.sha256(snapshot.read_bytes()).hexdigest()
    assert manifest.bytes == snapshot.stat().st_size
    assert any("supplier's own ledger" in text for text in manifest.not_included)
    assert sorted(path.name for path in Path(entry.path).iterdir()) == ["companions", MANIFEST, SNAPSHOT]
    assert verify(Path(entry.path)).ok


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_it_is_private_whatever_the_umask(instance: Instance, umask: int) -> None:
    before = os.umask(umask)
    try:
        entry = made(instance)
    finally:
        os.umask(before)
    for path in [instance.layout.backups, Path(entry.path), *Path(entry.path).rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_names_follow_the_sequence(instance: Instance) -> None:
    names = [made(instance).name for _ in range(3)]
    assert [name[:7] for name in names] == ["000001-", "000002-", "000003-"]
    assert [one.name for one in listing(instance.layout, 0).backups] == names[::-1]


def test_a_taken_destination_is_refused_and_left_alone(instance: Instance, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "theirs").write_text("theirs")
    with pytest.raises(Refused) as caught:
        made(instance, to=str(place))
    assert caught.value.code == "destination_taken"
    assert [path.name for path in place.iterdir()] == ["theirs"]
