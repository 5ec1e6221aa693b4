"""The rules by which health asks for a person: one function each, in the order in which they are told.

A rule looks at what was seen and answers None, or what it observed with what to do about it. Its name is the
function's name. Everything of the store is read in the look's one transaction.
"""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from standfast import orders, work
from standfast.agent import usage
from standfast.authority import Operations, host_identity, refuse_other_host
from standfast.clock import rfc3339
from standfast.errors import Refused
from standfast.layout import Layout
from standfast.operations.backup.standing import (
    BACKUP_SECONDS,
    REHEARSAL_SECONDS,
    Standing,
    is_ahead,
)
from standfast.operations.recovery.eras import is_awaiting
from standfast.work import channels

if TYPE_CHECKING:
    from standfast.operations.health import Health

READY_SECONDS = 900
"""A READY item older than this needs attention, unless paused: the service takes new work within seconds."""
RUNNING_SECONDS = 1_800
"""A RUNNING item claimed longer ago needs attention: two of the longest leases without an end."""
BLOCKED_SECONDS = 86_400
"""A BLOCKED item that waits for no order needs attention after a day: nothing but an operator ends it."""
DRAFT_SECONDS = 86_400
"""A draft that waits longer for an operator needs attention: whoever was told may not have seen it."""
SENDING_SECONDS = 60
"""A report or order still sending after so long needs attention; before, it is on its way."""
CHANNEL_SECONDS = 300
"""A channel that has not answered for longer needs attention."""
SUPPLIER_SECONDS = 300
"""A supplier that has not answered for longer needs attention."""
_STANDING_SINCE = 4
"""The version of orders from which on the store tells how the account stands."""


class Attention(BaseModel):
    """One rule that asks for a person."""

    rule: Literal[
        "paused",
        "marker_disagrees",
        "other_host",
        "store_newer",
        "service_down",
        "ready_old",
        "running_old",
        "blocked_old",
        "uncertain_reports",
        "held_reports",
        "channel_failing",
        "uncertain_orders",
        "supplier_failing",
        "backup_old",
        "backup_failed",
        "copy_failed",
        "rehearsal_old",
        "rehearsal_failed",
        "usage_ceiling",
        "approvals_wanted",
    ]
    observed: str
    remedy: str


@dataclass(frozen=True)
class Seen:
    """What a rule may look at."""

    health: "Health"
    """The facts that are told in any case."""
    control: Operations
    layout: Layout
    connection: sqlite3.Connection
    """For reading only, in the transaction of the whole look."""
    now: float
    """Epoch seconds."""
    backups: Standing


@dataclass(frozen=True)
class Found:
    """What a rule answers when it asks for a person."""

    observed: str
    remedy: str


type Rule = Callable[[Seen], Found | None]


def attention(seen: Seen) -> list[Attention]:
    """What every rule that asks for a person has to say."""
    answers = [(rule.__name__, rule(seen)) for rule in RULES]
    return [
        Attention.model_validate({"rule": name, "observed": found.observed, "remedy": found.remedy})
        for name, found in answers
        if found is not None
    ]


def paused(seen: Seen) -> Found | None:
    """Nothing is claimed or sent; which way leads on depends on how the pause came about."""
    if not seen.health.paused:
        return None
    ended = "recovery" in seen.health.schema_versions and is_awaiting(seen.connection, seen.control.epoch)
    return Found(
        f"paused since {rfc3339(seen.control.changed_at)}: {seen.control.reason}",
        "`standfast account inspect`, then `standfast recover`"
        if ended
        else "a restore was cut short: restore again from the same backup; nobody resumes by hand",
    )


def marker_disagrees(seen: Seen) -> Found | None:
    """The two places of the epoch say different things."""
    if seen.health.marker_agrees:
        return None
    return Found(
        f"{seen.layout.marker} does not name the database's epoch",
        "the marker was lost or the end of an era cut short: stop the service, then `standfast adopt`",
    )


def other_host(seen: Seen) -> Found | None:
    """The state directory is a copy, or has moved."""
    try:
        refuse_other_host(seen.layout.marker, host_identity())
    except Refused as refused:
        return Found(
            str(refused.observed),
            "stop the service; `standfast adopt` takes it over, if this copy is the one to go on with",
        )
    return None


def store_newer(seen: Seen) -> Found | None:
    """This release must not write to the store."""
    understood = seen.health.understood_versions
    newer = [
        f"{name} {version}"
        for name, version in seen.health.schema_versions.items()
        if version > understood.get(name, 0)
    ]
    if not newer:
        return None
    return Found(", ".join(newer), "install the release that wrote the store, or a later one")


def service_down(seen: Seen) -> Found | None:
    """Nobody does the work."""
    latest = seen.health.service
    if latest is None:
        return Found("the service has never started on this store", _SERVICE_DOWN)
    if latest.alive:
        return None
    return Found(f"process {latest.pid}, started {latest.started_at}, is gone", _SERVICE_DOWN)


_SERVICE_DOWN = "see the runbook `service down`"


def ready_old(seen: Seen) -> Found | None:
    """Work waits that the service should have taken."""
    waited = seen.health.oldest_ready_seconds or 0
    if waited <= READY_SECONDS or seen.health.paused:
        return None
    return Found(
        f"the oldest READY item has waited {waited:.0f} s (limit {READY_SECONDS} s)",
        "see whether the service runs and finishes work: `standfast canary`",
    )


def running_old(seen: Seen) -> Found | None:
    """A turn does not end."""
    held = seen.health.oldest_running_seconds or 0
    if held <= RUNNING_SECONDS:
        return None
    return Found(
        f"the oldest RUNNING item was claimed {held:.0f} s ago (limit {RUNNING_SECONDS} s)",
        "see `standfast work list` and the service's journal",
    )


def blocked_old(seen: Seen) -> Found | None:
    """Work waits for a person."""
    blocked = orders.left_blocked(seen.connection, seen.now - BLOCKED_SECONDS)
    if not blocked:
        return None
    return Found(
        f"{blocked} BLOCKED items have waited for somebody for longer than {BLOCKED_SECONDS} s",
        "`standfast work list --status BLOCKED`: ask again as new work, then `standfast work cancel`",
    )


def uncertain_reports(seen: Seen) -> Found | None:
    """Nobody knows whether they arrived."""
    stuck = work.uncertain_reports(seen.connection, seen.now - SENDING_SECONDS)
    if not stuck:
        return None
    return Found(
        f"{stuck} reports may or may not have arrived",
        "`standfast report list`, look whether it is there, then `standfast report resolve`",
    )


def held_reports(seen: Seen) -> Found | None:
    """The channel refuses them, and trying again would not help."""
    channel = seen.health.channel
    if channel is None or not channel.held_reports:
        return None
    return Found(
        f"the channel {channel.kind} refused {channel.held_reports} reports, each many times",
        "correct what `standfast report list` notes, then restart the service, or `standfast report resolve`",
    )


def channel_failing(seen: Seen) -> Found | None:
    """Nobody is heard, or nothing is delivered, for longer than a server's bad moment."""
    channel = seen.health.channel
    if channel is None or channel.problem is None:
        return None
    since = channels.standing(seen.connection).since
    if seen.now - since <= CHANNEL_SECONDS:
        return None
    return Found(
        f"{channel.kind} since {rfc3339(since)}: {channel.problem}",
        "correct it in agent.env and restart the service; it is tried again in any case",
    )


def uncertain_orders(seen: Seen) -> Found | None:
    """Nobody knows whether the supplier accepted them."""
    stuck = orders.stuck_orders(seen.connection, seen.now - SENDING_SECONDS)
    if not stuck:
        return None
    return Found(
        f"{stuck} orders may or may not have been accepted",
        "the service asks the supplier about them; see `standfast order list --status UNKNOWN`",
    )


def supplier_failing(seen: Seen) -> Found | None:
    """Nothing can be bought: the account does not answer, or it is not this copy's any more."""
    if seen.health.schema_versions["orders"] < _STANDING_SINCE:
        return None
    account = orders.account_standing(seen.connection)
    silent = account.code == orders.NO_ANSWER
    if not account.code or (silent and seen.now - account.since <= SUPPLIER_SECONDS):
        return None
    return Found(
        f"since {rfc3339(account.since)}: {account.problem}",
        "see its address and token in agent.env; nothing is sent meanwhile, and it is tried again"
        if silent
        else "nothing is sent; find out which copy is to go on, and stop the other. This one goes on after a"
        " restore of a new backup of it, `standfast account inspect` and `standfast recover`",
    )


def backup_old(seen: Seen) -> Found | None:
    """Too much of the business is in one place only."""
    if seen.backups.since is None:
        return None
    newest = seen.backups.newest
    if newest is not None and is_ahead(seen.backups):
        return Found(
            f"the newest backup is dated {seen.backups.ahead:.0f} s in the future: its age is not known",
            "set the host's clock right, then `standfast backup create`",
        )
    age = seen.now - seen.backups.since if newest is None else newest.age_seconds
    if age <= BACKUP_SECONDS:
        return None
    limit = f"(limit {BACKUP_SECONDS / 3600:.0f} h)"
    told = f"no backup for {age / 3600:.1f} h {limit}"
    if newest is not None:
        told = f"the newest backup is {age / 3600:.1f} h old {limit}"
    return Found(told, "`standfast backup create`; then see why the timer did not")


def backup_failed(seen: Seen) -> Found | None:
    """The last attempt gave none, or the newest is no good."""
    newest = seen.backups.newest
    told = seen.backups.failure
    if told is None and newest is not None and newest.problem and not is_ahead(seen.backups):
        told = f"{newest.name}: {newest.problem}"
    return None if told is None else Found(told, "mend what it says, then `standfast backup create`")


def copy_failed(seen: Seen) -> Found | None:
    """The newest backup is on this host only."""
    told = seen.backups.unsent
    if told is None:
        return None
    return Found(f"the last copy to a repository failed: {told}", "mend what it says, then send it again")


def rehearsal_old(seen: Seen) -> Found | None:
    """Nobody knows any more whether the backups can be restored."""
    last, oldest = seen.backups.rehearsal, seen.backups.oldest
    if oldest is None:
        return None
    age = seen.now - oldest if last is None else last.age_seconds
    if age <= REHEARSAL_SECONDS:
        return None
    told = "no backup was ever rehearsed, the oldest is" if last is None else "the last rehearsal is"
    return Found(
        f"{told} {age / 86400:.1f} days old (limit {REHEARSAL_SECONDS / 86400:.0f} days)",
        "`standfast backup rehearse`; then see why the timer did not",
    )


def rehearsal_failed(seen: Seen) -> Found | None:
    """A backup could not be restored, or did not say what it should."""
    last = seen.backups.rehearsal
    if last is None or last.ok:
        return None
    return Found(
        f"the rehearsal of {last.path} failed at {last.at}",
        "`standfast receipt show` says where; make a new backup and rehearse that",
    )


def usage_ceiling(seen: Seen) -> Found | None:
    """A ceiling refuses live model calls today, so that work ends BLOCKED."""
    used = seen.health.usage
    stops = usage.stops_now(seen.connection, used.today.day) if used is not None else []
    if used is None or not stops:
        return None
    told = ", ".join(f"{stop.times} by {stop.ceiling}" for stop in stops)
    if any(stop.ceiling == "loss" for stop in stops):
        remedy = "`standfast usage lost` says what the end of the era lost; that work has a report"
    else:
        remedy = (
            "that work is BLOCKED with a report: ask again after midnight UTC, or raise [model] in shop.toml"
            " and restart; see `standfast usage`"
        )
    return Found(f"model calls refused on {used.today.day} (UTC): {told}", remedy)


def approvals_wanted(seen: Seen) -> Found | None:
    """Nothing is bought until somebody approves it, perhaps a second time."""
    lapsed, old = orders.unapproved(seen.connection, seen.now - DRAFT_SECONDS)
    told = [
        f"{lapsed} orders were approved, but the approval ended before they were sent" if lapsed else "",
        f"{old} drafts have waited for an operator for longer than {DRAFT_SECONDS} s" if old else "",
    ]
    if not lapsed and not old:
        return None
    return Found(
        "; ".join(filter(None, told)),
        "`standfast order list --status DRAFT`: approve each by its digest, or revoke it",
    )


RULES: tuple[Rule, ...] = (
    paused,
    marker_disagrees,
    other_host,
    store_newer,
    service_down,
    ready_old,
    running_old,
    blocked_old,
    uncertain_reports,
    held_reports,
    channel_failing,
    uncertain_orders,
    supplier_failing,
    backup_old,
    backup_failed,
    copy_failed,
    rehearsal_old,
    rehearsal_failed,
    usage_ceiling,
    approvals_wanted,
)
"""A new rule is a function above, a line here, and its name in `Attention`."""
