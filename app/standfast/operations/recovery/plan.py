"""The recovery plan: what the supplier accepted, what is there, what arrived; read without any tolerance.

It is a JSON file that a person reviews and fills in, and that a digest of its exact bytes stands for.
"""

import hashlib
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self, override

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from standfast.errors import BadInput
from standfast.shop.config import MAX_STOCK
from standfast.supplier.wire import EpochId, OperationId

LONGEST = 8 * 1024 * 1024
"""Bytes: some 30,000 receipts; a longer file is no plan."""

MOST_CALLS = 1_000_000
MOST_CENTS = 1_000_000_000
MOST_TOKENS = 1_000_000_000_000

_DIGEST = re.compile(r"[0-9a-f]{64}")
_ALTERNATIVE = re.compile(r"(literal|function-after)\[")
_TOLD = 10

type Sku = Annotated[str, StringConstraints(pattern=r"\A[ -~]{1,200}\z")]
"""As wide as a supplier's receipt allows: only the supplier may remember a product."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Count(_Part):
    """One product."""

    on_hand: Annotated[int, Field(ge=0, le=MAX_STOCK)] | None
    """Units that were counted, whole; null until somebody has."""


class Delivery(_Part):
    """One accepted operation."""

    received: bool | None
    """Whether its goods have arrived; null until somebody has said so."""
    reference: Annotated[str, Field(max_length=1000)]
    """What the supplier's receipt says, for the person who looks; must be there unchanged."""

    @override
    def model_post_init(self, context: Any) -> None:
        """As a supplier receipt does."""
        object.__setattr__(self, "__pydantic_fields_set__", _WHOLE)


_WHOLE = set(Delivery.model_fields)


class LostUsage(_Part):
    """The operator's statement of the model calls that the lost state had made."""

    calls: Annotated[int, Field(ge=0, le=MOST_CALLS)]
    cents: Annotated[int, Field(ge=0, le=MOST_CENTS)]
    tokens: Annotated[int, Field(ge=0, le=MOST_TOKENS)] | None = None
    """null: not known; a ceiling on tokens then refuses every call of the day."""

    @model_validator(mode="after")
    def _no_calls_use_nothing(self) -> Self:
        if self.calls == 0 and (self.cents or self.tokens):
            raise ValueError("no calls cannot have used tokens or money")
        return self


def _with_zone(text: str) -> str:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ValueError("must be an RFC 3339 time such as 2026-03-01T12:00:00Z")
    return text


class Plan(_Part):
    """What an operator decides; nothing in it is taken for granted."""

    format: Literal[1] = 1
    authority: EpochId
    """The paused epoch that it is for."""
    observed_at: Annotated[str, Field(max_length=40), AfterValidator(_with_zone)]
    """When the counts and deliveries were looked at, RFC 3339."""
    receipts: Annotated[tuple[OperationId, ...], Field(strict=False)]
    """Every operation that the account accepted, sorted."""
    inventory: dict[Sku, Count]
    deliveries: dict[OperationId, Delivery]
    """One for each receipt."""
    interrupted: dict[str, Literal["report", "requeue"]]
    """Work id -> what becomes of it: reported as interrupted, or done again."""
    usage: Literal["unknown"] | LostUsage

    @field_validator("format", mode="before")
    @classmethod
    def _is_a_number(cls, value: object) -> object:
        if type(value) is not int:  # to Python, true and 1.0 are 1
            raise ValueError("must be the whole number 1")
        return value

    @model_validator(mode="after")
    def _is_of_one_piece(self) -> Self:
        if list(self.receipts) != sorted(set(self.receipts)):
            raise ValueError("receipts: must be sorted, each once")
        if self.deliveries.keys() != set(self.receipts):
            raise ValueError("deliveries: must name exactly the operations of receipts")
        return self

    @property
    def observed(self) -> float:
        """``observed_at`` as epoch seconds."""
        return datetime.fromisoformat(self.observed_at).timestamp()

    def unanswered(self) -> list[str]:
        """The counts and deliveries that nobody has stated yet."""
        counts = [f"inventory.{sku}.on_hand" for sku, one in self.inventory.items() if one.on_hand is None]
        return counts + [
            f"deliveries.{operation}.received"
            for operation, one in self.deliveries.items()
            if one.received is None
        ]

    def refuse_unanswered(self) -> None:
        """Raise BadInput unless every count and every delivery is stated."""
        if unanswered := self.unanswered():
            raise BadInput(
                f"plan: {len(unanswered)} not stated yet: {', '.join(unanswered[:_TOLD])}"
                f"{', ...' if len(unanswered) > _TOLD else ''}; `standfast recover edit-plan` asks for each"
            )


def read(path: Path) -> bytes:
    """The plan's bytes; BadInput when they cannot be read or are too many."""
    try:
        # A pipe without a writer would keep the reader waiting for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadInput(f"plan: {path} is no file")
            data = file.read(LONGEST + 1)
    except OSError as error:
        raise BadInput(f"plan: {path} cannot be read: {error.strerror}") from error
    if len(data) > LONGEST:
        raise BadInput(f"plan: {path} is longer than {LONGEST} bytes: it is no plan")
    return data


def checked_digest(text: str) -> str:
    """A digest as it was typed; BadInput when it cannot be one."""
    if not _DIGEST.fullmatch(text):
        raise BadInput("digest: 64 lower-case hex digits, as `account inspect` and `edit-plan` print them")
    return text


def digest(data: bytes) -> str:
    """The sha256 of exactly these bytes."""
    return hashlib.sha256(data).hexdigest()


def parse(data: bytes) -> Plan:
    """The plan that ``data`` is; BadInput names the field."""
    try:
        content = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_each_once,
            parse_constant=_no_number,
        )
    except UnicodeDecodeError as error:
        raise BadInput(f"plan: not UTF-8 at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"plan: not JSON as it must be: {str(error)[:200]}") from error
    try:
        return Plan.model_validate(content)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        told = [f"{_place(one['loc'])}: {one['msg']}" for one in problems[:_TOLD]]
    raise BadInput(f"plan: {'; '.join(told)[:1000]}")


def _place(loc: tuple[int | str, ...]) -> str:
    """As the file has it: without the alternative that a validator tried, such as literal['unknown']."""
    return ".".join(str(part) for part in loc if not _ALTERNATIVE.match(str(part))) or "the whole"


def render(plan: Plan) -> bytes:
    """A plan as it is written for people: one thing to a line."""
    return (plan.model_dump_json(indent=2) + "\n").encode()


def _each_once(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{twice[:80]!r} is there twice")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")
