"""The usage account: what model calls used, by work, day and era, under ceilings that hold before a call."""

from typing import TYPE_CHECKING

from standfast.lazy import lazily

if TYPE_CHECKING:
    from standfast.agent.usage.account import Account, book, failed, set_up, settle
    from standfast.agent.usage.allowance import FREE, Ceilings, Prices, estimate, whole_cents
    from standfast.agent.usage.component import COMPONENT
    from standfast.agent.usage.losses import LossStated, state_loss
    from standfast.agent.usage.reading import (
        Counted,
        LastCall,
        Loss,
        Setup,
        Stop,
        by_day,
        by_epoch,
        by_work,
        counted,
        current_day,
        last_call,
        losses_of,
        of_work,
        setup,
        stops_now,
        stops_of,
    )

__all__ = [
    "COMPONENT",
    "FREE",
    "Account",
    "Ceilings",
    "Counted",
    "LastCall",
    "Loss",
    "LossStated",
    "Prices",
    "Setup",
    "Stop",
    "book",
    "by_day",
    "by_epoch",
    "by_work",
    "counted",
    "current_day",
    "estimate",
    "failed",
    "last_call",
    "losses_of",
    "of_work",
    "set_up",
    "settle",
    "setup",
    "state_loss",
    "stops_now",
    "stops_of",
    "whole_cents",
]

__getattr__ = lazily(
    __name__,
    {
        "account": "Account book failed set_up settle",
        "allowance": "FREE Ceilings Prices estimate whole_cents",
        "reading": (
            "Counted LastCall Loss Setup Stop by_day by_epoch by_work counted current_day last_call "
            "losses_of of_work setup stops_now stops_of"
        ),
        "component": "COMPONENT",
        "losses": "LossStated state_loss",
    },
)
