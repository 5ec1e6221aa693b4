"""What the tests of backups share: an instance, backups of it, and how they are dated and damaged."""

import json
from pathlib import Path
from typing import Any

from support import Instance

from standfast.clock import rfc3339
from standfast.operations.backup.creating import Request, create
from standfast.operations.backup.folders import MANIFEST
from standfast.operations.backup.limits import Limits
from standfast.operations.backup.listing import BackupEntry

SMALL = Limits(floor=0)
"""No free space is asked for."""


DANGLING = (
    "INSERT INTO reports (id, work, generation, body, delivery, created_at)"
    " VALUES ('r', 'x', 1, '', 'sent', 1)"
)
"""A report of work that is not there."""


def made(instance: Instance, **wanted: Any) -> BackupEntry:
    """One backup; `wanted` as for `Request.of`."""
    done = create(instance.layout, Request.of(**wanted))
    assert done.changed
    assert done.backup is not None
    return done.backup


def edit(folder: Path | str, **values: Any) -> None:
    """Change what a manifest says."""
    path = Path(folder) / MANIFEST
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, **values}))


def dated(folder: Path | str, at: float) -> None:
    """As if the clock had said `at` when it was made."""
    edit(folder, made_at=rfc3339(at))


def enlarge(instance: Instance, megabytes: int) -> None:
    """Give the store some weight: finished work with long prompts."""
    with instance.store() as store:
        store.execute("BEGIN IMMEDIATE")
        store.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " INSERT INTO work (id, role, session, subject, prompt, status, admitted_at, finished_at)"
            " SELECT printf('%024x', i), 'agent', 's', 'stock', hex(randomblob(5000)), 'DONE', i, i FROM n",
            (megabytes * 100,),
        )
        store.execute("COMMIT")


def names(folder: Path) -> list[str]:
    """What lies in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())
