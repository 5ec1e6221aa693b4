"""What an order says: its exact bytes, their digest, and the identities that follow from them."""

import hashlib
import json
from dataclasses import dataclass

SMALLEST_QUANTITY = 1
LARGEST_QUANTITY = 1000


@dataclass(frozen=True, slots=True)
class Intent:
    """One purchase, as it is approved and sent. Whoever approves the digest approves every field."""

    target: str
    """From whom: the supplier's name in the policy."""
    sku: str
    quantity: int
    unit_cost_cents: int
    """From the catalogue, never from a model."""
    currency: str

    @property
    def total_cents(self) -> int:
        """What the purchase costs."""
        return self.quantity * self.unit_cost_cents

    @property
    def canonical(self) -> bytes:
        """The exact bytes: JSON with sorted keys and no spaces, in UTF-8."""
        fields = {
            "currency": self.currency,
            "quantity": self.quantity,
            "sku": self.sku,
            "target": self.target,
            "unit_cost_cents": self.unit_cost_cents,
        }
        return json.dumps(fields, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()

    @property
    def digest(self) -> str:
        """sha256 over the target, a newline and the canonical bytes; 64 hex digits."""
        return hashlib.sha256(self.target.encode() + b"\n" + self.canonical).hexdigest()


def order_id(work: str, digest: str) -> str:
    """24 hex digits that one purchase of one work item always has, also as the supplier's operation id."""
    return hashlib.sha256(f"{work}\n{digest}".encode()).hexdigest()[:24]


def money(cents: int, currency: str) -> str:
    """``18.00 EUR``."""
    return f"{cents // 100}.{cents % 100:02d} {currency}"
