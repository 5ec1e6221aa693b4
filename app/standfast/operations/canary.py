"""The canary: a fresh unit of business work that the running service must finish, with a report.

Success is never `active (running)`: it is new work, finished by an installed process that says who it is.
"""

import secrets
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from pydantic import BaseModel

from standfast import work
from standfast.authority import operations, refuse_other_marker
from standfast.clock import Clock
from standfast.errors import Refused, StandfastError
from standfast.layout import Layout
from standfast.operations.schema import COMPONENTS, understood
from standfast.store import open_readonly, open_store, schema_versions

PROMPT = "This is a canary: report what is on hand now."
SESSION = "canary"
DEFAULT_TIMEOUT = 60.0
POLL_SECONDS = 0.1


def is_canary(session: str) -> bool:
    """Whether work of this session is a canary's."""
    return session.startswith(f"{SESSION}-")


class CanaryRun(BaseModel):
    """The start of the service that finished the canary."""

    id: str
    release: str
    pid: int


class CanaryResult(BaseModel):
    """What the canary proved; with `--check` nothing was asked and the facts are null."""

    changed: bool
    check: bool
    work: str | None = None
    generation: int | None = None
    seconds: float | None = None
    """From the request to its end being seen."""
    report: str | None = None
    """The id of the report that the work left."""
    run: CanaryRun | None = None


class CanaryFailed(StandfastError):
    """The canary was not finished as asked; the message says what was and was not done."""

    def __init__(self, code: str, reason: str, *, observed: str, remedy: str) -> None:
        super().__init__(reason)
        self.code, self.observed, self.remedy = code, observed, remedy


@dataclass(frozen=True)
class Expectation:
    """Which process may finish the canary; None accepts any."""

    pid: int | None = None
    release: str | None = None


def run(
    layout: Layout,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    expect: Expectation | None = None,
    check: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> CanaryResult:
    """Ask for one fresh unit of work and wait, `timeout` seconds at most, until the service finished it.

    Raises Refused (nothing was asked): `paused`, `marker_disagrees`, `schema_differs`, and the store's own.
    Raises CanaryFailed: `canary_timeout`, `canary_not_done`, `finished_by_other`.
    """
    if check:
        with closing(open_readonly(layout.database)) as connection:
            _refuse_unless_active(connection, layout)
        return CanaryResult(changed=True, check=True)
    return land(layout, ask(layout), timeout=timeout, expect=expect, sleep=sleep)


@dataclass(frozen=True)
class Flight:
    """A canary that was asked for."""

    work: str
    asked_at: float
    """By the clock of `time.monotonic`."""


def ask(layout: Layout) -> Flight:
    """Ask for one fresh unit of work, for whichever process serves next. Raises Refused as `run`."""
    with closing(open_readonly(layout.database)) as connection:
        _refuse_unless_active(connection, layout)
    with closing(open_store(layout.database, COMPONENTS)) as connection:
        return _Canary(connection, Clock()).ask()


def land(
    layout: Layout,
    flight: Flight,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    expect: Expectation | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> CanaryResult:
    """Wait, `timeout` seconds at most, until the service has finished it. Raises CanaryFailed as `run`."""
    with closing(open_store(layout.database, COMPONENTS)) as connection:
        return _Canary(connection, Clock(), sleep).land(flight, timeout, expect or Expectation())


def withdraw(layout: Layout, flight: Flight, reason: str) -> str:
    """Cancel it unless a worker has it; the clause that says which."""
    with closing(open_store(layout.database, COMPONENTS)) as connection:
        return _Canary(connection, Clock()).withdraw(flight.work, reason)


def _refuse_unless_active(connection: sqlite3.Connection, layout: Layout) -> None:
    control = operations(connection)
    if control.paused:
        raise Refused(
            "paused",
            "the instance is paused, so nothing would be finished",
            observed=f"paused: {control.reason}",
            remedy="see `standfast health` for why; ask for a canary once operations go on",
        )
    refuse_other_marker(connection, layout.marker)
    present = schema_versions(connection)
    if present != understood():
        raise Refused(
            "schema_differs",
            "the store is not at this release's schema; a canary must not change it",
            observed=f"store {present}, this release {understood()}",
            remedy="run the canary of the release that the service runs",
        )


class _Canary:
    def __init__(
        self, connection: sqlite3.Connection, clock: Clock, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._connection, self._clock, self._sleep = connection, clock, sleep

    def ask(self) -> Flight:
        token = secrets.token_hex(12)
        began = time.monotonic()
        # A session of its own: another one that is stuck must not keep this one waiting.
        asked = work.admit(
            self._connection,
            origin=f"canary:{token}",
            session=f"{SESSION}-{token}",
            prompt=PROMPT,
            now=self._clock.now(),
        )
        assert asked.work is not None
        return Flight(asked.work, began)

    def land(self, flight: Flight, timeout: float, expect: Expectation) -> CanaryResult:
        try:
            item = self._wait(flight.work, time.monotonic() + timeout)
        except KeyboardInterrupt:
            self.withdraw(flight.work, "interrupted")
            raise
        seconds = round(time.monotonic() - flight.asked_at, 3)
        if item is None:
            raise self._timed_out(flight.work, timeout)
        return self._judged(item, seconds, expect)

    def _wait(self, wanted: str, until: float) -> work.WorkItem | None:
        while True:
            item = work.show_work(self._connection, wanted)
            if item.status not in {"READY", "RUNNING"}:
                return item
            left = until - time.monotonic()
            if left <= 0:
                return None
            self._sleep(min(POLL_SECONDS, left))

    def _timed_out(self, wanted: str, timeout: float) -> CanaryFailed:
        told = self.withdraw(wanted, f"canary not claimed within {timeout:g} s")
        latest = work.latest_run(self._connection)
        service = f"last start of the service: pid {latest.pid}" if latest else "the service never started"
        paused = ", paused meanwhile" if operations(self._connection).paused else ""
        return CanaryFailed(
            "canary_timeout",
            f"the service did not finish the canary within {timeout:g} s; {told}",
            observed=f"{service}{paused}",
            remedy="see `standfast health` and the service's journal",
        )

    def withdraw(self, wanted: str, reason: str) -> str:
        """Cancel the request unless a worker has it; the clause that says which."""
        try:
            work.cancel(self._connection, wanted, reason=reason, now=self._clock.now(), only_unclaimed=True)
        except Refused:
            item = work.show_work(self._connection, wanted)
            return f"work {wanted} is {item.status} and was left to the service, which may still end it"
        return f"work {wanted} was never claimed and has been canceled; nothing else was done"

    def _judged(self, item: work.WorkItem, seconds: float, expect: Expectation) -> CanaryResult:
        reports = work.list_reports(self._connection, work=item.id, limit=1)
        # At a later generation a first process took it and did not finish it: what a canary must tell.
        if item.status != "DONE" or not reports or item.run is None or item.generation != 1:
            raise CanaryFailed(
                "canary_not_done",
                f"the canary ended as {item.status} {'with' if reports else 'without'} a report"
                f" at generation {item.generation}",
                observed=f"work {item.id}, generation {item.generation}: {item.reason or 'no reason given'}",
                remedy=f"see `standfast work show {item.id}`",
            )
        found = work.show_run(self._connection, item.run)
        if expect.pid not in {None, found.pid} or expect.release not in {None, found.release}:
            raise CanaryFailed(
                "finished_by_other",
                "the canary was finished, but by another process than expected",
                observed=f"work {item.id} by pid {found.pid} of release {found.release}",
                remedy="see which processes serve this state directory; the expected one did not finish it",
            )
        return CanaryResult(
            changed=True,
            check=False,
            work=item.id,
            generation=item.generation,
            seconds=seconds,
            report=reports[0].id,
            run=CanaryRun(id=found.id, release=found.release, pid=found.pid),
        )
