"""The receipt of an operation that somebody typed by hand: the same one that a playbook keeps of it.

What is refused has changed nothing and leaves none; a playbook keeps its own and asks for none.
"""

import platform
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol, Self

from standfast.errors import StandfastError, StoreBusy
from standfast.layout import Layout, running_release
from standfast.receipts import chain, model
from standfast.receipts.model import Check
from standfast.receipts.recorder import record

UNEXPECTED = StandfastError.exit_code


class Told(Protocol):
    """What an operation says it did."""

    changed: bool
    check: bool

    def model_copy(self, *, update: dict[str, str | None]) -> Self: ...


def with_receipt[T: Told](
    layout: Layout, operation: str, act: Callable[[], T], checks: Callable[[T], Sequence[Check]]
) -> T:
    """Do it, and keep a receipt if it changed anything or failed; ``receipt`` of the result names the file.

    ``checks``: what the receipt says was seen. Refused, before anything is done, when there is no receipts
    folder that one could be kept in: `no_receipts`, `receipts_mode` and the like.
    """
    chain.check_folder(layout.receipts)
    began = time.time()
    with failure_kept(layout, operation, began):
        found = act()
    if found.check or not found.changed:
        return found
    try:
        kept = leave(layout, operation, checks(found), began=began)
    except (StandfastError, OSError) as error:
        raise StandfastError(
            f"done: {operation}; but its receipt could not be kept: {error}; nothing is to be repeated"
        ) from error
    return found.model_copy(update={"receipt": kept})


@contextmanager
def failure_kept(layout: Layout, operation: str, began: float) -> Iterator[None]:
    """Around an operation: one that fails unexpectedly leaves a receipt that says so."""
    try:
        yield
    except StandfastError as error:
        if error.exit_code == UNEXPECTED and not isinstance(error, StoreBusy):
            with suppress(StandfastError, OSError):  # what went wrong first is what is told
                leave(layout, operation, [], began=began, failed=str(error))
        raise


def host_name() -> str:
    """As a receipt names the host."""
    return platform.node() or "unknown"


def leave(
    layout: Layout,
    operation: str,
    checks: Sequence[Check],
    *,
    began: float,
    failed: str | None = None,
    stopped_at: str | None = None,
) -> str:
    """Record one operation that ends now; returns the receipt's file. `failed`: why, if it did."""
    now = time.time()
    draft = model.Draft(
        operation=operation,
        run_id=secrets.token_hex(8),
        instance=layout.instance().instance,
        host=host_name(),
        release_before=running_release(),
        release_after=running_release(),
        verdict="done" if failed is None else "failed",
        stopped_at=stopped_at,
        reason=failed,
        checks=list(checks),
        started_at=min(began, now),
        finished_at=now,
    )
    return record(layout.receipts, draft, release=running_release(), now=now).file
