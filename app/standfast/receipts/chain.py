"""The chain on disk: canonical form, digests, reading the folder, and whether it is whole.

Verification works on what the files hold, not on this version's model: after a rollback, older code must
still be able to check receipts that newer code wrote.
"""

import hashlib
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from standfast.errors import BadInput, Refused
from standfast.layout import refuse_shared
from standfast.receipts.model import Difference, Receipt, ReceiptLine, ReceiptList, Verification

FILE_NAME = re.compile(r"(?P<sequence>\d{6,})-(?P<operation>[a-z][a-z0-9-]*)-(?P<short>[0-9a-f]{8})\.json")
PENDING_NAME = re.compile(r"pending-[A-Za-z0-9_.:@+-]+\.json")
MAX_FILE = 4_194_304
"""Bytes; a longer file is not a receipt."""
FILE_MODE = 0o600


@dataclass(frozen=True)
class Entry:
    """One receipt file: `content` is its JSON object, or None with the reason in `problem`."""

    path: Path
    content: dict[str, Any] | None
    data: bytes
    problem: str = ""

    @property
    def sequence(self) -> int:
        """The sequence number in its name."""
        match = FILE_NAME.fullmatch(self.path.name)
        assert match is not None
        return int(match["sequence"])

    @property
    def digest(self) -> str | None:
        """The digest of what the file holds now, whatever it says of itself."""
        return None if self.content is None else digest_of(self.content)


def canonical(content: Mapping[str, Any]) -> bytes:
    """One byte form per content: sorted keys, no spaces, ASCII."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest_of(content: Mapping[str, Any]) -> str:
    """sha256 of the canonical JSON of a receipt without its own `digest`."""
    return hashlib.sha256(canonical({k: v for k, v in content.items() if k != "digest"})).hexdigest()


def pretty(content: Mapping[str, Any]) -> bytes:
    """The bytes of a receipt's file."""
    return (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def file_name(content: Mapping[str, Any]) -> str:
    """The file name that belongs to a receipt's content."""
    return f"{content['sequence']:06d}-{content['operation']}-{content['digest'][:8]}.json"


def check_folder(folder: Path) -> None:
    """Refuse a receipts folder that is absent, a link, open to others or another user's."""
    try:
        refuse_shared(folder, "receipts")
    except FileNotFoundError:
        raise Refused(
            "no_receipts",
            f"there is no receipts folder {folder}",
            observed="absent",
            remedy="install the instance, or name its state directory with --state",
        ) from None


def entries(folder: Path) -> list[Entry]:
    """Every receipt file by sequence; unreadable ones too."""
    paths = sorted(path for path in folder.iterdir() if FILE_NAME.fullmatch(path.name))
    return sorted((read_entry(path) for path in paths), key=lambda entry: entry.sequence)


def read_entry(path: Path) -> Entry:
    """One file as an Entry; never raises for what the file holds."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(MAX_FILE + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        return Entry(path, None, b"", f"cannot be read: {error.strerror}")
    if len(data) > MAX_FILE:
        return Entry(path, None, b"", f"is longer than {MAX_FILE} bytes")
    try:
        content = json.loads(data)
        if isinstance(content, dict):
            canonical(content)
            return Entry(path, content, data)
    except (ValueError, RecursionError):
        pass
    return Entry(path, None, data, "is not a JSON object")


def pending(folder: Path) -> list[Path]:
    """Receipts that a run left before a CLI was there."""
    return sorted(path for path in folder.iterdir() if PENDING_NAME.fullmatch(path.name))


def verify(folder: Path) -> Verification:
    """Whether the folder holds one whole chain; each difference names the file."""
    check_folder(folder)
    found = entries(folder)
    differences = [*_strays(folder), *_each(found), *_forks(found), *_links(found)]
    waiting = pending(folder)
    return Verification(
        verified=not differences,
        receipts=len(found),
        newest=found[-1].digest if found else None,
        pending=[path.name for path in waiting],
        differences=differences,
    )


def _strays(folder: Path) -> Iterator[Difference]:
    for name in sorted(path.name for path in folder.iterdir()):
        if name.startswith(".") or FILE_NAME.fullmatch(name):
            continue  # a killed recorder leaves a temporary file with a dot
        if not PENDING_NAME.fullmatch(name):
            yield Difference(file=name, problem="foreign", detail="this is not a receipt's name")
        elif (entry := read_entry(folder / name)).content is None:
            yield Difference(
                file=name, problem="unreadable", detail=f"a pending receipt that {entry.problem}"
            )


def _each(found: list[Entry]) -> Iterator[Difference]:
    for entry in found:
        name = entry.path.name
        if entry.content is None:
            yield Difference(file=name, problem="unreadable", detail=entry.problem)
            continue
        mode = stat.S_IMODE(entry.path.lstat().st_mode)
        if mode != FILE_MODE:
            yield Difference(file=name, problem="exposed", detail=f"mode {mode:04o}, not 0600")
        if entry.content.get("digest") != entry.digest:
            yield Difference(file=name, problem="edited", detail="its content does not have its digest")
        elif pretty(entry.content) != entry.data:
            yield Difference(file=name, problem="edited", detail="its form is not the one that was written")
        elif _own_name(entry.content) != name:
            told = f"its content belongs to {_own_name(entry.content)}"
            yield Difference(file=name, problem="reordered", detail=told)


def _own_name(content: Mapping[str, Any]) -> str:
    try:
        return file_name(content)
    except (KeyError, TypeError, ValueError):
        return "no receipt"


def _forks(found: list[Entry]) -> Iterator[Difference]:
    taken = Counter(entry.sequence for entry in found)
    for entry in found:
        if taken[entry.sequence] > 1:
            told = f"{taken[entry.sequence]} receipts have the sequence {entry.sequence}"
            yield Difference(file=entry.path.name, problem="forked", detail=told)


def _links(found: list[Entry]) -> Iterator[Difference]:
    by_sequence = {entry.sequence: entry for entry in found}
    known = {entry.digest: entry.path.name for entry in found}
    for number in range(1, max(by_sequence, default=0) + 1):
        entry, before = by_sequence.get(number), by_sequence.get(number - 1)
        if entry is None:
            yield Difference(file=f"{number:06d}-*", problem="missing", detail=f"no receipt {number}")
            continue
        if entry.content is None or (number > 1 and before is None):
            continue  # named already
        wanted = before.digest if before is not None else None
        claimed = entry.content.get("previous")
        if claimed == wanted or (before is not None and before.content is None):
            continue
        if claimed in known:
            told = f"it was chained to {known[claimed]}"
            yield Difference(file=entry.path.name, problem="reordered", detail=told)
        elif before is None:
            yield Difference(file=entry.path.name, problem="missing", detail="a receipt before it")
        else:
            told = f"it is not the receipt that {entry.path.name} was chained to"
            yield Difference(file=before.path.name, problem="edited", detail=told)


def listing(folder: Path) -> ReceiptList:
    """The receipts, newest first; those that cannot be read are left to `verify`."""
    check_folder(folder)
    lines = []
    for entry in reversed(entries(folder)):
        try:
            receipt = Receipt.model_validate(entry.content)
        except ValidationError:
            continue
        lines.append(ReceiptLine(file=entry.path.name, **receipt.model_dump(include=_LINE_FIELDS)))
    return ReceiptList(receipts=lines, pending=[path.name for path in pending(folder)])


_LINE_FIELDS = set(ReceiptLine.model_fields) - {"file"}


def find(folder: Path, wanted: str | None) -> Receipt:
    """The receipt of a sequence number or a file path; without either, the newest."""
    if wanted is not None and not wanted.isdigit():
        return _receipt(read_entry(Path(wanted)))
    check_folder(folder)
    found = entries(folder)
    chosen = [entry for entry in found if wanted is None or entry.sequence == int(wanted)]
    if not chosen:
        raise BadInput(f"there is no receipt {wanted}" if wanted else f"{folder} holds no receipt yet")
    return _receipt(chosen[-1])


def _receipt(entry: Entry) -> Receipt:
    if entry.content is None:
        raise BadInput(f"{entry.path} {entry.problem}")
    try:
        return Receipt.model_validate(entry.content)
    except ValidationError as error:
        places = ", ".join(".".join(map(str, problem["loc"])) or "receipt" for problem in error.errors())
    raise BadInput(f"{entry.path} is not a receipt: {places}")
