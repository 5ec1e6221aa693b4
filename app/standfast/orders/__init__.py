"""Orders: proposed by work, approved by people, sent once, settled only by proof.

A draft becomes an order by an operator's approval of its exact digest; the money is reserved with it. SENDING
is committed before a request leaves. What is neither accepted nor refused for certain is UNKNOWN, keeps its
reservation, and is found out by asking the supplier about its operation id.

HttpSupplier is imported when it is asked for: whoever only reads orders pays for neither it nor its models.
"""

from typing import TYPE_CHECKING

from standfast.lazy import lazily

if TYPE_CHECKING:
    from standfast.orders.amnesia import Remembered, compare
    from standfast.orders.approvals import (
        Approved,
        Revoked,
        approve,
        approve_within,
        expire,
        revoke,
        revoke_within,
    )
    from standfast.orders.book import (
        OPEN,
        STATUSES,
        Approval,
        Order,
        Spending,
        Step,
        all_orders,
        approvals_of,
        counts,
        history_of,
        list_orders,
        live_approval,
        on_order,
        open_orders,
        orders_of,
        show_order,
        spending,
        stuck_orders,
        told,
        unapproved,
        with_digest,
    )
    from standfast.orders.client import (
        Absent,
        Accepted,
        Declined,
        Supplier,
        SupplierAccess,
        SupplierAccount,
        SupplierUnavailable,
        Unclear,
        connect,
        refuse_taken,
    )
    from standfast.orders.component import COMPONENT
    from standfast.orders.era import PAUSED
    from standfast.orders.evidence import Recorded, deliver, resolve
    from standfast.orders.http import HttpSupplier
    from standfast.orders.intent import Intent, money, order_id
    from standfast.orders.policy import LONGEST_APPROVAL, LONGEST_DRAFT, POLICY_OPERATOR, Policy
    from standfast.orders.proposals import RECORD, Proposed, propose
    from standfast.orders.reconciling import Reconciled, due, may_send_again, reconcile
    from standfast.orders.recovering import (
        OrderEffect,
        apply_effects,
        foresee_orders,
        refuse_differing,
        refuse_forgotten,
        refuse_invalid,
    )
    from standfast.orders.sending import (
        Attempt,
        asked_about_at,
        begin,
        give_up_waiting,
        send,
        sendable,
        settle,
        transmit,
    )
    from standfast.orders.standing import NO_ANSWER, AccountStanding, account_standing, say_account
    from standfast.orders.waiting import (
        finish_waiting,
        has_open_orders,
        left_blocked,
        to_tell,
        wait,
        waits,
        wake,
    )

__all__ = [
    "COMPONENT",
    "LONGEST_APPROVAL",
    "LONGEST_DRAFT",
    "NO_ANSWER",
    "OPEN",
    "PAUSED",
    "POLICY_OPERATOR",
    "RECORD",
    "STATUSES",
    "Absent",
    "Accepted",
    "AccountStanding",
    "Approval",
    "Approved",
    "Attempt",
    "Declined",
    "HttpSupplier",
    "Intent",
    "Order",
    "OrderEffect",
    "Policy",
    "Proposed",
    "Reconciled",
    "Recorded",
    "Remembered",
    "Revoked",
    "Spending",
    "Step",
    "Supplier",
    "SupplierAccess",
    "SupplierAccount",
    "SupplierUnavailable",
    "Unclear",
    "account_standing",
    "all_orders",
    "apply_effects",
    "approvals_of",
    "approve",
    "approve_within",
    "asked_about_at",
    "begin",
    "compare",
    "connect",
    "counts",
    "deliver",
    "due",
    "expire",
    "finish_waiting",
    "foresee_orders",
    "give_up_waiting",
    "has_open_orders",
    "history_of",
    "left_blocked",
    "list_orders",
    "live_approval",
    "may_send_again",
    "money",
    "on_order",
    "open_orders",
    "order_id",
    "orders_of",
    "propose",
    "reconcile",
    "refuse_differing",
    "refuse_forgotten",
    "refuse_invalid",
    "refuse_taken",
    "resolve",
    "revoke",
    "revoke_within",
    "say_account",
    "send",
    "sendable",
    "settle",
    "show_order",
    "spending",
    "stuck_orders",
    "to_tell",
    "told",
    "transmit",
    "unapproved",
    "wait",
    "waits",
    "wake",
    "with_digest",
]

__getattr__ = lazily(
    __name__,
    {
        "amnesia": "Remembered compare",
        "approvals": "Approved Revoked approve approve_within expire revoke revoke_within",
        "book": (
            "OPEN STATUSES Approval Order Spending Step all_orders approvals_of counts history_of "
            "list_orders live_approval on_order open_orders orders_of show_order spending "
            "stuck_orders told unapproved with_digest"
        ),
        "client": (
            "Absent Accepted Declined Supplier SupplierAccess SupplierAccount SupplierUnavailable "
            "Unclear connect refuse_taken"
        ),
        "component": "COMPONENT",
        "era": "PAUSED",
        "evidence": "Recorded deliver resolve",
        "intent": "Intent money order_id",
        "policy": "LONGEST_APPROVAL LONGEST_DRAFT POLICY_OPERATOR Policy",
        "proposals": "RECORD Proposed propose",
        "reconciling": "Reconciled due may_send_again reconcile",
        "recovering": (
            "OrderEffect apply_effects foresee_orders refuse_differing refuse_forgotten refuse_invalid"
        ),
        "sending": "Attempt asked_about_at begin give_up_waiting send sendable settle transmit",
        "standing": "AccountStanding NO_ANSWER account_standing say_account",
        "waiting": "finish_waiting has_open_orders left_blocked to_tell wait waits wake",
        "http": "HttpSupplier",
    },
)
