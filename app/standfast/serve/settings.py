"""What the service is told: shop.toml, environment and watchdog, checked before anything is opened."""

from collections.abc import Mapping
from dataclasses import dataclass

from standfast.agent.access import LiveAccess
from standfast.authority import DEFAULT_LEASE
from standfast.errors import ConfigurationInvalid
from standfast.layout import Layout
from standfast.orders import SupplierAccess
from standfast.serve.journal import LEVELS
from standfast.shop import config
from standfast.shop.config import ShopConfig
from standfast.work import channels

POLL_SECONDS = 1.0
"""How often a waiting service looks whether anything changed; one PRAGMA, no query."""
LONGEST_WAIT = 30.0
"""The longest time between two full passes, in seconds; shorter when the watchdog asks for it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A checked configuration."""

    shop: ShopConfig
    lease: float
    """Seconds; renewed while a turn goes on."""
    longest_wait: float
    """Seconds between two full passes at most."""
    supplier: SupplierAccess | None = None
    """None: nothing is bought."""
    live: LiveAccess | None = None
    """None: the offline planner answers."""
    channel: channels.Access | None = None
    """None: reports go to the outbox."""


def load(layout: Layout, environment: Mapping[str, str], watchdog_seconds: float | None) -> Settings:
    """Read and check everything; ConfigurationInvalid names the field, never its value."""
    return agreed(config.load(layout.shop), environment, watchdog_seconds)


def agreed(shop: ShopConfig, environment: Mapping[str, str], watchdog_seconds: float | None) -> Settings:
    """What a shop.toml and an environment say together; ConfigurationInvalid as ``load``."""
    if environment.get("STANDFAST_LOG", "info") not in LEVELS:
        raise ConfigurationInvalid(f"STANDFAST_LOG: one of {', '.join(LEVELS)}")
    # A call longer than half the watchdog could end in SIGABRT; longer than half the lease, in a lost claim.
    bound = min(DEFAULT_LEASE, watchdog_seconds or DEFAULT_LEASE) / 2
    if shop.limits.call_seconds > bound:
        of_what = "watchdog" if watchdog_seconds and watchdog_seconds < DEFAULT_LEASE else "lease"
        raise ConfigurationInvalid(
            f"shop.toml: limits.call_seconds: {shop.limits.call_seconds} s is above half of the"
            f" {of_what} ({bound:g} s)"
        )
    return Settings(
        shop=shop,
        lease=DEFAULT_LEASE,
        longest_wait=min(LONGEST_WAIT, watchdog_seconds / 3 if watchdog_seconds else LONGEST_WAIT),
        supplier=SupplierAccess.from_environment(environment),
        live=LiveAccess.from_environment(environment, shop.model.output_field),
        channel=channels.access(
            shop.channel.kind, environment, webhook_idempotent=shop.channel.webhook_idempotent
        ),
    )
