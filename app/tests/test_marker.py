"""The marker that the fence looks at in every write: what it says now, though it is not always opened."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from standfast.authority import marker as markers
from standfast.authority.marker import Marker

OLD, NEW = "0" * 32, "f" * 32
HOST = "a" * 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "agent.authority"
    markers.write(path, Marker(OLD, HOST))
    return path


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were opened to be read."""
    found: list[Path] = []
    plain = markers.read

    def read(path: Path) -> Marker | None:
        found.append(path)
        return plain(path)

    monkeypatch.setattr(markers, "read", read)
    return found


def settled(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the marker had stood for long: it is known, and the next change has another time."""
    monkeypatch.setattr(markers, "_SETTLED", 0.0)
    written = path.stat().st_ctime_ns
    scratch = path.with_name("ticks")
    while True:
        scratch.write_bytes(b"")
        os.utime(scratch)
        if scratch.stat().st_ctime_ns > written and time.time_ns() > written:
            break
    assert markers.read_epoch(path) == OLD


def in_place(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(OLD.encode(), NEW.encode()))


def by_rename(path: Path) -> None:
    markers.write(path, Marker(NEW, HOST))


def with_its_times_put_back(path: Path) -> None:
    before = path.stat()
    in_place(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def gone(path: Path) -> None:
    path.unlink()


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def moved_away_with_its_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("change", "then"),
    [
        (in_place, NEW),
        (by_rename, NEW),
        (with_its_times_put_back, NEW),
        (gone, None),
        (emptied, None),
        (a_folder, None),
        (moved_away_with_its_folder, None),
    ],
)
def test_a_change_of_a_marker_that_stood_for_long_is_seen_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], then: str | None
) -> None:
    settled(path, monkeypatch)
    change(path)
    assert markers.read_epoch(path) == then
    assert markers.read_epoch(path) == then


def test_one_that_comes_back_speaks_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settled(path, monkeypatch)
    path.unlink()
    assert markers.read_epoch(path) is None
    markers.write(path, Marker(OLD, HOST))
    assert markers.read_epoch(path) == OLD


@pytest.mark.parametrize("mode", [0o000, 0o200])
def test_a_mode_that_forbids_reading_is_seen(
    path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[Path], mode: int
) -> None:
    settled(path, monkeypatch)
    before = len(opened)
    path.chmod(mode)
    markers.read_epoch(path)  # root may read it all the same
    assert len(opened) == before + 1


def test_one_that_stood_for_long_is_opened_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[Path]
) -> None:
    settled(path, monkeypatch)
    assert [markers.read_epoch(path) for _ in range(10)] == [OLD] * 10
    assert len(opened) == 1


def test_changes_within_one_tick_of_the_file_system_are_seen(path: Path, opened: list[Path]) -> None:
    said = [f"{number:032x}" for number in range(500)]
    seen = []
    for epoch in said:
        path.write_text(f"{epoch}\n{HOST}\n")
        seen.append(markers.read_epoch(path))
        assert markers.read_epoch(path) == epoch
    assert seen == said
    assert len(opened) == 2 * len(said), "one that is so young is read every time"


def test_two_markers_are_told_apart(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settled(path, monkeypatch)
    other = tmp_path / "other"
    markers.write(other, Marker(NEW, HOST))
    for _ in range(3):
        assert (markers.read_epoch(path), markers.read_epoch(other)) == (OLD, NEW)
