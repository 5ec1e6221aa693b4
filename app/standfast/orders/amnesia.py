"""Amnesia: the supplier holds receipts that the local records never knew: the state is older than the world.

A disk that was rolled back and a machine that was cloned look like this, and nothing on the machine itself
can tell. Who finds it must end the era; what happened since is for the recovery of the account to find out.
"""

import sqlite3
from dataclasses import dataclass

from standfast.orders.client import SupplierAccount, SupplierUnavailable


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a comparison of the supplier's receipts with the local records came to."""

    upto: int
    """The last receipt's sequence: the next comparison may begin after it."""
    unknown: tuple[str, ...]
    """Operation ids that the supplier accepted and that were never sent as far as the records know."""

    @property
    def reason(self) -> str:
        """Why an era ends over it."""
        many = len(self.unknown)
        what = "an accepted receipt" if many == 1 else f"{many} accepted receipts"
        return (
            f"amnesia: the supplier holds {what} that this store never knew, the first of operation"
            f" {self.unknown[0]}; the state is older than the world"
        )


def compare(connection: sqlite3.Connection, account: SupplierAccount, *, after: int = 0) -> Remembered:
    """Compare the receipts after a sequence with the local records, by operation id.

    SENDING is committed before a request leaves, so every accepted operation has an order that was sent, also
    one that is on its way now. Raises SupplierUnavailable when the supplier gave no whole answer, unless what
    it did give is conclusive.
    """
    upto, unknown = after, []
    try:
        for receipt in account.receipts(after):
            upto = receipt.sequence
            if not _knows(connection, receipt.operation_id):
                unknown.append(receipt.operation_id)
    except SupplierUnavailable:
        if not unknown:
            raise
    return Remembered(upto, tuple(unknown))


def _knows(connection: sqlite3.Connection, operation: str) -> bool:
    query = "SELECT 1 FROM orders WHERE id = ? AND (attempts > 0 OR receipt IS NOT NULL)"
    return connection.execute(query, (operation,)).fetchone() is not None
