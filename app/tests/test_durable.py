"""A file is either wholly there or not there, with its mode, whatever the umask."""

import os
from pathlib import Path

import pytest

from standfast.durable import create_file, write_file


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
@pytest.mark.parametrize("publish", [write_file, create_file])
def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path, umask: int, publish: object) -> None:
    before = os.umask(umask)
    try:
        for mode in (0o600, 0o644):
            path = tmp_path / f"{mode:o}"
            publish(path, b"x", mode)  # type: ignore[operator]
            assert path.stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)


def test_writing_replaces_the_whole_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"long first content")
    write_file(path, b"short")
    assert path.read_bytes() == b"short"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_taken_name_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    create_file(path, b"first")
    with pytest.raises(FileExistsError):
        create_file(path, b"second")
    assert path.read_bytes() == b"first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_link_is_replaced_and_its_target_untouched(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"mine")
    link.symlink_to(target)
    write_file(link, b"new")
    assert (target.read_bytes(), link.is_symlink(), link.read_bytes()) == (b"mine", False, b"new")


@pytest.mark.parametrize(("publish", "step"), [(write_file, "rename"), (create_file, "link")])
def test_data_then_name_then_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, publish: object, step: str
) -> None:
    events: list[str] = []

    def follow(name: str, event: object) -> None:
        real = getattr(os, name)

        def spy(*arguments: object) -> object:
            events.append(event(*arguments) if callable(event) else str(event))
            return real(*arguments)

        monkeypatch.setattr(os, name, spy)

    follow("fsync", lambda fd: "folder" if Path(f"/proc/self/fd/{fd}").is_dir() else "data")
    follow("replace", "rename")
    follow("link", "link")
    publish(tmp_path / "file", b"x")  # type: ignore[operator]
    assert events == ["data", step, "folder"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
