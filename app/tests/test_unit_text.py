"""The unit's text: exact, deterministic, acceptable to systemd, and compared line by line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from standfast.errors import BadInput, Refused
from standfast.layout import Layout
from standfast.operations import unit
from standfast.operations.unit import UnitFacts, UnitText

GOLDEN = Path(__file__).parent / "golden" / "lucy-agent.service"
RELEASE = "0.1.0-0a1b2c3d-9f8e7d6c"


def facts(root: Path = Path("/srv/lucy"), instance: str = "lucy-agent") -> UnitFacts:
    return UnitFacts(
        instance=instance, release=RELEASE, folder=root / "releases" / RELEASE, layout=Layout(root / "state")
    )


def test_the_text_is_the_golden_one() -> None:
    assert unit.render(facts()) == GOLDEN.read_text()


def directives(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Description", "Standfast agent, instance other-one"),
        ("StartLimitIntervalSec", "0"),
        ("Type", "notify"),
        ("NotifyAccess", "main"),
        ("WatchdogSec", "120"),
        ("Restart", "on-failure"),
        ("RestartSec", "10"),
        ("RestartPreventExitStatus", "78"),
        ("TimeoutStopSec", "90"),
        ("KillMode", "mixed"),
        ("UMask", "0077"),
        ("WorkingDirectory", f"/srv/x/releases/{RELEASE}"),
        ("EnvironmentFile", "/srv/x/state/agent.env"),
        (
            "ExecStart",
            f"/srv/x/releases/{RELEASE}/venv/bin/python -I -m standfast --state /srv/x/state serve",
        ),
        ("ReadWritePaths", "/srv/x/state"),
        ("NoNewPrivileges", "true"),
        ("PrivateTmp", "true"),
        ("WantedBy", "default.target"),
    ],
)
def test_each_unit_fact_is_there_once(name: str, value: str) -> None:
    assert directives(unit.render(facts(Path("/srv/x"), "other-one")))[name] == [value]


def test_nothing_that_user_units_ignore_or_cannot_do_is_there() -> None:
    text = unit.render(facts())
    for name in ("User=", "SupplementaryGroups", "DynamicUser", "CapabilityBoundingSet", "StateDirectory"):
        assert name not in text
    assert "network-online" not in text
    assert "/current" not in text, "the unit names the release itself"
    assert "%" not in text
    assert "$" not in text


@pytest.mark.parametrize("root", ["/srv/a b", "/srv/100%", "/srv/$HOME", "/srv/../x", "srv/lucy"])
def test_a_path_that_systemd_would_expand_is_refused(root: str) -> None:
    with pytest.raises(BadInput):
        unit.render(facts(Path(root)))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_every_line(tmp_path: Path) -> None:
    root = tmp_path / "srv"
    release = root / "releases" / RELEASE
    (release / "venv" / "bin").mkdir(parents=True)
    (root / "state").mkdir()
    (release / "venv" / "bin" / "python").symlink_to(sys.executable)
    path = tmp_path / "lucy-agent.service"

    def verify(text: str) -> str:
        path.write_text(text)
        ran = subprocess.run(
            ["systemd-analyze", "verify", "--user", "--man=no", "--recursive-errors=no", str(path)],
            env={"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )
        return "\n".join(line for line in ran.stderr.splitlines() if "lucy-agent" in line)

    text = unit.render(facts(root))
    assert verify(text) == ""
    assert "Unknown key" in verify(text.replace("UMask=", "UMusk=")), "the verifier must be able to object"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A root whose release's venv is the one that runs, as far as `sys.prefix` tells."""
    folder = tmp_path / "releases" / RELEASE
    (folder / "venv").mkdir(parents=True)
    (folder / "manifest.json").write_text(f'{{"release_id": "{RELEASE}"}}')
    (tmp_path / "current").symlink_to(folder)
    monkeypatch.setattr(sys, "prefix", str(folder / "venv"))
    return Layout(tmp_path / "state")


def test_the_running_release_and_the_roots_instance_are_used(installed: Layout) -> None:
    installed.identity.write_text(
        f'{{"format": 1, "instance": "two", "user": "u", "root": "{installed.root}"}}'
    )
    told = unit.describe(installed, None)
    assert (told.instance, told.release, told.name) == ("two", RELEASE, "two.service")
    assert told.text == unit.render(
        UnitFacts("two", RELEASE, installed.releases / RELEASE, installed),
    )
    with pytest.raises(Refused) as caught:
        unit.describe(installed, "one")
    assert caught.value.code == "instance_differs"


def test_calling_it_through_the_current_link_names_the_release(
    installed: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = unit.describe(installed, "lucy-agent").text
    monkeypatch.setattr(sys, "prefix", str(installed.current / "venv"))
    assert unit.describe(installed, "lucy-agent").text == plain


def test_what_cannot_have_a_unit_is_refused(installed: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput):
        unit.describe(installed, "Not A Name")
    with pytest.raises(Refused) as caught:
        unit.describe(Layout(Path("/srv/elsewhere/state")), None)
    assert caught.value.code == "release_elsewhere"
    monkeypatch.setattr(sys, "prefix", "/usr")
    with pytest.raises(Refused) as caught:
        unit.describe(installed, None)
    assert caught.value.code == "not_a_release"


def test_comparison_says_which_lines_differ() -> None:
    text = unit.render(facts())
    told = UnitText(instance="lucy-agent", release=RELEASE, name="lucy-agent.service", text=text)
    assert unit.compare(told, text.encode(), "x").same
    with pytest.raises(Refused) as caught:
        unit.compare(told, text.replace("RestartSec=10", "RestartSec=1").encode(), "x")
    assert caught.value.code == "unit_differs"
    assert caught.value.observed == ["-RestartSec=1", "+RestartSec=10"]
    with pytest.raises(Refused) as caught:
        unit.compare(told, text.replace("\n", "\r\n").encode(), "x")
    assert caught.value.observed


def test_reading_a_unit_to_compare(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        unit.read_unit(tmp_path / "absent.service")
    assert caught.value.code == "unit_absent"
    with pytest.raises(BadInput):
        unit.read_unit(tmp_path)
    (tmp_path / "big").write_bytes(b"x" * (unit.MAX_UNIT + 1))
    with pytest.raises(BadInput):
        unit.read_unit(tmp_path / "big")
