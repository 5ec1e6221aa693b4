"""Every component of the store, in the order in which their tables refer to each other."""

from standfast.agent.usage.component import COMPONENT as USAGE
from standfast.authority import COMPONENT as AUTHORITY
from standfast.operations.recovery.component import COMPONENT as RECOVERY
from standfast.orders.component import COMPONENT as ORDERS
from standfast.shop.schema import COMPONENT as SHOP
from standfast.store import Component
from standfast.work import COMPONENT as WORK
from standfast.work.channels import COMPONENT as CHANNEL

COMPONENTS: tuple[Component, ...] = (AUTHORITY, WORK, CHANNEL, ORDERS, USAGE, SHOP, RECOVERY)


def understood() -> dict[str, int]:
    """The schema version of each component that this code understands, by component name."""
    return {component.name: component.version for component in COMPONENTS}


def raised(before: dict[str, int], after: dict[str, int]) -> dict[str, tuple[int, int]]:
    """The components whose version differs: from, to."""
    return {
        name: (before.get(name, 0), version)
        for name, version in after.items()
        if before.get(name, 0) != version
    }
