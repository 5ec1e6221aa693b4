"""A small real instance whose calls are booked."""

from dataclasses import dataclass

from world import COMPONENTS as WITHOUT_USAGE
from world import World

from standfast.agent import usage
from standfast.agent.model import Usage
from standfast.agent.usage import FREE, Ceilings, Counted, Prices
from standfast.authority import Claim

COMPONENTS = (*WITHOUT_USAGE, usage.COMPONENT)
MOST = Usage(input_tokens=1000, output_tokens=500)
NO_CEILINGS = Ceilings()
PRICES = Prices(input_cents=100, cached_cents=10, output_cents=400)
"""In cents for a million tokens: the most of a call above costs 0.3 cents."""


@dataclass
class Metered(World):
    """A world that books calls."""

    ceilings: Ceilings = NO_CEILINGS
    prices: Prices = FREE

    def book(self, claim: Claim, most: Usage = MOST) -> str:
        return usage.book(
            self.connection,
            claim,
            source="scripted",
            most=most,
            prices=self.prices,
            ceilings=self.ceilings,
            clock=self.clock,
            marker=self.marker,
        )

    def settle(self, call: str, used: Usage) -> bool:
        return usage.settle(self.connection, call, used, prices=self.prices, now=self.now())

    def failed(self, call: str, spent: str) -> bool:
        return usage.failed(self.connection, call, spent, now=self.now())  # type: ignore[arg-type]

    @property
    def today(self) -> Counted:
        return usage.counted(self.connection, usage.current_day(self.connection, self.now()))

    def rows(self) -> list[tuple[object, ...]]:
        """The calls: outcome, tokens and cost."""
        return self.connection.execute(
            "SELECT outcome, input_tokens, cached_tokens, output_tokens, cost_microcents FROM usage_calls"
            " ORDER BY seq"
        ).fetchall()
