"""Report delivery: committed as sending before anything leaves; uncertain is said to be unknown."""

import os
import stat
from dataclasses import dataclass, field

import pytest
from world import HOST, World

from standfast import authority, work
from standfast.work import Outbox, Report


@dataclass
class Courier:
    """A channel whose deliveries cannot be taken back or told apart."""

    idempotent: bool = False
    failing: bool = False
    delivered: list[str] = field(default_factory=list)

    def deliver(self, report: Report) -> None:
        if self.failing:
            raise TimeoutError("no answer")
        self.delivered.append(report.id)


def report(world: World, body: str = "vanilla: 2\n") -> Report:
    finished = world.finish(world.claimed(), body)
    return work.show_report(world.connection, finished.report or "")


def deliver(world: World, channel: work.Channel) -> int:
    return work.deliver_pending(world.connection, channel, clock=world.clock)


def standing(world: World, one: Report) -> str:
    return work.show_report(world.connection, one.id).delivery


def test_the_outbox_holds_one_private_file_per_report(world: World) -> None:
    one, two = report(world), report(world, "chocolate: 9")
    outbox = Outbox(world.layout.outbox)
    assert deliver(world, outbox) == 2
    assert deliver(world, outbox) == 0
    files = {path.name: path for path in world.layout.outbox.iterdir()}
    assert set(files) == {f"{one.id}.txt", f"{two.id}.txt"}
    text = files[f"{one.id}.txt"].read_text()
    assert text.endswith("\n\nvanilla: 2\n")
    assert f"Work: {one.work}\nGeneration: 1\n" in text
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.values()} == {0o600}
    assert stat.S_IMODE(world.layout.outbox.stat().st_mode) == 0o700
    assert standing(world, one) == "sent"
    assert work.show_report(world.connection, one.id).delivered_at == world.now()


def test_nothing_is_delivered_while_paused(world: World) -> None:
    one = report(world)
    authority.pause(world.connection, "restored", world.now())
    courier = Courier()
    assert deliver(world, courier) == 0
    assert work.resume_deliveries(world.connection, courier) == 0
    assert (courier.delivered, standing(world, one)) == ([], "pending")


@pytest.mark.parametrize(("idempotent", "outcome"), [(True, "pending"), (False, "unknown")])
def test_a_failed_attempt(world: World, idempotent: bool, outcome: str) -> None:
    one = report(world)
    courier = Courier(idempotent=idempotent, failing=True)
    assert deliver(world, courier) == 0
    assert standing(world, one) == outcome
    assert work.show_report(world.connection, one.id).note == "TimeoutError: no answer"
    courier.failing = False
    assert deliver(world, courier) == (1 if idempotent else 0)
    assert work.uncertain_reports(world.connection) == (0 if idempotent else 1)


@pytest.mark.parametrize(("idempotent", "outcome"), [(True, "pending"), (False, "unknown")])
def test_what_a_dead_process_left_sending(world: World, idempotent: bool, outcome: str) -> None:
    one = report(world)

    class Crash(Courier):
        def deliver(self, report: Report) -> None:
            raise KeyboardInterrupt(report.id)

    with pytest.raises(KeyboardInterrupt):
        deliver(world, Crash())
    assert standing(world, one) == "sending"
    assert work.uncertain_reports(world.connection) == 1
    assert deliver(world, Courier()) == 0
    assert work.resume_deliveries(world.connection, Courier(idempotent=idempotent)) == 1
    assert standing(world, one) == outcome


def test_an_era_that_ends_during_a_delivery_leaves_it_unknown(world: World) -> None:
    one = report(world)

    class Restored(Courier):
        def deliver(self, report: Report) -> None:
            authority.replace(world.connection, world.layout, report.id, world.now(), HOST)

    deliver(world, Restored())
    assert standing(world, one) == "unknown"


def test_a_full_disk_leaves_the_report_pending_and_no_half_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = report(world)
    real = os.fsync

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert deliver(world, Outbox(world.layout.outbox)) == 0
    monkeypatch.setattr(os, "fsync", real)
    assert standing(world, one) == "pending"
    assert not world.layout.outbox.exists() or list(world.layout.outbox.iterdir()) == []
    assert deliver(world, Outbox(world.layout.outbox)) == 1


def test_many_reports_leave_in_order_and_in_batches(world: World) -> None:
    ids = [report(world).id for _ in range(25)]
    courier = Courier()
    assert deliver(world, courier) == 20
    assert deliver(world, courier) == 5
    assert courier.delivered == ids
