"""``standfast adopt``: take over a state directory whose marker does not vouch for it on this host.

A copy that woke up on another host, a marker that was lost, an end of an era that was cut short: none of them
may act until a person says that this one is to go on. It then does so under a new epoch, paused.
"""

import sqlite3

from pydantic import BaseModel

from standfast.authority import host_identity, operations, refuse_while_held, replace, writer_lock
from standfast.authority import marker as markers
from standfast.errors import BadInput, Refused
from standfast.layout import Layout
from standfast.operations.opening import reading, refuse_other_user, writing

_LONGEST_REASON = 300
_SHOWN = 12
"""Digits of an epoch or a host's identity that are enough to tell two apart."""


class Adopted(BaseModel):
    """What ``adopt`` did, or with ``--check`` would do."""

    changed: bool
    check: bool
    state: str
    why: list[str]
    """What did not agree."""
    epoch_before: str
    epoch: str | None
    """The new era, which begins paused; null under ``--check``."""


def adopt(layout: Layout, *, reason: str, now: float, check: bool = False) -> Adopted:
    """End the era of the state directory and begin a new, paused one on this host.

    Raises BadInput for an unusable reason; Refused: ``nothing_to_adopt`` (marker, store and host agree),
    ``writer_held`` (the service runs), ``host_unidentified``, and what opening the store refuses, all with
    nothing changed.
    """
    if not reason.strip() or not reason.isprintable() or len(reason) > _LONGEST_REASON:
        raise BadInput(f"reason: one line of 1 to {_LONGEST_REASON} printable characters")
    host = host_identity()
    refuse_other_user(layout)
    with reading(layout) as connection:
        why, before = _disagreement(connection, layout, host), operations(connection).epoch
    if check:
        refuse_while_held(layout)
        return Adopted(
            changed=True, check=True, state=str(layout.state), why=why, epoch_before=before, epoch=None
        )
    with writer_lock(layout), writing(layout) as store:
        why, before = _disagreement(store, layout, host), operations(store).epoch
        epoch = replace(store, layout, f"adopted: {reason}", now, host)
    return Adopted(
        changed=True, check=False, state=str(layout.state), why=why, epoch_before=before, epoch=epoch
    )


def _disagreement(connection: sqlite3.Connection, layout: Layout, host: str) -> list[str]:
    epoch = operations(connection).epoch
    marker = markers.read(layout.marker)
    if marker is None:
        return [f"{layout.marker} is missing or unreadable"]
    why = []
    if marker.epoch != epoch:
        why.append(f"the marker names epoch {marker.epoch[:_SHOWN]}, the store {epoch[:_SHOWN]}")
    if marker.host != host:
        why.append(f"the marker names host {marker.host[:_SHOWN] or '(none)'}, this is {host[:_SHOWN]}")
    if not why:
        raise Refused(
            "nothing_to_adopt",
            "marker, store and host agree: this state directory is at home here",
            observed=f"epoch {epoch[:_SHOWN]}, host {host[:_SHOWN]}",
            remedy="see `standfast health` for what keeps it from working",
        )
    return why
