"""Environment markers of a lock, evaluated for a *target* Python and platform.

`packaging` does the same, but it is not a run-time dependency, and a release must be able to verify itself
on a host that has nothing else. Only what hash-pinned locks hold is understood; anything more is an error,
never a guess. The tests compare every answer with `packaging`.
"""

import re
from collections.abc import Callable, Mapping

from standfast.errors import BadInput

_TOKEN = re.compile(
    r"\s*(?:(?P<word>[A-Za-z_][A-Za-z0-9_.]*)|(?P<text>'[^']*'|\"[^\"]*\")|(?P<operator>[<>=!~]=|<|>)|(?P<bracket>[()]))"
)
_VERSIONS = frozenset({"python_version", "python_full_version", "implementation_version"})

Tokens = list[tuple[str, str]]


def applies(marker: str, environment: Mapping[str, str]) -> bool:
    """Whether a requirement with this marker (empty: always) is needed in that environment.

    Raises BadInput for a marker outside the understood grammar or a variable the environment lacks.
    """
    if not marker.strip():
        return True
    tokens = _tokens(marker)
    parser = _Parser(marker, tokens, environment)
    answer = parser.any_of()
    if parser.tokens:
        raise parser.unsupported()
    return answer


def _tokens(marker: str) -> Tokens:
    found: Tokens = []
    position = 0
    while position < len(marker.rstrip()):
        match = _TOKEN.match(marker, position)
        if match is None:
            raise BadInput(f"marker {marker!r} is not understood at {marker[position:]!r}")
        found.append((match.lastgroup or "", match.group().strip()))
        position = match.end()
    return found


class _Parser:
    """Recursive descent: `or` of `and` of comparisons or bracketed markers."""

    def __init__(self, marker: str, tokens: Tokens, environment: Mapping[str, str]) -> None:
        self.marker = marker
        self.tokens = tokens
        self.environment = environment

    def unsupported(self) -> BadInput:
        return BadInput(f"marker {self.marker!r} is not understood")

    def any_of(self) -> bool:
        answer = self.all_of()
        while self._skip("or"):
            answer = self.all_of() or answer
        return answer

    def all_of(self) -> bool:
        answer = self.one()
        while self._skip("and"):
            answer = self.one() and answer
        return answer

    def one(self) -> bool:
        if self._skip("("):
            answer = self.any_of()
            if not self._skip(")"):
                raise self.unsupported()
            return answer
        left, left_is_version = self._operand()
        operator = self._operator()
        right, right_is_version = self._operand()
        compare = _compare_versions if left_is_version or right_is_version else _compare_texts
        try:
            return compare(left, operator, right)
        except (KeyError, ValueError):
            raise self.unsupported() from None

    def _skip(self, text: str) -> bool:
        if self.tokens and self.tokens[0][1] == text:
            del self.tokens[0]
            return True
        return False

    def _next(self) -> tuple[str, str]:
        if not self.tokens:
            raise self.unsupported()
        return self.tokens.pop(0)

    def _operator(self) -> str:
        kind, text = self._next()
        if text == "not" and self._skip("in"):
            return "not in"
        if kind == "operator" or text == "in":
            return text
        raise self.unsupported()

    def _operand(self) -> tuple[str, bool]:
        kind, text = self._next()
        if kind == "text":
            return text[1:-1], False
        if kind == "word" and text in self.environment:
            return self.environment[text], text in _VERSIONS
        raise self.unsupported()


_TEXTS: dict[str, Callable[[str, str], bool]] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "in": lambda left, right: left in right,
    "not in": lambda left, right: left not in right,
}


def _compare_texts(left: str, operator: str, right: str) -> bool:
    return _TEXTS[operator](left, right)


_ORDERS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


def _compare_versions(left: str, operator: str, right: str) -> bool:
    if operator in {"==", "!="} and right.endswith(".*"):
        prefix = _numbers(right.removesuffix(".*"))
        padded = _padded(_numbers(left), len(prefix))
        return (padded[: len(prefix)] == prefix) == (operator == "==")
    if operator == "~=":
        release = right.rpartition(".")[0]
        return _compare_versions(left, ">=", right) and _compare_versions(left, "==", f"{release}.*")
    ours, theirs = _numbers(left), _numbers(right)
    length = max(len(ours), len(theirs))
    return _ORDERS[operator](_padded(ours, length), _padded(theirs, length))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _padded(numbers: tuple[int, ...], length: int) -> tuple[int, ...]:
    return numbers + (0,) * (length - len(numbers))
