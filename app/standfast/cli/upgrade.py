"""`standfast upgrade`: change the service over to the release that runs this, and see how that stands."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated

import typer

from standfast.cli.common import EXIT_UNEXPECTED, current, emit, examples, facts, group, note, write
from standfast.cli.keeping import KeepsReceipt, kept, kept_switch
from standfast.errors import BadInput
from standfast.layout import Layout, checked_path
from standfast.operations.environment import MAX_PAIRS
from standfast.operations.upgrade.abandoning import Abandoned, Word, abandon, is_the_way
from standfast.operations.upgrade.beginning import Asked, named
from standfast.operations.upgrade.configuring import Wanted, configure
from standfast.operations.upgrade.journal import Journal, Nothing, read
from standfast.operations.upgrade.result import GOOD, Operation, Switch
from standfast.operations.upgrade.switching import Limits
from standfast.operations.upgrade.upgrading import upgrade
from standfast.serve.settings import agreed

app = group("Change the service over to this release: switch, status; or its configuration: configure.")

RunId = Annotated[str | None, typer.Option("--run-id", metavar="ID", help="Named in journal and backup.")]
StopTimeout = Annotated[float, typer.Option(min=1, max=3600, help="Seconds for the service to stop.")]
StartTimeout = Annotated[float, typer.Option(min=1, max=3600, help="Seconds until it must be READY.")]
CanaryTimeout = Annotated[float, typer.Option(min=1, max=3600, help="Seconds for the canary.")]


@app.command(
    "switch",
    epilog=examples(
        "releases/NEW/venv/bin/standfast --check upgrade switch --from OLD",
        "releases/NEW/venv/bin/standfast --json upgrade switch --from OLD --run-id 20260301-1",
    ),
)
def switch_(
    ctx: typer.Context,
    *,
    old: Annotated[str, typer.Option("--from", metavar="ID", help="The release that is left.")],
    run_id: RunId = None,
    stop_timeout: StopTimeout = Limits.stop,
    start_timeout: StartTimeout = Limits.start,
    canary_timeout: CanaryTimeout = Limits.canary,
    receipt: KeepsReceipt = True,
) -> None:
    """Stop the service, back up, migrate, start this release, and see it finish a canary; or go back.

    \b
    A run that was cut short, at any step, is brought to its end by the same command.
    Exit 0: this release works. Exit 1: it does not, and the output says which release runs now, or that the
    service stays stopped and which ways lead on. Exit 3: refused, and nothing was touched.
    """
    context = current(ctx)
    asked = Asked.of(run_id, Limits(stop=stop_timeout, start=start_timeout, canary=canary_timeout))
    left = named(old, "--from")
    switched(
        ctx,
        "upgrade",
        lambda: upgrade(context.layout, left, asked, tell=tell, check=context.check),
        receipt=receipt,
    )


@app.command(
    "configure",
    epilog=examples(
        "standfast --check upgrade configure --shop /tmp/shop.toml",
        "standfast --json upgrade configure --env - < pairs.json",
    ),
)
def configure_(
    ctx: typer.Context,
    *,
    env: Annotated[
        str | None, typer.Option(metavar="-", help="agent.env: a JSON object of pairs on stdin.")
    ] = None,
    shop: Annotated[str | None, typer.Option(metavar="FILE", help="The new shop.toml.")] = None,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Replace an agent.env that was edited by hand.")
    ] = False,
    run_id: RunId = None,
    stop_timeout: StopTimeout = Limits.stop,
    start_timeout: StartTimeout = Limits.start,
    canary_timeout: CanaryTimeout = Limits.canary,
    receipt: KeepsReceipt = True,
) -> None:
    """Change agent.env or shop.toml, restart once, and see a canary; or put the ones of before back (exit 1).

    A change that was cut short is put back by the same command, also without options. Values are never shown.
    """
    context = current(ctx)
    if env not in {None, "-"}:
        raise BadInput("--env: only - is known: the pairs come on stdin, and are no argument that others see")
    pairs = None if env is None else sys.stdin.buffer.read(MAX_PAIRS + 1)
    wanted = Wanted.of(pairs=pairs, shop=None if shop is None else checked_path(shop, "--shop"), adopt=adopt)
    asked = Asked.of(run_id, Limits(stop=stop_timeout, start=start_timeout, canary=canary_timeout))
    switched(
        ctx,
        "configure",
        lambda: configure(context.layout, wanted, asked, agreed, tell=tell, check=context.check),
        receipt=receipt,
    )


@app.command(
    "abandon",
    epilog=examples(
        "standfast --check upgrade abandon --operator lucy --reason 'its release was removed'",
        "standfast upgrade abandon --operator lucy --reason 'its release was removed'",
    ),
)
def abandon_(
    ctx: typer.Context,
    *,
    operator: Annotated[str, typer.Option(metavar="NAME", help="Who gives it up; on record.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, in one line; on record.")],
    receipt: KeepsReceipt = True,
) -> None:
    """Give up a switch that was cut short and whose own release is gone or cannot go on with it.

    \b
    Run it with another release that knows the store: mostly the one that `current` names. It shows what
    stands, keeps the journal as evidence and lets other switches begin; it starts and restores nothing.
    Refused (exit 3) on a store that this release does not know, while what is given up serves, and when
    business facts differ without an explanation.
    """
    context = current(ctx)
    word = Word.of(operator, reason)
    found = kept(
        context,
        "upgrade-abandon",
        lambda: abandon(context.layout, word, now=time.time(), check=context.check),
        receipt=receipt,
    )
    emit(ctx, found, lambda: _render_abandoned(found))


def _render_abandoned(found: Abandoned) -> None:
    if not found.changed:
        write("no switch is unfinished: there is nothing to give up")
        return
    facts(
        [
            ("would be given up" if found.check else "given up", f"{found.operation}, run {found.run_id}"),
            ("from", found.release_from),
            ("to", found.release_to),
            ("cut short at", found.step),
            ("service", found.service),
            ("serves", found.release or "nobody"),
            ("facts", found.facts),
            ("put back", ", ".join(found.put_back) or "nothing"),
            ("evidence", found.evidence),
        ]
    )
    for line in found.explained:
        write(f"explained: {line}")
    for line in found.ways_on:
        write(f"way on: {line}")


def switched(ctx: typer.Context, operation: Operation, act: Callable[[], Switch], *, receipt: bool) -> None:
    """Do it, print what became of it, and exit by it."""
    found = kept_switch(current(ctx), operation, act, receipt=receipt)
    emit(ctx, found, lambda: _render(found))
    if found.outcome != GOOD[operation]:
        raise typer.Exit(EXIT_UNEXPECTED)


def tell(step: str) -> None:
    """A line of progress; whoever read them may be gone."""
    with suppress(OSError, ValueError):
        note(step)


def _render(found: Switch) -> None:
    """A switch for a person."""
    done = "would be " if found.check else ""
    migrated = ", ".join(f"{name} {before} -> {after}" for name, (before, after) in found.migrated.items())
    canary = found.canary
    facts(
        [
            ("outcome", f"{done}{found.outcome}" if found.changed else f"{found.outcome} already"),
            ("from", found.release_from),
            ("to", found.release_to),
            *([("failed at", found.step)] if found.step else []),
            *([("because", found.reason)] if found.reason else []),
            *(
                [("resumed", f"from {found.resumed_from}: {found.resumed_because}")]
                if found.resumed_from
                else []
            ),
            ("migrated", migrated or "nothing"),
            ("backup", found.backup or "none"),
            *([("receipt", found.receipt)] if found.receipt else []),
            ("silence", f"{found.silence_seconds} s" if found.silence_seconds is not None else "-"),
            (
                "canary",
                f"work {canary.work} in {canary.seconds} s by pid {canary.run.pid}" if canary else "-",
            ),
        ]
    )
    for line in found.explained:
        write(f"explained: {line}")
    for line in found.ways_on:
        write(f"way on: {line}")


@app.command("status", epilog=examples("standfast upgrade status", "standfast --json upgrade status"))
def status_(ctx: typer.Context) -> None:
    """Show the journal of the last switch: its step, and its outcome once it has one."""
    layout = current(ctx).layout
    found = read(layout)
    emit(ctx, found or Nothing(), lambda: _render_status(layout, found))


def _render_status(layout: Layout, journal: Journal | None) -> None:
    if journal is None:
        write("there was no switch yet")
        return
    facts(
        [
            ("operation", journal.operation),
            ("run", journal.run_id),
            ("from", journal.release_from),
            ("to", journal.release_to),
            ("step", journal.step),
            ("outcome", journal.outcome or "not at its end"),
            *([("failed at", journal.failed)] if journal.failed else []),
            *([("because", journal.reason)] if journal.reason else []),
        ]
    )
    if journal.outcome is not None:
        return
    again = f"way on: repeat the {journal.operation} to {journal.release_to}: it goes on, or back"
    gone = "`standfast upgrade abandon`, then a switch to another (runbooks/upgrade-stopped-half-way.md)"
    write(f"way on: release {journal.release_to} is gone: {gone}" if is_the_way(layout, journal) else again)
