"""SIGKILL at every step of restore, inspect and recover: the old state or the new one, never a mixture.

The points are those that a whole run reaches, so a new one is killed at without being listed here. In the
full tier each is killed at, and many moments between them; else a part of each.
"""

import io
import json
import math
import os
import random
import resource
import shutil
import signal
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from daily import COUNTS, Day, day, sha256
from support import Instance
from world import dump

from standfast import authority
from standfast.cli import main as cli
from standfast.errors import StandfastError
from standfast.layout import Layout
from standfast.operations.backup.listing import listing
from standfast.operations.backup.verifying import verify
from standfast.operations.restore.restoring import RestoreResult
from standfast.store import triggers

FULL = os.environ.get("STANDFAST_FULL") == "1"
MOMENTS = 55 if FULL else 3
"""Kills at moments that no point names; one that came too late is none."""

type Rows = list[tuple[object, ...]]


def copied(day: Day, root: Path) -> Day:
    """The same day in another place, for one kill."""
    shutil.copytree(day.layout.root / "state", root / "state")
    shutil.copytree(day.layout.root / "backups", root / "backups")
    for plan in day.layout.root.glob("*.json"):
        shutil.copy(plan, root)
    return replace(day, instance=Instance(Layout(root / "state"), day.instance.clock))


def died(act: Callable[[], object], point: str, after: float = 0.0) -> bool:
    """Do it in a fork, and let that die at the point or so many seconds after it; whether it was in time."""
    sys.stdout.flush()
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(told)
            left = [tell]

            def kill(reached: str) -> None:
                if reached == point and left:
                    os.close(left.pop())
                    if not after:
                        os.kill(os.getpid(), signal.SIGKILL)

            triggers.arm(kill)
            act()
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        pipe.read()  # until it comes to the point, or ends
    if after:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    ended = os.waitstatus_to_exitcode(status)
    assert ended in {0, -signal.SIGKILL}, "see the traceback above"
    return ended == -signal.SIGKILL


def at_any_moment(act: Callable[[], object], kill: Callable[[int, str, float], str], seed: int) -> list[str]:
    """What kills in time leave that come between two points of what `act` does; as many in a short gap.

    Most of its time it reads: kills that are spread over all of its time would hardly ever meet a change.
    """
    times: dict[str, float] = {}

    def note(point: str) -> None:
        times.setdefault(point, time.monotonic())

    triggers.arm(note)
    try:
        act()
    finally:
        triggers.disarm()
    times["its end"] = time.monotonic()
    gaps = [(point, after - at) for (point, at), (_, after) in pairwise(times.items())]
    chance = random.Random(seed)
    left: list[str] = []
    for number in range(5 * MOMENTS):
        point, gap = gaps[number % len(gaps)] if FULL else chance.choice(gaps)
        seen = kill(number, point, chance.uniform(0.00001, gap))
        left += [seen] if seen != "in time" else []
        if len(left) == MOMENTS:
            return left
    raise AssertionError(f"of {5 * MOMENTS} kills only {len(left)} were not too late")


def ends_on_a_full_disk(act: Callable[[], object], point: str, *also: type[Exception]) -> bool:
    """Do it in a fork where no file can grow from the point on; whether it then failed, and said so.

    Only root could mount a small disk; the limit makes each write fail as that would (EFBIG).
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        expected: tuple[type[Exception], ...] = (StandfastError, *also)
        try:

            def fill(reached: str) -> None:
                if reached == point:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))

            triggers.arm(fill)
            act()
            code = 0
        except expected:
            code = 3
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            if code == 1:
                traceback.print_exc()
            os._exit(code)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in {0, 3}, "see the traceback above"
    return ended == 3


def reached_by(act: Callable[[], object]) -> list[str]:
    """Every point of a whole run, in its order, each once."""
    found: list[str] = []
    triggers.arm(found.append)
    try:
        act()
    finally:
        triggers.disarm()
    return list(dict.fromkeys(found))


def rows_of(database: Path) -> Rows:
    with closing(sqlite3.connect(database, autocommit=True)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        return dump(connection)


def without(rows: Rows, *names: str, epoch: str = "", since: float = math.inf) -> Rows:
    """Rows of other tables than these; the random name of an era and of a report do not count.

    Nor does when exactly something was written after `since`.
    """
    kept = [
        tuple(since if _later(value, since) else value for value in row)
        for row in rows
        if row[0] not in names
    ]
    plain = [tuple("EPOCH" if value == epoch else value for value in row) for row in kept]
    return [row if row[0] != "reports" else (*row[:2], *row[3:]) for row in plain]


def _later(value: object, since: float) -> bool:
    return isinstance(value, float) and since < value < since + 3600


VARIES = ("operations", "restores", "operation_events")


class Before:
    """A day before its restore, and what a whole restore makes of it."""

    def __init__(self, root: Path) -> None:
        (root / "day").mkdir()
        self.day = Day(Instance.make(root / "day"), supplier=None)  # type: ignore[arg-type]
        self.day.begin()
        self.day.instance.add("after the backup")
        self.epoch = self.day.control().epoch
        self.old = without(rows_of(self.day.layout.database), "operations")
        reference = copied(self.day, root / "reference")
        self.now = time.time()
        self.points = reached_by(lambda: self.restore(reference))
        epoch = reference.control().epoch
        self.new = without(rows_of(reference.layout.database), *VARIES, "eras", epoch=epoch, since=self.now)

    def restore(self, shop: Day) -> RestoreResult:
        return shop.restore_here(now=self.now)

    def look(self, shop: Day) -> str:
        """What a kill left; fails on a mixture."""
        control = shop.control()
        rows = rows_of(shop.layout.database)
        if control.epoch == self.epoch:
            assert without(rows, "operations") == self.old
            with closing(sqlite3.connect(shop.layout.database)) as connection:
                assert authority.agrees(connection, shop.layout.marker)
            return "old, paused" if control.paused else "old"
        assert without(rows, *VARIES, "eras", epoch=control.epoch, since=self.now) == self.new
        assert control.paused
        return "new"

    def kill(self, root: Path, **how: Any) -> str:
        """One kill, what it left, and that the same restore then comes to its end."""
        shop = copied(self.day, root)
        was_killed = died(lambda: self.restore(shop), **how)
        left = self.look(shop)
        claimable = shop.instance.rows("SELECT paused FROM operations") == [(0,)]
        assert claimable == (left == "old")
        for entry in listing(shop.layout, time.time()).backups:
            assert verify(Path(entry.path)).ok, "a killed safety backup never looks like a good one"
        done = self.restore(shop)
        assert done.changed or left == "new"
        assert self.look(shop) == "new"
        with closing(sqlite3.connect(shop.layout.database)) as connection:
            assert authority.agrees(connection, shop.layout.marker)
        assert not (shop.layout.state / ".restoring").exists()
        return left if was_killed else "in time"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Before:
    return Before(tmp_path_factory.mktemp("before"))


def test_a_restore_survives_sigkill_at_every_point(before: Before, tmp_path: Path) -> None:
    own = [point for point in before.points if not point.startswith("backup.")]
    assert {"restore.paused", "restore.step", "restore.copied", "restore.marker_written"} <= set(own)
    points = before.points if FULL else own
    left = {point: before.kill(tmp_path / str(at), point=point) for at, point in enumerate(points)}
    assert "in time" not in left.values()
    order = ["old", "old, paused", "new"]
    ranks = [order.index(left[point]) for point in points]
    assert ranks == sorted(ranks), left
    assert set(ranks) == {0, 1, 2}
    assert left["restore.step"] == "old, paused"
    assert left["restore.copied"] == "new"


def test_a_restore_survives_a_full_disk_from_every_point_on(before: Before, tmp_path: Path) -> None:
    """The old state, paused or not, or the new one; with room the same restore then comes to its end."""
    order = ["old", "old, paused", "new"]
    ranks = []
    for at, point in enumerate(before.points):
        shop = copied(before.day, tmp_path / str(at))
        failed = ends_on_a_full_disk(partial(before.restore, shop), point)
        left = before.look(shop)
        assert failed or left == "new", point
        ranks.append(order.index(left))
        before.restore(shop)
        assert before.look(shop) == "new", point
    assert ranks == sorted(ranks), list(zip(before.points, ranks, strict=True))
    assert set(ranks) == {0, 1, 2}


def test_a_full_disk_at_the_last_checkpoint_says_what_stands_and_the_same_restore_ends_it(
    before: Before, tmp_path: Path
) -> None:
    shop = copied(before.day, tmp_path / "full")
    log = shop.layout.database.with_name("agent.sqlite-wal")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    out = io.StringIO()

    def fill(reached: str) -> None:
        if reached == "restore.marker_written":
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))

    triggers.arm(fill)
    try:
        with redirect_stdout(out), redirect_stderr(io.StringIO()):
            words = ["--json", "--state", str(shop.layout.state), "restore", shop.morning, "--no-receipt"]
            code = cli.main(words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        triggers.disarm()
    told = json.loads(out.getvalue())
    assert (code, told["changed"], told["refused"]["code"]) == (1, None, "disk_full")
    assert "restored and paused" in told["refused"]["reason"]
    assert "make room" in told["refused"]["remedy"]
    assert log.stat().st_size > 0
    with closing(sqlite3.connect(shop.layout.database)) as reader:
        assert reader.execute("SELECT paused FROM operations").fetchall() == [(1,)]
        again = before.restore(shop)
        assert (again.changed, again.checkpointed) == (False, True)
        assert log.stat().st_size == 0
    assert before.look(shop) == "new"


def test_a_restore_survives_sigkill_at_any_moment(before: Before, tmp_path: Path) -> None:
    shop = copied(before.day, tmp_path / "timed")
    left = at_any_moment(
        lambda: before.restore(shop),
        lambda at, point, after: before.kill(tmp_path / str(at), point=point, after=after),
        seed=4,
    )
    assert not FULL or {"old", "new"} <= set(left)


def test_a_lost_state_survives_sigkill_at_every_point(before: Before, tmp_path: Path) -> None:
    """Where nothing is left to go back to, the same restore still comes to its end."""

    def lost(root: Path) -> Day:
        shop = copied(before.day, root)
        for path in shop.layout.state.glob("agent.sqlite*"):
            path.unlink()
        shop.layout.database.write_bytes(b"garbage" * 3000)
        return shop

    reference = lost(tmp_path / "reference")
    points = reached_by(lambda: before.restore(reference))
    assert {"restore.put_aside", "restore.begun", "restore.copied"} <= set(points)
    for at, point in enumerate(points):
        shop = lost(tmp_path / str(at))
        assert died(partial(before.restore, shop), point=point)
        done = before.restore(shop)
        assert before.look(shop) == "new", point
        assert done.safety_backup is None or at >= points.index("restore.copied")
        evidence = list(shop.layout.state.glob("damaged-*/agent.sqlite"))
        assert [path.read_bytes() for path in evidence] == [b"garbage" * 3000]


class Paused:
    """A restored and inspected day with an answered plan, and what a whole recovery makes of it."""

    def __init__(self, made: Day, root: Path) -> None:
        self.day = made
        self.plan = made.answered().name
        self.now = time.time()
        self.old = rows_of(made.layout.database)
        reference = copied(made, root / "reference")
        self.points = reached_by(lambda: self.recover(reference))
        self.new = without(rows_of(reference.layout.database))

    def recover(self, shop: Day) -> Any:
        return shop.recover_here(shop.plan_file(self.plan), now=self.now)

    def kill(self, root: Path, **how: Any) -> str:
        shop = copied(self.day, root)
        was_killed = died(lambda: self.recover(shop), **how)
        rows = rows_of(shop.layout.database)
        left = "new" if without(rows) == self.new else "old" if rows == self.old else "a mixture"
        assert left != "a mixture", how
        assert shop.control().paused == (left == "old")
        done = self.recover(shop)
        assert (done.status, done.duplicate) == ("ACTIVE", left == "new")
        assert without(rows_of(shop.layout.database)) == self.new
        assert shop.on_hand() == COUNTS
        return left if was_killed else "in time"


@pytest.fixture(scope="module")
def paused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paused]:
    root = tmp_path_factory.mktemp("paused")
    (root / "day").mkdir()
    with day(root / "day") as made:
        made.begin().go_on()
        made.restore_here()
        yield Paused(made, root)


def test_a_recovery_survives_sigkill_at_every_point(paused: Paused, tmp_path: Path) -> None:
    assert {"recover.orders", "recover.stock", "recover.work", "recover.recorded"} <= set(paused.points)
    left = [paused.kill(tmp_path / str(at), point=point) for at, point in enumerate(paused.points)]
    assert "in time" not in left
    assert left[-1] == "new"
    assert paused.points[-1] == "recover.committed"
    assert set(left[:-1]) == {"old"}


def test_a_recovery_survives_a_full_disk_from_every_point_on(paused: Paused, tmp_path: Path) -> None:
    """Nothing of it; with room the same plan is then applied once."""
    for at, point in enumerate(paused.points[:-1]):
        shop = copied(paused.day, tmp_path / str(at))
        recover = partial(paused.recover, shop)
        assert ends_on_a_full_disk(recover, point, sqlite3.OperationalError), point  # the CLI tells it
        assert rows_of(shop.layout.database) == paused.old, point
        assert shop.control().paused
        done = paused.recover(shop)
        assert (done.status, done.duplicate) == ("ACTIVE", False)
        assert without(rows_of(shop.layout.database)) == paused.new


def test_a_recovery_survives_sigkill_at_any_moment(paused: Paused, tmp_path: Path) -> None:
    shop = copied(paused.day, tmp_path / "timed")
    left = at_any_moment(
        lambda: paused.recover(shop),
        lambda at, point, after: paused.kill(tmp_path / str(at), point=point, after=after),
        seed=5,
    )
    assert not FULL or {"old", "new"} <= set(left)


@pytest.mark.parametrize("point", ["inspect.rotated", "inspect.written"])
def test_an_inspection_survives_sigkill(paused: Paused, tmp_path: Path, point: str) -> None:
    """The account stays fenced, and the inspection is made again."""
    shop = copied(paused.day, tmp_path / "day")
    epoch = shop.control().epoch
    assert died(lambda: shop.inspect_here("killed.json"), point=point)
    assert shop.plan_file("killed.json").exists() == (point == "inspect.written")
    assert shop.account_now()["epoch"] == epoch
    again = shop.inspect_here("again.json")
    assert not again.rotated
    assert again.digest == sha256(shop.plan_file("again.json").read_bytes())


def test_an_inspection_on_a_full_disk_leaves_the_account_fenced_and_is_made_again(
    paused: Paused, tmp_path: Path
) -> None:
    shop = copied(paused.day, tmp_path / "day")
    before = sorted(path.name for path in shop.layout.root.iterdir())
    assert ends_on_a_full_disk(lambda: shop.inspect_here("full.json"), "inspect.rotated")
    assert sorted(path.name for path in shop.layout.root.iterdir()) == before
    assert shop.account_now()["epoch"] == shop.control().epoch
    assert not shop.inspect_here("again.json").rotated
