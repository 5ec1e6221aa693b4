"""The supplier's own durable record: one account, its epochs, what it accepted and what it refused.

Every answer is decided and committed in one transaction before it leaves. What the account promises for ever
is kept by the schema too: rows are never changed or removed, and a retired epoch stays retired.
"""

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from standfast.clock import rfc3339
from standfast.store import Component, Store, immediate, new_id, open_store
from standfast.supplier.wire import (
    DEFAULT_KEY_WINDOW,
    Account,
    EpochRegistration,
    ErrorCode,
    OrderRequest,
    ReceiptPage,
    SupplierReceipt,
)

LEDGER = "ledger.sqlite"
"""The ledger's file, in a folder of its own."""


def _kept(table: str, *events: str) -> tuple[str, ...]:
    """Triggers that refuse to change or remove rows of a table."""
    return tuple(
        f"CREATE TRIGGER {table}_no_{event.split()[0].lower()} BEFORE {event} ON {table}"
        f" BEGIN SELECT RAISE(ABORT, 'the ledger of {table} is never changed'); END"
        for event in events
    )


COMPONENT = Component(
    "supplier",
    (
        (
            """
            CREATE TABLE account (
                id         INTEGER PRIMARY KEY CHECK (id = 1),
                account    TEXT NOT NULL,
                created_at REAL NOT NULL
            ) STRICT
            """,
            """
            CREATE TABLE epochs (
                epoch         TEXT PRIMARY KEY,
                registered_at REAL NOT NULL,
                retired_at    REAL
            ) STRICT, WITHOUT ROWID
            """,
            "CREATE UNIQUE INDEX epochs_one_current ON epochs (retired_at IS NULL) WHERE retired_at IS NULL",
            """
            CREATE TRIGGER epochs_stay_retired BEFORE UPDATE ON epochs
                WHEN OLD.retired_at IS NOT NULL OR NEW.epoch <> OLD.epoch
                BEGIN SELECT RAISE(ABORT, 'a retired epoch never comes back'); END
            """,
            *_kept("epochs", "DELETE"),
            """
            CREATE TABLE receipts (
                sequence        INTEGER PRIMARY KEY CHECK (sequence > 0),
                receipt_id      TEXT NOT NULL UNIQUE,
                operation_id    TEXT NOT NULL UNIQUE,
                epoch           TEXT NOT NULL REFERENCES epochs,
                target          TEXT NOT NULL,
                sku             TEXT NOT NULL,
                quantity        INTEGER NOT NULL,
                unit_cost_cents INTEGER NOT NULL,
                currency        TEXT NOT NULL,
                digest          TEXT NOT NULL,
                accepted_at     REAL NOT NULL
            ) STRICT
            """,
            *_kept("receipts", "UPDATE", "DELETE"),
            """
            CREATE TABLE refusals (
                operation_id TEXT PRIMARY KEY,
                reason       TEXT NOT NULL,
                refused_at   REAL NOT NULL
            ) STRICT, WITHOUT ROWID
            """,
            *_kept("refusals", "UPDATE", "DELETE"),
        ),
    ),
)

_INSERT = """
INSERT INTO receipts VALUES (:sequence, :receipt_id, :operation_id, :epoch, :target, :sku, :quantity,
    :unit_cost_cents, :currency, :digest, :accepted_at)
"""


class Denied(Exception):
    """The supplier does not do what was asked; ``code`` is part of the wire, ``reason`` one sentence."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Ledger:
    """One account. Not to be shared between threads; several processes may."""

    def __init__(self, connection: Store, key_window: float) -> None:
        self._connection = connection
        self._key_window = key_window

    @classmethod
    def open(cls, folder: Path, now: float, key_window: float = DEFAULT_KEY_WINDOW) -> Self:
        """The ledger in ``folder``, made with a new account when there is none; Refused as by the store."""
        folder.mkdir(mode=0o700, exist_ok=True)
        connection = open_store(folder / LEDGER, (COMPONENT,), create=True)
        connection.row_factory = sqlite3.Row
        with immediate(connection, "supplier.account"):
            connection.execute("INSERT OR IGNORE INTO account VALUES (1, ?, ?)", (new_id(now), now))
        return cls(connection, key_window)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @property
    def written(self) -> bool:
        """Whether this object has written anything."""
        return self._connection.total_changes > 0

    def account(self) -> Account:
        """The account, as of now."""
        account, epoch, accepted = self._connection.execute(
            "SELECT account, (SELECT epoch FROM epochs WHERE retired_at IS NULL),"
            " (SELECT coalesce(max(sequence), 0) FROM receipts) FROM account"
        ).fetchone()
        return Account(
            account=account, epoch=epoch, key_window_seconds=int(self._key_window), accepted=accepted
        )

    def register(self, wanted: EpochRegistration, now: float) -> Account:
        """Make ``wanted.epoch`` the current one; Denied ``epoch_retired``, ``_registered`` or ``_absent``."""
        with immediate(self._connection, "supplier.epoch"):
            current = self._current_epoch()
            if current != wanted.epoch:
                self._judge_registration(wanted, current)
                self._connection.execute(
                    "UPDATE epochs SET retired_at = ? WHERE epoch = ? AND retired_at IS NULL", (now, current)
                )
                self._connection.execute("INSERT INTO epochs VALUES (?, ?, NULL)", (wanted.epoch, now))
            return self.account()

    def order(
        self, request: OrderRequest, now: float, *, refuse: str | None = None
    ) -> tuple[SupplierReceipt, bool]:
        """The receipt of an operation, and whether it was accepted just now.

        Denied ``stale_epoch``, ``operation_conflict``, ``key_expired`` or ``refused``; ``refuse`` is the
        reason for which an order that is new gets refused, once and for ever.
        """
        with immediate(self._connection, "supplier.order"):
            self._judge_epoch(request)
            known = self._find(request.operation_id)
            if known is not None:
                return self._repeated(request, known, now), False
            reason = self._refusal(request.operation_id)
            if reason is None and refuse is None:
                return self._accept(request, now), True
            if reason is None:
                reason = refuse or ""
                self._connection.execute(
                    "INSERT INTO refusals VALUES (?, ?, ?)", (request.operation_id, reason, now)
                )
        raise Denied("refused", reason)  # outside: a refusal is to be kept, not rolled back

    def lookup(self, operation_id: str) -> SupplierReceipt:
        """The receipt of an operation; Denied ``unknown_operation`` when it was not accepted so far."""
        found = self._find(operation_id)
        if found is None:
            raise Denied("unknown_operation", "no such operation was accepted so far; this proves nothing")
        return _receipt(dict(found))

    def export(self, after: int, limit: int) -> ReceiptPage:
        """At most ``limit`` receipts with sequences above ``after``, oldest first."""
        rows = self._connection.execute(
            "SELECT * FROM receipts WHERE sequence > ? ORDER BY sequence LIMIT ?", (after, limit + 1)
        ).fetchall()
        page = tuple(_receipt(dict(row)) for row in rows[:limit])
        return ReceiptPage(receipts=page, next=page[-1].sequence if len(rows) > limit else None)

    def _current_epoch(self) -> str | None:
        row = self._connection.execute("SELECT epoch FROM epochs WHERE retired_at IS NULL").fetchone()
        return None if row is None else str(row[0])

    def _judge_registration(self, wanted: EpochRegistration, current: str | None) -> None:
        if self._connection.execute("SELECT 1 FROM epochs WHERE epoch = ?", (wanted.epoch,)).fetchone():
            raise Denied("epoch_retired", "this epoch was replaced, and a retired epoch never comes back")
        if current is not None and wanted.replaces != current:
            raise Denied("epoch_registered", "another epoch is current, and it was not named as replaced")
        if current is None and wanted.replaces is not None:
            raise Denied("epoch_absent", "no epoch is registered, so none can be replaced")

    def _judge_epoch(self, request: OrderRequest) -> None:
        if request.epoch != self._current_epoch():
            raise Denied("stale_epoch", "the order's epoch is not the account's current one")

    def _find(self, operation_id: str) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._connection.execute(
            "SELECT * FROM receipts WHERE operation_id = ?", (operation_id,)
        ).fetchone()
        return row

    def _refusal(self, operation_id: str) -> str | None:
        row = self._connection.execute(
            "SELECT reason FROM refusals WHERE operation_id = ?", (operation_id,)
        ).fetchone()
        return None if row is None else str(row[0])

    def _repeated(self, request: OrderRequest, known: sqlite3.Row, now: float) -> SupplierReceipt:
        receipt = _receipt(dict(known))
        intent = request.model_dump(exclude={"epoch"})
        if receipt.model_dump(include=set(intent)) != intent:
            raise Denied("operation_conflict", "the operation id belongs to another intent")
        if now - known["accepted_at"] > self._key_window:
            raise Denied("key_expired", "the operation is older than the key window: look it up instead")
        return receipt

    def _accept(self, request: OrderRequest, now: float) -> SupplierReceipt:
        row = {
            **request.model_dump(),
            "sequence": self.account().accepted + 1,
            "receipt_id": new_id(now),
            "accepted_at": now,
        }
        self._connection.execute(_INSERT, row)
        return _receipt(row)


def _receipt(row: Mapping[str, Any]) -> SupplierReceipt:
    return SupplierReceipt(
        **{name: row[name] for name in row.keys() - {"accepted_at"}},
        total_cents=row["quantity"] * row["unit_cost_cents"],
        accepted_at=rfc3339(row["accepted_at"]),
    )
