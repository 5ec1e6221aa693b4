"""Locks, and which of their wheels a target takes."""

import pytest

from standfast.errors import BadInput
from standfast.release.lock import Pin, merged, parse, render
from standfast.release.targets import Target

DIGEST = "a" * 64


def test_a_requirement_of_only_some_patch_releases_is_carried() -> None:
    assert Target("3.12", "x86_64").needs("python_full_version < '3.12.4'")
    assert Target("3.12", "x86_64").needs("python_full_version >= '3.12.4'")
    assert not Target("3.13", "x86_64").needs("python_full_version < '3.12.4'")


@pytest.mark.parametrize(
    ("tag", "fits"),
    [
        ("py3-none-any", True),
        ("py2.py3-none-any", True),
        ("cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64", True),
        ("cp312-cp312-manylinux_2_28_x86_64", True),
        ("cp38-abi3-manylinux1_x86_64", True),
        ("cp313-cp313-manylinux_2_17_x86_64", False),
        ("cp312-cp312-manylinux_2_31_x86_64", False),
        ("cp312-cp312-manylinux_2_17_aarch64", False),
        ("cp312-cp312-musllinux_1_2_x86_64", False),
        ("cp312-cp312-win_amd64", False),
        ("pp310-pypy310_pp73-manylinux_2_17_x86_64", False),
    ],
)
def test_a_wheel_fits_the_python_and_glibc_of_its_target(tag: str, fits: bool) -> None:
    assert Target("3.12", "x86_64").accepts(f"some_name-1.0-{tag}.whl") == fits


def test_a_name_that_is_no_wheels_does_not_fit() -> None:
    assert not Target("3.12", "x86_64").accepts("nonsense.whl")


def test_the_marker_of_another_architecture_is_judged_for_the_target() -> None:
    assert Target("3.12", "aarch64").needs("platform_machine == 'aarch64'")
    assert not Target("3.12", "x86_64").needs("platform_machine == 'aarch64'")


def test_a_marker_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput, match="not understood"):
        Target("3.12", "x86_64").needs("python_version >= ")


def test_a_lock_is_read_and_written() -> None:
    text = f"# comment\nSome_Name[extra]==1.0 ; os_name == 'nt' \\\n    --hash=sha256:{DIGEST}\n    # via x\n"
    (pin,) = parse(text, "a.lock")
    assert pin == Pin("some-name", "1.0", frozenset({DIGEST}), 'os_name == "nt"')
    assert parse(render([pin]), "b.lock") == (pin,)


@pytest.mark.parametrize(
    "line",
    [
        "name==1.0",
        f"name>=1.0 --hash=sha256:{DIGEST}",
        f"name==1.0 --hash=md5:{DIGEST}",
        f"name==1.0 --hash=sha256:{DIGEST[:-1]}",
        "--index-url https://example.invalid/simple",
        "--extra-index-url=https://example.invalid/simple",
        f"name @ https://example.invalid/name.whl --hash=sha256:{DIGEST}",
        "-r other.lock",
        f"name==1.0 --hash=sha256:{DIGEST}\nNAME==1.1 --hash=sha256:{DIGEST}",
    ],
)
def test_anything_but_hash_pinned_requirements_is_refused(line: str) -> None:
    with pytest.raises(BadInput, match=r"a\.lock"):
        parse(line + "\n", "a.lock")


def test_several_locks_become_one() -> None:
    both = merged(
        [
            (Pin("a", "1", frozenset({"1" * 64}), "os_name == 'nt'"), Pin("b", "1", frozenset({"2" * 64}))),
            (Pin("a", "1", frozenset({"3" * 64})), Pin("c", "1", frozenset({"4" * 64}))),
        ]
    )
    assert [str(pin) for pin in both] == ["a==1", "b==1", "c==1"]
    assert both[0] == Pin("a", "1", frozenset({"1" * 64, "3" * 64}))


@pytest.mark.parametrize(
    ("one", "other"), [(Pin("a", "1", frozenset()), Pin("a", "2", frozenset())),
                       (Pin("a", "1", frozenset(), "x"), Pin("a", "1", frozenset(), "y"))]
)  # fmt: skip
def test_locks_that_disagree_are_refused(one: Pin, other: Pin) -> None:
    with pytest.raises(BadInput, match="the chosen locks"):
        merged([(one,), (other,)])
