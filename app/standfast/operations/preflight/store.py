"""Checks of the store: its schema, who may act on it, and what is open in it."""

from standfast.clock import rfc3339
from standfast.operations.backup.listing import SKEW
from standfast.operations.preflight.result import Rehearsal
from standfast.operations.preflight.seen import (
    Found,
    Seen,
    StoreFacts,
    attention,
    listed,
    passes,
    refuses,
)
from standfast.operations.schema import understood

_A_DAY = 86_400
_OWN_CHECK = frozenset(
    {
        "paused",
        "marker_disagrees",
        "other_host",
        "store_newer",
        "service_down",
        "uncertain_orders",
        "uncertain_reports",
        "rehearsal_old",
        "rehearsal_failed",
    }
)
"""The rules of health for which there is a check here."""


def schema(seen: Seen) -> Found:
    """Every component of the store is known to the target, and none is newer than it."""
    known = understood()
    unknown = [f"{name} {version}" for name, version in seen.schema.items() if name not in known]
    newer = [
        f"{name} {version} (the target understands {known[name]})"
        for name, version in seen.schema.items()
        if version > known.get(name, version)
    ]
    if unknown:
        return refuses(f"the target knows no component {', '.join(unknown)}", _LATER)
    if newer:
        return refuses(f"that would be a downgrade: the store has {', '.join(newer)}", _LATER)
    forward = migrations(seen)
    if forward:
        told = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in forward.items())
        return passes(f"the target brings forward {told}")
    return passes("equal: " + ", ".join(f"{name} {version}" for name, version in sorted(known.items())))


_LATER = "choose a release that understands the store: the one that wrote it, or a later one"


def migrations(seen: Seen) -> dict[str, tuple[int, int]]:
    """Component -> version now and then, where the target would run migrations; empty for a newer store."""
    known = understood()
    if not seen.schema or any(version > known.get(name, 0) for name, version in seen.schema.items()):
        return {}
    return {
        name: (seen.schema.get(name, 0), version)
        for name, version in sorted(known.items())
        if seen.schema.get(name, 0) < version
    }


def migration(tried: Rehearsal | None) -> Found:
    """The migrations run on a copy, and leave every fact as it was."""
    if tried is None:
        return passes("none is needed")
    told = f"{tried.seconds:.2f} s for {tried.rows} rows in {tried.bytes} bytes"
    if tried.ok:
        return passes(f"tried on a copy: {told}; counts, facts and references are as before")
    return refuses(
        f"tried on a copy: {listed(tried.problems)}",
        "do not upgrade to this release: tell its makers what was seen; the live store was not touched",
    )


def marker(_: Seen, store: StoreFacts) -> Found:
    """The marker names the epoch of the store, and this host."""
    rules = {one.rule: one for one in store.health.attention}
    for rule in ("marker_disagrees", "other_host"):
        if rule in rules:
            return refuses(rules[rule].observed, rules[rule].remedy)
    return passes(f"epoch {store.control.epoch}, this host's")


def not_paused(_: Seen, store: StoreFacts) -> Found:
    """Operations are active: an upgrade proves itself by new work, and a pause has its own way out."""
    if not store.control.paused:
        return passes("operations are active")
    [told] = [one for one in store.health.attention if one.rule == "paused"]
    return refuses(told.observed, told.remedy)


def recovery(seen: Seen, store: StoreFacts) -> Found:
    """No recovery is open: its plan is bound to the store as the present release left it."""
    if not store.awaits_recovery:
        return passes("no recovery is open")
    plans = sorted(path.name for path in seen.layout.state.glob("*plan*.json"))
    told = f"epoch {store.control.epoch} awaits the recovery of the account"
    return refuses(
        told + (f"; plans: {', '.join(plans)}" if plans else ""),
        "finish it first: runbooks/recover-the-account.md",
    )


def uncertain_orders(_: Seen, store: StoreFacts) -> Found:
    """It is known of every order whether the supplier accepted it."""
    if not store.uncertain_orders:
        return passes("none")
    return attention(
        f"{len(store.uncertain_orders)}: {listed(store.uncertain_orders)}",
        "they stay as they are; the service asks the supplier: `standfast order list --status UNKNOWN`",
    )


def uncertain_reports(_: Seen, store: StoreFacts) -> Found:
    """It is known of every report whether it arrived."""
    if not store.uncertain_reports:
        return passes("none")
    return attention(
        f"{len(store.uncertain_reports)}: {listed(store.uncertain_reports)}",
        "they stay as they are: look whether each is there, then `standfast report resolve`",
    )


def running_work(seen: Seen, store: StoreFacts) -> Found:
    """Nothing is being worked on, which a stop would cut short."""
    running = store.health.work["RUNNING"]
    if not running:
        return passes(f"none; {store.health.work['READY']} READY")
    told = [
        f"{item.id} of {item.session}, generation {item.generation}, its lease ends in "
        f"{(item.lease_until or seen.now) - seen.now:.0f} s"
        for item in store.running
    ]
    return attention(
        f"{running}: {listed(told)}",
        "a stop gives its turn 20 s to end, and cuts a longer one short. To spare that, wait for its end",
    )


def health(seen: Seen, store: StoreFacts) -> Found:
    """What else health asks for."""
    asked = [one for one in store.health.attention if one.rule not in _OWN_CHECK]
    if not asked:
        return passes(f"nothing else needs attention at {rfc3339(seen.now)}")
    told = listed([f"{one.rule}: {one.observed}" for one in asked])
    return attention(told, asked[0].remedy if len(asked) == 1 else "`standfast health` says what to do")


def rehearsed_backup(_: Seen, store: StoreFacts) -> Found:
    """A backup was restored somewhere else not long ago: the last way back is known to work."""
    rules = {str(one.rule): one for one in store.health.attention}
    last = store.health.last_rehearsal
    for rule in ("rehearsal_failed", "rehearsal_old"):
        if rule in rules:
            return attention(rules[rule].observed, rules[rule].remedy)
    if last is None:
        return attention("no backup was ever rehearsed", "`standfast backup create`, then `backup rehearse`")
    return passes(f"{last.path}, {last.age_seconds / 3600:.1f} h ago")


def clock(seen: Seen, store: StoreFacts) -> Found:
    """The clock is not behind what the business wrote down already."""
    behind = store.latest - seen.now
    if behind <= SKEW:
        return passes(rfc3339(seen.now))
    told = f"it is {rfc3339(seen.now)} here, and {behind:.0f} s later in the store"
    remedy = "set the host's clock (timedatectl): leases, schedules and days of spending follow it"
    return refuses(told, remedy) if behind > _A_DAY else attention(told, remedy)


def service(seen: Seen, store: StoreFacts) -> Found:
    """The service works, or is stopped, as it is said to be."""
    run = store.health.service
    alive = run is not None and bool(run.alive)
    told = f"pid {run.pid}, release {run.release}" if run else "it has never started"
    if alive and not seen.request.online:
        return refuses(f"it runs: {told}", "stop it first, or look with --online")
    if alive:
        return passes(told)
    if seen.request.online:
        return attention(f"it does not run: {told}", "see runbooks/service-down.md")
    return passes(f"stopped; it was {told}")
