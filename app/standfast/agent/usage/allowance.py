"""What calls cost, and how much of it an operator allows.

Money is integer cents. One call costs a fraction of one, so the account counts millionths of a cent: tokens
times the price of a million tokens in cents, which is a whole number too.
"""

from dataclasses import dataclass

from standfast.agent import messages as chat
from standfast.agent.model import Request, Usage

MICROCENTS = 1_000_000
"""Millionths of a cent in a cent."""
BYTES_PER_TOKEN = 3
"""Input is estimated from its bytes before a call: prose and JSON take four or more for a token, mostly."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What a million tokens cost, in cents."""

    input_cents: int
    cached_cents: int
    """For the input tokens that the provider had cached."""
    output_cents: int

    def cost(self, usage: Usage) -> int:
        """Microcents."""
        fresh = usage.input_tokens - usage.cached_tokens
        return (
            fresh * self.input_cents
            + usage.cached_tokens * self.cached_cents
            + usage.output_tokens * self.output_cents
        )


FREE = Prices(0, 0, 0)
"""For models that cost nothing, or whose price nobody stated."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The most that may be used; None: no limit. A day is a UTC day."""

    daily_calls: int | None = None
    daily_tokens: int | None = None
    """Input and output together."""
    daily_cents: int | None = None
    work_cents: int | None = None
    """For one work item, over all its calls."""


def estimate(request: Request) -> Usage:
    """The most that a request is expected to use: its input by its bytes, and all the output it may have."""
    size = chat.total_size([*request.messages, *request.tools])
    return Usage(input_tokens=-(-size // BYTES_PER_TOKEN), output_tokens=request.output_tokens)


def whole_cents(microcents: int) -> int:
    """Cents, rounded up: a cost is never shown as less than it is."""
    return -(-microcents // MICROCENTS)
