"""Hash-pinned requirement files: `name==version [; marker] --hash=sha256:...`, and nothing else.

An option line (`--index-url`, ...) is refused: a lock names bytes, never a place.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from standfast.errors import BadInput

_HASH = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Pin:
    """One requirement of a lock."""

    name: str
    """Normalised (PEP 503)."""
    version: str
    hashes: frozenset[str]
    """sha256 of each file that may satisfy it."""
    marker: str = ""

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"

    def line(self, *, with_marker: bool = True) -> str:
        """The requirement as a lock states it."""
        marker = f" ; {self.marker}" if self.marker and with_marker else ""
        hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in sorted(self.hashes))
        return f"{self}{marker}{hashes}\n"


def parse(text: str, origin: str) -> tuple[Pin, ...]:
    """The pins of a lock; BadInput naming `origin` and the line for anything else than a hash-pinned one."""
    pins = tuple(_pin(line, origin) for line in _logical_lines(text))
    names = [pin.name for pin in pins]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadInput(f"{origin} pins {', '.join(twice)} more than once")
    return pins


def _logical_lines(text: str) -> Iterable[str]:
    uncommented = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = uncommented.replace("\\\n", " ")
    return (line for line in joined.splitlines() if line.strip())


def _pin(line: str, origin: str) -> Pin:
    text, *options = re.split(r"\s--hash=", line)
    hashes = [_HASH.fullmatch(option.strip()) for option in options]
    try:
        requirement = Requirement(text.strip())
    except InvalidRequirement:
        requirement = Requirement("none")
    specifiers = list(requirement.specifier)
    exact = [one.version for one in specifiers if one.operator == "==" and "*" not in one.version]
    if len(exact) != 1 or len(specifiers) != 1 or requirement.url or not hashes or None in hashes:
        raise BadInput(f"{origin}: not a hash-pinned requirement: {line.strip()[:120]!r}")
    return Pin(
        name=canonicalize_name(requirement.name),
        version=exact[0],
        marker=str(requirement.marker or ""),
        hashes=frozenset(found[1] for found in hashes if found),
    )


def render(pins: Iterable[Pin]) -> str:
    """A lock holding these pins."""
    return "".join(pin.line() for pin in sorted(pins, key=lambda pin: pin.name))


def merged(locks: Iterable[tuple[Pin, ...]]) -> tuple[Pin, ...]:
    """One lock for what several were made for (each complete in itself).

    BadInput when they disagree on a version, or need a package under different conditions that
    no single marker of theirs covers.
    """
    union: dict[str, Pin] = {}
    for pin in (pin for lock in locks for pin in lock):
        union[pin.name] = _joined(union.get(pin.name, pin), pin)
    return tuple(union[name] for name in sorted(union))


def _joined(known: Pin, other: Pin) -> Pin:
    if known.version != other.version:
        raise BadInput(f"the chosen locks disagree: {known} and {other}; run script/lock")
    markers = {known.marker, other.marker}
    if len(markers) > 1 and "" not in markers:
        raise BadInput(f"the chosen locks need {known} under two conditions: {' and '.join(sorted(markers))}")
    marker = "" if "" in markers else known.marker
    return Pin(known.name, known.version, known.hashes | other.hashes, marker)
