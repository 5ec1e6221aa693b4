"""One call of a model: booked before it leaves, tried within its bounds, settled with what it used.

A retry is a call like any other: it is booked anew, so that no ceiling is passed by trying again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from standfast.agent.model import Model, ModelFailed, Reply, Request, Spent, Usage
from standfast.errors import StandfastError

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 20.0
"""Seconds before a call is tried again: doubled up to the longest, and never less than the model asks for."""


class AllowanceSpent(StandfastError):
    """The account has no room for the call, which was not made; the message names the limit."""


class Stopped(Exception):
    """A stop was asked for between two attempts."""


class Booking(Protocol):
    """One call that was booked and may now be made."""

    def settle(self, usage: Usage) -> None:
        """The call used this."""

    def failed(self, spent: Spent) -> None:
        """The call gave no usable reply; what it used is known only as far as ``spent`` says."""


class Meter(Protocol):
    """Books calls under the limits that an operator set, before they are made."""

    def book(self, request: Request) -> Booking:
        """Reserve what the request may use; AllowanceSpent when that is too much, StaleClaim."""


class Unmetered:
    """For models that cost nothing: books nothing."""

    def book(self, _request: Request) -> Booking:
        """No limit, no record."""
        return self

    def settle(self, usage: Usage) -> None:
        """See Booking."""

    def failed(self, spent: Spent) -> None:
        """See Booking."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Makes calls of one model for one turn."""

    model: Model
    meter: Meter
    attempts: int
    """How often one request is sent at most."""
    stop: Callable[[], bool]
    wait: Callable[[float], None]
    """Sleeps so many seconds, or less when a stop is asked for."""
    monotonic: Callable[[], float]
    on_failure: Callable[[ModelFailed, float], None]
    """Told of each attempt that failed and will be repeated, and after how many seconds that will be."""

    def ask(self, request: Request) -> Reply:
        """The reply, within ``request.seconds`` for all attempts and pauses together.

        Raises ModelFailed, AllowanceSpent, Stopped, and what the meter raises.
        """
        end = self.monotonic() + request.seconds
        attempt = 1
        while True:
            try:
                return self._attempt(replace(request, seconds=end - self.monotonic()))
            except ModelFailed as error:
                pause = _pause(error, attempt)
                if not error.again or attempt >= self.attempts or self.monotonic() + pause >= end:
                    raise
                self.on_failure(error, pause)
            self.wait(pause)
            if self.stop():
                raise Stopped
            attempt += 1

    def _attempt(self, request: Request) -> Reply:
        booking = self.meter.book(request)
        try:
            reply = self.model.reply(request)
        except ModelFailed as error:
            booking.failed(error.spent)
            raise
        if reply.usage is None or not reply.usage.valid:
            booking.failed("unknown")
        else:
            booking.settle(reply.usage)
        return reply


def _pause(error: ModelFailed, attempt: int) -> float:
    backoff = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (attempt - 1))
    return max(backoff, error.after or 0.0)
