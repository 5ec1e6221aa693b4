"""Locks, their markers and their wheels, each answer compared with what `packaging` says."""

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging import tags
from packaging.markers import Marker
from packaging.utils import parse_wheel_filename

from standfast.errors import BadInput
from standfast.release.lock import Pin, merged, parse, render
from standfast.release.markers import applies
from standfast.release.targets import Target, environment

ROOT = Path(__file__).resolve().parents[2]
TARGETS = [
    Target(python, platform) for python in ("3.12", "3.13", "3.14") for platform in ("x86_64", "aarch64")
]
DIGEST = "a" * 64

VERSIONS = st.sampled_from(["3", "3.9", "3.12", "3.13", "3.12.0", "3.12.4", "3.13.1", "4"])
VERSION_CLAUSES = st.one_of(
    st.tuples(
        st.sampled_from(["python_version", "python_full_version", "implementation_version"]),
        st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
        VERSIONS.map(repr),
    ),
    st.tuples(VERSIONS.map(repr), st.sampled_from(["<", ">="]), st.just("python_full_version")),
    st.tuples(st.just("python_full_version"), st.sampled_from(["==", "!="]), st.just("'3.12.*'")),
    st.tuples(st.just("python_version"), st.just("~="), st.sampled_from(["'3.9'", "'3.12'", "'3.12.1'"])),
)
TEXT_CLAUSES = st.tuples(
    st.sampled_from(
        ["sys_platform", "platform_machine", "platform_system", "os_name", "implementation_name"]
    ),
    st.sampled_from(["==", "!=", "in", "not in"]),
    st.sampled_from(
        ["'linux'", '"win32"', "'x86_64'", "'aarch64 x86_64'", "'posix'", "'cpython'", "'Linux'"]
    ),
)
MARKERS = st.recursive(
    st.one_of(VERSION_CLAUSES, TEXT_CLAUSES).map(" ".join),
    lambda inner: st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
        lambda parts: f"({' '.join(parts)})"
    ),
    max_leaves=6,
)


@given(MARKERS, st.sampled_from(["3.12.0", "3.12.99", "3.13.1"]), st.sampled_from(["x86_64", "aarch64"]))
def test_markers_mean_what_packaging_says(marker: str, python: str, platform: str) -> None:
    here = environment(python, platform)
    assert applies(marker, here) == Marker(marker).evaluate(
        {**here, "platform_release": "", "platform_version": ""}
    )


def test_or_binds_weaker_than_and() -> None:
    here = environment("3.12.0", "x86_64")
    assert applies("os_name == 'posix' or os_name == 'nt' and os_name == 'nt'", here)
    assert not applies("(os_name == 'posix' or os_name == 'nt') and os_name == 'nt'", here)


@pytest.mark.parametrize(
    "marker",
    [
        "platform_release >= '5'",
        "python_version",
        "python_version >= ",
        "(python_version >= '3'",
        "python_version >= '3' os_name == 'nt'",
        "python_version >= '3.x'",
        "sys_platform < 'linux'",
        "sys_platform === 'linux'",
        "'linux'; import os",
    ],
)
def test_what_is_not_understood_is_an_error_not_a_guess(marker: str) -> None:
    with pytest.raises(BadInput, match="not understood"):
        applies(marker, environment("3.12.0", "x86_64"))


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock", "requirements-newest.lock"])
def test_every_marker_of_our_locks_is_decided_as_packaging_does(name: str) -> None:
    pins = parse((ROOT / name).read_text(), name)
    assert pins
    for pin, target in product(pins, TARGETS):
        full = environment(f"{target.python}.0", target.platform)
        assert target.needs(pin.marker) == (not pin.marker or Marker(pin.marker).evaluate(full)), (
            pin,
            target,
        )


def test_a_requirement_of_only_some_patch_releases_is_carried() -> None:
    assert Target("3.12", "x86_64").needs("python_full_version < '3.12.4'")
    assert Target("3.12", "x86_64").needs("python_full_version >= '3.12.4'")
    assert not Target("3.13", "x86_64").needs("python_full_version < '3.12.4'")


PYTHON_TAGS = ["py3", "py2.py3", "py312", "py313", "py314", "cp312", "cp313", "cp38", "cp3", "pp310"]
ABI_TAGS = ["none", "abi3", "cp312", "cp313", "cp313t", "pypy310_pp73"]
PLATFORM_TAGS = [
    "any",
    "linux_x86_64",
    "manylinux1_x86_64",
    "manylinux2010_x86_64",
    "manylinux2014_x86_64",
    "manylinux_2_17_x86_64.manylinux2014_x86_64",
    "manylinux_2_28_x86_64",
    "manylinux_2_31_x86_64",
    "manylinux_2_39_x86_64",
    "manylinux_2_17_aarch64",
    "musllinux_1_2_x86_64",
    "win_amd64",
    "macosx_11_0_arm64",
]


def _oracle(target: Target) -> frozenset[tags.Tag]:
    version = (3, target.minor)
    legacy = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
    platforms = [f"manylinux_2_{minor}_{target.platform}" for minor in range(28, 4, -1)]
    platforms += [f"{name}_{target.platform}" for name in legacy.values()]
    return frozenset(
        [
            *tags.cpython_tags(version, abis=[f"cp3{target.minor}"], platforms=platforms),
            *tags.compatible_tags(version, interpreter=f"cp3{target.minor}", platforms=platforms),
        ]
    )


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_wheels_fit_where_packaging_says(target: Target) -> None:
    supported = _oracle(target)
    accepted = 0
    for python, abi, platform in product(PYTHON_TAGS, ABI_TAGS, PLATFORM_TAGS):
        wheel = f"some_name-1.0-{python}-{abi}-{platform}.whl"
        expected = bool(parse_wheel_filename(wheel)[3] & supported)
        assert target.accepts(wheel) == expected, wheel
        accepted += expected
    assert accepted > 5
    assert not target.accepts("nonsense.whl")


def test_a_lock_is_read_and_written() -> None:
    text = f"# comment\nSome_Name[extra]==1.0 ; os_name == 'nt' \\\n    --hash=sha256:{DIGEST}\n    # via x\n"
    (pin,) = parse(text, "a.lock")
    assert pin == Pin("some-name", "1.0", frozenset({DIGEST}), "os_name == 'nt'")
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
