"""Approvals: an operator lets exactly these bytes be sent once, until a time, and the money is reserved."""

import math
import sqlite3
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from standfast.clock import rfc3339
from standfast.errors import BadInput, Refused
from standfast.orders.book import (
    Approval,
    Order,
    approvals_of,
    live_approval,
    show_order,
    spending,
    utc_day,
    with_digest,
)
from standfast.orders.era import current_epoch
from standfast.orders.policy import LONGEST_APPROVAL, LONGEST_DRAFT, POLICY_OPERATOR, Policy
from standfast.store import immediate, new_id

_NOTE_LENGTH = 300


@dataclass(frozen=True, slots=True)
class Approved:
    """What an approval came to."""

    order: Order
    approval: Approval
    changed: bool
    """False when a live approval of the order was there already; it is left as it is."""


@dataclass(frozen=True, slots=True)
class Revoked:
    """What a revocation came to."""

    order: Order
    changed: bool
    recalled: bool
    """False when it was sent before: that cannot be recalled, it is only never sent again."""


def approve(
    connection: sqlite3.Connection,
    digest: str,
    *,
    operator: str,
    until: float,
    policy: Policy,
    now: float,
    marker: Path,
    order: str | None = None,
    check: bool = False,
) -> Approved:
    """Approve the draft with exactly this digest until a time (epoch seconds, at most a day after ``now``).

    The order's whole cost is reserved under the policy's ceiling in the same transaction. ``order`` says
    which, when several works ask for the same. ``check`` writes nothing. Raises BadInput for a time outside
    the bounds, and Refused: ``operator_unknown``, ``paused``, ``marker_disagrees``, ``digest_unknown``,
    ``digest_ambiguous``, ``not_a_draft``, ``policy_differs``, ``ceiling``.
    """
    with nullcontext() if check else immediate(connection, "approve"):
        return approve_within(
            connection,
            digest,
            operator=operator,
            until=until,
            policy=policy,
            now=now,
            marker=marker,
            order=order,
            check=check,
        )


def approve_within(
    connection: sqlite3.Connection,
    digest: str,
    *,
    operator: str,
    until: float,
    policy: Policy,
    now: float,
    marker: Path,
    order: str | None = None,
    said_at: float | None = None,
    check: bool = False,
) -> Approved:
    """``approve`` inside the caller's write transaction, for an approval that is one with another row.

    ``said_at``: when it was said, if it took time to get here. Refused ``said_too_early`` when that was
    before the draft was there: another order of the same bytes was meant, perhaps of an era that has ended.
    """
    if not math.isfinite(until) or not now < until <= now + LONGEST_APPROVAL:
        raise BadInput("until: a time after now and at most one day ahead")
    policy.refuse_unless_operator(operator)
    epoch = current_epoch(connection, marker)
    draft = _find(connection, digest, order)
    present = live_approval(connection, draft, now)
    if draft.status == "APPROVED" and present is not None:
        return Approved(draft, present, changed=False)
    lapsed = draft.status == "APPROVED"
    if draft.epoch != epoch or not (lapsed or draft.status == "DRAFT"):
        raise Refused(
            "not_a_draft",
            "only a draft can be approved",
            observed=f"order {draft.id} is {draft.status}",
            remedy=f"see `standfast order show {draft.id}`",
        )
    if said_at is not None and said_at < draft.changed_at:
        raise Refused(
            "said_too_early",
            "the approval is older than the draft, so another order was meant",
            observed=f"said {rfc3339(said_at)}; a draft since {rfc3339(draft.changed_at)}: order {draft.id}",
            remedy="look at the draft, and approve it again if it is wanted",
        )
    _refuse_other_policy(draft, policy)
    _refuse_past_ceiling(connection, draft, policy, now)
    if check:
        foreseen = Approval("", draft.id, digest, operator, False, now, until, None, False)
        return Approved(draft, foreseen, changed=True)
    if lapsed:
        _back_to_draft(connection, draft.id, now, "the approval before ended")
    _reserve(connection, draft, policy, now, operator=operator, until=until, automatic=False)
    return Approved(show_order(connection, draft.id), approvals_of(connection, draft.id)[-1], changed=True)


def approve_by_allowance(connection: sqlite3.Connection, draft: Order, *, policy: Policy, now: float) -> bool:
    """Inside the caller's transaction: approve what today's allowance and the ceiling still cover."""
    if not policy.allowance_cents:
        return False
    standing = spending(connection, now)
    used = connection.execute(
        "SELECT coalesce(sum(cents), 0) FROM approvals WHERE automatic = 1 AND day = ?", (standing.day,)
    ).fetchone()[0]
    total = draft.total_cents
    held = standing.reserved_cents + standing.spent_cents
    if used + total > policy.allowance_cents or held + total > policy.ceiling_cents:
        return False
    _reserve(
        connection,
        draft,
        policy,
        now,
        operator=POLICY_OPERATOR,
        until=now + LONGEST_APPROVAL,
        automatic=True,
    )
    return True


def revoke(
    connection: sqlite3.Connection,
    order: str,
    *,
    operator: str,
    policy: Policy,
    now: float,
    reason: str = "",
    check: bool = False,
) -> Revoked:
    """Take a draft or an approval back and free what it reserved; allowed while paused.

    An order that was sent cannot be recalled: only its approval ends, so that it is never sent again, and the
    reservation stays until the outcome is known. Raises Refused ``operator_unknown``, ``order_unknown``,
    ``order_settled``.
    """
    with nullcontext() if check else immediate(connection, "revoke"):
        return revoke_within(
            connection, order, operator=operator, policy=policy, now=now, reason=reason, check=check
        )


def revoke_within(
    connection: sqlite3.Connection,
    order: str,
    *,
    operator: str,
    policy: Policy,
    now: float,
    reason: str = "",
    check: bool = False,
) -> Revoked:
    """``revoke`` inside the caller's write transaction."""
    policy.refuse_unless_operator(operator)
    found = show_order(connection, order)
    if found.status in {"CONFIRMED", "DELIVERED", "REJECTED"}:
        raise Refused(
            "order_settled",
            "the supplier has decided; there is nothing to take back",
            observed=f"order {order} is {found.status}",
            remedy="what the supplier accepted can only be undone with the supplier",
        )
    sent = found.status in {"SENDING", "UNKNOWN"}
    unrevoked = any(not one.revoked for one in approvals_of(connection, order))
    changed = unrevoked if sent else found.status != "REVOKED"
    if changed and not check:
        note = f"revoked by {operator}{': ' + reason if reason else ''}"[:_NOTE_LENGTH]
        _end_approvals(connection, order)
        if sent:
            connection.execute("UPDATE orders SET note = ? WHERE id = ?", (note, order))
        else:
            _set_revoked(connection, order, note, now)
    return Revoked(show_order(connection, order), changed=changed, recalled=not sent)


def expire(connection: sqlite3.Connection, *, now: float) -> list[Order]:
    """End what nobody acted on in time; returns the orders that changed.

    An approved order whose approval has run out is a draft again, and what it reserved is free. A draft that
    nobody approved for LONGEST_DRAFT is revoked, so that its work ends.
    """
    if not _lapsed(connection, now) and not _abandoned(connection, now):
        return []
    with immediate(connection, "expire"):
        lapsed, abandoned = _lapsed(connection, now), _abandoned(connection, now)
        for order, operator, until in lapsed:
            _back_to_draft(
                connection,
                order,
                now,
                f"the approval of {operator} ended {rfc3339(until)}, before it was sent",
            )
        for order in abandoned:
            note = f"nobody approved it within {LONGEST_DRAFT // 86_400} days"
            _set_revoked(connection, order, note, now)
        return [show_order(connection, order) for order in [*(row[0] for row in lapsed), *abandoned]]


def _lapsed(connection: sqlite3.Connection, now: float) -> list[tuple[str, str, float]]:
    """Approved orders whose approval has run out: the order, who approved it, until when."""
    return connection.execute(
        "SELECT orders.id, approvals.operator, approvals.until FROM orders JOIN approvals"
        " ON approvals.order_id = orders.id AND approvals.revoked = 0"
        " WHERE orders.status = 'APPROVED' AND approvals.until <= ?",
        (now,),
    ).fetchall()


def _abandoned(connection: sqlite3.Connection, now: float) -> list[str]:
    rows = connection.execute(
        "SELECT id FROM orders WHERE status = 'DRAFT' AND changed_at <= ?", (now - LONGEST_DRAFT,)
    )
    return [row[0] for row in rows]


def _find(connection: sqlite3.Connection, digest: str, order: str | None) -> Order:
    same = [one for one in with_digest(connection, digest) if order is None or one.id == order]
    if not same:
        raise Refused(
            "digest_unknown",
            "no order has exactly this digest",
            observed=digest[:80] if order is None else f"order {order}, digest {digest[:80]}",
            remedy="`standfast order show` prints the digest to type",
        )
    waiting = [one for one in same if one.status in {"DRAFT", "APPROVED"}] or same[-1:]
    if len(waiting) > 1:
        raise Refused(
            "digest_ambiguous",
            "several works ask for exactly the same",
            observed=[f"order {one.id} of work {one.work} is {one.status}" for one in waiting],
            remedy="say which with --order",
        )
    return waiting[0]


def _refuse_other_policy(draft: Order, policy: Policy) -> None:
    if (draft.target, draft.currency) != (policy.target, policy.currency):
        raise Refused(
            "policy_differs",
            "the draft was made for another supplier or currency than the policy now names",
            observed=f"draft {draft.target}, {draft.currency}; policy {policy.target}, {policy.currency}",
            remedy="revoke it and ask again",
        )


def _refuse_past_ceiling(connection: sqlite3.Connection, draft: Order, policy: Policy, now: float) -> None:
    standing = spending(connection, now)
    held = standing.reserved_cents + standing.spent_cents - draft.reserved_cents
    if held + draft.total_cents > policy.ceiling_cents:
        raise Refused(
            "ceiling",
            "the day's ceiling does not cover this order",
            observed=(
                f"{draft.total_cents} cents asked; ceiling {policy.ceiling_cents},"
                f" spent {standing.spent_cents}, reserved {standing.reserved_cents}"
            ),
            remedy="revoke another approval, wait for the next UTC day, or raise [spending] in shop.toml",
        )


def _reserve(
    connection: sqlite3.Connection,
    draft: Order,
    policy: Policy,
    now: float,
    *,
    operator: str,
    until: float,
    automatic: bool,
) -> None:
    """Approval, reservation and status, in that order: the store refuses one without the others."""
    connection.execute(
        "INSERT INTO spending VALUES (1, ?, ?) ON CONFLICT DO UPDATE"
        " SET day = max(day, excluded.day), ceiling_cents = excluded.ceiling_cents",
        (utc_day(now), policy.ceiling_cents),
    )
    connection.execute(
        "INSERT INTO approvals (id, order_id, digest, operator, automatic, day, cents, approved_at, until)"
        " VALUES (?, ?, ?, ?, ?, (SELECT day FROM spending), ?, ?, ?)",
        (new_id(now), draft.id, draft.digest, operator, automatic, draft.total_cents, now, until),
    )
    connection.execute(
        "UPDATE orders SET status = 'APPROVED', reserved_cents = ?, note = ?, changed_at = ? WHERE id = ?",
        (draft.total_cents, f"approved by {operator} until {rfc3339(until)}", now, draft.id),
    )


def _back_to_draft(connection: sqlite3.Connection, order: str, now: float, note: str) -> None:
    _end_approvals(connection, order)
    connection.execute(
        "UPDATE orders SET status = 'DRAFT', reserved_cents = 0, note = ?, changed_at = ? WHERE id = ?",
        (note, now, order),
    )


def _set_revoked(connection: sqlite3.Connection, order: str, note: str, now: float) -> None:
    connection.execute(
        "UPDATE orders SET status = 'REVOKED', reserved_cents = 0, note = ?, changed_at = ? WHERE id = ?",
        (note, now, order),
    )


def _end_approvals(connection: sqlite3.Connection, order: str) -> None:
    connection.execute("UPDATE approvals SET revoked = 1 WHERE order_id = ? AND revoked = 0", (order,))
