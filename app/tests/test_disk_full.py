"""A full disk, on a small file system of its own: what met it is undone, and work goes on with room."""

import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path

import pytest
from backing import SMALL, made, names
from support import Instance, until_idle
from world import World

from standfast import authority, work
from standfast.cli import main as cli
from standfast.errors import Refused, StandfastError
from standfast.layout import Layout
from standfast.operations.backup import folders
from standfast.operations.backup.verifying import verify
from standfast.operations.restore import restoring
from standfast.store import triggers

SIZE = 2_000_000
NAMESPACE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]


def on_a_small_disk(folder: Path, part: str) -> dict[str, object]:
    """Run one of PARTS in a mount namespace of its own, with a file system of SIZE bytes at ``folder``."""
    if subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody make a mount namespace")
    mounted = f'mount -t tmpfs -o size={SIZE} tmpfs "$0" && exec "$@"'
    told = subprocess.run(
        [*NAMESPACE, "sh", "-c", mounted, folder, sys.executable, __file__, part, folder],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert told.returncode == 0, told.stderr
    seen: dict[str, object] = json.loads(told.stdout)
    return seen


def test_the_write_that_meets_it_is_undone_and_what_was_committed_stays(tmp_path: Path) -> None:
    seen = on_a_small_disk(tmp_path, "store")
    assert seen["error"] == "SQLITE_FULL"
    assert seen["committed"] == seen["there"] != 0
    assert seen["in_transaction"] is False
    assert seen["after"] == "there is room again"
    assert seen["integrity"] == "ok"


def test_the_service_finishes_its_work_once_there_is_room(tmp_path: Path) -> None:
    seen = on_a_small_disk(tmp_path, "service")
    assert seen["error"] == "SQLITE_FULL"
    assert seen["status"] == ["DONE", 1]
    assert seen["reports"] == seen["delivered"] == 1
    assert seen["integrity"] == "ok"


def test_a_backup_that_meets_it_at_any_step_leaves_nothing_half_made(tmp_path: Path) -> None:
    seen = on_a_small_disk(tmp_path, "backup")
    assert seen["refused"] == dict.fromkeys(FULL_AT, "backup_no_space")
    assert seen["left"] == []
    assert seen["after"] is True
    assert seen["integrity"] == "ok"


def test_a_restore_that_meets_it_leaves_the_old_state_or_the_new_one_and_goes_on_with_room(
    tmp_path: Path,
) -> None:
    seen = on_a_small_disk(tmp_path, "restore")
    assert seen["left"] == {
        "safety_made": ["restore_no_space", "old"],
        "image_made": ["failed", "old"],
        "paused": ["failed", "old, paused"],
        "copied": ["failed", "new, paused"],
    }
    assert seen["after"] == [True] * 4
    assert seen["integrity"] == ["ok"]


def test_a_command_that_meets_it_says_so_and_changes_nothing(tmp_path: Path) -> None:
    seen = on_a_small_disk(tmp_path, "commands")
    assert seen["told"] == {name: [1, "disk_full"] for name in ("report", "usage", "work")}
    assert seen["unchanged"] is True
    assert seen["after"] == {name: [0, True] for name in ("report", "usage", "work")}
    assert seen["integrity"] == "ok"


FULL_AT = ("folder", "partial", "step", "copied", "sealed", "checked", "companions", "published")
"""From each of these steps on there is no room."""


def fill(folder: Path) -> Path:
    """Leave almost no room; returns the file to remove for there to be some again."""
    hog = folder / "hog"
    left = os.statvfs(folder)
    hog.write_bytes(bytes(left.f_bavail * left.f_frsize - 150_000))
    return hog


def until_full(write: Callable[[], object]) -> tuple[int, str]:
    """How often it could be done, and the error that then came."""
    for done in range(100):
        try:
            write()
        except sqlite3.OperationalError as error:
            return done, error.sqlite_errorname
    raise AssertionError("the disk never was full")


def of_the_store(folder: Path) -> dict[str, object]:
    world = World(Layout(folder / "state"))
    claim = world.claimed()
    hog = fill(folder)
    committed, error = until_full(lambda: world.observe(claim, "x" * 20_000))
    there = len(work.transcript(world.connection, claim.work))
    in_transaction = world.connection.in_transaction
    hog.unlink()
    world.observe(claim, "there is room again")
    return {
        "error": error,
        "committed": committed,
        "there": there,
        "in_transaction": in_transaction,
        "after": work.transcript(world.connection, claim.work)[-1].message,
        "integrity": world.connection.execute("PRAGMA integrity_check").fetchone()[0],
    }


def of_the_service(folder: Path) -> dict[str, object]:
    instance = Instance.make(folder)
    asked = instance.add().work
    with instance.service() as service:
        hog = fill(folder)
        until_full(lambda: instance.add("x" * 15_000))
        _, error = until_full(service.one_pass)
        hog.unlink()
        until_idle(service)
    return {
        "error": error,
        "status": instance.status(asked),
        "reports": len(instance.reports(asked)),
        "delivered": instance.rows(
            "SELECT count(*) FROM reports WHERE delivery = 'sent' AND work = ?", asked
        )[0][0],
        "integrity": instance.rows("PRAGMA integrity_check")[0][0],
    }


def of_commands(folder: Path) -> dict[str, object]:
    """Each by itself, while another connection has the store open, as the service has it."""
    instance = Instance.make(folder)
    instance.add()
    with instance.store() as store:
        claim, now = instance.claim(), instance.clock.now()
        work.finish(store, claim, "DONE", report="text", clock=instance.clock, marker=instance.layout.marker)
        for delivery in ("sending", "unknown"):
            store.execute("UPDATE reports SET delivery = ?", (delivery,))
        authority.replace(store, instance.layout, "test", now)
        [report] = work.list_reports(store)
        commands = {
            "report": ("report", "resolve", report.id, "--sent"),
            "usage": ("usage", "lost", "--calls", "0"),
            "work": ("work", "add", "How is the stock?"),
        }
        before = list(store.iterdump())
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        fill_up(folder / "hog")
        told = {name: ran(instance, *words) for name, words in commands.items()}
        unchanged = list(store.iterdump()) == before
        (folder / "hog").unlink()
        after = {name: ran(instance, *words) for name, words in commands.items()}
    return {
        "told": told,
        "unchanged": unchanged,
        "after": after,
        "integrity": instance.rows("PRAGMA integrity_check")[0][0],
    }


def ran(instance: Instance, *words: str) -> tuple[int, str | bool]:
    """A command's exit code, and what refused it or whether it changed something."""
    out = io.StringIO()
    with redirect_stdout(out):
        code = cli.main(["--json", "--state", str(instance.layout.state), *words])
    told = json.loads(out.getvalue())
    return code, told["refused"]["code"] if "refused" in told else told["changed"]


def of_a_backup(folder: Path) -> dict[str, object]:
    instance = Instance.make(folder)
    kept = made(instance, limits=SMALL).name
    refused = {}
    for step in FULL_AT:
        hog = folder / "hog"

        def full(point: str, step: str = step, hog: Path = hog) -> None:
            if point == f"backup.{step}" and not hog.exists():
                with suppress(OSError), hog.open("wb") as file:
                    while True:
                        file.write(bytes(4096))
                        file.flush()

        triggers.arm(full)
        try:
            made(instance, limits=SMALL, copied=["skills"])
        except Refused as error:
            refused[step] = error.code
        triggers.disarm()
        hog.unlink()
    left = set(names(instance.layout.backups)) - folders.OWN_FILES - {kept}
    entry = made(instance, limits=SMALL)
    return {
        "refused": refused,
        "left": sorted(left),
        "after": verify(Path(entry.path)).ok and verify(instance.layout.backups / kept).ok,
        "integrity": instance.rows("PRAGMA integrity_check")[0][0],
    }


def fill_up(hog: Path) -> None:
    """Leave no room at all."""
    with suppress(OSError), hog.open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()


def of_a_restore(folder: Path) -> dict[str, object]:
    left, after, integrity = {}, [], set()
    restoring.MARGIN = 0
    for step in ("safety_made", "image_made", "paused", "copied"):
        (folder / step).mkdir()
        instance, hog = Instance.make(folder / step), folder / "hog"
        source = made(instance, limits=SMALL).name
        before = era(instance)

        def full(point: str, step: str = step, hog: Path = hog) -> None:
            if point == f"restore.{step}" and not hog.exists():
                fill_up(hog)

        triggers.arm(full)
        try:
            restoring.restore(instance.layout, source, now=time.time(), limits=SMALL)
            code = "done"
        except Refused as error:
            code = error.code
        except StandfastError:
            code = "failed"
        triggers.disarm()
        hog.unlink()
        found = era(instance)
        state = "old" if found.epoch == before.epoch else "new"
        left[step] = [code, f"{state}, paused" if found.paused else state]
        after.append(restoring.restore(instance.layout, source, now=time.time(), limits=SMALL).changed)
        integrity.add(instance.rows("PRAGMA integrity_check")[0][0])
        shutil.rmtree(folder / step)
    return {"left": left, "after": after, "integrity": sorted(integrity)}


def era(instance: Instance) -> authority.Operations:
    with instance.store() as connection:
        return authority.operations(connection)


PARTS = {
    "restore": of_a_restore,
    "store": of_the_store,
    "service": of_the_service,
    "commands": of_commands,
    "backup": of_a_backup,
}

if __name__ == "__main__":
    print(json.dumps(PARTS[sys.argv[1]](Path(sys.argv[2]))))
