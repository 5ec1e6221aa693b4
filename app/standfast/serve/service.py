"""The service: bounded passes over what is due, and waiting in between that costs next to nothing.

A pass: schedules that are due, low-stock episodes, delegated work that ended, orders, one claim and its turn,
reports into the outbox. The first one asks the supplier whether this state is older than the world.
Waiting asks the store one PRAGMA a second and never a model.
"""

import faulthandler
import logging
import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from standfast import orders
from standfast.agent import Model, OfflinePlanner, Status, usage
from standfast.agent.live import LiveModel
from standfast.authority import (
    Claim,
    Operations,
    StaleClaim,
    claim_next,
    claim_own,
    host_identity,
    operations,
    writer_lock,
)
from standfast.clock import Clock
from standfast.errors import Refused, StoreBusy
from standfast.layout import Layout, running_release
from standfast.notify import Notifier
from standfast.operations.opening import refuse_other_user
from standfast.operations.schema import COMPONENTS
from standfast.serve.channel import ChannelThread
from standfast.serve.journal import facts, to_stderr
from standfast.serve.obstacles import not_ours
from standfast.serve.purchasing import Purchasing
from standfast.serve.settings import POLL_SECONDS, Settings, load
from standfast.serve.turn import Worker
from standfast.serve.waiting import FINISH_SECONDS, Stop, data_version, until_something_happens
from standfast.shop import episodes
from standfast.shop.plan import plan
from standfast.store import open_store
from standfast.work import (
    Outbox,
    channels,
    close_children,
    deliver_pending,
    fire_due,
    keep_run,
    list_schedules,
    resume_deliveries,
    show_run,
    start_run,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Served:
    """What one start of the service did until it was told to stop."""

    run: str
    passes: int
    turns: int


def serve(
    layout: Layout,
    *,
    environment: Mapping[str, str] = os.environ,
    notifier: Notifier | None = None,
    clock: Clock | None = None,
    model: Model | None = None,
    finish: float = FINISH_SECONDS,
) -> Served:
    """Run until SIGTERM or SIGINT; then a turn in hand has ``finish`` seconds more.

    Raises ConfigurationInvalid before anything is opened; Refused when another process holds the writer lock,
    or the store is absent, foreign or newer. ``model``, ``clock`` and ``finish`` are for tests.
    """
    to_stderr(environment)
    faulthandler.enable()
    notifier = notifier or Notifier()
    clock = clock or Clock()
    settings = load(layout, environment, notifier.watchdog_seconds)
    stop = Stop(finish)
    refuse_other_user(layout)
    with (
        stop.listening(notifier.stopping),
        writer_lock(layout),
        closing(open_store(layout.database, COMPONENTS)) as connection,
    ):
        operations(connection)  # refused here rather than in every pass when there was no init
        run = start_run(
            connection,
            release=running_release(),
            pid=os.getpid(),
            invocation=environment.get("INVOCATION_ID", ""),
            now=clock.now(),
        )
        worker = Worker(
            connection=connection,
            layout=layout,
            clock=clock,
            settings=settings,
            model=model or _configured(settings),
            run=run,
            on_step=notifier.watchdog,
            stop=lambda: stop.overdue,
            wait=stop.pause,
        )
        _say_model(worker)
        service = Service(worker, notifier, stop)
        with ChannelThread(layout, clock, settings, may_deliver=lambda: service.recovered):
            service.run()
        if isinstance(worker.model, LiveModel):
            worker.model.close()
    log.info("stopped: %s", facts(run=run, passes=service.passes, turns=service.turns))
    return Served(run=run, passes=service.passes, turns=service.turns)


def _configured(settings: Settings) -> Model:
    return OfflinePlanner(plan) if settings.live is None else LiveModel(settings.live)


def _say_model(worker: Worker) -> None:
    """Which model answers, in the journal and, for those who only read the store, in the usage account."""
    settings, source = worker.settings, worker.model.source
    table = settings.shop.model
    usage.set_up(
        worker.connection, source=source, prices=table.prices, ceilings=table.ceilings, now=worker.clock.now()
    )
    if settings.live is None:
        log.info("no live model: %s", facts(source=source, reason="STANDFAST_MODEL names none"))
    else:
        log.info("live model: %s", facts(source=source, priced=table.prices is not None))


class Service:
    """Passes and waiting, for one start of the service under the writer lock."""

    def __init__(
        self,
        worker: Worker,
        notifier: Notifier,
        stop: Stop,
        supplier: orders.SupplierAccount | None = None,
    ) -> None:
        self.passes = 0
        self.turns = 0
        self._worker = worker = replace(worker, on_step=self._stepped)
        self._notifier = notifier
        self._stop = stop
        self._connection: sqlite3.Connection = worker.connection
        self._clock = worker.clock
        self._settings: Settings = worker.settings
        self._layout = worker.layout
        self._owner = worker.layout.instance().instance
        self._host = host_identity()
        # Another channel than the outbox can be slow, and is served by a thread of its own.
        self._outbox = Outbox(worker.layout.outbox) if worker.settings.channel is None else None
        self._purchasing = Purchasing(worker, supplier)
        self._run = show_run(worker.connection, worker.run)
        self._epoch = operations(worker.connection).epoch
        # A pass has compared this state with the supplier's memory and closed what was left open.
        self.recovered = False
        self._in_hand: Claim | None = None
        self._said = ""
        self._next_slot: float | None = None
        self._failed_at: int | None = None

    def run(self) -> None:
        """Say READY, then pass and wait until told to stop."""
        log.info(
            "ready: %s",
            facts(
                run=self._worker.run,
                release=running_release(),
                pid=os.getpid(),
                owner=self._owner,
                model=self._worker.model.source,
            ),
        )
        self._notifier.ready()
        while not self._stop.requested:
            try:
                seen = data_version(self._connection)
                if self.one_pass():
                    continue
                self._wait(seen)
            except (StoreBusy, sqlite3.OperationalError) as error:
                # No watchdog ping: a store that stays locked ends in a restart that says so.
                log.warning("pass failed, trying again: %s", facts(error=str(error)))
                self._failed_at = self._connection.total_changes
                self._stop.wait(POLL_SECONDS)
        log.info("stopping: %s", facts(run=self._worker.run))

    def one_pass(self) -> bool:
        """One bounded pass; True when it found something to do, so that more may follow."""
        did = self._work() if self._may_work() else False
        self.passes += 1
        self._failed_at = None
        self._notifier.watchdog()
        return did

    def _stepped(self) -> None:
        """A watchdog ping, unless a pass failed and nothing could be written since.

        Steps that only ask, a supplier or a model, succeed beside a store that stays locked; pings for those
        would keep a service alive for ever that does nothing.
        """
        if self._failed_at is None or self._connection.total_changes > self._failed_at:
            self._failed_at = None
            self._notifier.watchdog()

    def _may_work(self) -> bool:
        control = operations(self._connection)
        obstacle = self._obstacle(control)
        self._say(f"not working: {obstacle}" if obstacle else "working")
        if obstacle:
            return False
        if control.epoch != self._epoch:
            # Restored beside us: what is finished from here on names a run that this store does not know.
            keep_run(self._connection, self._run)
            self._epoch = control.epoch
        return True

    def _obstacle(self, control: Operations) -> str:
        """Why this state directory must not be worked on now; empty when it may."""
        found = not_ours(control, self._layout, self._host)
        return found or (f"paused: {control.reason}" if control.paused else "")

    def _say(self, state: str) -> None:
        if state != self._said:
            self._said = state
            log.log(logging.INFO if state == "working" else logging.WARNING, "%s", state)
            self._notifier.status(state)

    def _work(self) -> bool:
        if not self._purchasing.remembers():
            return True
        steps = (
            self._recover,
            self._fire,
            self._watch_stock,
            self._close_children,
            self._purchasing.one_pass,
            self._turn,
        )
        did = [self._step(step) for step in steps]
        if self._stop.requested:
            return False
        did.append(self._step(self._deliver))
        self._next_slot = min((s.next_slot for s in list_schedules(self._connection)), default=None)
        return any(did)

    def _step(self, step: Callable[[], bool]) -> bool:
        """One step of a pass. What a rule refuses there neither ends the service nor stops the next step."""
        try:
            return step()
        except Refused as refused:
            log.warning(
                "refused: %s", facts(code=refused.code, reason=refused.reason, observed=str(refused.observed))
            )
            return False

    def _deliver(self) -> bool:
        if self._outbox is None:
            return False
        delivered = deliver_pending(self._connection, self._outbox, clock=self._clock)
        if delivered:
            log.info("delivered: %s", facts(reports=delivered))
        return bool(delivered)

    def _recover(self) -> bool:
        """Once, in the first pass that may work: close what an earlier process left RUNNING."""
        if self.recovered:
            return False
        if self._outbox is not None:
            channels.clear(self._connection)
            channels.say(self._connection, "outbox", "", self._clock.now())
            resume_deliveries(self._connection, self._outbox)
        left = claim_own(
            self._connection,
            owner=self._owner,
            now=self._clock.now(),
            marker=self._layout.marker,
            lease=self._settings.lease,
        )
        for claim in left:
            self._close(claim)
        self.recovered = True
        return bool(left)

    def _close(self, claim: Claim) -> None:
        """Work that only followed its orders goes on doing so; any other is said to be interrupted."""
        if not orders.waits(self._connection, claim.work):
            self._worker.close_interrupted(claim)
            return
        try:
            self._purchasing.put_back(claim)
        except StaleClaim as stale:
            log.warning("ending refused: %s", facts(work=claim.work, reason=str(stale)))

    def _fire(self) -> bool:
        # The wall clock: a slot is a time of day. Each fires once, whichever way the clock is set.
        fired = fire_due(self._connection, now=self._clock.wall())
        for one in fired:
            log.log(
                logging.WARNING if one.work is None else logging.INFO,
                "schedule fired: %s" if one.work else "schedule's slot skipped: %s",
                facts(
                    schedule=one.schedule,
                    slot=one.slot,
                    work=one.work,
                    skipped=one.skipped,
                    reason=one.reason or None,
                ),
            )
        return bool(fired)

    def _watch_stock(self) -> bool:
        changes = episodes.watch(self._connection, self._settings.shop, now=self._clock.now())
        for change in changes:
            log.info(
                "low stock: %s" if change.opened else "stock recovered: %s",
                facts(sku=change.sku, work=change.work),
            )
        return bool(changes)

    def _close_children(self) -> bool:
        closed = close_children(self._connection, now=self._clock.now())
        for child in closed:
            log.info("delegated work closed: %s", facts(work=child.work, reason=child.reason))
        return bool(closed)

    def _turn(self) -> bool:
        """Take work and do it. A turn that the locked store cut short stays in hand for the next pass."""
        if self._in_hand is None and not self._stop.requested:
            self._in_hand = claim_next(
                self._connection,
                owner=self._owner,
                now=self._clock.now(),
                marker=self._layout.marker,
                lease=self._settings.lease,
            )
        if self._in_hand is None:
            return False
        follows = orders.waits(self._connection, self._in_hand.work)
        try:
            status = (self._purchasing.follow if follows else self._worker.turn)(self._in_hand)
        except Refused:
            self._in_hand = None  # it is taken again when its lease has passed; other work comes first
            raise
        self._in_hand = None
        self.turns += status not in {Status.STOP_REQUESTED, Status.AUTHORITY_LOST}
        return status != Status.AUTHORITY_LOST

    def _wait(self, seen: int) -> None:
        until_something_happens(
            self._connection,
            self._stop,
            seen=seen,
            longest=self._settings.longest_wait,
            poll=POLL_SECONDS,
            due=self._slot_is_due,
        )

    def _slot_is_due(self) -> bool:
        return self._next_slot is not None and self._clock.wall() >= self._next_slot
