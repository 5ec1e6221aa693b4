"""What the supplier and its clients say to each other: JSON over HTTP, a bearer token with every request.

======  =========================  ==================  ==================================================
method  path                       body                answers
======  =========================  ==================  ==================================================
GET     ``/account``               -                   200 Account
POST    ``/account/epoch``         EpochRegistration   200 Account, or 409 ``epoch_registered``,
                                                       ``epoch_retired``, ``epoch_absent``
POST    ``/orders``                OrderRequest        201 SupplierReceipt: accepted now;
                                                       200 SupplierReceipt: accepted before, same intent;
                                                       409 ``stale_epoch``, ``operation_conflict``,
                                                       ``key_expired``; 422 ``refused``
GET     ``/orders/{operation_id}``  -                  200 SupplierReceipt, or 404 ``unknown_operation``
GET     ``/receipts``              ?after=SEQ&limit=N  200 ReceiptPage
POST    ``/faults``                FaultSwitch         200 FaultSwitch; only with ``--faults``
======  =========================  ==================  ==================================================

Every other answer is an Answer, too: 400 ``malformed``, 401 ``unauthorized``, 404 ``unknown_path``, 405,
413 ``too_large``, 500 ``failed``.

What a client may conclude about one operation:

- 201 and 200 are accepted, once, for ever; the same operation id never makes a second receipt.
- 422 ``refused`` is refused for ever: the ledger keeps the refusal and repeats it for that operation id.
- Anything else (409, 5xx, a lost connection, silence) says nothing about an *earlier* transmission of the
  same operation; a 404 of the lookup proves nothing, because a request may still be on its way.
- An order is the same intent when everything but its epoch is the same. So an order that was accepted in an
  earlier epoch is answered under the present one with its old receipt, never bought again.
- Past ``key_window_seconds`` after its acceptance an operation id is not answered with its receipt any more
  (``key_expired``): look it up instead of sending it again.

Money is integer cents; times are RFC 3339 in UTC.
"""

from typing import Annotated, Any, Literal, override

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

EPOCH_PATTERN = r"\A[0-9a-f]{32}\z"
OPERATION_PATTERN = r"\A[0-9a-f]{8,64}\z"
DEFAULT_KEY_WINDOW = 86_400
"""Seconds."""
LONGEST_PAGE = 500
"""The most receipts that one page holds."""

EpochId = Annotated[str, StringConstraints(pattern=EPOCH_PATTERN)]
OperationId = Annotated[str, StringConstraints(pattern=OPERATION_PATTERN)]
Text = Annotated[str, StringConstraints(pattern=r"\A[ -~]{1,200}\z")]
"""Printable ASCII."""
Currency = Annotated[str, StringConstraints(pattern=r"\A[A-Z]{3}\z")]
Digest = Annotated[str, StringConstraints(pattern=r"\A[0-9a-f]{64}\z")]
Quantity = Annotated[int, Field(ge=1, le=1000)]
UnitCost = Annotated[int, Field(ge=0, le=100_000_000)]

FaultKind = Literal["drop_after_accept", "drop_before_accept", "delay", "error", "refuse"]
Endpoint = Literal["account", "epoch", "orders", "lookup", "receipts"]

ErrorCode = Literal[
    "epoch_absent",
    "epoch_registered",
    "epoch_retired",
    "failed",
    "key_expired",
    "malformed",
    "not_allowed",
    "operation_conflict",
    "refused",
    "stale_epoch",
    "too_large",
    "unauthorized",
    "unknown_operation",
    "unknown_path",
]


class _Request(BaseModel):
    """What a client sends: nothing unknown, nothing converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Response(BaseModel):
    """What the supplier answers; a client overlooks fields that a later supplier adds."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class Account(_Response):
    """The account and the era of its client."""

    account: str
    """The account's own identity; stays with its ledger for ever."""
    epoch: EpochId | None
    """The one epoch whose orders are taken; None: none was registered yet."""
    key_window_seconds: int
    """How long after its acceptance an operation id is answered with its receipt."""
    accepted: int
    """How many receipts the ledger holds."""


class EpochRegistration(_Request):
    """Register an epoch; ``replaces`` names the current one when there is one. Repeating it is harmless."""

    epoch: EpochId
    replaces: EpochId | None = None


class OrderRequest(_Request):
    """One order, exactly as it was approved."""

    operation_id: OperationId
    epoch: EpochId
    target: Text
    sku: Text
    quantity: Quantity
    unit_cost_cents: UnitCost
    currency: Currency
    digest: Digest
    """The buyer's digest of the intent; the supplier keeps it and gives it back, and does not judge it."""


class SupplierReceipt(_Response):
    """Proof that the supplier accepted one operation."""

    sequence: int
    """1, 2, 3, ... within the account, without gaps."""
    receipt_id: str
    operation_id: str
    epoch: str
    """The epoch in which it was accepted."""
    target: str
    sku: str
    quantity: int
    unit_cost_cents: int
    total_cents: int
    currency: str
    digest: str
    accepted_at: str

    @override
    def model_post_init(self, context: Any) -> None:
        """Share the set of the given fields, which are all of them: ten thousand are held at once."""
        object.__setattr__(self, "__pydantic_fields_set__", _WHOLE)


_WHOLE = set(SupplierReceipt.model_fields)


class ReceiptPage(_Response):
    """A part of the full export, oldest first."""

    receipts: tuple[SupplierReceipt, ...]
    next: int | None
    """What to give as ``after`` for the next page; None: this was the last one."""


class Answer(_Response):
    """Every answer that is none of the above; the status says how to read it."""

    error: ErrorCode
    reason: str
    """One sentence for a person."""


class FaultSwitch(_Request):
    """Let the next ``times`` requests to one endpoint fail in one way; replaces its earlier switch.

    ``drop_before_accept`` closes the connection and does nothing; ``drop_after_accept`` does the work, then
    closes it; ``delay`` holds the request back for ``seconds``, then does the work (also when the client has
    given up meanwhile); ``error`` answers 500 and does nothing; ``refuse`` refuses the order for ever (422).
    """

    kind: FaultKind
    seconds: Annotated[float, Field(ge=0, le=600)] = 0.0
    times: Annotated[int, Field(ge=0, le=1_000_000)] = 1
    """0 takes the switch back."""
    on: Endpoint = "orders"
