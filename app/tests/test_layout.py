"""Paths of one instance, and the paths that are refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from standfast.errors import BadInput, Refused
from standfast.layout import InstanceIdentity, Layout, checked_path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "relative",
        "./x",
        "/a b",
        "/a%b",
        "/a$b",
        "/a/../b",
        "/..",
        "/a\n",
        "/a\\b",
        "/é",
        "~/x",
        "/a'b",
        "/",
    ],
)
def test_a_path_outside_the_allowed_set_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadInput, match=r"^state_dir: "):
        checked_path(text, "state_dir")


@pytest.mark.parametrize("text", ["/srv/lucy/state", "/a.b/c-d_e/..f", "/a//b/"])
def test_a_plain_absolute_path_is_allowed(text: str) -> None:
    assert checked_path(text, "state_dir") == Path(text)


@given(st.text(max_size=40))
def test_whatever_is_allowed_needs_no_escaping(text: str) -> None:
    try:
        path = checked_path(text, "x")
    except BadInput:
        return
    assert path.is_absolute()
    assert ".." not in path.parts
    assert not set(str(path)) & set(" %$\"'\\\n;#*?{}")


def test_everything_hangs_on_the_state_directory() -> None:
    layout = Layout(Path("/srv/lucy/state"))
    inside = (
        layout.database,
        layout.marker,
        layout.environment,
        layout.shop,
        layout.outbox,
        layout.writer_lock,
    )
    assert all(path.parent == layout.state for path in inside)
    beside = (layout.releases, layout.current, layout.backups, layout.receipts, layout.identity)
    assert all(path.parent == Path("/srv/lucy") for path in beside)


def test_the_identity_of_the_root(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "state")
    assert layout.instance() == InstanceIdentity(root=str(tmp_path))
    other = InstanceIdentity(instance="night-shop", user="_svc", root=str(tmp_path))
    layout.identity.write_text(other.model_dump_json())
    assert layout.instance() == other


@pytest.mark.parametrize("text", ["", "{", "{}", '{"format": 2, "root": "/x"}', '{"root": "/x", "extra": 1}'])
def test_an_identity_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    layout = Layout(tmp_path / "state")
    layout.identity.write_text(text)
    with pytest.raises(Refused) as refused:
        layout.instance()
    assert refused.value.code == "instance_unreadable"


@pytest.mark.parametrize("name", ["Lucy", "1a", "a" * 49, "", "a_b", "a\n"])
def test_instance_names_are_bounded(name: str) -> None:
    with pytest.raises(ValidationError):
        InstanceIdentity(instance=name, root="/x")
