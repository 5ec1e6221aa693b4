"""A disk that is full from one point of a switch on: the release of before works, or nobody, with ways on.

Each case has the instance on a small file system of its own, in a mount namespace; the double of the manager
lies outside it, for that is no part of what may be full. A run with room again comes to the end that it was
to have.
"""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from backing import names
from serving import PATIENCE
from support import Instance, eventually
from switching import CRASHING, Host, ended, make, migrating
from switching_child import fill
from test_disk_full import NAMESPACE
from test_looking import held_open, traces
from test_preflight_whole import ADDED

from standfast.operations import schema as schemas
from standfast.operations.backup.listing import listing
from standfast.operations.backup.verifying import verify
from standfast.operations.preflight import looking
from standfast.operations.preflight.looking import preflight
from standfast.operations.preflight.result import Preflight
from standfast.operations.preflight.seen import Request
from standfast.operations.schema import COMPONENTS
from standfast.serve.settings import load
from standfast.store import Component, triggers

FULL = os.environ.get("STANDFAST_FULL") == "1"
SIZE = 110_000_000
"""What a backup leaves free, the reserve, and the instance."""
TOKEN = {"SOME_TOKEN": "hunter2-hunter2"}

BEFORE = ("stop", "stop.done", "backup", "backup.copied", "backup.done", "migrate", "migrate.before_commit")
AFTER = ("migrate.committed", "migrate.done", "unit", "unit.done", "start", "start.done", "canary")
LOOKING = (
    "begun",
    "backup.step",
    "backup.copied",
    "preflight.copied",
    "migrate.before_commit",
    "preflight.migrated",
)
SAMPLE = {"migrate.before_commit", "migrate.committed", "start", "preflight.copied"}
"""What the short tier does."""


def name(point: str) -> str:
    return point if point.startswith(("backup.c", "migrate.before", "migrate.comm")) else f"upgrade.{point}"


def cases(*points: str) -> list[str]:
    return [point for point in points if FULL or point in SAMPLE]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Host:
    host = Host(tmp_path_factory.mktemp("template"))
    old = host.install("old")
    host.install("new", migrating(), version="0.2.0")
    host.install("patch", version="0.1.1")
    host.install("reviewed", version="0.1.2", reviewed_fallbacks=(old,))
    host.install("crashes", CRASHING, version="0.1.3", reviewed_fallbacks=(old,))
    return host


def on_a_small_disk(tmp_path: Path, template: Host, *case: str) -> dict[str, Any]:
    """What became of a case, told by `seen_of` or `looked_at` in a namespace of its own."""
    if subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody make a mount namespace")
    (tmp_path / "disk").mkdir()
    given = json.dumps({"template": str(template.root), "releases": template.releases})
    mounted = f'mount -t tmpfs -o size={SIZE} tmpfs "$0" && exec "$@"'
    command = ["sh", "-c", mounted, f"{tmp_path}/disk", sys.executable, __file__, str(tmp_path), given, *case]
    told = subprocess.run(
        [*NAMESPACE, *command],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert told.returncode == 0, told.stderr
    seen = json.loads(told.stdout)
    assert isinstance(seen, dict)
    return seen


def seen_of(folder: Path, given: dict[str, Any], *case: str) -> dict[str, Any]:
    """Let the disk be full at a point of a switch; then make room, and do the same again."""
    operation, to, at, how = case
    template = Host(Path(given["template"]), given["releases"])
    host = make(folder / "disk/srv", template, outside=folder)
    with ended(host):
        host.cli("old", "env", "write", stdin=b"{}")
        host.run("old")
        eventually(host.idle, PATIENCE)
        before, pid, files = host.cli("old", "facts"), host.pid(), configuration(host)
        if at == "begun":
            fill(host.hog)
        points = "" if at == "begun" else ",".join(map(name, at.split(",")))
        first = switch(host, operation, to, points, how)
        running, kept = host.running(), host.running() is not None and host.pid() == pid
        mixed = configuration(host) != files
        host.hog.unlink(missing_ok=True)
        schema = dict(host.instance.rows("SELECT component, version FROM meta"))["shop"]
        left = [path.name for path in host.layout.state.glob("upgrade.reserve")]
        again = switch(host, operation, to)
        with suppress(AssertionError):
            eventually(host.idle, PATIENCE)
        after = host.cli("new" if host.running() == host.releases["new"] else "old", "facts")
        return {
            "first": first.result,
            "code": first.code,
            "error": first.error,
            "running": named(host, running),
            "same process": kept,
            "schema": schema,
            "mixed": mixed,
            "left": left,
            "again": again.result.get("outcome"),
            "again error": again.error,
            "then": named(host, host.running()),
            "facts": {
                part: before[part] == after[part] for part in ("epoch", "stock", "orders", "spent_cents")
            },
            "configuration": configuration(host) != files,
            "integrity": host.instance.rows("PRAGMA integrity_check")[0][0],
            "idle": host.idle(),
            "backups": [verify(Path(one.path)).ok for one in listing(host.layout, 0).backups],
        }


def switch(host: Host, operation: str, to: str, at: str = "", how: str = "FULL") -> Any:
    if operation == "configure":
        return host.configure(pairs=TOKEN, at=at, signal_=how)
    if operation == "rollback":
        return host.switch("old", to, operation="rollback", at=at, signal_=how)
    return host.switch(to, "old", at=at, signal_=how)


def configuration(host: Host) -> list[bytes]:
    return [path.read_bytes() for path in (host.layout.environment, host.layout.shop)]


def named(host: Host, release: str | None) -> str | None:
    return next((name for name, id_ in host.releases.items() if id_ == release), None)


def whole(seen: dict[str, Any], then: str) -> None:
    """With room, the switch came to its end, and no business fact is another one."""
    assert (seen["then"], seen["idle"], seen["integrity"]) == (then, True, "ok"), seen["again error"]
    assert set(seen["facts"].values()) == {True}
    assert all(seen["backups"])
    assert seen["left"] == []


def full(seen: dict[str, Any], outcome: str) -> None:
    told = seen["first"]
    assert (told.get("outcome"), told.get("code")) == (outcome, "disk_full"), (told, seen["error"])
    assert any("Act: disk full" in way for way in told["ways_on"])


@pytest.mark.parametrize(
    ("operation", "to"),
    [("upgrade", "new"), *([("rollback", "patch"), ("configure", "old")] if FULL else [])],
)
def test_without_room_for_the_way_back_nothing_is_stopped(
    tmp_path: Path, template: Host, operation: str, to: str
) -> None:
    seen = on_a_small_disk(tmp_path, template, operation, to, "begun", "FULL")
    assert (seen["code"], seen["first"]["refused"]) == (3, "disk_full")
    assert seen["same process"]
    whole(seen, to)


@pytest.mark.parametrize("at", ["facts.done", *(["facts"] if FULL else [])])
def test_before_the_stop_it_is_given_up(tmp_path: Path, template: Host, at: str) -> None:
    seen = on_a_small_disk(tmp_path, template, "upgrade", "new", at, "FULL")
    full(seen, "resumed")
    assert (seen["same process"], seen["first"]["changed"]) == (True, False)
    whole(seen, "new")


@pytest.mark.parametrize("at", cases(*BEFORE))
def test_before_the_migration_the_old_release_works_again(tmp_path: Path, template: Host, at: str) -> None:
    seen = on_a_small_disk(tmp_path, template, "upgrade", "new", at, "FULL")
    full(seen, "resumed")
    assert (seen["running"], seen["schema"]) == ("old", 1)
    assert seen["first"]["canary"]["run"]["release"] == template.releases["old"]
    whole(seen, "new")


@pytest.mark.parametrize("at", cases(*AFTER))
def test_after_the_migration_nobody_runs_or_the_new_release_does(
    tmp_path: Path, template: Host, at: str
) -> None:
    seen = on_a_small_disk(tmp_path, template, "upgrade", "new", at, "FULL")
    full(seen, "stopped")
    assert (seen["running"], seen["schema"]) == (None, 2)
    assert any(way.startswith("restore ") for way in seen["first"]["ways_on"])
    whole(seen, "new")


def test_a_reviewed_fallback_takes_over(tmp_path: Path, template: Host) -> None:
    seen = on_a_small_disk(tmp_path, template, "upgrade", "reviewed", "canary", "FULL")
    full(seen, "rolled_back")
    assert seen["running"] == "old"
    whole(seen, "reviewed")


@pytest.mark.parametrize("at", cases("unit", "unit.done", "start", "start.asked"))
def test_a_release_that_did_not_come_to_work_leaves_the_place_to_the_old_one(
    tmp_path: Path, template: Host, at: str
) -> None:
    """Nor one whose process was started and found no room to record its run."""
    seen = on_a_small_disk(tmp_path, template, "upgrade", "patch", at, "FULL")
    full(seen, "resumed")
    whole(seen, "patch")


def test_one_that_was_killed_on_that_way_back_begins_anew(tmp_path: Path, template: Host) -> None:
    """The old release has worked meanwhile: the backup of before is not the last state any more."""
    seen = on_a_small_disk(tmp_path, template, "upgrade", "patch", "start,back-canary", "FULL,KILL")
    assert (seen["first"], seen["running"], seen["again"]) == ({}, "old", "upgraded")
    assert len(seen["backups"]) == 2
    whole(seen, "patch")


@pytest.mark.parametrize(("at", "how"), [("compare.done", "FULL"), *([("compare", "FLOOD")] if FULL else [])])
def test_what_was_proven_stays(tmp_path: Path, template: Host, at: str, how: str) -> None:
    seen = on_a_small_disk(tmp_path, template, "upgrade", "new", at, how)
    assert (seen["code"], seen["first"]["outcome"], seen["running"]) == (0, "upgraded", "new")
    assert any("no room for the note" in way for way in seen["first"]["ways_on"]) == (how == "FLOOD")
    whole(seen, "new")


@pytest.mark.parametrize(
    "at", ["backup", *(["stop", "migrate", "migrate.committed", "start"] if FULL else [])]
)
def test_where_the_room_for_the_way_back_is_taken_too_nobody_runs_and_it_is_said(
    tmp_path: Path, template: Host, at: str
) -> None:
    seen = on_a_small_disk(tmp_path, template, "upgrade", "new", at, "FLOOD")
    assert (seen["first"]["outcome"], seen["first"]["code"]) == ("stopped", "disk_full")
    assert any("Act: disk full" in way for way in seen["first"]["ways_on"])
    assert seen["running"] is None
    if at in {"stop", "backup"}:
        assert "going back failed at back-start" in seen["first"]["reason"], "no note that failed ended it"
    whole(seen, "new")


@pytest.mark.parametrize("at", cases("stop.done", "unit", "unit.done", "start", "canary"))
def test_a_rollback_leaves_the_place_to_the_release_that_it_was_to_leave(
    tmp_path: Path, template: Host, at: str
) -> None:
    seen = on_a_small_disk(tmp_path, template, "rollback", "patch", at, "FULL")
    full(seen, "resumed")
    assert seen["running"] == "old"
    whole(seen, "patch")


@pytest.mark.parametrize("at", cases("facts.done", "stop.done", "unit", "unit.done", "start", "canary"))
def test_the_configuration_of_before_is_in_place_again(tmp_path: Path, template: Host, at: str) -> None:
    seen = on_a_small_disk(tmp_path, template, "configure", "old", at, "FULL")
    full(seen, "resumed")
    assert (seen["running"], seen["mixed"]) == ("old", False)
    assert (seen["again"], seen["configuration"]) == ("configured", True)
    whole(seen, "old")


def test_a_configuration_that_could_not_be_put_back_is_put_back_with_room(
    tmp_path: Path, template: Host
) -> None:
    """Its bytes are kept until then; what is asked for meanwhile waits."""
    seen = on_a_small_disk(tmp_path, template, "configure", "old", "start", "FLOOD")
    full(seen, "stopped")
    assert (seen["running"], seen["mixed"]) == (None, True)
    assert (seen["again"], seen["configuration"]) == ("resumed", False)
    whole(seen, "old")


@pytest.mark.parametrize("point", cases(*LOOKING))
def test_a_preflight_that_meets_it_says_so_and_leaves_nothing(
    tmp_path: Path, template: Host, point: str
) -> None:
    seen = on_a_small_disk(tmp_path, template, "preflight", point)
    if point != "preflight.migrated":  # from there on nothing is written
        assert seen["outcome"] == "refuse"
        assert "make room" in seen["migration"]["remedy"]
        assert "the migrations failed" not in seen["migration"]["observed"]
    assert (seen["state as it was"], seen["left"]) == (True, [])
    assert seen["again"] == "pass"


def looked_at(folder: Path, point: str) -> dict[str, Any]:
    """Let the disk be full at a point of a preflight whose release has a migration; then make room."""
    (folder / "disk/srv").mkdir()
    instance, hog = Instance.make(folder / "disk/srv"), folder / "disk/hog"
    instance.layout.backups.mkdir(0o700)
    last = COMPONENTS[-1]
    later = Component(last.name, (*last.migrations, ADDED), last.on_epoch_end)
    schemas.COMPONENTS = (*COMPONENTS[:-1], later)
    looking.BEFORE = ()

    def look() -> Preflight:
        return preflight(instance.layout, Request(record=folder / "none"), load)

    with held_open(instance.layout.database):
        before = traces(instance.layout.state)
        if point == "begun":
            fill(hog)
        triggers.arm(lambda reached: fill(hog) if reached == point else None)
        found = look()
        triggers.disarm()
        hog.unlink()
        unchanged, left = traces(instance.layout.state) == before, names(instance.layout.backups)
        again = look()
    return {
        "outcome": found.outcome,
        "migration": {check.name: check.model_dump() for check in found.checks}.get("migration"),
        "state as it was": unchanged,
        "left": left,
        "again": {check.name: check.outcome for check in again.checks}["migration"],
    }


if __name__ == "__main__":
    where, told, *case = sys.argv[1:]
    if case[0] == "preflight":
        print(json.dumps(looked_at(Path(where), case[1])))
    else:
        print(json.dumps(seen_of(Path(where), json.loads(told), *case)))
