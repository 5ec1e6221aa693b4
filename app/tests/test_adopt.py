"""Adoption: a state directory that its marker does not vouch for goes on only when a person says so."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from buying import POLICY
from support import Instance, Process
from world import World

from standfast import authority, orders, work
from standfast.authority import StaleClaim, host_identity
from standfast.authority import marker as markers
from standfast.authority.marker import Marker
from standfast.cli import main as cli
from standfast.errors import BadInput, Refused
from standfast.operations import health
from standfast.operations.adopting import adopt
from standfast.operations.initialise import initialise_instance
from standfast.store import triggers

type Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    yield Instance.make(tmp_path)
    triggers.disarm()


@pytest.fixture
def run(instance: Instance, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str, check: bool = False) -> tuple[int, dict[str, Any]]:
        options = ["--check"] if check else []
        code = cli.main(["--json", *options, "--state", str(instance.layout.state), *arguments])
        return code, json.loads(capsys.readouterr().out)

    return call


def epoch(instance: Instance) -> str:
    with instance.store() as store:
        return authority.operations(store).epoch


def files(instance: Instance) -> dict[str, str]:
    """Every file that holds state; a reader leaves SQLite's scratch files and an empty log behind."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in instance.layout.state.iterdir()
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    }


def of_another_host(instance: Instance) -> None:
    markers.write(instance.layout.marker, Marker(epoch(instance), "0" * 64))


def lost(instance: Instance) -> None:
    instance.layout.marker.unlink()


def empty(instance: Instance) -> None:
    instance.layout.marker.write_bytes(b"")


def of_another_epoch(instance: Instance) -> None:
    markers.write(instance.layout.marker, Marker("f" * 32, host_identity()))


def cut_short(instance: Instance) -> None:
    class Plug(Exception):
        pass

    def pull(point: str) -> None:
        if point == "replace.committed":
            raise Plug

    triggers.arm(pull)
    with pytest.raises(Plug), instance.store() as store:
        authority.replace(store, instance.layout, "restored", instance.clock.now())
    triggers.disarm()


CASES = {
    "another host": (of_another_host, "names host 000000000000"),
    "marker lost": (lost, "missing or unreadable"),
    "marker empty": (empty, "missing or unreadable"),
    "another epoch": (of_another_epoch, "names epoch ffffffffffff"),
    "an end cut short": (cut_short, "names epoch"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_the_marker_does_not_vouch_for_is_adopted_paused(
    instance: Instance, run: Run, case: str
) -> None:
    spoil, why = CASES[case]
    waiting = instance.add().work
    claim = instance.claim(owner="lucy-agent")
    spoil(instance)
    before, kept = epoch(instance), files(instance)
    code, told = run("adopt", "--reason", "moved", check=True)
    assert (code, told["changed"], told["check"], told["epoch"]) == (0, True, True, None)
    assert files(instance) == kept
    code, told = run("adopt", "--reason", "moved")
    assert (code, told["changed"], told["epoch_before"]) == (0, True, before)
    assert any(why in line for line in told["why"])
    with instance.store() as store:
        control = authority.operations(store)
        assert (control.paused, control.reason) == (True, "adopted: moved")
        assert control.epoch == told["epoch"] != before
        assert authority.agrees(store, instance.layout.marker)
        with pytest.raises(StaleClaim, match=r"^runtime paused or replaced by restore$"):
            work.observe(store, claim, "x", clock=instance.clock, marker=instance.layout.marker)
        found = markers.read(instance.layout.marker)
        assert found == Marker(control.epoch, host_identity())
    assert instance.status(waiting)[0] == "READY"
    rules = {one.rule for one in health.look(instance.layout, instance.clock.now()).attention}
    assert "paused" in rules
    assert not rules & {"marker_disagrees", "other_host"}
    assert not initialise_instance(instance.layout, now=instance.clock.now()).changed
    assert instance.settle() == 0

    code, told = run("adopt", "--reason", "again")
    assert (code, told["changed"], told["refused"]["code"]) == (3, False, "nothing_to_adopt")
    with instance.store() as store:
        authority.resume(store, instance.layout.marker, "recovered", instance.clock.now())
    instance.settle()
    assert instance.status(waiting)[0] == "DONE"


def test_approvals_do_not_survive_it(instance: Instance) -> None:
    instance.add()
    claim = instance.claim()
    common: dict[str, Any] = {"marker": instance.layout.marker}
    now = instance.clock.now()
    with instance.store() as store:
        draft = orders.propose(
            store,
            claim,
            sku="vanilla",
            quantity=1,
            unit_cost_cents=300,
            policy=POLICY,
            clock=instance.clock,
            **common,
        ).order
        orders.approve(store, draft.digest, operator="lucy", until=now + 60, policy=POLICY, now=now, **common)
    of_another_host(instance)
    adopt(instance.layout, reason="moved", now=now)
    with instance.store() as store:
        assert orders.show_order(store, draft.id).status == "REVOKED"
        assert orders.spending(store, now).reserved_cents == 0


@pytest.mark.parametrize("check", [True, False])
def test_a_state_that_is_at_home_is_not_adopted(instance: Instance, run: Run, check: bool) -> None:
    before = files(instance)
    code, told = run("adopt", "--reason", "moved", check=check)
    assert (code, told["changed"], told["refused"]["code"]) == (3, False, "nothing_to_adopt")
    assert files(instance) == before


@pytest.mark.parametrize("check", [True, False])
def test_not_while_the_service_runs(instance: Instance, run: Run, check: bool) -> None:
    of_another_host(instance)
    with Process(instance) as process:
        process.ready()
        before = epoch(instance)
        code, told = run("adopt", "--reason", "moved", check=check)
        assert (code, told["refused"]["code"]) == (3, "writer_held")
        assert str(process.process.pid) in told["refused"]["observed"]
        assert epoch(instance) == before
        assert "`standfast adopt` takes it over" in process.log
        process.terminate()
    assert run("adopt", "--reason", "moved", check=check)[0] == 0


@pytest.mark.parametrize("reason", ["", "  ", "two\nlines", "x" * 301])
def test_the_reason_is_one_line(instance: Instance, reason: str) -> None:
    of_another_host(instance)
    before = files(instance)
    with pytest.raises(BadInput, match="reason"):
        adopt(instance.layout, reason=reason, now=instance.clock.now())
    assert files(instance) == before


def test_without_a_state_directory_there_is_nothing_to_adopt(instance: Instance, tmp_path: Path) -> None:
    instance.layout.state.rename(tmp_path / "elsewhere")
    with pytest.raises(Refused) as refused:
        adopt(instance.layout, reason="moved", now=instance.clock.now())
    assert refused.value.code == "state_absent"


@pytest.mark.parametrize("case", ["another host", "marker lost"])
def test_every_refusal_names_the_command(instance: Instance, run: Run, case: str) -> None:
    CASES[case][0](instance)
    code, told = run("init")
    assert code == 3
    assert "standfast adopt" in told["refused"]["remedy"]
    code, told = run("health")
    assert code == 4
    [remedy] = [
        one["remedy"] for one in told["attention"] if one["rule"] in {"other_host", "marker_disagrees"}
    ]
    assert "standfast adopt" in remedy


def test_a_person_reads_what_was_done(instance: Instance, capsys: pytest.CaptureFixture[str]) -> None:
    of_another_host(instance)
    adopting = ["--state", str(instance.layout.state), "adopt", "--reason", "moved"]
    assert cli.main(["--check", *adopting]) == 0
    assert "would be adopted: a new epoch, paused" in capsys.readouterr().out
    assert cli.main(adopting) == 0
    assert f"adopted: epoch {epoch(instance)}, paused" in capsys.readouterr().out


def test_the_lock_is_only_looked_at_when_checking(world: World) -> None:
    authority.refuse_while_held(world.layout)
    assert not world.layout.writer_lock.exists()
    with authority.writer_lock(world.layout):
        content = world.layout.writer_lock.read_bytes()
        with pytest.raises(Refused) as refused:
            authority.refuse_while_held(world.layout)
        assert refused.value.code == "writer_held"
        assert world.layout.writer_lock.read_bytes() == content
    authority.refuse_while_held(world.layout)
    with authority.writer_lock(world.layout):
        pass
