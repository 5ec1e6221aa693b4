"""The command line: global options, lazily loaded command modules, exit codes and failures.

Exit codes: 0 done; 1 unexpected; 2 bad usage or malformed input; 3 a safety rule refuses; 4 attention;
78 the configuration of `serve` is invalid.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, override

import typer
from pydantic import BaseModel
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from standfast import __version__
from standfast.cli.common import (
    EXIT_INTERRUPTED,
    EXIT_UNEXPECTED,
    EXIT_USAGE,
    Context,
    Failure,
    Refusal,
    abandon_stdout,
    emit,
    examples,
    forget_written_json,
    json_was_written,
    note,
    refusal,
    write,
    write_json,
)
from standfast.errors import BadInput, StandfastError
from standfast.layout import DEFAULT_STATE, checked_path, running_release

if TYPE_CHECKING:
    from typer._click.core import Command
    from typer._click.core import Context as ClickContext

COMMANDS: dict[str, str] = {
    "init": "Make an instance's store from its shop.toml.",
    "serve": "Run the agent (systemd starts this).",
    "health": "Say how the instance is: exit 0, or 4 when it needs attention.",
    "adopt": "Take over a state directory on this host: a new epoch, paused.",
    "restore": "Take up a backup: a new epoch, paused.",
    "account": "The supplier's account after a restore: inspect.",
    "recover": "Apply a reviewed recovery plan, and resume.",
    "canary": "Prove that the running service finishes new work.",
    "work": "Requests: add, list, show, cancel.",
    "report": "Reports that finished work has left.",
    "channel": "Where reports go, and what came in there.",
    "schedule": "Work that comes due by the clock.",
    "order": "Orders: list, show, approve, revoke, send, resolve, deliver.",
    "stock": "The shop's stock and its events.",
    "skill": "The text that shapes the morning brief.",
    "backup": "Backups: create, list, verify, prune, rehearse, send, migrate.",
    "usage": "What model calls used, and their ceilings.",
    "facts": "The business facts that an upgrade must leave as they are.",
    "upgrade": "Change the service over to this release, or its configuration: switch, configure, status.",
    "rollback": "Let an older kept release take the service over; the state stays as it is.",
    "preflight": "What an upgrade to this release would meet.",
    "unit": "The systemd units of this release.",
    "env": "The operator's environment file.",
    "receipt": "Operation receipts: record, list, show, verify.",
    "release": "Build, verify and seal releases.",
    "supplier": "The supplier stand-in, a process of its own.",
    "schema": "The JSON Schema of what a command prints.",
}
"""Command -> summary; the module `standfast.cli.<command>` holds its `app`. Loaded only when it is called."""


class Version(BaseModel):
    """What `standfast --json --version` prints."""

    version: str
    release: str
    """The release id, or `source` when run from a checkout."""


class LazyGroup(TyperGroup):
    """The root command: knows names and summaries, and imports a module only to run it."""

    @override
    def list_commands(self, ctx: "ClickContext") -> list[str]:
        """The commands, in the order an operator meets them."""
        return list(COMMANDS)

    @override
    def get_command(self, ctx: "ClickContext", cmd_name: str) -> "Command | None":
        """A stand-in for listings; `resolve_command` gives the real one."""
        summary = COMMANDS.get(cmd_name)
        return None if summary is None else TyperCommand(cmd_name, help=summary, rich_markup_mode=None)

    @override
    def resolve_command(
        self, ctx: "ClickContext", args: list[str]
    ) -> tuple[str | None, "Command | None", list[str]]:
        """Import the module of the command that was asked for."""
        self.commands = {name: command for name in COMMANDS if (command := self.get_command(ctx, name))}
        name, command, rest = super().resolve_command(ctx, args)
        return (name, command if name is None else load_command(name), rest)


def load_command(name: str) -> "Command":
    """The real command of that name."""
    return get_command(import_module(f"standfast.cli.{name}").app)


root = typer.Typer(
    cls=LazyGroup,
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


@root.callback(
    epilog=examples("standfast health", "standfast --json health", "standfast --state /srv/lucy/state canary")
)
def options(
    ctx: typer.Context,
    state: Annotated[
        str | None,
        typer.Option(metavar="DIR", help=f"State directory [default: $STANDFAST_STATE or {DEFAULT_STATE}]."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print exactly one JSON object.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Say what would be done; change nothing.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print version and release.")] = False,
) -> None:
    """An always-on agent for one shop. Global options come before the command."""
    ctx.obj = Context(state=_state(state), json=json, check=check)
    if version:
        shown = Version(version=__version__, release=running_release())
        emit(ctx, shown, lambda: write(f"standfast {shown.version} ({shown.release})"))
        raise typer.Exit(0)
    if ctx.invoked_subcommand is None:
        ctx.fail("Missing command; `standfast --help` lists them.")


def _state(given: str | None) -> Path:
    if given is not None:
        return checked_path(given, "--state")
    return checked_path(os.environ.get("STANDFAST_STATE") or str(DEFAULT_STATE), "STANDFAST_STATE")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    forget_written_json()
    argv = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    code = _run(argv)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        abandon_stdout()
    return code


def _run(argv: list[str]) -> int:
    as_json = "--json" in takewhile(lambda argument: argument != "--", argv)
    try:
        _refuse_no_text(argv)
        # Not `.main()`: it would turn an interruption and a closed pipe into exit codes of its own.
        command = get_command(root)
        with command.make_context("standfast", list(argv)) as ctx:
            command.invoke(ctx)
    except typer.Exit as done:
        return done.exit_code
    except typer.TyperException as error:
        return _usage(error, argv, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        return _failed(Refusal(code="interrupted", reason="interrupted"), EXIT_INTERRUPTED, None, as_json)
    except BrokenPipeError:
        abandon_stdout()  # the reader left in the middle of a help page
        return 0
    except Exception as error:  # noqa: BLE001  (the last line of defence: no traceback for an operator)
        _debug()
        known = isinstance(error, StandfastError)
        code = error.exit_code if isinstance(error, StandfastError) else EXIT_UNEXPECTED
        return _failed(refusal(error), code, False if known and code != EXIT_UNEXPECTED else None, as_json)
    return 0


def _refuse_no_text(argv: Sequence[str]) -> None:
    """Raise BadInput for bytes that are no UTF-8: neither the store nor a JSON object can hold them."""
    for number, argument in enumerate(argv, 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise BadInput(f"argument {number} is not UTF-8 text: {argument!r}") from None


def _usage(error: typer.TyperException, argv: list[str], *, as_json: bool) -> int:
    _debug()
    context: Any = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "standfast"
    remedy = f"`{command} --help` shows its usage"
    misplaced = [option for option in ("--json", "--check", "--state") if option in argv]
    if misplaced and "No such option" in error.format_message():
        remedy = f"global options come before the command: standfast {misplaced[0]} ..."
    told = Refusal(code="usage", reason=error.format_message(), remedy=remedy)
    return _failed(told, EXIT_USAGE, False, as_json)


def _failed(told: Refusal, code: int, changed: bool | None, as_json: bool) -> int:
    note(f"standfast: {told.reason}")
    observed = told.observed.splitlines() if isinstance(told.observed, str) else told.observed or []
    for line in observed:
        note(f"  observed: {line}")
    if told.remedy:
        note(f"  remedy: {told.remedy}")
    if as_json and not json_was_written():
        write_json(Failure(changed=changed, refused=told))
    return code


def _debug() -> None:
    if os.environ.get("STANDFAST_DEBUG") == "1":
        traceback.print_exc()
