"""What every command shares: its context, its one JSON object, its plain tables and its failures.

No import of rich here: `health` must start fast, and a table in a pipe must neither be cut nor coloured.
"""

import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import typer
from pydantic import BaseModel, ValidationError

from standfast.errors import BadInput, ConfigurationInvalid, Refused, StandfastError, StoreBusy, no_space
from standfast.layout import Layout, running_release

EXIT_UNEXPECTED = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_ATTENTION = 4
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Context:
    """The global options of this invocation, found at `typer.Context.obj`."""

    state: Path
    json: bool = False
    check: bool = False

    @property
    def layout(self) -> Layout:
        """The paths of the instance whose state directory was named."""
        return Layout(self.state)


class Refusal(BaseModel):
    """Why nothing was done (or, for an unexpected failure, what went wrong)."""

    code: str
    """Stable, for machines: `store_newer`, `bad_input`, `unexpected`, ..."""
    reason: str
    observed: str | list[str] | None = None
    """What was seen, or each of the lines that were."""
    remedy: str | None = None
    """What the operator can do about it."""


class Failure(BaseModel):
    """The JSON object of a command that did not do what was asked."""

    changed: bool | None
    """false: nothing was changed; null: an unexpected failure, see the reason for what was done."""
    refused: Refusal


def group(help: str) -> typer.Typer:  # noqa: A002  (typer's own word for it)
    """A `typer.Typer` for a command module: plain help that survives a pipe, and no completion options."""
    return typer.Typer(
        help=help,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


def examples(*lines: str) -> str:
    """The epilogue of a command's help: one runnable example per line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def current(ctx: typer.Context) -> Context:
    """The global options of this invocation."""
    return cast("Context", ctx.obj)


def emit(ctx: typer.Context, model: BaseModel, render: Callable[[], None]) -> None:
    """Print a result: exactly one JSON object with `--json`, else what `render` writes for a person.

    Call it once, last. A reader that went away (`| head -1`) is not an error: the work is done.
    """
    if current(ctx).json:
        write_json(model)
    else:
        render()


_written: list[bool] = []


def forget_written_json() -> None:
    """Begin a new invocation (tests run several in one process)."""
    _written.clear()


def json_was_written() -> bool:
    """Whether the one JSON object is out already: a failure after it may only speak on stderr."""
    return bool(_written)


def write_json(model: BaseModel) -> None:
    """Write the one JSON object of this invocation, indented when a person looks at it."""
    _written.append(True)
    indent = 2 if sys.stdout.isatty() else None
    try:
        text = model.model_dump_json(indent=indent)
    except ValueError:  # half a surrogate pair, from somebody's file: JSON can escape it, UTF-8 cannot
        text = json.dumps(model.model_dump(), indent=indent)
    _put(text)


_OWN = re.compile(r"(`|next: )standfast (?=[a-z-])")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def write(line: str = "") -> None:
    """Write one line for people to stdout; quiet once the reader has gone."""
    _put(_as_typed(line))


def _put(line: str) -> None:
    try:
        sys.stdout.write(line + "\n")
    except BrokenPipeError:
        abandon_stdout()


def abandon_stdout() -> None:
    """Let the rest of stdout go nowhere: its reader closed the pipe; the exit code stays the command's."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def note(text: str) -> None:
    """Write one diagnostic line to stderr."""
    sys.stderr.write(_as_typed(printable(text)) + "\n")


def _as_typed(text: str) -> str:
    """A command named as it is typed here: on a host it has the instance's name, which its helper tells.

    For people only; what `--json` prints names the command that it is of.
    """
    name = os.environ.get("STANDFAST_COMMAND", "")
    return _OWN.sub(rf"\1{name} ", text) if _NAME.fullmatch(name) else text


def printable(value: object) -> str:
    """Text for a terminal or a log: control characters, which could steer it, become visible escapes."""
    return "".join(
        character if unicodedata.category(character)[0] != "C" else ascii(character)[1:-1]
        for character in str(value)
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write an aligned plain table: never coloured, never cut, so `grep` and `awk` can read it."""
    lines = [list(columns), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Write `name  value` lines, aligned."""
    shown = list(pairs)
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        write(f"{name.ljust(width)}  {printable(value)}".rstrip())


def refusal(error: BaseException) -> Refusal:
    """What to tell of an error. Holds no secret: a validation error is told by field, never by value."""
    if isinstance(error, Refused):
        seen = error.observed if isinstance(error.observed, str) else list(error.observed)
        return Refusal(
            code=error.code, reason=error.reason, observed=seen or None, remedy=error.remedy or None
        )
    if isinstance(error, StandfastError):
        return _told(error)
    if isinstance(error, ValidationError):
        places = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'value'}: {problem['type']}"
            for problem in error.errors(include_url=False, include_context=False, include_input=False)
        )
        return Refusal(code="unexpected", reason=f"{error.title} does not validate: {places}")
    first_line = str(error).strip().partition("\n")[0]
    if no_space(error):
        return Refusal(
            code="disk_full",
            reason="there is no room on the disk",
            observed=first_line,
            remedy=_ROOM,
        )
    return Refusal(
        code="unexpected",
        reason=f"{type(error).__name__}: {first_line}".rstrip(": "),
        remedy=_unexpected(error),
    )


_ROOM = "make room (runbooks/service-down.md, `Act: disk full`), then do it again"


def _told(error: StandfastError) -> Refusal:
    """Its own sentence; a full disk behind it is told by the code and the remedy."""
    full = error.__cause__ is not None and no_space(error.__cause__)
    return Refusal(
        code=getattr(error, "code", "disk_full" if full else _code(error)),
        reason=str(error),
        observed=getattr(error, "observed", None),
        remedy=getattr(error, "remedy", _ROOM if full else None),
    )


def _unexpected(error: BaseException) -> str:
    """Names the interpreter, because the helper on an installed host lets no environment through."""
    release = running_release()
    if isinstance(error, ImportError | SyntaxError) and release != "source":
        folder = Path(sys.prefix).parent
        return f"the code may be damaged: `{folder}/venv/bin/python -I -m standfast release verify {folder}`"
    return f"to see where: STANDFAST_DEBUG=1 {sys.executable} -I -m standfast ... as the service user"


def _code(error: StandfastError) -> str:
    for kind, code in (
        (BadInput, "bad_input"),
        (ConfigurationInvalid, "configuration_invalid"),
        (StoreBusy, "store_busy"),
    ):
        if isinstance(error, kind):
            return code
    return "failed"
