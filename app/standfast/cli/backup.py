"""`standfast backup`: consistent copies of the live store, and the proof that they are good."""

import sys
import time
from typing import Annotated

import typer

from standfast.cli.common import EXIT_ATTENTION, current, emit, examples, facts, group, note, table, write
from standfast.errors import BadInput
from standfast.operations.backup.creating import Request, create
from standfast.operations.backup.limits import Limits, Progress, Report
from standfast.operations.backup.listing import Checked, listing, named
from standfast.operations.backup.retention import KEEP, prune
from standfast.operations.backup.verifying import Verification, verify

app = group("Backups: create, list, verify, prune.")

_EVERY = 10.0
"""Seconds between two lines of progress where there is no terminal."""

Which = Annotated[
    str | None, typer.Argument(metavar="[NAME|PATH]", help="A backup's name or folder [default: the newest].")
]


@app.command(
    "create",
    epilog=examples(
        "standfast backup create",
        "standfast backup create --with reports,receipts,units --asked-by lucy",
        "standfast backup create --to /mnt/vault/monday --copy env,units",
    ),
)
def create_(
    ctx: typer.Context,
    *,
    to: Annotated[
        str | None, typer.Option(metavar="PATH", help="The folder to make, elsewhere than below backups/.")
    ] = None,
    with_: Annotated[
        str,
        typer.Option(
            "--with", metavar="KINDS", help="Tell of these files: env,skills,reports,receipts,units."
        ),
    ] = "",
    copy: Annotated[
        str,
        typer.Option(metavar="KINDS", help="Copy these files too; env only to an encrypted destination."),
    ] = "",
    asked_by: Annotated[
        str, typer.Option(metavar="NAME", help="Who wants it [default: the user that runs this].")
    ] = "",
    release_after: Annotated[
        str | None, typer.Option(metavar="ID", help="The release that an upgrade is about to start.")
    ] = None,
    deadline: Annotated[float, typer.Option(help="Seconds after which it is given up.")] = Limits.deadline,
    wal_cap: Annotated[
        int, typer.Option(help="Bytes by which the write-ahead log may grow meanwhile.")
    ] = Limits.wal_cap,
    floor: Annotated[int, typer.Option(help="Bytes that stay free.")] = Limits.floor,
) -> None:
    """Make one backup; the service goes on meanwhile. A failure leaves nothing and removes nothing."""
    context = current(ctx)
    request = Request.of(
        to=to,
        told=_kinds(with_),
        copied=_kinds(copy),
        asked_by=asked_by,
        release_after=release_after,
        limits=Limits(deadline=deadline, wal_cap=wal_cap, floor=floor),
    )
    made = create(context.layout, request, report=_progress(), check=context.check)

    def render() -> None:
        told = "would make" if made.check else "made"
        write(f"{told} {made.folder}")
        for name in made.cleaned:
            write(f"removed the left-over {name}" if not made.check else f"would remove the left-over {name}")
        for text in made.not_included:
            write(f"not in it: {text}")

    emit(ctx, made, render)


@app.command("list", epilog=examples("standfast backup list", "standfast --json backup list"))
def list_(ctx: typer.Context) -> None:
    """List the backups, newest (highest sequence) first, and what else lies in their folder."""
    found = listing(current(ctx).layout, time.time())

    def render() -> None:
        table(
            ["BACKUP", "MADE", "BYTES", "VERIFIED", "REHEARSED", "PROBLEM"],
            [
                [
                    one.name,
                    one.made_at,
                    one.bytes,
                    _checked(one.verified),
                    _checked(one.rehearsed),
                    one.problem or "-",
                ]
                for one in found.backups
            ],
        )
        for name in found.junk:
            write(f"no backup: {name}")

    emit(ctx, found, render)


@app.command(
    "verify",
    epilog=examples("standfast backup verify", "standfast backup verify /mnt/vault/monday"),
)
def verify_(ctx: typer.Context, which: Which = None) -> None:
    """Read a whole backup and compare it with its manifest. Exit 4 when it is not good.

    The result is kept beside the manifest for `list` and health, unless with `--check`.
    """
    context = current(ctx)
    path = named(context.layout, which, time.time())
    found = verify(path, report=_progress(), record=not context.check)
    emit(ctx, found, lambda: _render_checks(found))
    if not found.ok:
        raise typer.Exit(EXIT_ATTENTION)


@app.command(
    "prune",
    epilog=examples("standfast backup prune", "standfast --check backup prune --keep 14 --days 30"),
)
def prune_(
    ctx: typer.Context,
    keep: Annotated[int, typer.Option(help="So many of the newest stay in any case.")] = KEEP,
    days: Annotated[float, typer.Option(help="What is younger stays, too.")] = 0,
) -> None:
    """Remove old backups; the newest one that verifies stays, and without one nothing is removed."""
    context = current(ctx)
    done = prune(context.layout, now=time.time(), keep=keep, days=days, check=context.check)

    def render() -> None:
        for name in done.removed:
            write(f"{'would remove' if done.check else 'removed'} {name}")
        write(f"{len(done.kept)} stay" + (f", {done.good} was verified just now" if done.good else ""))

    emit(ctx, done, render)


def _render_checks(found: Verification) -> None:
    facts([("backup", found.path), ("verdict", "good" if found.ok else "NOT GOOD")])
    table(
        ["CHECK", "OUTCOME", "OBSERVED"],
        [[check.name, check.outcome, check.observed] for check in found.checks],
    )


def _checked(found: Checked | None) -> str:
    return "never" if found is None else f"{'ok' if found.ok else 'FAILED'} {found.at}"


def _kinds(text: str) -> list[str]:
    kinds = [word.strip() for word in text.split(",") if word.strip()]
    if text and not kinds:
        raise BadInput("--with and --copy take words with commas between them")
    return kinds


def _progress() -> Report:
    """On a terminal a line that is written over; elsewhere a line every ten seconds, none for quick work."""
    terminal = sys.stderr.isatty()
    last = [time.monotonic()]

    def report(seen: Progress) -> None:
        share = f"{100 * seen.done // seen.total:3} %" if seen.total else ""
        now = time.monotonic()
        if terminal:
            end = "\n" if seen.total and seen.done == seen.total else ""
            sys.stderr.write(f"\r{seen.phase} {share}\x1b[K{end}")
            sys.stderr.flush()
        elif now - last[0] >= _EVERY:
            last[0] = now
            note(f"standfast: {seen.phase} {share}")

    return report
