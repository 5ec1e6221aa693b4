"""Claims: who may take what, in which order, at which generation; and how an era begins and ends."""

import signal
import stat
import time
from collections import Counter

import pytest
from world import COMPONENTS, HOST, World, child, start

from standfast import authority, work
from standfast.authority import MAX_LEASE, StaleClaim
from standfast.authority import marker as markers
from standfast.errors import BadInput, Refused
from standfast.layout import Layout
from standfast.store import Component, immediate, open_store, triggers


class TestClaiming:
    def test_the_oldest_ready_work_first(self, world: World) -> None:
        admitted = [world.admit(str(n), str(n)) for n in range(3)]
        claims = [world.claim() for _ in range(4)]
        assert [claim and claim.work for claim in claims] == [*admitted, None]

    def test_a_claim_names_everything_and_the_row_holds_the_lease(self, world: World) -> None:
        identity = world.admit("o", "lucy", "what is left?", subject="vanilla", role="clerk")
        claim = world.claim("worker", lease=60)
        assert claim == authority.Claim(
            identity, "worker", 1, world.epoch(), "clerk", "lucy", "vanilla", "what is left?"
        )
        item = work.show_work(world.connection, identity)
        assert (item.status, item.lease_until) == ("RUNNING", world.now() + 60)

    def test_one_live_claim_per_session(self, world: World) -> None:
        world.admit("1", "lucy")
        second = world.admit("2", "lucy")
        other = world.admit("3", "other")
        first = world.claim()
        assert first is not None
        assert getattr(world.claim(), "work", None) == other
        assert world.claim() is None
        world.finish(first)
        assert getattr(world.claim(), "work", None) == second

    def test_the_store_itself_refuses_a_second_live_claim_of_a_session(self, world: World) -> None:
        world.admit("1", "lucy")
        second = world.admit("2", "lucy")
        world.claim()
        statement = (
            "UPDATE work SET status = 'RUNNING', generation = 1, owner = 'x', epoch = 'x',"
            " claimed_at = 0, lease_until = 1 WHERE id = ?"
        )
        with pytest.raises(Exception, match="one live claim"), immediate(world.connection):
            world.connection.execute(statement, (second,))

    @pytest.mark.parametrize(("passed", "taken"), [(59.999, False), (60.0, True), (61.0, True)])
    def test_running_work_is_taken_over_once_its_lease_has_passed(
        self, world: World, passed: float, taken: bool
    ) -> None:
        first = world.claimed(lease=60)
        world.time.passes(passed)
        second = world.claim("other")
        assert (second is not None) == taken
        if second is not None:
            assert (second.work, second.generation, second.owner) == (first.work, 2, "other")
            with pytest.raises(StaleClaim):
                world.observe(first)

    def test_an_expired_item_goes_before_younger_ready_work(self, world: World) -> None:
        first = world.claimed(lease=60)
        world.admit("younger", "younger")
        world.time.passes(60)
        assert getattr(world.claim(), "work", None) == first.work

    def test_nothing_is_claimed_while_paused(self, world: World) -> None:
        world.claimed(lease=1)
        world.admit("2", "2")
        world.time.passes(5)
        authority.pause(world.connection, "stock take", world.now())
        assert world.claim() is None
        assert (
            authority.claim_own(world.connection, owner="worker", now=world.now(), marker=world.marker) == []
        )
        assert authority.resume(world.connection, world.marker, "go on", world.now())
        assert world.claim() is not None

    @pytest.mark.parametrize("spoil", ["missing", "other"])
    def test_nothing_is_claimed_without_an_agreeing_marker(self, world: World, spoil: str) -> None:
        world.admit()
        world.marker.unlink() if spoil == "missing" else world.mark("f" * 32)
        before = world.dump()
        assert world.claim() is None
        assert (
            authority.claim_own(world.connection, owner="worker", now=world.now(), marker=world.marker) == []
        )
        assert world.dump() == before

    @pytest.mark.parametrize("lease", [0.0, -1.0, MAX_LEASE + 1, float("nan"), float("inf")])
    def test_leases_are_bounded(self, world: World, lease: float) -> None:
        world.admit()
        with pytest.raises(BadInput, match="lease"):
            world.claim(lease=lease)

    def test_delegated_work_past_its_deadline_is_not_claimed(self, world: World) -> None:
        parent = world.claimed()
        child_id = world.admit("child", "child")
        with immediate(world.connection):
            world.connection.execute(
                "UPDATE work SET parent = ?, deadline = ? WHERE id = ?",
                (parent.work, world.now() + 10, child_id),
            )
        world.time.passes(10)
        assert world.claim() is None


class TestOwnWork:
    def test_start_up_takes_back_what_its_own_label_left_running(self, world: World) -> None:
        mine = [world.claimed("worker") for _ in range(2)]
        theirs = world.claimed("other")
        again = authority.claim_own(world.connection, owner="worker", now=world.now(), marker=world.marker)
        assert [(claim.work, claim.generation) for claim in again] == [(claim.work, 2) for claim in mine]
        for claim in mine:
            with pytest.raises(StaleClaim, match="superseded"):
                world.observe(claim)
        world.observe(theirs)
        world.observe(again[0])

    def test_a_second_process_leaves_live_claims_alone(self, world: World) -> None:
        world.time.wall = time.time()
        claim = world.claimed("worker")
        child("drain", world.layout.state, "second")
        world.observe(claim)


class TestRenewal:
    def test_a_current_claim_keeps_its_lease(self, world: World) -> None:
        claim = world.claimed(lease=60)
        world.time.passes(50)
        end = authority.renew(world.connection, claim, clock=world.clock, marker=world.marker, lease=60)
        assert end == world.now() + 60
        world.time.passes(59)
        world.observe(claim)

    def test_a_lease_is_never_shortened(self, world: World) -> None:
        claim = world.claimed(lease=300)
        end = authority.renew(world.connection, claim, clock=world.clock, marker=world.marker, lease=1)
        assert end == world.now() + 300

    def test_an_expired_claim_cannot_be_renewed(self, world: World) -> None:
        claim = world.claimed(lease=60)
        world.time.passes(60)
        with pytest.raises(StaleClaim):
            authority.renew(world.connection, claim, clock=world.clock, marker=world.marker)


class TestGenerations:
    def test_they_rise_over_every_transition(self, world: World) -> None:
        claim = world.claimed(lease=10)
        seen = [claim.generation]
        world.time.passes(10)
        seen += [again.generation for again in [world.claim("a")] if again]
        seen += [
            again.generation
            for again in authority.claim_own(
                world.connection, owner="a", now=world.now(), marker=world.marker
            )
        ]
        authority.replace(world.connection, world.layout, "restored", world.now(), HOST)
        seen.append(work.show_work(world.connection, claim.work).generation)
        authority.resume(world.connection, world.marker, "go on", world.now())
        seen += [again.generation for again in [world.claim("a")] if again]
        work.cancel(world.connection, claim.work, reason="enough", now=world.now())
        seen.append(work.show_work(world.connection, claim.work).generation)
        assert seen == [1, 2, 3, 4, 5, 6]

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE work SET generation = generation - 1",
            "UPDATE work SET owner = 'thief'",
            "UPDATE work SET epoch = 'thief'",
            "DELETE FROM work",
        ],
    )
    def test_the_store_itself_refuses_anything_else(self, world: World, statement: str) -> None:
        world.claimed()
        before = world.dump()
        with pytest.raises(Exception, match=r"generation must rise|not deleted"), immediate(world.connection):
            world.connection.execute(statement)
        assert world.dump() == before

    def test_a_broken_rule_undoes_its_whole_transaction(self, world: World) -> None:
        world.claimed()
        before = world.dump()
        world.connection.execute("BEGIN IMMEDIATE")
        world.connection.execute("UPDATE operations SET reason = 'written before'")
        with pytest.raises(Exception, match="generation must rise"):
            world.connection.execute("UPDATE work SET generation = generation - 1")
        assert not world.connection.in_transaction
        assert world.dump() == before

    @pytest.mark.parametrize("status", ["READY", "RUNNING", "BLOCKED"])
    def test_finished_work_does_not_start_again(self, world: World, status: str) -> None:
        world.finish(world.claimed())
        with pytest.raises(Exception, match="does not start again"), immediate(world.connection):
            world.connection.execute(
                "UPDATE work SET status = ?, generation = 9, lease_until = iif(? = 'RUNNING', 1, NULL)",
                (status, status),
            )


class TestEras:
    def test_the_beginning(self, world: World) -> None:
        control = authority.operations(world.connection)
        assert (len(control.epoch), control.paused, control.reason) == (32, False, "initialised")
        assert world.marker.read_text() == f"{control.epoch}\n{HOST}\n"
        assert stat.S_IMODE(world.marker.stat().st_mode) == 0o600
        assert authority.agrees(world.connection, world.marker)
        assert not authority.initialise(world.connection, world.layout, world.now(), HOST)

    def test_a_lost_marker_is_not_made_up(self, world: World) -> None:
        world.marker.unlink()
        assert not authority.initialise(world.connection, world.layout, world.now(), HOST)
        assert not world.marker.exists()
        with pytest.raises(Refused) as refused:
            authority.resume(world.connection, world.marker, "please", world.now())
        assert refused.value.code == "marker_disagrees"

    def test_the_end(self, world: World) -> None:
        old = world.epoch()
        running, done = world.claimed(), world.claimed()
        world.observe(running)
        world.finish(done, "report")
        with immediate(world.connection):
            world.connection.execute("UPDATE reports SET delivery = 'sending'")
        ready = world.admit("ready", "ready")
        new = authority.replace(world.connection, world.layout, "restored", world.now(), HOST)

        control = authority.operations(world.connection)
        assert (control.epoch, control.paused, control.reason) == (new, True, "restored")
        assert new != old
        assert authority.agrees(world.connection, world.marker)
        item = work.show_work(world.connection, running.work)
        assert (item.status, item.generation, item.owner, item.lease_until) == ("READY", 2, None, None)
        assert item.interrupted_epoch == new
        assert work.show_work(world.connection, done.work).status == "DONE"
        assert work.show_work(world.connection, ready).interrupted_epoch is None
        assert [report.delivery for report in work.list_reports(world.connection)] == ["unknown"]

    def test_the_old_claim_gets_the_same_sentence_while_paused_and_after(self, world: World) -> None:
        claim = world.claimed()
        world.observe(claim)
        world.observe(claim)
        authority.replace(world.connection, world.layout, "restored", world.now(), HOST)
        for _ in range(2):
            with pytest.raises(StaleClaim, match=r"^runtime paused or replaced by restore$"):
                world.observe(claim)
            authority.resume(world.connection, world.marker, "go on", world.now())
        fresh = world.claim()
        assert fresh is not None
        world.observe(fresh)
        world.observe(fresh)
        rows = work.transcript(world.connection, claim.work)
        assert [row.generation for row in rows] == [1, 1, 3, 3]

    def test_every_component_takes_part_in_the_same_transaction(self, world: World) -> None:
        def fail(_connection: object) -> None:
            raise OSError("disk full")

        world.connection.components = (*COMPONENTS, Component("orders", (), fail))
        claim = world.claimed()
        before, marker = world.dump(), world.marker.read_bytes()
        with pytest.raises(OSError, match="disk full"):
            authority.replace(world.connection, world.layout, "restored", world.now(), HOST)
        assert (world.dump(), world.marker.read_bytes()) == (before, marker)
        world.observe(claim)

    def test_code_that_does_not_know_every_component_cannot_end_an_era(self, world: World) -> None:
        world.connection.components = COMPONENTS[:1]
        before = world.dump()
        with pytest.raises(Refused) as refused:
            authority.replace(world.connection, world.layout, "restored", world.now(), HOST)
        assert refused.value.code == "component_missing"
        assert world.dump() == before

    @pytest.mark.parametrize(
        "point", ["replace.before_commit", "replace.committed", "replace.marker_written"]
    )
    def test_killed_in_between_nothing_old_is_current_and_it_can_be_done_again(
        self, world: World, point: str
    ) -> None:
        claim = world.claimed()
        killed = child("die", world.layout.state, point, check=False)
        assert killed.returncode == -signal.SIGKILL
        committed = point != "replace.before_commit"
        control = authority.operations(world.connection)
        assert control.paused == committed
        assert authority.agrees(world.connection, world.marker) == (point != "replace.committed")
        if committed:
            with pytest.raises(StaleClaim, match="paused or replaced"):
                world.observe(claim)
            assert world.claim() is None
        if point == "replace.committed":
            with pytest.raises(Refused):
                authority.resume(world.connection, world.marker, "go on", world.now())
        authority.replace(world.connection, world.layout, "again", world.now(), HOST)
        assert authority.agrees(world.connection, world.marker)
        assert authority.resume(world.connection, world.marker, "go on", world.now())
        with pytest.raises(StaleClaim):
            world.observe(claim)

    @pytest.mark.parametrize(
        "point", ["initialise.marker_written", "initialise.before_commit", "migrate.before_commit"]
    )
    def test_killed_while_beginning_it_begins_again(self, tmp_path_factory: object, point: str) -> None:
        folder = tmp_path_factory.mktemp("new")  # type: ignore[attr-defined]
        layout = Layout(folder / "state")
        layout.state.mkdir(mode=0o700)
        assert child("die_new", layout.state, point, check=False).returncode == -signal.SIGKILL
        connection = open_store(layout.database, COMPONENTS, create=True)
        assert authority.initialise(connection, layout, 1.0, HOST)
        assert authority.agrees(connection, layout.marker)
        connection.close()


class TestHosts:
    def test_a_state_directory_that_wakes_up_elsewhere_is_refused(self, world: World) -> None:
        authority.refuse_other_host(world.marker, HOST)
        with pytest.raises(Refused) as refused:
            authority.refuse_other_host(world.marker, "b" * 64)
        assert refused.value.code == "other_host"
        authority.replace(world.connection, world.layout, "adopted", world.now(), "b" * 64)
        authority.refuse_other_host(world.marker, "b" * 64)

    def test_the_identity_is_a_digest_of_the_machine_id(self, world: World) -> None:
        file = world.layout.state / "machine-id"
        file.write_text("0123456789abcdef0123456789abcdef\n")
        identity = authority.host_identity(file)
        assert len(identity) == 64
        assert "0123456789abcdef0123456789abcdef" not in identity
        file.write_text("0123456789abcdef0123456789abcdee\n")
        assert authority.host_identity(file) != identity

    @pytest.mark.parametrize("content", [None, "", "uninitialized\n"])
    def test_a_host_without_a_machine_id_is_refused(self, world: World, content: str | None) -> None:
        file = world.layout.state / "machine-id"
        if content is not None:
            file.write_text(content)
        with pytest.raises(Refused) as refused:
            authority.host_identity(file)
        assert refused.value.code == "host_unidentified"

    def test_a_marker_without_a_host_belongs_to_none(self, world: World) -> None:
        world.marker.write_text(world.epoch() + "\n")
        assert markers.read(world.marker) == markers.Marker(world.epoch(), "")
        with pytest.raises(Refused):
            authority.refuse_other_host(world.marker, HOST)


def test_one_writer_at_a_time(world: World) -> None:
    with authority.writer_lock(world.layout):
        with pytest.raises(Refused) as refused, authority.writer_lock(world.layout):
            pass
        assert refused.value.code == "writer_held"
        assert "process" in str(refused.value.observed)
    with authority.writer_lock(world.layout):
        pass


def drained(world: World, processes: int, jobs: int) -> Counter[tuple[str, str]]:
    with immediate(world.connection):
        for number in range(jobs):
            request = work.Request(origin=f"job {number}", session=f"s{number}", prompt="do")
            work.admit_within(world.connection, request, now=world.now(), limits=None)
    workers = [start("drain", world.layout.state, f"worker-{n}") for n in range(processes)]
    results = [worker.communicate(timeout=300) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * processes, results
    return Counter(tuple(line.split()) for out, _ in results for line in out.splitlines())  # type: ignore[misc]


def assert_each_claimed_once(world: World, processes: int, jobs: int) -> None:
    claims = drained(world, processes, jobs)
    assert len(claims) == jobs
    assert set(claims.values()) == {1}
    assert {generation for _, generation in claims} == {"1"}
    assert work.counts(world.connection)["DONE"] == jobs
    assert world.connection.execute("SELECT count(DISTINCT work), count(*) FROM reports").fetchone() == (
        jobs,
        jobs,
    )


def test_8_processes_with_1000_jobs_each_claim_every_job_once(world: World) -> None:
    assert_each_claimed_once(world, 8, 8 * 1000)


def test_triggers_do_nothing_unless_armed(world: World) -> None:
    reached: list[str] = []
    triggers.arm(reached.append)
    world.observe(world.claimed())
    triggers.disarm()
    world.observe(world.claimed())
    assert [point for point in reached if point.startswith("observe")] == [
        "observe.before_commit",
        "observe.committed",
    ]
