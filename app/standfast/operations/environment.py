"""The operator's environment file, as systemd reads it, not as a shell would.

`EnvironmentFile=` has rules of its own (systemd.exec(5), and `parse_env_file` in systemd's sources): no
expansion, no `export`, `\\` eats the next character outside quotes, a quote that is never closed swallows
every following line, and an invalid line is dropped in silence. So the file is written from validated pairs
in one form only, `KEY="value"` with `\\` and `"` escaped, and every other form is only ever read.

A key may be named in a message. A value never is: not in a result, an exception, a context or a log.
"""

import hashlib
import json
import os
import re
import stat
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from standfast.durable import write_file
from standfast.errors import BadInput, Refused
from standfast.layout import Layout

KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
MAX_KEY = 64
MAX_VALUE = 131_000
"""Bytes. Linux refuses a `KEY=value` string above 131,072 bytes (MAX_ARG_STRLEN) when it starts a process."""
MAX_PAIRS = 1_048_576
"""Bytes of JSON on stdin, and of the file: all of it must fit beside the arguments of one process."""
MODE = 0o600

_HEADER = "# Written by `standfast env write`; change it there. Body sha256: "
_NONCHARACTERS = re.compile(
    "[\ufdd0-\ufdef"
    + "".join(chr(plane * 0x10000 + low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
    + "]"
)
"""What systemd's utf8_is_valid refuses besides surrogates."""
_BOM = "\ufeff"


class EnvironmentChange(BaseModel):
    """What `env write` did, or with `--check` would do."""

    changed: bool
    check: bool
    file: str
    names: list[str]
    """The keys that the file holds afterwards; never a value."""


class Problem(BaseModel):
    """One thing wrong with an existing file."""

    line: int | None
    """1-based; null for the file as a whole."""
    problem: str


class EnvironmentCheck(BaseModel):
    """What `env check` found."""

    ok: bool
    file: str
    generated: bool | None
    """Written by `env write`, whatever happened to it since; null when it cannot be read."""
    edited: bool | None
    """Its body is not what `env write` wrote; null when it cannot be read."""
    names: list[str]
    problems: list[Problem]


class EnvironmentComparison(BaseModel):
    """This process was given the expected pairs: a difference is a refusal."""

    same: bool


def read_pairs(data: bytes) -> dict[str, str]:
    """Validated pairs from a JSON object of strings. Raises BadInput, which names a key and never a value."""
    if len(data) > MAX_PAIRS:
        raise BadInput(f"the pairs are longer than {MAX_PAIRS} bytes")
    parsed, problem = _parse_json(data)
    if problem is not None:
        raise BadInput(problem)
    problem = pairs_problem(parsed)
    if problem is not None:
        raise BadInput(problem)
    return dict(parsed)


def _parse_json(data: bytes) -> tuple[Any, str | None]:
    # Returns instead of raising: a JSONDecodeError carries the whole document, and would travel as context.
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique), None
    except UnicodeDecodeError:
        return None, "the pairs are not UTF-8"
    except json.JSONDecodeError as error:
        return None, f"the pairs are not a JSON object (line {error.lineno}, column {error.colno})"
    except _DuplicateKeyError as error:
        return None, f"the key {_shown(error.args[0])} is given twice"
    except (RecursionError, ValueError):
        return None, "the pairs are not a JSON object of strings"


class _DuplicateKeyError(Exception):
    """A key came twice; argument: the key."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise _DuplicateKeyError(key)
        seen[key] = value
    return seen


def pairs_problem(pairs: object) -> str | None:
    """Why these pairs cannot be written, naming the key; None when they can."""
    if not isinstance(pairs, dict):
        return f"the pairs are a JSON {type(pairs).__name__}, not an object"
    for key, value in pairs.items():
        if not KEY.match(key):
            return f"the key {_shown(key)} does not match [A-Za-z_][A-Za-z0-9_]*"
        if len(key) > MAX_KEY:
            return f"the key {_shown(key)} is longer than {MAX_KEY} characters"
        problem = _value_problem(value)
        if problem is not None:
            return f"the value of {key} {problem}"
    return None


def _value_problem(value: object) -> str | None:
    if not isinstance(value, str):
        return f"is a JSON {type(value).__name__}, not a string"
    if any("\ud800" <= character <= "\udfff" for character in value):
        return "is not valid UTF-8"
    if len(value.encode()) > MAX_VALUE:
        return f"is longer than {MAX_VALUE} bytes"
    for character in value:
        problem = _character_problem(character)
        if problem is not None:
            return problem
    return None


def _character_problem(character: str) -> str | None:
    if character == "\0":
        return "holds a NUL"
    if character in "\n\r\u0085\u2028\u2029":
        return "holds a newline"
    if unicodedata.category(character) == "Cc":
        return "holds a control character"
    if character == _BOM:
        return "holds a byte order mark"
    if _NONCHARACTERS.match(character):
        return f"holds U+{ord(character):04X}, which systemd does not accept"
    return None


def _shown(key: str) -> str:
    return repr(key[:MAX_KEY] + ("..." if len(key) > MAX_KEY else ""))


def render(pairs: Mapping[str, str]) -> str:
    """The file's text for validated pairs: sorted, one form, its header carrying the body's digest."""
    body = "".join(f'{key}="{_escaped(pairs[key])}"\n' for key in sorted(pairs))
    return f"{_HEADER}{_digest(body)}\n{body}"


def _escaped(value: str) -> str:
    # Nothing else: inside double quotes systemd keeps a backslash that precedes any other character.
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode("utf-8", "surrogateescape")).hexdigest()


def parse(text: str) -> tuple[dict[str, str], list[Problem]]:
    """What systemd would make of a file's text, and what it would drop or misread in silence.

    Later assignments of a key win, as in systemd.
    """
    return _Reader(text).read()


class _Reader:
    """One pass over the text with systemd's states; `_at` is the next character."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._pairs: dict[str, str] = {}
        self._problems: list[Problem] = []

    def read(self) -> tuple[dict[str, str], list[Problem]]:
        while self._at < len(self._text):
            if self._peek() in " \t\n\r":
                self._at += 1
            elif self._peek() in "#;":
                self._comment()
            else:
                self._assignment()
        return self._pairs, self._problems

    def _peek(self) -> str:
        return self._text[self._at]

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def _problem(self, problem: str, line: int) -> None:
        self._problems.append(Problem(line=line, problem=problem))

    def _rest_of_line(self) -> str:
        match = re.compile(r"[^\n\r]*").match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return match.group()

    def _comment(self) -> None:
        line = self._line()
        if self._rest_of_line().endswith("\\"):
            self._problem("a comment ends with a backslash: older systemd skips the next line too", line)

    def _assignment(self) -> None:
        line = self._line()
        start = self._at
        key, equals, _ = self._rest_of_line().partition("=")
        if not equals:
            self._problem("there is no `=`: systemd drops this line", line)
            return
        self._at = start + len(key) + 1
        value = self._value(line)
        key = key.rstrip(" \t")
        if not KEY.match(key):
            self._problem(f"systemd drops the assignment of {_shown(key)}", line)
            return
        if key in self._pairs:
            self._problem(f"{key} is assigned twice: the last one counts", line)
        problem = _value_problem(value)
        if problem is not None:
            self._problem(f"the value of {key} {problem}", line)
        self._pairs[key] = value

    def _value(self, line: int) -> str:
        kept: list[str] = []
        trailing: list[str] = []  # unquoted white space, dropped at the end of the line
        quoted_or_blank = True  # systemd: after a closing quote, leading white space is skipped again
        while self._at < len(self._text):
            character = self._peek()
            self._at += 1
            if character in "\n\r":
                break
            if quoted_or_blank and character in "'\"":
                kept += [*trailing, *self._quoted(character, line)]
                trailing = []
            elif character == "\\":
                kept += [*trailing, *self._escaped_character()]
                trailing, quoted_or_blank = [], False
            elif character in " \t":
                if not quoted_or_blank:
                    trailing.append(character)
            else:
                kept += [*trailing, character]
                trailing, quoted_or_blank = [], False
        return "".join(kept)

    def _escaped_character(self) -> str:
        if self._at >= len(self._text):
            return ""
        character = self._peek()
        self._at += 1
        return "" if character in "\n\r" else character

    def _quoted(self, quote: str, line: int) -> str:
        kept: list[str] = []
        while self._at < len(self._text):
            character = self._peek()
            self._at += 1
            if character == quote:
                return "".join(kept)
            if quote == '"' and character == "\\" and self._at < len(self._text):
                following = self._peek()
                self._at += 1
                if following in '"\\`$':
                    kept.append(following)
                elif following != "\n":
                    kept += [character, following]
            else:
                kept.append(character)
        self._problem("a quote is never closed: systemd swallows everything after it", line)
        return "".join(kept)


def check(layout: Layout) -> EnvironmentCheck:
    """Look at the existing file as systemd will: type, mode, owner, every line."""
    path = layout.environment
    data, problem = _read(path)
    problems = [] if problem is None else [Problem(line=None, problem=problem)]
    text, encoding = _decoded(data or b"")
    problems += encoding
    if data is not None:
        problems += [Problem(line=None, problem=told) for _, told, _ in _ownership(path)]
    pairs, found = parse(text)
    return EnvironmentCheck(
        ok=not problems and not found,
        file=str(path),
        generated=None if data is None else text.startswith(_HEADER),
        edited=None if data is None else _edited(text),
        names=sorted(pairs),
        problems=problems + found,
    )


def given(layout: Layout) -> dict[str, str]:
    """The pairs that systemd gives the service from the existing file; empty when it cannot be read."""
    data, _ = _read(layout.environment)
    pairs, _ = parse(_decoded(data or b"")[0])
    return pairs


def _decoded(data: bytes) -> tuple[str, list[Problem]]:
    text = data.decode("utf-8", "surrogateescape")
    if text.startswith(_BOM):
        return text, [
            Problem(line=1, problem="it starts with a byte order mark: systemd drops the first line")
        ]
    if any("\udc80" <= character <= "\udcff" for character in text):
        return text, [Problem(line=None, problem="it is not UTF-8")]
    if "\0" in text:
        return text, [Problem(line=None, problem="it holds a NUL")]
    return text, []


def _read(path: Path) -> tuple[bytes | None, str | None]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None, "there is no such file: the service would not start"
    except OSError as error:
        return None, f"it cannot be read: {error.strerror}"
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None, "it is not a regular file"
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(MAX_PAIRS * 2 + 1)
    if len(data) > MAX_PAIRS * 2:
        return None, f"it is longer than {MAX_PAIRS * 2} bytes"
    return data, None


def _ownership(path: Path) -> list[tuple[str, str, str]]:
    """(code, problem, remedy) for a mode or an owner that lets another user read or change the file."""
    found = path.lstat()
    owner = path.parent.stat().st_uid
    problems = []
    if stat.S_IMODE(found.st_mode) != MODE:
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        problems.append(("env_mode", f"its mode is {mode}, not 0600", f"chmod 0600 {path}"))
    if found.st_uid != owner:
        told = f"it belongs to uid {found.st_uid}, the state directory to uid {owner}"
        problems.append(("env_owner", told, f"chown {owner} {path}, if its content is yours"))
    return problems


def _edited(text: str) -> bool:
    header, _, body = text.partition("\n")
    if not header.startswith(_HEADER):
        return bool(text.strip())
    return header.removeprefix(_HEADER) != _digest(body)


def write(
    layout: Layout, pairs: Mapping[str, str], *, adopt: bool = False, check: bool = False
) -> EnvironmentChange:
    """Make the file say exactly these (validated) pairs. `check`: only say whether that would change it.

    Raises Refused `env_edited` for a file that says something else and that `write` did not write, unless
    `adopt`; `env_mode`, `env_owner`, `env_unreadable` for one that is not safely the service user's own.
    """
    path = layout.environment
    wanted = render(pairs)
    present = _present(path)
    result = EnvironmentChange(changed=False, check=check, file=str(path), names=sorted(pairs))
    if present is not None and (present == wanted or _says(present, pairs)):
        return result
    if present is not None and _edited(present) and not adopt:
        raise Refused(
            "env_edited",
            f"{path} was written or edited by hand since; it is not overwritten",
            observed="names that differ: " + (", ".join(_differing(present, pairs)) or "none"),
            remedy="bring these names into the inventory's pairs, then write once with --adopt",
        )
    if not check:
        write_file(path, wanted.encode(), MODE)
    return result.model_copy(update={"changed": True})


def _present(path: Path) -> str | None:
    if not path.parent.is_dir():
        raise Refused(
            "no_state",
            f"there is no state directory {path.parent}",
            observed="absent",
            remedy="make it first: install the instance, or name another with --state",
        )
    owner = path.parent.stat().st_uid
    if os.geteuid() != owner:
        raise Refused(
            "not_owner",
            "the environment file is written by the user who owns the state directory",
            observed=f"uid {os.geteuid()}, the state directory belongs to uid {owner}",
            remedy="run it as the service user",
        )
    if not os.path.lexists(path):
        return None
    data, problem = _read(path)
    if data is None:
        raise Refused(
            "env_unreadable",
            f"{path}: {problem}",
            observed=problem or "unreadable",
            remedy="look at what is there, and move it away",
        )
    for code, told, remedy in _ownership(path):
        raise Refused(code, f"{path}: {told}", observed=told, remedy=remedy)
    return data.decode("utf-8", "surrogateescape")


def _says(text: str, pairs: Mapping[str, str]) -> bool:
    found, problems = parse(text)
    return found == dict(pairs) and not problems and bool(text)


def _differing(text: str, pairs: Mapping[str, str]) -> list[str]:
    found, _ = parse(text)
    return sorted(key for key in found.keys() | pairs.keys() if found.get(key) != pairs.get(key))


def compare(
    pairs: Mapping[str, str], environment: Mapping[bytes, bytes] | None = None
) -> EnvironmentComparison:
    """Whether this process was given each of the (validated) pairs: run it under systemd with the file.

    Raises Refused ``env_differs``, which names those that are missing or another, and never a value.
    """
    given = os.environb if environment is None else environment
    differing = sorted(key for key, value in pairs.items() if given.get(key.encode()) != value.encode())
    if differing:
        raise Refused(
            "env_differs",
            "the environment file does not give a process the pairs that were asked for",
            observed=differing,
            remedy="write the file again with `standfast env write`, and see `standfast env check`",
        )
    return EnvironmentComparison(same=True)
