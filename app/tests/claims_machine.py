"""Work, claims, delegation, eras, clocks, deaths, and a model that says of each claim whether it may write.

The half of the state machine that knows no orders. The model is told what was asked for and what came of it.
It never reads the store to find out whether a claim is current, so it cannot share the store's mistakes.
"""

import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from buying import Buying
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from world import HOST, dump

from standfast import authority, work
from standfast.authority import MAX_LEASE, Claim, StaleClaim
from standfast.authority import marker as markers
from standfast.clock import Clock
from standfast.errors import Refused
from standfast.store import immediate, triggers

PICK = st.integers(0, 7)
MOSTLY = 5
SERVICE, HELPER = "service", "helper"
CHILDREN = work.DelegationPolicy(children=2, beyond_lease=600.0)


class Died(BaseException):
    """The process ends here; nothing of it runs on."""


@dataclass(eq=False)
class Process:
    """One process that takes work under a label; its successor has the label, not the clock."""

    label: str
    clock: Clock
    recovered: bool = True
    """Whether it took again what its predecessor left."""


@dataclass(eq=False)
class Held:
    """A claim in its holder's hand, and until when it may write."""

    claim: Claim
    clock: Clock
    """Of the process that holds it, which goes on by this clock even when a successor was started."""
    ends: float
    """By that clock."""
    boot_ends: float
    """By the clock that nobody sets: no step of the wall clock may carry the lease past it."""
    ended: str = field(default="")
    """What ended it before its time."""


def refusal(act: Callable[[], object]) -> Refused | None:
    """How it was refused, if it was."""
    try:
        act()
    except Refused as refused:
        return refused
    return None


class Claims(RuleBasedStateMachine):
    """Claims are taken, renewed, used, lost; every write is done exactly when the model allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="sf-machine-"))
        self.shop = Buying(self.folder)
        self.shop.connection.execute("PRAGMA synchronous = OFF")
        self.reader = sqlite3.connect(self.shop.layout.database, autocommit=True)
        self.service = Process(SERVICE, self.shop.clock)
        self.helper = Process(HELPER, self.shop.time.clock())
        self.paused = False
        self.marker_fits = True
        self.held: list[Held] = []
        self.admitted = 0
        self.parents: dict[str, str] = {}
        self.deadlines: dict[str, float] = {}
        self.canceled: set[str] = set()
        self.generations: dict[str, int] = {}
        self.interrupted: list[tuple[object, ...]] = []
        self.written: Counter[tuple[str, int]] = Counter()

    def teardown(self) -> None:
        triggers.disarm()
        self.reader.close()
        self.shop.close()
        shutil.rmtree(self.folder)

    def committed(self, query: str, *values: object) -> list[tuple[object, ...]]:
        """What another connection reads."""
        return self.reader.execute(query, values).fetchall()

    # The model.

    def acting(self) -> bool:
        """Whether anybody may act at all."""
        return not self.paused and self.marker_fits

    def may_write(self, held: Held) -> bool:
        """The fence once more, from what the model was told."""
        now = held.clock.now()
        return (
            self.acting()
            and not held.ended
            and now < held.ends
            and self.child_may_go_on(held.claim.work, now)
        )

    def child_may_go_on(self, identity: str, now: float) -> bool:
        """True of everything that is no child, too."""
        parent = self.parents.get(identity)
        return parent is None or (now < self.deadlines[identity] and parent not in self.canceled)

    def writes(self, held: Held, write: Callable[[], object], *allowed: str) -> bool:
        """Do one write for a claim: done exactly when it may be. ``allowed``: refusals for other reasons."""
        may = self.may_write(held)
        before = None if may else dump(self.shop.connection)
        refused = refusal(write)
        if isinstance(refused, StaleClaim):
            assert not may, f"a current claim was refused: {refused}"
            assert dump(self.shop.connection) == before, "a refusal wrote something"
            return False
        assert may, f"a stale claim wrote: {held.ended or 'its time had passed'}"
        assert self.shop.time.boot < held.boot_ends, "a step of the clock lengthened a lease"
        assert refused is None or refused.code in allowed
        return refused is None

    def wrote(self, held: Held) -> None:
        """One row of the transcript came with the write."""
        self.written[held.claim.work, held.claim.generation] += 1

    def picked_claim(self, pick: int) -> Held:
        """The newest first, and mostly one that may write: most of what a run does should count."""
        live = [held for held in self.held if self.may_write(held)]
        found = live if live and pick < MOSTLY else self.held
        return found[-1 - pick % len(found)]

    # Taking work.

    def admit(self, session: str = "") -> str:
        self.admitted += 1
        request = work.Request(
            origin=f"o{self.admitted}", session=session or f"s{self.admitted}", prompt="buy"
        )
        with immediate(self.shop.connection):
            admitted = work.admit_within(self.shop.connection, request, now=self.shop.now(), limits=None)
        return admitted.work

    def take(self, process: Process, lease: float = 300.0) -> Held | None:
        """Claim the next work there is, as a process does that starts or goes on."""
        if not process.recovered and self.acting():
            self._take_own_again(process)
        now = process.clock.now()
        claim = authority.claim_next(
            self.shop.connection, owner=process.label, now=now, marker=self.shop.marker, lease=lease
        )
        if claim is None:
            assert not self.acting() or not self._to_be_claimed(now), "work that waits was not handed out"
            return None
        for other in self.held:
            if other.claim.work == claim.work and not other.ended:
                assert not now < other.ends <= now + MAX_LEASE, "a live claim was taken away"
        return self._handed_out(claim, process, now, lease)

    def take_this(self, process: Process, wanted: str) -> Held | None:
        """Claim until a certain work item comes; None when it never does."""
        while held := self.take(process):
            if held.claim.work == wanted:
                break
        return held

    def _take_own_again(self, process: Process) -> None:
        process.recovered = True
        now = process.clock.now()
        for claim in authority.claim_own(
            self.shop.connection, owner=process.label, now=now, marker=self.shop.marker
        ):
            assert claim.owner == process.label
            self._handed_out(claim, process, now, authority.DEFAULT_LEASE)

    def _handed_out(self, claim: Claim, process: Process, now: float, lease: float) -> Held:
        assert self.acting(), "work was handed out while paused"
        assert self.child_may_go_on(claim.work, now), "a child was handed out that had ended"
        assert claim.generation > self.generations.get(claim.work, 0), "a generation was used twice"
        for other in self.held:
            if other.claim.work == claim.work:
                other.ended = other.ended or "superseded"
        held = Held(claim, process.clock, now + lease, self.shop.time.boot + lease)
        self.held.append(held)
        return held

    def _to_be_claimed(self, now: float) -> list[str]:
        """What must be handed out now, by a reading of the rows that shares nothing with the claim's."""
        rows = self.committed("SELECT id, session, status, lease_until FROM work ORDER BY seq")
        running = {session for _, session, status, _ in rows if status == "RUNNING"}
        return [
            str(identity)
            for identity, session, status, lease_until in rows
            if self.child_may_go_on(str(identity), now)
            and (
                (status == "READY" and session not in running)
                or (isinstance(lease_until, float) and lease_until <= now)
            )
        ]

    @rule(
        helper=st.booleans(),
        shared=st.booleans(),
        lease=st.sampled_from([300.0, 300.0, 60.0, 900.0]),
    )
    def work_is_taken(self, helper: bool, shared: bool, lease: float) -> None:
        self.admit("shared" if shared else "")
        self.take(self.helper if helper else self.service, lease)

    # Writing.

    @precondition(lambda self: self.held)
    @rule(
        pick=PICK,
        how=st.sampled_from(
            [*["observe"] * 3, *["renew"] * 2, "DONE", "BLOCKED", "CANCELED", "goes on", "goes on"]
        ),
        lease=st.sampled_from([300.0, 60.0, 900.0]),
    )
    def a_claim_writes(self, pick: int, how: str, lease: float) -> None:
        held = self.picked_claim(pick)
        if how == "observe":
            self.tries(held)
        elif how == "renew":
            self._renew(held, lease)
        elif how == "goes on":
            self._go_on(held)
        elif self.writes(held, lambda: self.finish(held, how)):
            held.ended = how
            if how == "CANCELED":
                self.canceled.add(held.claim.work)

    def _go_on(self, held: Held) -> None:
        """End the claim and take the next in one commit."""
        shop = self.shop
        taken: list[Claim | None] = []

        def go_on() -> None:
            taken.append(
                work.finish_and_claim(
                    shop.connection, held.claim, "DONE", report="said", clock=held.clock, marker=shop.marker
                )[1]
            )

        if self.writes(held, go_on):
            held.ended = "DONE"
            if taken[0] is not None:
                process = Process(held.claim.owner, held.clock)
                self._handed_out(taken[0], process, held.clock.now(), authority.DEFAULT_LEASE)

    def observe(self, held: Held) -> None:
        work.observe(self.shop.connection, held.claim, "seen", clock=held.clock, marker=self.shop.marker)

    def finish(self, held: Held, how: str) -> None:
        status: work.Ending = "CANCELED" if how == "CANCELED" else "BLOCKED" if how == "BLOCKED" else "DONE"
        work.finish(
            self.shop.connection,
            held.claim,
            status,
            report="said",
            clock=held.clock,
            marker=self.shop.marker,
        )

    def _renew(self, held: Held, lease: float) -> None:
        shop, ends = self.shop, held.ends

        def renew() -> None:
            nonlocal ends
            ends = authority.renew(
                shop.connection, held.claim, clock=held.clock, marker=shop.marker, lease=lease
            )

        if self.writes(held, renew):
            held.ends = max(held.ends, held.clock.now() + lease)
            held.boot_ends = max(held.boot_ends, shop.time.boot + lease)
            assert ends == held.ends

    # Delegation.

    @precondition(lambda self: self.held)
    @rule(
        pick=PICK,
        subject=st.sampled_from(["vanilla", "strawberry", "chocolate"]),
        seconds=st.sampled_from([60.0, 200.0, 2000.0]),
        then=st.sampled_from(["waits", "early end", "works", "works", "parent canceled", "deadline comes"]),
    )
    def a_claim_delegates(self, pick: int, subject: str, seconds: float, then: str) -> None:
        held = self.picked_claim(pick)
        made: list[work.Delegated] = []
        if not self.writes(
            held,
            lambda: made.append(self.delegate(held, subject, seconds)),
            "no_delegation",
            "delegation_limit",
        ):
            return
        [child] = made
        assert held.claim.work not in self.parents, "a child delegated"
        assert child.created == (child.work not in self.parents)
        if child.created:
            self.wrote(held)
            self.parents[child.work] = held.claim.work
            self.deadlines[child.work] = min(held.clock.now() + seconds, held.ends + CHILDREN.beyond_lease)
        assert self.parents[child.work] == held.claim.work
        assert child.deadline == self.deadlines[child.work]
        if then == "early end":
            self.cancel(held.claim.work)
        elif then != "waits":
            held_by_child = self.take_this(self.helper, child.work)
            if held_by_child is not None:
                self.child_works(held_by_child, then)

    def child_works(self, child: Held, then: str) -> None:
        """It may write until its end, and not at that moment or later, whatever its own lease says."""
        identity = child.claim.work
        if then == "parent canceled":
            self.cancel(self.parents[identity])
        elif then == "deadline comes":
            self._renew(child, 900.0)
            self.shop.time.passes(max(0.0, self.deadlines[identity] - child.clock.now()))
        self.tries(child)

    def delegate(self, held: Held, subject: str, seconds: float) -> work.Delegated:
        return work.delegate(
            self.shop.connection,
            held.claim,
            subject=subject,
            prompt="look",
            seconds=seconds,
            clock=held.clock,
            marker=self.shop.marker,
            policy=CHILDREN,
        )

    @precondition(lambda self: self.parents)
    @rule()
    def children_are_closed(self) -> None:
        now = self.shop.now()
        closed = {one.work for one in work.close_children(self.shop.connection, now=now)}
        statuses = self.committed("SELECT id, status FROM work WHERE parent IS NOT NULL")
        assert not {
            child
            for child, status in statuses
            if status in {"READY", "RUNNING", "BLOCKED"} and not self.child_may_go_on(str(child), now)
        }, "a child outlived its parent or its deadline"
        for child in closed:
            assert not self.child_may_go_on(child, now), "a child was closed that may go on"
            self._canceled(child)

    def cancel(self, identity: str) -> None:
        """As an operator does; a child's cancellation is its own."""
        told: list[work.Canceled] = []
        refused = refusal(
            lambda: told.append(work.cancel(self.shop.connection, identity, reason="no", now=self.shop.now()))
        )
        if refused is not None:
            assert refused.code == "work_finished"
            return
        self._canceled(identity)
        open_left = self.committed(
            "SELECT id FROM work WHERE parent = ? AND status IN ('READY', 'BLOCKED')", identity
        )
        assert not told[0].changed or not open_left, "a canceled parent left a child behind"

    def _canceled(self, identity: str) -> None:
        self.canceled.add(identity)
        for held in self.held:
            if held.claim.work == identity:
                held.ended = held.ended or "canceled"

    # Eras.

    @precondition(lambda self: self.held)
    @rule(
        pick=PICK,
        how=st.sampled_from(
            [
                *["cancel", "cancel the parent", "revoke", "expire"] * 3,
                *["pause", "pause, resumed", "pause, resumed"],
                *["era", "era, resumed", "era, cut short"],
            ]
        ),
    )
    def authority_ends(self, pick: int, how: str) -> None:
        """One rule for all of it, so that most of a run is work. A holder that was not told tries at once."""
        held = self.picked_claim(pick)
        identity = held.claim.work
        if how.startswith("cancel"):
            self.cancel(identity if how == "cancel" else self.parents.get(identity, identity))
        elif how.startswith("pause"):
            self.paused |= authority.pause(self.shop.connection, "a look", self.shop.now())
        elif how.startswith("era"):
            self._era_ends(how)
        else:
            self.approval_ends(pick, how)
        self.tries(held)
        if how.endswith("resumed"):
            self.resume()
            self.tries(held)

    def tries(self, held: Held) -> None:
        """Its holder goes on as if nothing had happened."""
        if self.writes(held, lambda: self.observe(held)):
            self.wrote(held)

    def approval_ends(self, pick: int, how: str) -> None:
        """The half that knows orders says what that is."""

    def _era_ends(self, how: str) -> None:
        if how == "era, cut short":
            assert self.dies_in("replace.committed", self.replace)
        else:
            self.replace()
        self.era_ended()
        if how == "era, cut short":
            self.service_dies()

    def replace(self) -> None:
        running = "SELECT id, generation FROM work WHERE status = 'RUNNING'"
        self.interrupted = self.committed(running)
        authority.replace(self.shop.connection, self.shop.layout, "restored", self.shop.now(), HOST)

    def era_ended(self) -> None:
        self.paused = True
        self.marker_fits = markers.read_epoch(self.shop.marker) == self.epoch()
        for held in self.held:
            held.ended = held.ended or "the era ended"
        found = self.committed("SELECT id, status, generation FROM work")
        rows = {identity: (status, generation) for identity, status, generation in found}
        for identity, generation in self.interrupted:
            assert rows[identity] == ("READY", int(str(generation)) + 1), "interrupted work kept its claim"
        assert "RUNNING" not in {status for status, _ in rows.values()}, "work runs on into the next era"

    @precondition(lambda self: self.paused)
    @rule()
    def operations_resume(self) -> None:
        self.resume()

    def resume(self) -> None:
        shop = self.shop
        if not self.paused:
            return
        if not self.marker_fits:
            early = refusal(lambda: authority.resume(shop.connection, shop.marker, "too early", shop.now()))
            assert early is not None, "an era whose end was cut short went on"
            assert early.code == "marker_disagrees"
            self.replace()
            self.era_ended()
            assert self.marker_fits
        assert authority.resume(shop.connection, shop.marker, "inspected", shop.now())
        self.paused = False

    def epoch(self) -> str:
        return authority.operations(self.shop.connection).epoch

    # Clocks and deaths.

    @rule(
        how=st.sampled_from(
            [*["passes", "is set"] * 2, *["to the end"] * 3, "the service dies", "the helper dies"]
        ),
        seconds=st.sampled_from([1.0, 60.0, 301.0, 1800.0, 3500.0, -1.0, -300.0, 86400.0, -86400.0]),
        pick=PICK,
    )
    def time_and_death(self, how: str, seconds: float, pick: int) -> None:
        """``to the end``: to the very moment at which a claim's lease ends, or its deadline comes."""
        held = self.picked_claim(pick) if self.held else None
        if how == "passes":
            self.shop.time.passes(abs(seconds))
        elif how == "is set":
            self.shop.time.wall += seconds
        elif how == "the service dies":
            self.service_dies()
        elif how == "the helper dies":
            self.helper = Process(HELPER, self.shop.time.clock())
        elif held is not None:
            ends = min(held.ends, self.deadlines.get(held.claim.work, held.ends))
            self.shop.time.passes(max(0.0, ends - held.clock.now()))
        if held is not None:
            self.tries(held)

    def service_dies(self) -> None:
        """And starts again. What it held stays in ``held``: a process that was only thought dead goes on."""
        self.shop.clock = self.shop.time.clock()
        self.service = Process(SERVICE, self.shop.clock, recovered=False)

    def mortal_acts(self, held: Held) -> Mapping[str, Callable[[], object]]:
        """What a process can die in."""
        return {
            "claim": lambda: authority.claim_next(
                self.shop.connection, owner=SERVICE, now=self.shop.now(), marker=self.shop.marker
            ),
            "observe": lambda: self.observe(held),
            "finish": lambda: self.finish(held, "DONE"),
            "delegate": lambda: self.delegate(held, "vanilla", 200.0),
            "cancel": lambda: work.cancel(
                self.shop.connection, held.claim.work, reason="no", now=self.shop.now()
            ),
            "close_children": lambda: work.close_children(self.shop.connection, now=self.shop.now()),
        }

    @precondition(lambda self: self.held)
    @rule(pick=PICK, act=st.integers(0, 63), committed=st.booleans())
    def a_process_dies_at_a_commit(self, pick: int, act: int, committed: bool) -> None:
        held = self.picked_claim(pick)
        acts = self.mortal_acts(held)
        name = list(acts)[act % len(acts)]
        if name == "claim":
            self.admit()
        may = self.may_write(held) or name in {"claim", "cancel", "close_children"}
        before = dump(self.shop.connection)
        died = self.dies_in("committed" if committed else "before_commit", acts[name])
        if not (died and committed and may):
            assert dump(self.shop.connection) == before, "a transaction that was cut short left something"
        self.learn_what_was_committed()
        self.service_dies()

    def dies_in(self, point: str, act: Callable[[], object]) -> bool:
        """Whether the process came to the point, and so died there."""

        def die(reached: str) -> None:
            if reached.endswith(point):
                raise Died

        triggers.arm(die)
        try:
            act()
        except Died:
            return True
        except Refused:
            return False
        finally:
            triggers.disarm()
        return False

    def learn_what_was_committed(self) -> None:
        """Nobody heard what the dying process did; here alone the model asks the store."""
        rows = {
            str(row[0]): row[1:]
            for row in self.committed("SELECT id, status, generation, parent, deadline FROM work")
        }
        for identity, (status, _, parent, deadline) in rows.items():
            if parent is not None:
                assert isinstance(deadline, float)
                self.parents[identity], self.deadlines[identity] = str(parent), deadline
            if status == "CANCELED":
                self.canceled.add(identity)
        for held in self.held:
            status, generation, *_ = rows[held.claim.work]
            if (status, generation) != ("RUNNING", held.claim.generation):
                held.ended = held.ended or "decided by what was committed"
        self.written = self._transcript()

    # What always holds.

    @invariant()
    def generations_only_rise(self) -> None:
        rows = self.committed("SELECT id, generation, session, status FROM work")
        for identity, generation, _, _ in rows:
            assert isinstance(generation, int)
            assert generation >= self.generations.get(str(identity), 0), "a generation fell"
            self.generations[str(identity)] = generation
        running = [session for _, _, session, status in rows if status == "RUNNING"]
        assert len(running) == len(set(running)), "a session has two live claims"

    @invariant()
    def only_what_was_allowed_was_written(self) -> None:
        assert self._transcript() == self.written
        latest: dict[str, int] = {}
        for identity, generation in self.committed("SELECT work, generation FROM transcript ORDER BY seq"):
            assert isinstance(generation, int)
            assert generation >= latest.get(str(identity), 0), "an older claim wrote after a newer one"
            latest[str(identity)] = generation

    def _transcript(self) -> Counter[tuple[str, int]]:
        return Counter(
            (str(identity), int(str(generation)))
            for identity, generation in self.committed("SELECT work, generation FROM transcript")
        )
