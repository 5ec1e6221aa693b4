"""Building: one commit gives one archive; what is not one reviewed commit is refused or marked."""

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from release_world import FILES, LOCK, PYPROJECT, PYTHONS, World, make_world, pin

from standfast.errors import BadInput, Refused, StandfastError
from standfast.release.manifest import sha256
from standfast.release.verify import verify


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def world(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = make_world(tmp_path, cache)
    _offline(monkeypatch, made.links)
    return made


def _offline(monkeypatch: pytest.MonkeyPatch, links: Path) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")


def test_a_release_says_what_it_is(world: World) -> None:
    steps: list[str] = []
    result = world.build(steps=steps)
    manifest = result.manifest
    assert result.changed
    assert manifest.source.commit == world.git("rev-parse", "HEAD")
    assert manifest.source.tree == world.git("rev-parse", "HEAD^{tree}")
    assert manifest.source.clean
    assert (manifest.version, manifest.pythons, manifest.platforms) == ("1.2.3", PYTHONS, ("x86_64",))
    assert manifest.schema_versions == {"work": 3, "authority": 2}
    assert (manifest.authority_contract, manifest.rollback_floor) == (7, "1.1.0")
    assert manifest.reviewed_fallbacks == ("1.1.0-0a1b2c3d-4e5f6a7b",)
    assert manifest.installer == "wheels/pip-9.9-py3-none-any.whl"
    assert manifest.extras == (), "neither a live model nor the supplier unless asked for"
    assert manifest.lock_sha256 == sha256(LOCK.encode())
    assert result.release_id.startswith(f"1.2.3-{manifest.source.commit[:8]}-")
    assert result.archive_sha256 == sha256(Path(result.archive).read_bytes())
    assert [step.partition(" ")[0] for step in steps] == ["the", "4", "3"]


def test_it_carries_the_wheels_of_each_target_and_no_others(world: World) -> None:
    result = world.build()
    with tarfile.open(result.archive) as archive:
        names = archive.getnames()
    assert names == sorted(names)
    assert names == [
        "app.lock",
        "manifest.json",
        "requirements.lock",
        "wheels/backport-3.0-py3-none-any.whl",
        "wheels/native-2.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "wheels/native-2.0-cp313-cp313-manylinux_2_28_x86_64.whl",
        "wheels/pip-9.9-py3-none-any.whl",
        "wheels/pure-1.0-py2.py3-none-any.whl",
        "wheels/standfast-1.2.3-py3-none-any.whl",
    ]
    newer = world.build(pythons=("3.13",))
    assert not any("backport" in path or "cp312" in path for path in newer.manifest.files)
    assert verify(Path(newer.archive)).verified


def test_one_commit_gives_the_same_bytes_anywhere_and_at_any_time(world: World, tmp_path: Path) -> None:
    other = make_world(tmp_path / "a" / "folder with spaces", tmp_path / "other-cache")
    shutil.rmtree(other.repository)
    subprocess.run(["git", "clone", "--quiet", world.repository, other.repository], check=True)
    for path in other.repository.rglob("*.py"):
        os.utime(path, (1, 1))
    arguments = ["--json", "release", "build", "--python", "3.12", "--python", "3.13"]
    one = world.cli(*arguments, umask=0o077)
    two = other.cli(*arguments, umask=0o002, SOURCE_DATE_EPOCH="1700000000", TZ="Pacific/Kiritimati")
    assert (one.returncode, two.returncode) == (0, 0), one.stderr + two.stderr
    (first,) = world.dist.iterdir()
    (second,) = other.dist.iterdir()
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_mode & 0o777 == second.stat().st_mode & 0o777 == 0o644


def test_building_again_changes_nothing(world: World) -> None:
    before = Path(world.build().archive).stat()
    again = world.build()
    assert not again.changed
    assert Path(again.archive).stat().st_mtime_ns == before.st_mtime_ns


def test_check_builds_everything_and_publishes_nothing(world: World) -> None:
    planned = world.build(check=True)
    assert planned.changed
    assert not world.dist.exists()
    assert world.build().archive_sha256 == planned.archive_sha256
    assert not world.build(check=True).changed


def test_an_archive_of_that_name_with_other_bytes_is_left_alone(world: World) -> None:
    path = Path(world.build().archive)
    path.write_bytes(b"somebody's")
    with pytest.raises(Refused) as refused:
        world.build()
    assert refused.value.code == "archive_exists"
    assert path.read_bytes() == b"somebody's"


def test_a_dirty_tree_is_refused_naming_the_files(world: World) -> None:
    world.write("app/standfast/__init__.py", "changed = 1\n")
    world.write("app/standfast/new file.py", "")
    world.write("dist/ignored.txt", "")
    done = world.cli("--json", "release", "build", "--python", "3.12")
    assert done.returncode == 3
    assert '"tree_dirty"' in done.stdout
    assert "app/standfast/__init__.py" in done.stdout
    assert "app/standfast/new file.py" in done.stdout
    assert "ignored.txt" not in done.stdout
    assert not list(world.dist.glob("*.tar"))


def test_a_dirty_tree_can_be_built_and_is_marked_and_the_index_stays(world: World) -> None:
    world.write("app/standfast/extra.py", "")
    world.write("app/standfast/authority/__init__.py", "CONTRACT = 8\n")
    (world.repository / "app/standfast/operations/__init__.py").unlink()
    world.write("staged.txt", "staged")
    world.git("add", "staged.txt")
    before = (
        world.git("status", "--porcelain"),
        (world.repository / ".git/index").read_bytes(),
        _objects(world),
    )
    result = world.build(allow_dirty=True)
    assert (
        world.git("status", "--porcelain"),
        (world.repository / ".git/index").read_bytes(),
        _objects(world),
    ) == before
    manifest = result.manifest
    assert not manifest.source.clean
    assert manifest.source.tree != world.git("rev-parse", "HEAD^{tree}")
    assert f"-{manifest.source.commit[:8]}-dirty-" in result.release_id
    assert manifest.authority_contract == 8
    assert verify(Path(result.archive)).verified


def _objects(world: World) -> list[str]:
    return sorted(str(path) for path in (world.repository / ".git/objects").rglob("*"))


def test_allowing_dirt_in_a_clean_tree_marks_nothing(world: World) -> None:
    clean = world.build()
    assert world.build(allow_dirty=True).release_id == clean.release_id


def test_an_output_folder_inside_the_tree_is_no_dirt(world: World) -> None:
    first = world.build(output=world.repository / "out")
    assert not world.build(output=world.repository / "out").changed
    world.write("notes.txt", "dirt")
    dirty = world.build(output=world.repository / "out", allow_dirty=True)
    assert dirty.manifest.source.tree != first.manifest.source.tree
    again = world.build(output=world.repository / "out", allow_dirty=True)
    assert again.release_id == dirty.release_id


def test_a_named_commit_is_built_whatever_the_work_tree_holds(world: World) -> None:
    old = world.git("rev-parse", "HEAD")
    before = world.build()
    world.write("app/standfast/__init__.py", "changed = 1\n")
    assert world.build(commit=old).release_id == before.release_id
    with pytest.raises(BadInput, match="name one of them"):
        world.build(commit=old, allow_dirty=True)
    with pytest.raises(BadInput, match="nowhere"):
        world.build(commit="nowhere")
    with pytest.raises(BadInput, match="git"):
        world.build(commit="--upload-pack=x")


def test_untracked_and_ignored_files_never_get_into_the_wheel(world: World) -> None:
    before = world.build()
    world.write("app/standfast/__pycache__/secret.pyc", "x")
    assert world.build().release_id == before.release_id


def test_git_variables_of_a_hook_do_not_mislead_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = world.build()
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nonexistent")
    assert world.build().release_id == before.release_id


def test_a_folder_without_git_is_bad_input(world: World, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="git"):
        world.build(repository=tmp_path)


def test_the_release_id_depends_on_every_fact(world: World) -> None:
    ids = {world.build().release_id, world.build(pythons=("3.13",)).release_id}
    ids.add(world.build(pythons=("3.13", "3.12")).release_id)
    world.write("pyproject.toml", PYPROJECT.replace('"1.1.0"', '"1.2.0"'))
    world.commit()
    ids.add(world.build().release_id)
    assert len(ids) == 4


def test_extras_are_those_that_the_project_defines(world: World) -> None:
    with pytest.raises(Refused) as refused:
        world.build(extras=("supplier",))
    assert (refused.value.code, refused.value.observed) == ("extra_unknown", "defined: live")
    result = world.build(extras=("live",))
    assert result.manifest.extras == ("live",)
    assert "wheels/live-5.0-py3-none-any.whl" in result.manifest.files
    assert "wheels/live-5.0-py3-none-any.whl" not in world.build().manifest.files
    assert verify(Path(result.archive)).verified


def test_an_extra_without_a_lock_is_bad_input(world: World) -> None:
    world.git("rm", "--quiet", "requirements-live.lock")
    world.commit()
    with pytest.raises(BadInput, match=r"no requirements-live\.lock; run script/lock"):
        world.build(extras=("live",))


def test_a_python_that_the_package_does_not_run_on_is_refused(world: World) -> None:
    with pytest.raises(Refused) as refused:
        world.build(pythons=("3.11", "3.12"))
    assert refused.value.code == "python_unsupported"


@pytest.mark.parametrize("python", ["3", "2.7", "3.12.1", "three", "3.012"])
def test_a_python_is_named_x_dot_y(world: World, python: str) -> None:
    with pytest.raises(BadInput, match="--python"):
        world.build(pythons=(python,))


def test_another_build_back_end_is_refused(world: World) -> None:
    world.write("pyproject.toml", PYPROJECT.replace("hatchling==1.33.0", "hatchling==1.32.0"))
    world.commit()
    with pytest.raises(Refused) as refused:
        world.build()
    assert refused.value.code == "backend_differs"


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('rollback-floor = "1.1.0"', "", "rollback-floor"),
        ('rollback-floor = "1.1.0"', 'rollback-floor = "new"', "rollback-floor"),
        ('"1.1.0-0a1b2c3d-4e5f6a7b"', '"latest"', "reviewed-fallbacks"),
        ("reviewed-fallbacks", "reviewed-fallback", "reviewed-fallback"),
        ('"hatchling==1.33.0"', '"hatchling"', "build-system.requires"),
        ('name = "standfast"', 'name = "other"', "project.name"),
        ("[project]", "[project", "pyproject.toml"),
    ],
)
def test_reviewed_facts_are_validated(world: World, old: str, new: str, field: str) -> None:
    assert old in PYPROJECT
    world.write("pyproject.toml", PYPROJECT.replace(old, new))
    world.commit()
    with pytest.raises(BadInput, match=field):
        world.build()


def test_a_source_that_does_not_say_which_store_it_understands_is_not_built(world: World) -> None:
    world.write("app/standfast/operations/schema.py", "understood = None\n")
    world.commit()
    with pytest.raises(StandfastError, match="does not say which store"):
        world.build()
    assert not world.dist.exists()


def test_the_facts_come_from_the_packed_source_not_from_what_runs(world: World) -> None:
    world.write("app/standfast/authority/__init__.py", "CONTRACT = 9\n")
    commit = world.commit()
    world.write("app/standfast/authority/__init__.py", FILES["app/standfast/authority/__init__.py"])
    world.commit()
    assert world.build(commit=commit).manifest.authority_contract == 9


def test_a_rebuild_works_without_the_wheels_it_was_made_from(world: World, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh-cache"
    before = world.build(cache=fresh)
    shutil.rmtree(world.links)
    steps: list[str] = []
    assert world.build(cache=fresh, steps=steps).archive_sha256 == before.archive_sha256
    assert sum("kept from an earlier build" in step for step in steps) == 2


def test_a_damaged_cache_is_never_packed(world: World, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh-cache"
    before = world.build(cache=fresh, pythons=("3.12",))
    for damage in ("changed", "missing", "stray"):
        (kept,) = fresh.rglob("pure-*.whl")
        if damage == "changed":
            kept.write_bytes(b"damaged")
        elif damage == "missing":
            kept.unlink()
        else:
            kept.with_name("stray-1.0-py3-none-any.whl").write_bytes(b"stray")
        assert world.build(cache=fresh, pythons=("3.12",)).archive_sha256 == before.archive_sha256
    for kept in fresh.rglob("pure-*.whl"):
        kept.write_bytes(b"damaged")
    shutil.rmtree(world.links)
    with pytest.raises(StandfastError, match="nothing was published"):
        world.build(cache=fresh, pythons=("3.12",))
    assert sorted(path.name for path in fresh.iterdir() if path.name.startswith(".")) == []


def test_a_download_with_other_bytes_than_the_lock_is_refused(world: World, tmp_path: Path) -> None:
    (wheel,) = world.links.glob("pure-*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    with pytest.raises(StandfastError, match="nothing was published") as failed:
        world.build(cache=tmp_path / "fresh-cache")
    assert "pure" in str(failed.value)
    assert not world.dist.exists()


def test_a_python_without_a_wheel_fails_before_anything_is_published(world: World) -> None:
    with pytest.raises(StandfastError, match=r"Python 3\.14 on x86_64"):
        world.build(pythons=("3.12", "3.14"))
    assert not world.dist.exists()


def test_without_a_pinned_pip_nothing_can_be_installed_later(world: World) -> None:
    world.write("requirements-dev.lock", pin("pure"))
    world.commit()
    with pytest.raises(BadInput, match="does not pin pip"):
        world.build()


@pytest.fixture
def silent_index() -> Iterator[str]:
    """An address that accepts and never answers: a download that takes for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/simple"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_interrupted_build_leaves_nothing_half_made(
    world: World, tmp_path: Path, silent_index: str, number: signal.Signals
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment |= {
        "TMPDIR": str(temporary),
        "XDG_CACHE_HOME": str(tmp_path / "fresh"),
        "PIP_INDEX_URL": silent_index,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "standfast", "release", "build", "--python", "3.12", "-o", "dist"],
        cwd=world.repository,
        env={**environment, "PIP_CONFIG_FILE": os.devnull},
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            if "downloading" in line:
                break
        time.sleep(0.3)
        process.send_signal(number)
        process.wait(20)
        os.killpg(process.pid, signal.SIGKILL) if number == signal.SIGKILL else None
    assert not world.dist.exists()
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert list(temporary.iterdir()) == []
        assert not list((tmp_path / "fresh").rglob("*.whl"))


def test_the_archive_is_plain_ustar_for_any_reader(world: World) -> None:
    data = Path(world.build().archive).read_bytes()
    listing = subprocess.run(
        ["tar", "--list", "--verbose", "--numeric-owner"], input=data, capture_output=True, check=True
    )
    assert {line.split()[0] + line.split()[1] for line in listing.stdout.decode().splitlines()} == {
        "-rw-r--r--0/0"
    }
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert {member.mtime for member in archive} == {0}
