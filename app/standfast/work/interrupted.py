"""Work that the end of an era interrupted: nobody holds it until the recovery says what becomes of it."""

import sqlite3

from standfast.work.reports import check_body, insert_report


def end_interrupted(
    connection: sqlite3.Connection, work: str, *, report: str, reason: str, now: float
) -> None:
    """Inside the recovery's transaction: end READY work as CANCELED, with a pending report.

    CANCELED, because nothing was done: only finished work is ever DONE. The generation rises once more, so
    that no claim of any era can ever match the row.
    """
    check_body(report)
    generation = connection.execute(
        "UPDATE work SET status = 'CANCELED', generation = generation + 1, reason = ?, finished_at = ?"
        " WHERE id = ? AND status = 'READY' RETURNING generation",
        (reason, now, work),
    ).fetchone()[0]
    insert_report(connection, work, generation, report, now)
