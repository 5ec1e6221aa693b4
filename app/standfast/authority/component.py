"""The tables of authority: one control row, and the work that claims are about.

The work table lives here because a claim and its fence cannot be told apart from the row they are about.
"""

from standfast.store import Component, reworded_check

_OPERATIONS = """
CREATE TABLE operations (
    id         INTEGER PRIMARY KEY CHECK (id = 1),
    epoch      TEXT NOT NULL,
    paused     INTEGER NOT NULL CHECK (paused IN (0, 1)),
    reason     TEXT NOT NULL,
    changed_at REAL NOT NULL
) STRICT
"""

_WORK = """
CREATE TABLE work (
    seq               INTEGER PRIMARY KEY,
    id                TEXT NOT NULL UNIQUE,
    role              TEXT NOT NULL,
    session           TEXT NOT NULL,
    subject           TEXT NOT NULL,
    prompt            TEXT NOT NULL,
    status            TEXT NOT NULL
        CHECK (status IN ('READY', 'RUNNING', 'BLOCKED', 'DONE', 'CANCELED', 'REJECTED')),
    reason            TEXT NOT NULL DEFAULT '',
    owner             TEXT,
    generation        INTEGER NOT NULL DEFAULT 0 CHECK (generation >= 0),
    epoch             TEXT,
    claimed_at        REAL,
    lease_until       REAL,
    parent            TEXT REFERENCES work (id),
    deadline          REAL,
    admitted_at       REAL NOT NULL,
    finished_at       REAL,
    run               TEXT,
    interrupted_epoch TEXT,
    CHECK ((status = 'RUNNING') = (lease_until IS NOT NULL)),
    CHECK (status <> 'RUNNING' OR (owner IS NOT NULL AND epoch IS NOT NULL AND claimed_at IS NOT NULL)),
    CHECK ((parent IS NULL) = (deadline IS NULL))
) STRICT
"""

# Every index is partial, so a million finished rows cost claims and health nothing. There is one for all open
# work, RUNNING beside the oldest READY, so that a claim and a finish each write one page of it. Its condition
# is spelled with OR: the query planner sees that status = 'READY' implies it, which it does not see for IN.
_INDEXES = (
    """CREATE INDEX work_open ON work (status DESC, seq, session)
        WHERE status = 'READY' OR status = 'RUNNING' OR status = 'BLOCKED'""",
    "CREATE INDEX work_aside ON work (status, seq) WHERE status = 'CANCELED' OR status = 'REJECTED'",
    "CREATE INDEX work_delegated ON work (parent) WHERE parent IS NOT NULL",
)

# The rules that hold whatever the code believes. A generation belongs to one claim, for ever: it never falls,
# and RUNNING is only entered at a higher one. A session has one live claim. DONE work may still be canceled,
# to stop its children; nothing else leaves an end. What the counts below say stays true. One trigger, after
# the update: each one costs every claim some microseconds, and one before it costs more.
_RULES = """
CREATE TRIGGER work_rules AFTER UPDATE OF status, generation, owner, epoch ON work
BEGIN
    SELECT CASE
        WHEN OLD.status IN ('DONE', 'CANCELED', 'REJECTED') AND NEW.status <> OLD.status
             AND (OLD.status <> 'DONE' OR NEW.status <> 'CANCELED')
        THEN RAISE(ABORT, 'finished work does not start again')
        WHEN NEW.generation < OLD.generation
             OR (NEW.status = 'RUNNING' AND NEW.generation = OLD.generation
                 AND (OLD.status <> 'RUNNING' OR NEW.owner IS NOT OLD.owner OR NEW.epoch IS NOT OLD.epoch))
        THEN RAISE(ABORT, 'a generation must rise with every claim')
        WHEN NEW.status = 'RUNNING' AND OLD.status <> 'RUNNING' AND EXISTS (
             SELECT 1 FROM work WHERE status = 'RUNNING' AND session = NEW.session AND seq <> NEW.seq)
        THEN RAISE(ABORT, 'a session has one live claim')
    END;
    UPDATE work_counts SET items = items - 1 WHERE status = OLD.status AND NEW.status <> OLD.status;
    UPDATE work_counts SET items = items + 1, latest = NEW.id, latest_at = NEW.finished_at
     WHERE status = NEW.status AND NEW.status <> OLD.status;
END
"""

_NOT_DELETED = """
CREATE TRIGGER work_not_deleted BEFORE DELETE ON work
BEGIN SELECT RAISE(ABORT, 'work is history and is not deleted'); END
"""

# Counting a million rows takes long; a row per ending, kept by triggers, does not. Open work is counted.
_COUNTS = """
CREATE TABLE work_counts (
    status    TEXT PRIMARY KEY,
    items     INTEGER NOT NULL CHECK (items >= 0),
    latest    TEXT,
    latest_at REAL
) STRICT, WITHOUT ROWID
"""
_COUNTS_ROWS = "INSERT INTO work_counts (status, items) VALUES ('DONE', 0), ('CANCELED', 0), ('REJECTED', 0)"
_COUNTS_INSERT = """
CREATE TRIGGER work_counts_insert AFTER INSERT ON work WHEN NEW.status IN ('DONE', 'CANCELED', 'REJECTED')
BEGIN UPDATE work_counts SET items = items + 1 WHERE status = NEW.status; END
"""

# Version 2 makes each ending one page cheaper and says the rules without IN: SQLite builds a table in memory
# for a list, each time. Work is numbered without gaps and never deleted, so what is DONE is what is left of
# the highest number once the open and the set-aside items are taken away; only the latter are kept as counts.
_RULES_2 = """
CREATE TRIGGER work_rules AFTER UPDATE OF status, generation, owner, epoch ON work
BEGIN
    SELECT CASE
        WHEN NEW.status <> OLD.status
             AND (OLD.status = 'CANCELED' OR OLD.status = 'REJECTED'
                  OR (OLD.status = 'DONE' AND NEW.status <> 'CANCELED'))
        THEN RAISE(ABORT, 'finished work does not start again')
        WHEN NEW.generation < OLD.generation
             OR (NEW.status = 'RUNNING' AND NEW.generation = OLD.generation
                 AND (OLD.status <> 'RUNNING' OR NEW.owner IS NOT OLD.owner OR NEW.epoch IS NOT OLD.epoch))
        THEN RAISE(ABORT, 'a generation must rise with every claim')
        WHEN NEW.status = 'RUNNING' AND OLD.status <> 'RUNNING' AND EXISTS (
             SELECT 1 FROM work WHERE status = 'RUNNING' AND session = NEW.session AND seq <> NEW.seq)
        THEN RAISE(ABORT, 'a session has one live claim')
    END;
    UPDATE work_aside_counts SET items = items + 1
     WHERE status = NEW.status AND NEW.status <> OLD.status
       AND (NEW.status = 'CANCELED' OR NEW.status = 'REJECTED');
END
"""
_NUMBERED = """
CREATE TRIGGER work_numbered AFTER INSERT ON work
BEGIN
    SELECT RAISE(ABORT, 'work is numbered without gaps')
     WHERE NEW.seq <> 1 AND NOT EXISTS (SELECT 1 FROM work WHERE seq = NEW.seq - 1);
    UPDATE work_aside_counts SET items = items + 1
     WHERE status = NEW.status AND (NEW.status = 'CANCELED' OR NEW.status = 'REJECTED');
END
"""
_NOT_RENUMBERED = """
CREATE TRIGGER work_not_renumbered BEFORE UPDATE OF seq ON work
BEGIN SELECT RAISE(ABORT, 'work is numbered without gaps'); END
"""
_STATUSES = ("READY", "RUNNING", "BLOCKED", "DONE", "CANCELED", "REJECTED")
_ASIDE_COUNTS = """
CREATE TABLE work_aside_counts (
    status TEXT PRIMARY KEY,
    items  INTEGER NOT NULL CHECK (items >= 0)
) STRICT, WITHOUT ROWID
"""

# Version 3: a claim and a finish run one trigger each instead of three. Whoever has something to do when work
# is canceled watches `latest`, which names it, and not every change of every status. A broken rule rolls the
# whole transaction back: to undo a statement alone, SQLite keeps a copy of the pages that it changes, each
# time. No caller goes on after a broken rule.
_RULES_3 = """
CREATE TRIGGER work_rules AFTER UPDATE OF status, generation, owner, epoch ON work
BEGIN
    SELECT CASE
        WHEN NEW.status <> OLD.status
             AND (OLD.status = 'CANCELED' OR OLD.status = 'REJECTED'
                  OR (OLD.status = 'DONE' AND NEW.status <> 'CANCELED'))
        THEN RAISE(ROLLBACK, 'finished work does not start again')
        WHEN NEW.generation < OLD.generation
             OR (NEW.status = 'RUNNING' AND NEW.generation = OLD.generation
                 AND (OLD.status <> 'RUNNING' OR NEW.owner IS NOT OLD.owner OR NEW.epoch IS NOT OLD.epoch))
        THEN RAISE(ROLLBACK, 'a generation must rise with every claim')
        WHEN NEW.status = 'RUNNING' AND OLD.status <> 'RUNNING' AND EXISTS (
             SELECT 1 FROM work WHERE status = 'RUNNING' AND session = NEW.session AND seq <> NEW.seq)
        THEN RAISE(ROLLBACK, 'a session has one live claim')
    END;
    UPDATE work_aside_counts SET items = items + 1, latest = NEW.id
     WHERE status = NEW.status AND NEW.status <> OLD.status
       AND (NEW.status = 'CANCELED' OR NEW.status = 'REJECTED');
END
"""
_ASIDE_KEPT = """
CREATE TRIGGER work_aside_kept BEFORE DELETE ON work_aside_counts
BEGIN SELECT RAISE(ABORT, 'what is canceled is counted and told here'); END
"""

COMPONENT = Component(
    name="authority",
    migrations=(
        (
            _OPERATIONS,
            _WORK,
            *_INDEXES,
            _NOT_DELETED,
            _COUNTS,
            _COUNTS_ROWS,
            _COUNTS_INSERT,
            _RULES,
        ),
        (
            "DROP TRIGGER work_rules",
            "DROP TRIGGER work_counts_insert",
            _ASIDE_COUNTS,
            "INSERT INTO work_aside_counts SELECT status, items FROM work_counts WHERE status <> 'DONE'",
            "DROP TABLE work_counts",
            _RULES_2,
            _NUMBERED,
            _NOT_RENUMBERED,
            *reworded_check("work", "status", _STATUSES),
        ),
        (
            "DROP TRIGGER work_rules",
            "ALTER TABLE work_aside_counts ADD COLUMN latest TEXT",
            _ASIDE_KEPT,
            _RULES_3,
        ),
    ),
)
