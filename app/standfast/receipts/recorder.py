"""Recording: one receipt at a time per folder, durable before it is told, never one run twice."""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from standfast.clock import rfc3339
from standfast.durable import create_file, sync_folder
from standfast.errors import BadInput, Refused
from standfast.receipts import chain
from standfast.receipts.model import Draft, Receipt, Recorded

MAX_DRAFT = 1_048_576
"""Bytes of a draft on stdin."""
LOCK_PATIENCE = 10.0
"""Seconds to wait for another recorder of the same folder."""

_DRAFT_FIELDS = ("started_at", "finished_at", "phases")


def read_draft(data: bytes) -> Draft:
    """A validated draft. Raises BadInput naming fields, never their values."""
    if len(data) > MAX_DRAFT:
        raise BadInput(f"the draft is longer than {MAX_DRAFT} bytes")
    try:
        return Draft.model_validate(json.loads(data))
    except ValidationError as error:
        told = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'draft'}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)
        )
    except (ValueError, RecursionError):
        told = "it is not JSON"
    raise BadInput(f"the draft is not valid: {told}")  # outside: the cause would hold the values


def record(folder: Path, draft: Draft, *, release: str, now: float, check: bool = False) -> Recorded:
    """Chain the pending receipts and then this one. Repeating it is safe: a run is recorded once.

    `release` is the recording release's id, `now` epoch seconds. `check`: write nothing, say what would be.
    Raises Refused `run_recorded` when this operation and run id are there with other content.
    """
    chain.check_folder(folder)
    with alone(folder):
        found = chain.entries(folder)
        existing = _recorded_before(found, draft)
        if existing is not None:
            return _result(existing, changed=False, check=check)
        writer = _Writer(folder, found, release, now, check=check)
        for path in chain.pending(folder):
            writer.adopt(path, draft.run_id)
        path, receipt = writer.append(draft)
        return Recorded(
            changed=True,
            check=check,
            file=str(path),
            receipt=receipt,
            adopted=writer.adopted,
            not_adopted=writer.not_adopted,
        )


def _result(existing: chain.Entry, *, changed: bool, check: bool) -> Recorded:
    return Recorded(
        changed=changed,
        check=check,
        file=str(existing.path),
        receipt=Receipt.model_validate(existing.content),
        adopted=[],
        not_adopted=[],
    )


def _recorded_before(found: list[chain.Entry], draft: Draft) -> chain.Entry | None:
    for entry in found:
        content = entry.content or {}
        if (content.get("operation"), content.get("run_id")) != (draft.operation, draft.run_id):
            continue
        if content.get("adopted_from") is not None:
            continue  # the early failure of the same run; the full receipt still belongs in the chain
        wanted = _content(draft)
        if all(content.get(name) == value for name, value in wanted.items()):
            return entry
        raise Refused(
            "run_recorded",
            f"run {draft.run_id} of {draft.operation} has a receipt with other content",
            observed=entry.path.name,
            remedy="give every run its own run id",
        )
    return None


class _Writer:
    """Appends to one folder whose lock is held."""

    def __init__(
        self, folder: Path, found: list[chain.Entry], release: str, now: float, *, check: bool
    ) -> None:
        if found and found[-1].digest is None:
            raise Refused(
                "chain_unreadable",
                "the newest receipt cannot be read, so nothing can be chained to it",
                observed=f"{found[-1].path.name} {found[-1].problem}",
                remedy="restore it from the controller's copy; `standfast receipt verify` says more",
            )
        self._folder, self._release, self._now, self._check = folder, release, now, check
        self._sequence = found[-1].sequence if found else 0
        self._previous = found[-1].digest if found else None
        self.adopted: list[str] = []
        self.not_adopted: list[str] = []

    def append(self, draft: Draft, adopted_from: str | None = None) -> tuple[Path, Receipt]:
        """Write the next receipt durably and exclusively."""
        content: dict[str, Any] = {
            "format": 1,
            "sequence": self._sequence + 1,
            "previous": self._previous,
            "recorded_at": rfc3339(self._now),
            "recorded_by": self._release,
            "adopted_from": adopted_from,
            **_content(draft),
        }
        content["digest"] = chain.digest_of(content)
        receipt = Receipt.model_validate(content)
        path = self._folder / chain.file_name(content)
        if not self._check:
            create_file(path, chain.pretty(content), chain.FILE_MODE)
        self._sequence, self._previous = content["sequence"], content["digest"]
        return path, receipt

    def adopt(self, path: Path, own_run: str) -> None:
        """Chain one pending receipt as the failed run it is, then remove it; leave it if unreadable."""
        draft, problem = _pending_draft(chain.read_entry(path))
        if draft is None:
            self.not_adopted.append(f"{path.name} {problem}")
            return
        if draft.run_id != own_run and not self._is_chained(path.name):
            self.append(draft, adopted_from=path.name)
            self.adopted.append(path.name)
        if not self._check:
            path.unlink()
            sync_folder(self._folder)

    def _is_chained(self, name: str) -> bool:
        # A recorder killed between the two steps of `adopt` leaves both; the receipt is the one that counts.
        return any((entry.content or {}).get("adopted_from") == name for entry in chain.entries(self._folder))


def _content(draft: Draft) -> dict[str, Any]:
    """A draft as a receipt's fields: times as text, each phase with its seconds."""
    ends = [phase.started_at for phase in draft.phases[1:]] + [draft.finished_at]
    phases = [
        {
            "name": phase.name,
            "started_at": rfc3339(phase.started_at),
            "seconds": _elapsed(phase.started_at, end),
        }
        for phase, end in zip(draft.phases, ends, strict=False)
    ]
    return {
        **draft.model_dump(mode="json", exclude=set(_DRAFT_FIELDS)),
        "started_at": rfc3339(draft.started_at),
        "finished_at": rfc3339(draft.finished_at),
        "seconds": _elapsed(draft.started_at, draft.finished_at),
        "phases": phases,
    }


def _elapsed(start: float, end: float) -> float:
    return round(max(0.0, end - start), 3)  # a controller's clock may step back in the middle


def _pending_draft(entry: chain.Entry) -> tuple[Draft | None, str]:
    if entry.content is None:
        return None, entry.problem
    known = {name: value for name, value in entry.content.items() if name in Draft.model_fields}
    known.setdefault("finished_at", known.get("started_at"))
    if known.get("verdict") != "refused":
        known["verdict"] = "failed"
    if known.get("reason") is None and known.get("stopped_at") is None:
        known["reason"] = "the run failed before the release could record it"
    try:
        return Draft.model_validate(known), ""
    except ValidationError as error:
        places = ", ".join(".".join(map(str, problem["loc"])) or "draft" for problem in error.errors())
        return None, f"does not say: {places}"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock for the block; Refused `receipts_busy` when it stays taken."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise Refused(
                        "receipts_busy",
                        "another process is recording a receipt",
                        observed=f"{folder} stayed locked for {LOCK_PATIENCE:.0f} s",
                        remedy="run it again when that process has ended",
                    ) from None
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)
