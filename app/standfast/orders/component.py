"""The tables of orders, with the rules that hold whatever the code believes.

An order's bytes never change. SENDING is entered only under a live approval of exactly those bytes. A
reservation never rises past the ceiling. Money is spent only with a supplier receipt. Canceled work loses its
drafts and approvals in the transaction that cancels it.
"""

import sqlite3

from standfast.store import Component

_ORDERS = """
CREATE TABLE orders (
    seq             INTEGER PRIMARY KEY,
    id              TEXT NOT NULL UNIQUE,
    work            TEXT REFERENCES work (id),
    generation      INTEGER NOT NULL,
    epoch           TEXT NOT NULL,
    target          TEXT NOT NULL,
    sku             TEXT NOT NULL,
    quantity        INTEGER NOT NULL CHECK (quantity BETWEEN 1 AND 1000),
    unit_cost_cents INTEGER NOT NULL CHECK (unit_cost_cents >= 0),
    currency        TEXT NOT NULL,
    digest          TEXT NOT NULL,
    status          TEXT NOT NULL CHECK (status IN ('DRAFT', 'APPROVED', 'SENDING', 'UNKNOWN', 'CONFIRMED',
                                                    'DELIVERED', 'REJECTED', 'REVOKED')),
    note            TEXT NOT NULL DEFAULT '',
    reserved_cents  INTEGER NOT NULL DEFAULT 0,
    spent_cents     INTEGER NOT NULL DEFAULT 0,
    spent_day       TEXT,
    attempts        INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    first_sent_at   REAL,
    last_sent_at    REAL,
    key_window      REAL,
    lookups         INTEGER NOT NULL DEFAULT 0 CHECK (lookups >= 0),
    looked_at       REAL,
    next_look       REAL,
    receipt_id      TEXT UNIQUE,
    receipt         TEXT,
    refused_receipt TEXT,
    proposed_at     REAL NOT NULL,
    changed_at      REAL NOT NULL,
    CHECK (reserved_cents = 0
           OR reserved_cents = quantity * unit_cost_cents AND status IN ('APPROVED', 'SENDING', 'UNKNOWN')),
    CHECK (spent_cents = CASE WHEN status IN ('CONFIRMED', 'DELIVERED')
                              THEN quantity * unit_cost_cents ELSE 0 END),
    CHECK ((status IN ('CONFIRMED', 'DELIVERED')) = (receipt IS NOT NULL)),
    CHECK ((receipt IS NULL) = (receipt_id IS NULL) AND (receipt IS NULL) = (spent_day IS NULL)),
    CHECK (status NOT IN ('SENDING', 'UNKNOWN') OR attempts > 0 AND first_sent_at IS NOT NULL
           AND last_sent_at IS NOT NULL AND key_window IS NOT NULL)
) STRICT
"""

_INDEXES = (
    "CREATE INDEX orders_work ON orders (work, sku) WHERE work IS NOT NULL",
    """CREATE INDEX orders_open ON orders (status, seq, sku, quantity)
        WHERE status IN ('DRAFT', 'APPROVED', 'SENDING', 'UNKNOWN', 'CONFIRMED')""",
    "CREATE INDEX orders_digest ON orders (digest)",
    "CREATE INDEX orders_reserved ON orders (reserved_cents) WHERE reserved_cents > 0",
    "CREATE INDEX orders_spent ON orders (spent_day, spent_cents) WHERE spent_day IS NOT NULL",
)

_APPROVALS = """
CREATE TABLE approvals (
    seq         INTEGER PRIMARY KEY,
    id          TEXT NOT NULL UNIQUE,
    order_id    TEXT NOT NULL REFERENCES orders (id),
    digest      TEXT NOT NULL,
    operator    TEXT NOT NULL,
    automatic   INTEGER NOT NULL CHECK (automatic IN (0, 1)),
    day         TEXT NOT NULL,
    cents       INTEGER NOT NULL,
    approved_at REAL NOT NULL,
    until       REAL NOT NULL,
    used_at     REAL,
    revoked     INTEGER NOT NULL DEFAULT 0 CHECK (revoked IN (0, 1)),
    CHECK (until > approved_at AND until <= approved_at + 86400),
    CHECK (used_at IS NULL OR used_at < until)
) STRICT
"""
_APPROVALS_INDEXES = (
    "CREATE INDEX approvals_order ON approvals (order_id, seq)",
    "CREATE UNIQUE INDEX approvals_live ON approvals (order_id) WHERE revoked = 0",
    "CREATE INDEX approvals_automatic ON approvals (day, cents) WHERE automatic = 1",
)

# The day never goes back, so that a clock that does cannot open yesterday's ceiling a second time.
_SPENDING = """
CREATE TABLE spending (
    id            INTEGER PRIMARY KEY CHECK (id = 1),
    day           TEXT NOT NULL,
    ceiling_cents INTEGER NOT NULL CHECK (ceiling_cents >= 0)
) STRICT
"""

_HISTORY = """
CREATE TABLE order_history (
    seq      INTEGER PRIMARY KEY,
    order_id TEXT NOT NULL,
    status   TEXT NOT NULL,
    note     TEXT NOT NULL,
    at       REAL NOT NULL
) STRICT
"""

_WAITS = """
CREATE TABLE order_waits (
    work    TEXT PRIMARY KEY REFERENCES work (id),
    looks   INTEGER NOT NULL,
    next_at REAL NOT NULL
) STRICT, WITHOUT ROWID
"""

_TRIGGERS = (
    """
    CREATE TRIGGER orders_not_deleted BEFORE DELETE ON orders
    BEGIN SELECT RAISE(ABORT, 'orders are history and are not deleted'); END
    """,
    """
    CREATE TRIGGER orders_bytes BEFORE UPDATE OF id, work, target, sku, quantity, unit_cost_cents, currency,
                                                  digest ON orders
    BEGIN SELECT RAISE(ABORT, 'what an order says never changes'); END
    """,
    """
    CREATE TRIGGER orders_rules BEFORE UPDATE OF status ON orders WHEN NEW.status <> OLD.status
    BEGIN
        SELECT RAISE(ABORT, 'an order does not go that way')
         WHERE NOT CASE NEW.status
            WHEN 'DRAFT' THEN OLD.status IN ('APPROVED', 'REVOKED')
            WHEN 'APPROVED' THEN OLD.status = 'DRAFT'
            WHEN 'SENDING' THEN OLD.status IN ('APPROVED', 'UNKNOWN')
            WHEN 'UNKNOWN' THEN OLD.status = 'SENDING'
            WHEN 'REJECTED' THEN OLD.status IN ('SENDING', 'UNKNOWN')
            WHEN 'REVOKED' THEN OLD.status IN ('DRAFT', 'APPROVED', 'SENDING', 'UNKNOWN')
            WHEN 'CONFIRMED' THEN OLD.status IN ('SENDING', 'UNKNOWN', 'REVOKED', 'REJECTED')
            ELSE OLD.status <> 'DRAFT' AND OLD.status <> 'APPROVED'
         END;
        SELECT RAISE(ABORT, 'an order is sent only under a live approval of exactly its bytes')
         WHERE NEW.status = 'SENDING' AND NOT EXISTS (
            SELECT 1 FROM approvals WHERE order_id = NEW.id AND digest = NEW.digest AND revoked = 0
               AND used_at IS NOT NULL AND until > NEW.last_sent_at);
    END
    """,
    """
    CREATE TRIGGER orders_approved AFTER UPDATE OF status ON orders WHEN NEW.status = 'APPROVED'
    BEGIN
        SELECT RAISE(ABORT, 'approval and reservation come together')
         WHERE NEW.reserved_cents <> NEW.quantity * NEW.unit_cost_cents OR NOT EXISTS (
            SELECT 1 FROM approvals WHERE order_id = NEW.id AND digest = NEW.digest AND revoked = 0
               AND used_at IS NULL);
    END
    """,
    """
    CREATE TRIGGER orders_ceiling AFTER UPDATE OF reserved_cents ON orders
    WHEN NEW.reserved_cents > OLD.reserved_cents
    BEGIN
        SELECT RAISE(ABORT, 'the ceiling would be passed')
         WHERE (SELECT total(reserved_cents) FROM orders WHERE reserved_cents > 0)
             + (SELECT total(spent_cents) FROM orders WHERE spent_day = (SELECT day FROM spending))
             > (SELECT total(ceiling_cents) FROM spending);
    END
    """,
    """
    CREATE TRIGGER orders_new AFTER INSERT ON orders
    BEGIN INSERT INTO order_history (order_id, status, note, at)
          VALUES (NEW.id, NEW.status, NEW.note, NEW.changed_at); END
    """,
    """
    CREATE TRIGGER orders_changed AFTER UPDATE OF status ON orders WHEN NEW.status <> OLD.status
    BEGIN
        INSERT INTO order_history (order_id, status, note, at)
        VALUES (NEW.id, NEW.status, NEW.note, NEW.changed_at);
        UPDATE order_waits SET looks = 0, next_at = 0 WHERE work = NEW.work;
    END
    """,
    """
    CREATE TRIGGER orders_work_canceled AFTER UPDATE OF status ON work
    WHEN NEW.status = 'CANCELED' AND OLD.status <> 'CANCELED'
    BEGIN
        UPDATE approvals SET revoked = 1
         WHERE revoked = 0 AND order_id IN (SELECT id FROM orders WHERE work = NEW.id);
        UPDATE orders SET status = 'REVOKED', reserved_cents = 0, note = 'the work was canceled',
                          changed_at = coalesce(NEW.finished_at, changed_at)
         WHERE work = NEW.id AND status IN ('DRAFT', 'APPROVED');
        DELETE FROM order_waits WHERE work = NEW.id;
    END
    """,
    """
    CREATE TRIGGER orders_work_done AFTER UPDATE OF status ON work WHEN NEW.status = 'DONE'
    BEGIN DELETE FROM order_waits WHERE work = NEW.id; END
    """,
)

# An order whose approval ended unsent is news for the work that waits for it: once, whatever dies in between.
_TELL = (
    "ALTER TABLE order_waits ADD COLUMN tell INTEGER NOT NULL DEFAULT 0 CHECK (tell IN (0, 1))",
    """
    CREATE TRIGGER orders_lapsed AFTER UPDATE OF status ON orders
    WHEN NEW.status = 'DRAFT' AND OLD.status = 'APPROVED'
    BEGIN UPDATE order_waits SET tell = 1 WHERE work = NEW.work; END
    """,
)

# Authority names what was canceled, so that this is no trigger on every change of a work item's status. What
# waits for its orders ends through `finish_waiting`. The rules that a cancellation can meet roll back as
# authority's do: one that undid its statement alone would make SQLite ready for that in every claim.
_CANCELED = """
CREATE TRIGGER orders_work_canceled AFTER UPDATE OF latest ON work_aside_counts WHEN NEW.status = 'CANCELED'
BEGIN
    UPDATE approvals SET revoked = 1
     WHERE revoked = 0 AND order_id IN (SELECT id FROM orders WHERE work = NEW.latest);
    UPDATE orders SET status = 'REVOKED', reserved_cents = 0, note = 'the work was canceled',
                      changed_at = coalesce((SELECT finished_at FROM work WHERE id = NEW.latest), changed_at)
     WHERE work = NEW.latest AND status IN ('DRAFT', 'APPROVED');
    DELETE FROM order_waits WHERE work = NEW.latest;
END
"""

_MET_BY_CANCELING = ("orders_rules", "orders_approved", "orders_ceiling")
_ROLLING_BACK = tuple(
    statement
    for trigger in _TRIGGERS
    if trigger.split()[2] in _MET_BY_CANCELING
    for statement in (
        f"DROP TRIGGER {trigger.split()[2]}",
        trigger.replace("RAISE(ABORT,", "RAISE(ROLLBACK,"),
    )
)

# What keeps the service from the account in this era: for those who only read the store.
_STANDING = """
CREATE TABLE supplier_standing (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    code    TEXT NOT NULL,
    problem TEXT NOT NULL,
    since   REAL NOT NULL
) STRICT
"""


def _authority_ends(connection: sqlite3.Connection) -> None:
    """No approval and no reservation outlives its era; what was sent stays: it is a fact about the world.

    So does what waits for orders: once operations resume, the work ends with a report of what came of them.
    """
    connection.execute("UPDATE approvals SET revoked = 1 WHERE revoked = 0")
    connection.execute(
        "UPDATE orders SET status = 'REVOKED', reserved_cents = 0, note = 'the era ended',"
        " changed_at = (SELECT changed_at FROM operations WHERE id = 1)"
        " WHERE status IN ('DRAFT', 'APPROVED')"
    )
    connection.execute("UPDATE orders SET reserved_cents = 0 WHERE reserved_cents > 0")
    connection.execute("DELETE FROM supplier_standing")


COMPONENT = Component(
    name="orders",
    migrations=(
        (
            _ORDERS,
            *_INDEXES,
            _APPROVALS,
            *_APPROVALS_INDEXES,
            _SPENDING,
            _HISTORY,
            "CREATE INDEX order_history_order ON order_history (order_id, seq)",
            _WAITS,
            *_TRIGGERS,
        ),
        _TELL,
        (
            "DROP TRIGGER orders_work_canceled",
            "DROP TRIGGER orders_work_done",
            _CANCELED,
            *_ROLLING_BACK,
        ),
        (_STANDING,),
    ),
    on_epoch_end=_authority_ends,
)
"""Comes after the work component: an order belongs to work."""
