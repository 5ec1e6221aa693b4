"""The generations are what they say: migrations that keep the business, and releases bad in one way each.

Every check asks the code inside the archive, never the checkout.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
import zipfile
from contextlib import closing
from typing import TYPE_CHECKING, Any

import generations
import history
import pytest
from archives import manifest_of, members
from generations import Overlay, OverlayError
from support import Instance, Process, eventually

from standfast import orders
from standfast.operations.schema import COMPONENTS, understood
from standfast.release.verify import verify
from standfast.shop.config import parse, sample

if TYPE_CHECKING:
    from pathlib import Path

    from standfast.release.manifest import Manifest

SAME_SCHEMA = (
    "patch",
    "crashes",
    "never-ready",
    "idle",
    "corrupts-running",
    "missing-wheel",
    "broken-wheel",
)
REVIEWED = (*SAME_SCHEMA, "corrupts", "corrupts-live")
V2_TABLES = {"work": understood()["work"] + 1}
V3_TABLES = {**V2_TABLES, "authority": understood()["authority"] + 1}
SHOP = {"shop": understood()["shop"] + 1}
AUTHORITY = {"authority": understood()["authority"] + 1}
RAISED = {
    **{name: {} for name in ("v1", *SAME_SCHEMA)},
    "v2": V2_TABLES,
    "v3": V3_TABLES,
    "unreadable": V2_TABLES,
    "corrupts": AUTHORITY,
    "corrupts-live": AUTHORITY,
    "half-migration": SHOP,
    "half-migration-live": SHOP,
}
VERSIONS = {"v1": "0.1.0", "v2": "0.2.0", "v3": "0.3.0"}

ASK = """
import json, sys
from standfast.operations.schema import COMPONENTS
print(json.dumps({c.name: [list(steps) for steps in c.migrations] for c in COMPONENTS}))
"""
OPEN = """
import sys
from pathlib import Path
from standfast.operations.schema import COMPONENTS
from standfast.store import open_store
open_store(Path(sys.argv[1]), COMPONENTS).close()
"""


class Release:
    """The code of one archive, and what its manifest says."""

    def __init__(self, name: str, folder: Path) -> None:
        self.archive = generations.ensure(name)
        self.manifest: Manifest = manifest_of(self.archive)
        wheel = folder / "app.whl"
        wheel.write_bytes(members(self.archive)[self.manifest.app_wheel])
        self.code = folder / "code"
        with zipfile.ZipFile(wheel) as files:
            files.extractall(self.code)

    def python(self, program: str, *words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program with the archive's package."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STANDFAST_")}
        done = subprocess.run(
            [sys.executable, "-B", "-c", program, *map(str, words)],
            env={**kept, "PYTHONPATH": str(self.code)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def bring_forward(self, store: Path, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Open the store for writing, as a start of the service does."""
        return self.python(OPEN, store, check=check)

    def service(self, instance: Instance) -> Process:
        """Its own `serve`, in a process."""
        return Process(instance, PYTHONPATH=str(self.code))


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Release]:
    return {name: Release(name, tmp_path_factory.mktemp(name)) for name in generations.names()}


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    """A store of this tree with some past: stock, finished work with its reports, waiting work, an order."""
    made = Instance.make(tmp_path, low=True)
    with made.store() as store:
        store.execute("INSERT INTO stock_events VALUES ('count-1', 'vanilla', 7, 'counted', 1.0)")
        history.fill(store, 300)
    made.settle()
    made.add("buy what is low", session="orders")
    claim = made.claim("lucy-agent")
    with made.store() as store:
        orders.propose(
            store,
            claim,
            sku="vanilla",
            quantity=2,
            unit_cost_cents=300,
            policy=parse(sample()).policy,
            clock=made.clock,
            marker=made.layout.marker,
        )
        orders.wait(store, claim, clock=made.clock, marker=made.layout.marker, report="proposed")
    made.add("What waits?")
    return made


def facts(store: Path) -> dict[str, Any]:
    """What an upgrade must not change, asked of the file itself."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        return {
            query: connection.execute(query).fetchall()
            for query in (
                "SELECT status, count(*) FROM work GROUP BY 1 ORDER BY 1",
                "SELECT status, count(*), sum(spent_cents + reserved_cents) FROM orders GROUP BY 1",
                "SELECT sku, sum(delta) FROM stock_events GROUP BY 1 ORDER BY 1",
                "SELECT delivery, count(*) FROM reports GROUP BY 1 ORDER BY 1",
                "SELECT epoch, paused FROM operations",
                "SELECT id, status, generation, finished_at FROM work ORDER BY seq",
            )
        }


def schema(store: Path) -> dict[str, int]:
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        return dict(connection.execute("SELECT component, version FROM meta").fetchall())


def test_there_is_no_generation_that_nobody_asked_for(releases: dict[str, Release]) -> None:
    assert set(releases) == set(RAISED)


@pytest.mark.parametrize("name", sorted(RAISED))
def test_an_archive_verifies_and_says_what_it_should(releases: dict[str, Release], name: str) -> None:
    release, first = releases[name], releases["v1"].manifest
    found = release.manifest
    assert verify(release.archive).verified == (name != "missing-wheel")
    assert found.schema_versions == {**first.schema_versions, **RAISED[name]}
    assert found.authority_contract == first.authority_contract
    assert found.rollback_floor == first.rollback_floor
    assert found.reviewed_fallbacks == ((first.release_id,) if name in REVIEWED else ())
    assert found.version.startswith(VERSIONS.get(name, "0."))
    assert name == "v1" or found.version > first.version
    assert name == "v1" or found.source.clean


def test_releases_of_one_version_have_ids_of_their_own(releases: dict[str, Release]) -> None:
    assert len({release.manifest.release_id for release in releases.values()}) == len(releases)


@pytest.mark.parametrize("name", sorted(set(RAISED) - {"v1"}))
def test_migrations_are_appended_never_edited(releases: dict[str, Release], name: str) -> None:
    found = json.loads(releases[name].python(ASK).stdout)
    for component in COMPONENTS:
        published = [list(steps) for steps in component.migrations]
        assert found[component.name][: len(published)] == published


def test_a_store_of_v1_goes_to_v2_and_v3_and_keeps_every_fact(
    releases: dict[str, Release], instance: Instance
) -> None:
    store = instance.layout.database
    before = facts(store)
    assert len(before) == 6
    assert all(before.values())
    assert schema(store) == understood()
    for name, raised in (("v2", V2_TABLES), ("v3", V3_TABLES)):
        releases[name].bring_forward(store)
        assert schema(store) == {**understood(), **raised}
        assert facts(store) == before
    days = instance.rows("SELECT count(*), count(finished_day), count(finished_at) FROM work")[0]
    assert days[0] > days[1] == days[2] > 300
    assert instance.rows("SELECT finished_day FROM work WHERE seq = 1") == [("1970-01-01",)]
    assert instance.rows("PRAGMA integrity_check") == [("ok",)]


def test_the_code_of_v1_refuses_a_store_of_v2_and_leaves_it_alone(
    releases: dict[str, Release], instance: Instance
) -> None:
    store = instance.layout.database
    releases["v2"].bring_forward(store)
    before = store.read_bytes()
    refused = releases["v1"].bring_forward(store, check=False)
    assert refused.returncode != 0
    assert "written by a newer release" in refused.stderr
    assert store.read_bytes() == before


@pytest.mark.parametrize("name", ["v2", "v3"])
def test_a_new_generation_works_and_health_shows_what_it_added(
    releases: dict[str, Release], instance: Instance, name: str
) -> None:
    asked = [sys.executable, "-m", "standfast", "--state", str(instance.layout.state), "--json", "health"]
    environment = {**os.environ, "PYTHONPATH": str(releases[name].code)}

    def health() -> dict[str, Any]:
        done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode in {0, 4}, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    assert health()["served_versions"] is None
    done = instance.rows("SELECT count(*) FROM work WHERE status = 'DONE'")[0][0]
    with releases[name].service(instance).ready() as service:
        eventually(lambda: instance.rows("SELECT count(*) FROM work WHERE status = 'DONE'")[0][0] == done + 1)
        assert service.terminate() == 0
    assert health()["served_versions"] == {"source": 1}
    assert health()["last_version"] == "source"
    assert (
        name == "v2"
        or instance.rows("SELECT count(*) FROM work WHERE finished_at > 0")[0]
        == (instance.rows("SELECT count(finished_day) FROM work")[0])
    )


@pytest.mark.parametrize("name", ["crashes", "unreadable"])
def test_one_that_dies_at_its_start(releases: dict[str, Release], instance: Instance, name: str) -> None:
    before = facts(instance.layout.database)
    with releases[name].service(instance) as service:
        assert service.wait() not in {0, 78}
        assert service.messages() == []
        assert "this release dies at its start" in service.log
    assert facts(instance.layout.database) == before
    assert schema(instance.layout.database) == understood()


def test_one_that_is_never_ready(releases: dict[str, Release], instance: Instance) -> None:
    before = facts(instance.layout.database)
    with releases["never-ready"].service(instance) as service:
        eventually(lambda: "ready:" in service.log)
        time.sleep(1)
        assert "READY=1" not in service.messages()
        assert service.process.poll() is None
        assert service.terminate() == 0
    assert facts(instance.layout.database) == before


def test_one_that_is_ready_and_finishes_nothing(releases: dict[str, Release], instance: Instance) -> None:
    before = facts(instance.layout.database)
    with releases["idle"].service(instance).ready() as service:
        time.sleep(1.5)
        assert service.process.poll() is None
        assert service.terminate() == 0
    assert facts(instance.layout.database) == before


def test_one_whose_migration_forgets_finished_work(
    releases: dict[str, Release], instance: Instance, tmp_path: Path
) -> None:
    store, copy = instance.layout.database, tmp_path / "copy.sqlite"
    before = facts(store)
    shutil.copy2(store, copy)
    releases["corrupts-live"].bring_forward(copy)
    assert facts(copy) == before
    releases["corrupts-live"].bring_forward(store)
    assert facts(store) != before
    assert instance.rows("SELECT count(*) FROM work WHERE status = 'DONE'") == [(0,)]


def test_one_whose_migration_forgets_finished_work_in_a_copy_too(
    releases: dict[str, Release], instance: Instance, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.sqlite"
    shutil.copy2(instance.layout.database, copy)
    releases["corrupts"].bring_forward(copy)
    assert facts(copy) != facts(instance.layout.database)


def test_one_that_forgets_finished_work_when_it_starts(
    releases: dict[str, Release], instance: Instance
) -> None:
    store = instance.layout.database
    before = facts(store)
    releases["corrupts-running"].bring_forward(store)
    assert facts(store) == before
    with releases["corrupts-running"].service(instance).ready() as service:
        assert service.terminate() == 0
    assert instance.rows("SELECT count(*) FROM work WHERE status = 'DONE' AND finished_at < 1000") == [(0,)]


@pytest.mark.parametrize("name", ["half-migration", "half-migration-live"])
def test_one_whose_migration_fails_at_its_second_statement(
    releases: dict[str, Release], instance: Instance, tmp_path: Path, name: str
) -> None:
    store, copy = instance.layout.database, tmp_path / "copy.sqlite"
    shutil.copy2(store, copy)
    before = facts(store)
    refused = releases[name].bring_forward(store, check=False)
    assert refused.returncode != 0
    assert "shelves.shelf" in refused.stderr
    assert (schema(store), facts(store)) == (understood(), before)
    assert instance.rows("SELECT name FROM sqlite_schema WHERE name = 'shelves'") == []
    releases["v1"].bring_forward(store)
    rehearsed = releases[name].bring_forward(copy, check=False)
    assert (rehearsed.returncode == 0) == name.endswith("-live")


def test_one_that_lacks_a_wheel_says_so_before_any_host_sees_it(releases: dict[str, Release]) -> None:
    [found] = verify(releases["missing-wheel"].archive).differences
    assert found.problem == "wheel_missing"
    assert found.detail.startswith("pydantic-core==")


@pytest.mark.parametrize(("name", "good"), [("patch", True), ("broken-wheel", False)])
def test_one_that_pip_cannot_install(
    releases: dict[str, Release], tmp_path: Path, name: str, *, good: bool
) -> None:
    for path, data in members(releases[name].archive).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(data)
    words = ["--dry-run", "--no-index", "--require-hashes", "--only-binary=:all:", "--no-deps"]
    words += ["--python-version", generations.PYTHON, "--target", "unpacked", "--find-links", "wheels"]
    pip = [sys.executable, "-m", "pip", "install", *words, "-r", "requirements.lock"]
    done = subprocess.run(pip, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is good, done.stderr
    assert ("pydantic-core" in done.stderr) is not good


def test_an_overlay_that_no_longer_fits_says_so(tmp_path: Path) -> None:
    generations.source("v2", tmp_path / "tree", {})
    with pytest.raises(
        OverlayError, match=r"overlay v2 expects runs\.py .* exactly once, and it does 0 times"
    ):
        generations.lay(Overlay.read("v2"), tmp_path / "tree")
    with pytest.raises(OverlayError, match="no generation 'v9'; there are: v1, broken-wheel"):
        Overlay.read("v9")


@pytest.mark.full
def test_a_million_finished_items_are_brought_forward(releases: dict[str, Release], tmp_path: Path) -> None:
    """In a store of its own; how long it takes is said by script/bench upgrade."""
    (tmp_path / "large").mkdir()
    large = Instance.make(tmp_path / "large")
    with large.store() as store:
        history.fill(store, 1_000_000)
    before = facts(large.layout.database)
    releases["v3"].bring_forward(large.layout.database)
    assert facts(large.layout.database) == before
    assert large.rows("SELECT count(finished_day) FROM work") == [(1_000_000,)]
