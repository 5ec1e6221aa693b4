"""SIGKILL at every step of a switch, with and without a reboot after it: the next run comes to a safe end.

A whole run says whether the points are all that there are. In the full tier each is killed at both ways; else
some of them.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import PATIENCE
from support import eventually
from switching import CRASHING, Host, ended, make, migrating

from standfast.operations.backup.listing import listing
from standfast.operations.backup.verifying import verify
from standfast.operations.schema import understood

FULL = os.environ.get("STANDFAST_FULL") == "1"

FORWARD = (
    "upgrade.facts",
    "upgrade.stop",
    "upgrade.stop.done",
    "upgrade.backup",
    "backup.published",
    "upgrade.backup.done",
    "upgrade.migrate",
    "migrate.before_commit",
    "migrate.committed",
    "upgrade.migrate.done",
    "upgrade.unit",
    "upgrade.unit.done",
    "upgrade.start",
    "upgrade.start.asked",
    "upgrade.start.done",
    "upgrade.canary",
    "admit.committed",
    "upgrade.canary.done",
    "upgrade.compare",
    "upgrade.done",
)
"""Where a switch that works is killed."""
BACK = (
    "upgrade.back-stop",
    "upgrade.back-unit",
    "upgrade.back-start",
    "upgrade.back-canary",
    "upgrade.back-compare",
)
"""Where one that goes back is killed."""
SAMPLE = {
    ("migrate.before_commit", True),
    ("migrate.committed", True),
    ("upgrade.start.done", False),
    ("upgrade.back-start", True),
}
"""What the short tier does; the unit in place is killed without a migration, below."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Host:
    host = Host(tmp_path_factory.mktemp("template"))
    old = host.install("old")
    host.install("new", migrating(), version="0.2.0")
    host.install("patch", version="0.1.1")
    host.install("crashes", CRASHING, version="0.1.2", reviewed_fallbacks=(old,))
    return host


@pytest.fixture
def host(tmp_path: Path, template: Host) -> Iterator[Host]:
    with ended(make(tmp_path / "srv", template)) as made:
        made.run("old")
        eventually(made.idle, PATIENCE)
        yield made


def cases(points: tuple[str, ...]) -> list[tuple[str, bool]]:
    every = [(point, reboot) for point in points for reboot in (False, True)]
    return [one for one in every if FULL or one in SAMPLE]


def whole(host: Host) -> None:
    """Nothing is lost, nothing doubled, and every backup is good or is no backup."""
    eventually(host.idle, PATIENCE)
    own = "session NOT LIKE 'canary-%' AND session NOT LIKE 'schedule:%'"  # the brief comes due, too
    assert host.instance.rows(f"SELECT status, generation FROM work WHERE {own}") == [("DONE", 1)]
    assert host.instance.rows("SELECT count(*), count(DISTINCT work) FROM reports") == [
        (count := host.instance.rows("SELECT count(*) FROM work WHERE status = 'DONE'")[0][0], count)
    ]
    for entry in listing(host.layout, time.time()).backups:
        assert verify(Path(entry.path)).ok, "a killed backup never looks like a good one"


@pytest.mark.parametrize(("point", "reboot"), cases(FORWARD))
def test_a_switch_that_is_killed_comes_to_its_end(host: Host, point: str, *, reboot: bool) -> None:
    stock = host.cli("old", "facts")["stock"]
    first = host.switch("new", "old", at=point)
    assert first.killed, first.error
    step = host.journal()["step"]
    if reboot:
        host.reboot()
    ran = host.switch("new", "old")
    told = ran.result
    assert (ran.code, told["outcome"]) == (0, "upgraded"), ran.error
    assert told["resumed_from"] == step
    assert told["resumed_because"]
    assert told["release_from"] == host.releases["old"]
    assert host.running() == host.releases["new"] == told["canary"]["run"]["release"]
    assert host.unit == host.cli("new", "unit")["text"]
    assert told["facts_after"]["stock"] == stock
    assert told["migrated"] == {"shop": [1, 2]}
    assert told["backup"] is not None
    whole(host)


def test_every_step_of_a_whole_run_is_one_that_a_kill_is_tried_at(host: Host) -> None:
    points = [point for point in host.switch("new", "old").points if point.startswith("upgrade.")]
    missing = set(points) - set(FORWARD) - {"upgrade.facts.done", "upgrade.compare.done", "upgrade.finished"}
    assert not missing


@pytest.mark.parametrize(("point", "reboot"), cases(BACK))
def test_going_back_that_is_killed_comes_to_its_end(host: Host, point: str, *, reboot: bool) -> None:
    first = host.switch("crashes", "old", at=point)
    assert first.killed, first.error
    if reboot:
        host.reboot()
    ran = host.switch("crashes", "old")
    told = ran.result
    assert (ran.code, told["outcome"], told["step"]) == (1, "rolled_back", "start"), ran.error
    assert told["resumed_from"] == point.removeprefix("upgrade.")
    assert host.running() == host.releases["old"] == told["canary"]["run"]["release"]
    assert host.unit == host.cli("old", "unit")["text"]
    whole(host)


@pytest.mark.parametrize(
    ("point", "reboot"), [("upgrade.unit.done", True), *([("upgrade.start", False)] if FULL else [])]
)
def test_without_a_migration_it_is_no_different(host: Host, point: str, *, reboot: bool) -> None:
    """The old release may have worked meanwhile: the backup is made again where the target never served."""
    assert host.switch("patch", "old", at=point).killed
    if reboot:
        host.reboot()
    ran = host.switch("patch", "old")
    assert (ran.code, ran.result["outcome"]) == (0, "upgraded"), ran.error
    assert host.running() == host.releases["patch"]
    assert dict(host.instance.rows("SELECT component, version FROM meta")) == understood()
    whole(host)
