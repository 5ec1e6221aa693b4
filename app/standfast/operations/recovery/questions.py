"""Filling a plan in: every count, every delivery and every interrupted item is asked for, one by one."""

import os
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel

from standfast import orders
from standfast.clock import rfc3339
from standfast.durable import write_file
from standfast.errors import BadInput, Refused, StandfastError
from standfast.layout import Layout
from standfast.operations.opening import reading
from standfast.operations.recovery import plan as plans
from standfast.operations.recovery.plan import (
    MOST_CALLS,
    MOST_CENTS,
    MOST_TOKENS,
    Count,
    Delivery,
    LostUsage,
    Plan,
)
from standfast.shop.config import MAX_STOCK


class Edited(BaseModel):
    """What `recover edit-plan` did, or with `--check` what it would ask."""

    changed: bool
    check: bool
    plan: str
    digest: str
    """Of the plan as it is now: what `recover --digest` takes once somebody has reviewed it."""
    observed_at: str
    unanswered: list[str]
    """What is still to be stated; empty after a whole walk through the questions."""


class Asker(Protocol):
    """A person at a terminal."""

    def number(self, question: str, present: int | None, most: int) -> int:
        """A whole number from 0 to ``most``; ``present`` is offered as the answer."""

    def yes(self, question: str, present: bool | None) -> bool:
        """Yes or no; without a ``present`` answer nothing is offered."""


def recorded_deliveries(layout: Layout) -> set[str]:
    """The operations that the store itself holds as DELIVERED; none when it cannot be read."""
    try:
        with reading(layout) as connection:
            known = orders.all_orders(connection).values()
            return {one.id for one in known if one.status == "DELIVERED"}
    except StandfastError:
        return set()


def edit(
    path: Path,
    asker: Asker,
    now: Callable[[], float],
    *,
    recorded: AbstractSet[str] = frozenset(),
    check: bool = False,
) -> Edited:
    """Ask for everything that the plan leaves open, and write it with the time at which the answers ended.

    The deliveries that were ``recorded`` before the backup are asked about together: a long history must not
    bury the few that matter.

    The file is replaced only when all is answered; an abort leaves it as it is. Raises BadInput for a file
    that is no plan; Refused ``plan_changed`` when it was changed meanwhile.
    """
    data = plans.read(path)
    plan = plans.parse(data)
    if check:
        return _told(path, plan, data, changed=True, check=True)
    answered = plan.model_copy(
        update={
            "inventory": {sku: _count(asker, sku, one) for sku, one in plan.inventory.items()},
            "deliveries": _deliveries(asker, plan, recorded),
            "interrupted": {
                item: "requeue"
                if asker.yes(f"work {item} was interrupted: do it again, instead of reporting that?", False)
                else "report"
                for item in plan.interrupted
            },
            "usage": _usage(asker),
            "observed_at": rfc3339(now()),
        }
    )
    written = plans.render(answered)
    if plans.read(path) != data:
        raise Refused(
            "plan_changed",
            "the plan was changed while the questions were asked",
            observed=str(path),
            remedy="edit it again",
        )
    write_file(Path(os.path.realpath(path)), written, 0o600)
    return _told(path, answered, written, changed=True, check=False)


def _count(asker: Asker, sku: str, present: Count) -> Count:
    return Count(on_hand=asker.number(f"{sku}: how many are there, counted now?", present.on_hand, MAX_STOCK))


def _deliveries(asker: Asker, plan: Plan, recorded: AbstractSet[str]) -> dict[str, Delivery]:
    known = recorded & plan.deliveries.keys()
    together = bool(known) and asker.yes(
        f"{len(known)} deliveries are recorded here already: have their goods arrived, as it says?", None
    )
    return {
        key: one.model_copy(update={"received": True})
        if together and key in known
        else _delivery(asker, key, one)
        for key, one in plan.deliveries.items()
    }


def _delivery(asker: Asker, operation: str, present: Delivery) -> Delivery:
    question = f"order {operation}\n  {present.reference}\n  have its goods arrived?"
    return Delivery(received=asker.yes(question, present.received), reference=present.reference)


def _usage(asker: Asker) -> str | LostUsage:
    if not asker.yes("do you know how many model calls the lost state had made?", False):
        return "unknown"
    calls = asker.number("how many model calls?", None, MOST_CALLS)
    if not calls:
        return LostUsage(calls=0, cents=0)
    cents = asker.number("for how many cents?", None, MOST_CENTS)
    return LostUsage(calls=calls, cents=cents, tokens=asker.number("how many tokens?", None, MOST_TOKENS))


def _told(path: Path, plan: Plan, data: bytes, *, changed: bool, check: bool) -> Edited:
    return Edited(
        changed=changed,
        check=check,
        plan=str(path),
        digest=plans.digest(data),
        observed_at=plan.observed_at,
        unanswered=plan.unanswered(),
    )


def refuse_without_terminal(*, terminal: bool) -> None:
    """Raise BadInput when nobody can be asked."""
    if not terminal:
        raise BadInput("edit-plan asks a person at a terminal; without one, write the plan's file by hand")
