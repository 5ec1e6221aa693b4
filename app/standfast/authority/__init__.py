"""Who may act: epoch, marker, pause, claims, and the fence that refuses whoever may no longer.

The fence cannot recall a request that was already sent; operation ids and reconciliation are for that.
"""

from standfast.authority.claims import (
    DEFAULT_LEASE,
    MAX_LEASE,
    claim_next,
    claim_own,
    renew,
    take_next,
)
from standfast.authority.component import COMPONENT
from standfast.authority.epoch import (
    Operations,
    agrees,
    end_era,
    initialise,
    new_epoch,
    operations,
    pause,
    refuse_other_marker,
    replace,
    resume,
    resume_within,
)
from standfast.authority.fence import Claim, FencedNow, StaleClaim, admits, assert_current, fenced
from standfast.authority.lock import refuse_while_held, writer_lock
from standfast.authority.marker import Marker, host_identity, refuse_other_host

CONTRACT = 1
"""The number of the authority contract: order and sentences of the fence, and what a new era ends."""

__all__ = [
    "COMPONENT",
    "CONTRACT",
    "DEFAULT_LEASE",
    "MAX_LEASE",
    "Claim",
    "FencedNow",
    "Marker",
    "Operations",
    "StaleClaim",
    "admits",
    "agrees",
    "assert_current",
    "claim_next",
    "claim_own",
    "end_era",
    "fenced",
    "host_identity",
    "initialise",
    "new_epoch",
    "operations",
    "pause",
    "refuse_other_host",
    "refuse_other_marker",
    "refuse_while_held",
    "renew",
    "replace",
    "resume",
    "resume_within",
    "take_next",
    "writer_lock",
]
