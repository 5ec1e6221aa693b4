"""What an upgrade would meet: every check seen to pass, to ask for attention and to refuse."""

import hashlib
import json
import os
import platform
import pwd
import sqlite3
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from backing import dated, made
from buying import Buying
from releases import manifest
from support import COMPONENTS, Instance, Process

from standfast import authority
from standfast.operations import environment
from standfast.operations.backup import folders
from standfast.operations.backup.rehearsing import rehearse as rehearse_backup
from standfast.operations.preflight import files, host, release, store
from standfast.operations.preflight.looking import OF_STORE
from standfast.operations.preflight.result import Check, worst
from standfast.operations.preflight.seen import Places, Request, Seen, StoreFacts, read_store
from standfast.operations.schema import understood
from standfast.operations.upgrade import journal as switches
from standfast.operations.upgrade.manager import Manager
from standfast.operations.verdicts import Floor, Record
from standfast.release.installed import Seal
from standfast.serve.settings import load
from standfast.store import look_at, open_store

NAME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A host on which everything is as it should be."""
    found = Places(
        mounts=tmp_path / "mounts",
        lingering=tmp_path / "linger",
        journal=tmp_path / "journal",
        running=tmp_path / "run",
        administrator=os.getuid(),
    )
    mounted(found, ("/", "ext4"))
    (found.lingering / NAME).mkdir(parents=True)
    found.journal.mkdir()
    (found.running / f"user/{os.getuid()}/systemd/private").mkdir(parents=True)
    return found


def mounted(places: Places, *points: tuple[str, str]) -> None:
    lines = [f"1 0 0:1 / {point} rw shared:1 - {kind} source rw\n" for point, kind in points]
    places.mounts.write_text("".join(lines))


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    """An instance as an install leaves it, but for the release itself and the unit."""
    (tmp_path / "root").mkdir(0o750)
    found = Instance.make(tmp_path / "root")
    layout = found.layout
    for folder in (layout.backups, layout.receipts):
        folder.mkdir(0o700)
    (layout.releases / "old").mkdir(parents=True)
    layout.current.symlink_to("releases/old")
    identity = {"format": 1, "instance": "lucy-agent", "user": NAME, "root": str(layout.root)}
    layout.identity.write_text(json.dumps(identity))
    environment.write(layout, {"STANDFAST_LOG": "info"})
    return found


def seal(**changes: str) -> Seal:
    facts = {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version, "interpreter": "/x"}
    return Seal(**{"release_id": "r", "sealed_at": "T", "files": {"a": "b"}, **facts, **changes})


@pytest.fixture
def seen(instance: Instance, places: Places) -> Seen:
    return Seen(
        layout=instance.layout,
        request=Request(),
        configured=load,
        now=time.time(),
        folder=instance.layout.releases / "new",
        manifest=manifest("0.2.0"),
        seal=seal(),
        current=manifest("0.1.0"),
        record=Record(floor=Floor(version="0.1.0", release="r")),
        schema=understood(),
        places=places,
    )


def facts(seen: Seen) -> StoreFacts:
    return look_at(seen.layout.database, lambda found: read_store(found, seen.layout, seen.now))


# --- the target --------------------------------------------------------------------------------------------


def test_a_folder_that_is_no_release_is_refused(seen: Seen) -> None:
    assert release.target_proven(replace(seen, manifest=None)).outcome == "refuse"
    seen.folder.mkdir()
    found = release.target_proven(seen)
    assert found.outcome == "refuse"
    assert "installed.json: half-made" in found.observed


@pytest.mark.parametrize(
    ("sealed", "outcome"), [(None, "pass"), ("3.12.999", "attention"), ("3.9.1", "refuse")]
)
def test_the_python_is_the_one_it_was_installed_with(seen: Seen, sealed: str | None, outcome: str) -> None:
    if sealed == "3.12.999":
        sealed = f"{sys.version_info.major}.{sys.version_info.minor}.999"
    changed = replace(seen, seal=seal(**({"python": sealed} if sealed else {})))
    assert release.python(changed).outcome == outcome
    assert release.python(replace(seen, seal=None)).outcome == "refuse"


def test_another_sqlite_asks_for_attention(seen: Seen) -> None:
    assert release.sqlite(seen).outcome == "pass"
    assert release.sqlite(replace(seen, seal=seal(sqlite="3.7.0"))).outcome == "attention"


@pytest.mark.parametrize(
    ("new", "old", "outcome"), [(1, 1, "pass"), (2, 1, "attention"), (1, 2, "refuse"), (1, None, "attention")]
)
def test_the_authority_contract(seen: Seen, new: int, old: int | None, outcome: str) -> None:
    current = None if old is None else manifest(authority_contract=old)
    changed = replace(seen, manifest=manifest("0.2.0", authority_contract=new), current=current)
    assert release.authority_contract(changed).outcome == outcome


@pytest.mark.parametrize(
    ("version", "floor", "current", "outcome"),
    [
        ("0.10.0", "0.9.1", "0.9.0", "pass"),
        ("0.9.1", "0.10.0", "0.9.0", "refuse"),
        ("0.10.0rc1", "0.10.0", "0.9.0", "refuse"),
        ("0.10.0", "0.10.0", "0.9.0", "pass"),
        ("0.9.0", "0.1.0", "0.10.0", "attention"),
        ("0.2.0", None, "0.1.0", "pass"),
    ],
)
def test_no_target_lies_under_a_rollback_floor(
    seen: Seen, version: str, floor: str | None, current: str, outcome: str
) -> None:
    record = Record(floor=Floor(version=floor, release="r") if floor else None)
    changed = replace(seen, manifest=manifest(version), record=record, current=manifest(current))
    assert release.rollback_floor(changed).outcome == outcome


def test_the_floor_of_the_current_release_counts_and_without_a_record_nobody_knows_more(seen: Seen) -> None:
    current = manifest("0.1.0", rollback_floor="0.3.0")
    found = release.rollback_floor(replace(seen, current=current, record=None))
    assert found.outcome == "refuse"
    assert f"0.2.0 is under the floor 0.3.0 of {current.release_id}" in found.observed
    assert release.rollback_floor(replace(seen, record=None)).outcome == "attention"
    assert release.rollback_floor(replace(seen, manifest=None)).outcome == "refuse"


# --- the host ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("ext4", "pass"),
        ("overlay", "pass"),
        ("nfs4", "refuse"),
        ("fuse.sshfs", "refuse"),
        ("tmpfs", "refuse"),
    ],
)
def test_the_file_system_of_the_state(seen: Seen, kind: str, outcome: str) -> None:
    mounted(seen.places, ("/", "ext4"), (str(seen.layout.root), kind), (f"{seen.layout.root}-other", "nfs4"))
    assert host.file_system(seen).outcome == outcome
    mounted(seen.places, ("/", kind), (str(seen.layout.state), "xfs"))
    assert host.file_system(seen).outcome == "pass"


def test_the_disk_has_room_for_all_of_it(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.disk(seen).outcome == "pass"
    plain = os.statvfs(seen.layout.state)
    size = seen.layout.database.stat().st_size

    def room(blocks: int, inodes: int) -> None:
        wrong = os.statvfs_result(
            (*plain[:2], plain[2], blocks, blocks, plain[5], inodes, inodes, *plain[8:])
        )
        monkeypatch.setattr(os, "statvfs", lambda _: wrong)

    floor = 64 << 20
    room((5 * size + floor) // plain.f_frsize + 1, 10_000)
    assert host.disk(seen).outcome == "pass"
    room((5 * size + floor) // plain.f_frsize - 1, 10_000)
    assert host.disk(seen).outcome == "refuse"
    room(1 << 30, 10)
    assert "10 inodes free" in host.disk(seen).observed


def test_the_folder_of_backups(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.backups_folder(seen).outcome == "pass"
    seen.layout.backups.chmod(0o755)
    assert "open to other users" in host.backups_folder(seen).observed
    seen.layout.backups.chmod(0o700)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert host.backups_folder(seen).outcome == "refuse"
    seen.layout.backups.rmdir()
    assert host.backups_folder(seen).outcome == "refuse"


def test_what_the_user_needs_without_a_login(seen: Seen) -> None:
    assert (
        host.lingering(seen).outcome
        == host.user_manager(seen).outcome
        == host.journal(seen).outcome
        == "pass"
    )
    (seen.places.lingering / NAME).rmdir()
    (seen.places.running / f"user/{os.getuid()}/systemd/private").rmdir()
    seen.places.journal.rmdir()
    assert [check(seen).outcome for check in (host.lingering, host.user_manager, host.journal)] == [
        "refuse",
        "refuse",
        "attention",
    ]


@pytest.mark.parametrize(
    ("said", "outcome"),
    [('{"type":"t","data":120000000}', "pass"), ('{"type":"t","data":90000000}', "refuse"), ("", "attention"),
     ('{"type":"t","data":18446744073709551615}', "pass"), ("[]", "attention")],
)  # fmt: skip
def test_the_manager_waits_longer_for_the_service_than_its_unit(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, outcome: str
) -> None:
    bus = tmp_path / "busctl"
    bus.write_text(
        f"#!/bin/sh\necho '{said}'\ncase $* in *user_40{os.getuid()}_2eservice*) ;; *) exit 1;; esac\n"
    )
    bus.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert host.manager_stop(seen).outcome == outcome


def test_the_deploy_lock(seen: Seen) -> None:
    folder = seen.places.running / "standfast"
    folder.mkdir()
    boot = time.clock_gettime(time.CLOCK_BOOTTIME)

    def locked(**changes: object) -> str:
        lock = {"run_id": "aa", "holder": "one@controller", "seconds": 300, "expires": boot + 200}
        (folder / "deploy.lock").write_text(json.dumps(lock | changes))
        return host.deploy_lock(seen).outcome

    assert host.deploy_lock(seen).outcome == "pass"
    assert locked() == "refuse"
    assert locked(expires=boot - 1) == "pass"
    assert locked(expires=boot + 900) == "pass", "of another boot"
    assert locked(expires="soon") == "attention"
    locked()
    assert "one@controller (run aa)" in host.deploy_lock(seen).observed
    own = replace(seen, request=Request(run_id="aa"))
    assert host.deploy_lock(own).outcome == "pass"


def test_a_switch_that_was_cut_short(seen: Seen) -> None:
    def left(to: str, outcome: str | None) -> str:
        journal = switches.Journal.model_validate(
            {
                "operation": "upgrade",
                "run_id": "r",
                "from": "old",
                "to": to,
                "step": "migrate",
                "was_active": True,
                "unit_before": "",
                "schema_before": {},
                "outcome": outcome,
            }
        )
        switches.path(seen.layout).write_text(journal.model_dump_json())
        return host.unfinished(seen).outcome

    assert host.unfinished(seen).outcome == "pass"
    assert [left("new", "upgraded"), left("new", None), left("other", None)] == [
        "pass",
        "attention",
        "refuse",
    ]


# --- the instance's own files ------------------------------------------------------------------------------


def test_the_root_is_this_instances(seen: Seen) -> None:
    assert files.identity(seen).outcome == "pass"
    told = json.loads(seen.layout.identity.read_text())
    seen.layout.identity.write_text(json.dumps(told | {"user": "rosa"}))
    assert "says user rosa" in files.identity(seen).observed
    seen.layout.identity.unlink()
    assert files.identity(seen).outcome == "refuse"


@pytest.mark.parametrize(
    ("path", "mode"),
    [("state", 0o750), ("backups", 0o755), ("receipts", 0o701), ("state/agent.sqlite", 0o640),
     ("state/agent.authority", 0o604), ("state/shop.toml", 0o622), ("releases", 0o775), (".", 0o770)],
)  # fmt: skip
def test_a_mode_that_lets_others_in_is_refused(seen: Seen, path: str, mode: int) -> None:
    assert files.ownership(seen).outcome == "pass"
    (seen.layout.root / path).chmod(mode)
    found = files.ownership(seen)
    assert found.outcome == "refuse"
    assert f"{seen.layout.root / path} has mode {mode:04o}" in found.observed


def test_another_owner_another_kind_and_a_link_elsewhere_are_refused(seen: Seen, tmp_path: Path) -> None:
    stranger = replace(seen, places=replace(seen.places, administrator=54321))
    assert "not 54321" in files.ownership(stranger).observed
    seen.layout.current.unlink()
    seen.layout.current.mkdir()
    assert "current is not a link" in files.ownership(seen).observed
    seen.layout.current.rmdir()
    seen.layout.current.symlink_to(tmp_path)
    assert f"leads to {tmp_path}" in files.ownership(seen).observed
    seen.layout.current.unlink()
    seen.layout.current.symlink_to("releases/old")
    seen.layout.receipts.rmdir()
    seen.layout.receipts.symlink_to(tmp_path)
    assert "receipts is not a folder" in files.ownership(seen).observed


@pytest.mark.parametrize(
    ("text", "mode", "outcome"),
    [(None, 0o600, "pass"), ("A=1\n", 0o600, "pass"), ("export A=1\n", 0o600, "refuse"),
     ("A=1\n", 0o644, "refuse"), ("", None, "refuse")],
)  # fmt: skip
def test_the_environment_file_is_what_systemd_reads(
    seen: Seen, text: str | None, mode: int | None, outcome: str
) -> None:
    file = seen.layout.environment
    if mode is None:
        file.unlink()
    else:
        if text is not None:
            file.write_text(text)
        file.chmod(mode)
    found = files.environment_file(seen)
    assert found.outcome == ("attention" if text == "A=1\n" and mode == 0o600 else outcome)


def test_the_target_must_understand_shop_and_environment(seen: Seen) -> None:
    assert files.shop(seen).outcome == files.settings(seen).outcome == "pass"
    environment.write(seen.layout, {"STANDFAST_LOG": "s3cr3t-level"})
    found = files.settings(seen)
    assert found.outcome == "refuse"
    assert "STANDFAST_LOG" in found.observed
    assert "s3cr3t" not in found.observed
    seen.layout.shop.write_text(seen.layout.shop.read_text() + "\n[unknown]\nkey = 1\n")
    assert files.shop(seen).outcome == "refuse"
    assert "unknown" in files.shop(seen).observed


# --- the store ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "outcome", "said"),
    [
        ({}, "pass", "equal: "),
        (
            {"work": understood()["work"] - 1},
            "pass",
            f"work {understood()['work'] - 1} -> {understood()['work']}",
        ),
        ({"work": understood()["work"] + 1}, "refuse", "that would be a downgrade"),
        ({"later": 1}, "refuse", "knows no component later 1"),
    ],
)
def test_the_schema_of_each_component(seen: Seen, change: dict[str, int], outcome: str, said: str) -> None:
    changed = replace(seen, schema=understood() | change)
    found = store.schema(changed)
    assert found.outcome == outcome
    assert said in found.observed
    assert bool(store.migrations(changed)) == ("->" in said)


def test_the_migrations_of_a_store_without_a_component(seen: Seen) -> None:
    schema = {name: version for name, version in understood().items() if name != "usage"}
    assert store.migrations(replace(seen, schema=schema)) == {"usage": (0, understood()["usage"])}
    assert store.migrations(replace(seen, schema={})) == {}


def test_a_quiet_instance_passes(seen: Seen) -> None:
    made(instance := Instance(seen.layout))
    rehearse_backup(instance.layout, None)
    instance.settle()
    outcomes = {check.__name__: check(seen, facts(seen)).outcome for check in OF_STORE}
    assert {name for name, outcome in outcomes.items() if outcome != "pass"} == {"service"}


def test_a_marker_of_another_epoch_or_host_and_a_missing_one_are_refused(seen: Seen) -> None:
    text = seen.layout.marker.read_text()
    for other in ("0" * 32 + "\n" + text.split("\n")[1], text.split("\n")[0] + "\n" + "0" * 64 + "\n", None):
        if other is None:
            seen.layout.marker.unlink()
        else:
            seen.layout.marker.write_text(other)
        assert store.marker(seen, facts(seen)).outcome == "refuse"


def test_a_pause_and_a_recovery_that_is_open_are_refused(instance: Instance, seen: Seen) -> None:
    assert store.not_paused(seen, facts(seen)).outcome == store.recovery(seen, facts(seen)).outcome == "pass"
    with instance.store() as connection:
        authority.pause(connection, "cut short", time.time())
    assert store.not_paused(seen, facts(seen)).outcome == "refuse"
    assert store.recovery(seen, facts(seen)).outcome == "pass"
    with instance.store() as connection:
        authority.replace(connection, instance.layout, "restored", time.time())
    (instance.layout.state / "plan.json").write_text("{}")
    found = store.recovery(seen, facts(seen))
    assert found.outcome == "refuse"
    assert "plans: plan.json" in found.observed


def test_work_that_is_running_is_told_with_its_lease(instance: Instance, seen: Seen) -> None:
    assert store.running_work(seen, facts(seen)).outcome == "pass"
    instance.add("How is the stock?")
    claim = instance.claim(lease=250.0)
    found = store.running_work(seen, facts(seen))
    assert found.outcome == "attention"
    assert f"{claim.work} of test, generation 1, its lease ends in 2" in found.observed


def test_what_is_uncertain_is_listed(instance: Instance, seen: Seen) -> None:
    assert store.uncertain_reports(seen, facts(seen)).outcome == "pass"
    assert store.uncertain_orders(seen, facts(seen)).outcome == "pass"
    instance.add("How is the stock?")
    instance.settle()
    with instance.store() as connection:
        connection.execute("UPDATE reports SET delivery = 'unknown', delivered_at = NULL")
        [report] = connection.execute("SELECT id FROM reports").fetchone()
    found = store.uncertain_reports(seen, facts(seen))
    assert found.outcome == "attention"
    assert f"1: {report} unknown" in found.observed
    rows = [f"{number:024x} UNKNOWN, 4 vanilla" for number in range(12)]
    many = replace(facts(seen), uncertain_orders=rows)
    told = store.uncertain_orders(seen, many)
    assert told.outcome == "attention"
    assert told.observed.startswith("12: ")
    assert told.observed.endswith("; and 2 more")


def test_an_order_whose_answer_was_lost_is_listed_as_it_stands_in_the_store(tmp_path: Path) -> None:
    shop = Buying(tmp_path)
    open_store(shop.layout.database, COMPONENTS).close()
    with closing(shop):
        known, lost = shop.approved(quantity=2), shop.unknown()
        sent = shop.send(known[1], known[0])
        found = read_store(shop.connection, shop.layout, shop.now()).uncertain_orders
    assert (sent.status, lost.status) == ("CONFIRMED", "UNKNOWN")
    assert found == [f"{lost.id} UNKNOWN, {lost.quantity} {lost.sku}"]


def test_the_last_rehearsal(instance: Instance, seen: Seen) -> None:
    assert store.rehearsed_backup(seen, facts(seen)).outcome == "attention"
    entry = made(instance)
    assert "ever rehearsed" in store.rehearsed_backup(seen, facts(seen)).observed
    rehearse_backup(instance.layout, None)
    later = replace(seen, now=time.time())
    assert store.rehearsed_backup(later, facts(later)).outcome == "pass"
    old = replace(seen, now=time.time() + 9 * 86_400)
    assert "days old" in store.rehearsed_backup(old, facts(old)).observed
    dated(entry.path, time.time())
    path = instance.layout.backups / folders.REHEARSED
    path.write_text(json.dumps(json.loads(path.read_text()) | {"ok": False}))
    assert "failed at" in store.rehearsed_backup(seen, facts(seen)).observed


@pytest.mark.parametrize(("ahead", "outcome"), [(10, "pass"), (4_000, "attention"), (100_000, "refuse")])
def test_a_clock_behind_the_business(seen: Seen, ahead: float, outcome: str) -> None:
    behind = replace(facts(seen), latest=seen.now + ahead)
    assert store.clock(seen, behind).outcome == outcome
    assert abs(facts(seen).latest - seen.now) < 60


def test_the_service_is_as_it_is_said_to_be(seen: Seen) -> None:
    stopped = replace(seen, request=Request(online=False))
    found = facts(seen)
    assert store.service(seen, found).outcome == "attention"
    assert store.service(stopped, found).outcome == "pass"
    with Process(Instance(seen.layout)) as process:
        process.ready()
        running = facts(seen)
        assert store.service(seen, running).outcome == "pass"
        assert store.service(stopped, running).outcome == "refuse"


def test_what_else_health_asks_for_is_told(instance: Instance, seen: Seen) -> None:
    assert store.health(seen, facts(seen)).outcome == "pass"
    entry = made(instance)
    dated(entry.path, time.time() - 40 * 3600)
    found = store.health(seen, facts(seen))
    assert found.outcome == "attention"
    assert found.observed.startswith("backup_old: ")


def test_the_worst_decides() -> None:
    rows = {name: Check(name=name, outcome=name, observed="", remedy="") for name in OUTCOMES}
    assert worst([]) == worst([rows["pass"]]) == "pass"
    assert worst([rows["attention"], rows["pass"]]) == "attention"
    assert worst([rows["pass"], rows["refuse"], rows["attention"]]) == "refuse"


OUTCOMES = ("pass", "attention", "refuse")


# --- the unit ----------------------------------------------------------------------------------------------

UNIT = "[Service]\nExecStart={root}/releases/old/venv/bin/python -I -m standfast --state {root}/state serve\n"


@pytest.fixture
def unit(seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The unit as the release `old` writes it, which answers for itself when it is asked."""
    folder = tmp_path / "units"
    folder.mkdir()
    monkeypatch.setattr(Manager, "of", lambda instance: Manager(f"{instance}.service", folder))
    text = UNIT.format(root=seen.layout.root)
    python = seen.layout.releases / "old/venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps({'text': text})}\nEND\n")
    python.chmod(0o755)
    path = folder / "lucy-agent.service"
    path.write_text(text)
    path.chmod(0o644)
    return path


def test_a_unit_as_its_release_writes_it_passes_and_an_edit_is_refused_with_its_lines(
    seen: Seen, unit: Path
) -> None:
    assert files.unit(seen).outcome == "pass"
    unit.write_text(unit.read_text() + "MemoryMax=1G\n")
    found = files.unit(seen)
    assert found.outcome == "refuse"
    assert "-MemoryMax=1G" in found.observed


def test_a_unit_that_root_s_record_knows_needs_nobody_s_word(seen: Seen, unit: Path) -> None:
    digest = hashlib.sha256(unit.read_bytes()).hexdigest()
    known = replace(seen, record=Record(units=[digest]))
    (seen.layout.releases / "old/venv/bin/python").unlink()
    assert files.unit(known).outcome == "pass"
    assert files.unit(seen).outcome == "refuse", "its release cannot be asked, so nobody knows"
    unit.write_text(unit.read_text() + "# mine\n")
    assert files.unit(known).outcome == "refuse"


def test_a_unit_that_others_may_write_or_that_is_elsewhere_is_refused(seen: Seen, unit: Path) -> None:
    known = replace(seen, record=Record(units=[hashlib.sha256(unit.read_bytes()).hexdigest()]))
    assert files.unit(known).outcome == "pass"
    for mode in (0o664, 0o646):
        unit.chmod(mode)
        found = files.unit(known)
        assert (found.outcome, found.observed) == ("refuse", f"{unit} has mode {mode:04o}")
        assert "mode 0644" in found.remedy
    unit.chmod(0o644)
    unit.rename(unit.with_name("elsewhere"))
    unit.symlink_to("elsewhere")
    assert "is not a file" in files.unit(known).observed


def test_a_unit_of_another_user_is_refused(seen: Seen, unit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.getuid()
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    found = files.unit(seen)
    assert (found.outcome, found.observed) == ("refuse", f"{unit} belongs to user {owner}, not 54321")


def test_a_unit_of_nobody_and_a_missing_one_are_refused(seen: Seen, unit: Path) -> None:
    unit.write_text("[Service]\nExecStart=/usr/bin/true\n")
    assert files.unit(seen).outcome == "refuse"
    unit.write_text(UNIT.format(root=seen.layout.root).replace("old", "gone"))
    assert files.unit(seen).outcome == "refuse"
    unit.unlink()
    missing = files.unit(seen)
    assert (missing.outcome, "the release that works now" in missing.remedy) == ("refuse", True)
