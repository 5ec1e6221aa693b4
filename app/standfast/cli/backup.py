"""`standfast backup`: consistent copies of the live store, and the proof that they are good."""

import time
from pathlib import Path
from typing import Annotated

import typer

from standfast.cli.common import EXIT_ATTENTION, current, emit, examples, facts, group, table, write
from standfast.cli.progress import progress
from standfast.operations.backup import sending
from standfast.operations.backup.creating import Request, create
from standfast.operations.backup.limits import Limits
from standfast.operations.backup.listing import Checked, listing, named
from standfast.operations.backup.migrating import migrate
from standfast.operations.backup.rehearsing import rehearse
from standfast.operations.backup.retention import KEEP, prune
from standfast.operations.backup.verifying import Check, verify
from standfast.operations.jobs import words

app = group("Backups: create, list, verify, prune, rehearse, send, migrate.")

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
        told=words(with_),
        copied=words(copy),
        asked_by=asked_by,
        release_after=release_after,
        limits=Limits(deadline=deadline, wal_cap=wal_cap, floor=floor),
    )
    made = create(context.layout, request, report=progress(), check=context.check)

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
    found = verify(path, report=progress(), record=not context.check)
    emit(ctx, found, lambda: _render_checks(found.path, found.ok, found.checks))
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


@app.command(
    "rehearse",
    epilog=examples("standfast backup rehearse", "standfast --check backup rehearse"),
)
def rehearse_(ctx: typer.Context, which: Which = None) -> None:
    """Restore a backup in a scratch place with this release's code and read it. Exit 4 when it is not good.

    Records an operation receipt; the live store, its marker and the backup are not touched.
    """
    context = current(ctx)
    done = rehearse(context.layout, which, report=progress(), check=context.check)

    def render() -> None:
        if done.ok is None:
            write(f"would rehearse {done.path}")
            return
        _render_checks(done.path, done.ok, done.checks)
        facts([("seconds", f"{done.seconds:.1f}"), ("receipt", done.receipt)])

    emit(ctx, done, render)
    if done.ok is False:
        raise typer.Exit(EXIT_ATTENTION)


@app.command(
    "send",
    epilog=examples(
        "standfast backup send --repository sftp:vault.test:/srv/lucy --password-file /etc/vault.key",
        "standfast --check backup send --repository /mnt/vault --password-file /etc/vault.key --keep 30",
    ),
)
def send_(
    ctx: typer.Context,
    *,
    which: Which = None,
    repository: Annotated[str, typer.Option(metavar="ADDRESS", help="As restic takes it; no secret in it.")],
    password_file: Annotated[Path, typer.Option(metavar="FILE", help="The repository's password, 0600.")],
    keep: Annotated[int, typer.Option(help="So many of the newest copies stay in any case.")] = sending.KEEP,
    days: Annotated[float, typer.Option(help="What is younger stays, too.")] = 0,
    make_repository: Annotated[bool, typer.Option(help="Make the repository if it is not there.")] = False,
) -> None:
    """Copy a backup off the host with restic, read the copy back, and forget old copies.

    Nothing is forgotten unless the copy was read back and is what was sent; the newest good one always stays.
    """
    context = current(ctx)
    done = sending.send(
        context.layout,
        which,
        sending.Repository(repository, password_file, make=make_repository),
        now=time.time(),
        keep=keep,
        days=days,
        check=context.check,
        report=progress(),
    )

    def render() -> None:
        if done.made_repository:
            write("would make the repository" if done.check else "made the repository")
        told = "is there and was read back" if done.read_back else "would be copied and read back"
        write(f"{done.backup}: {told}")
        for name in done.removed:
            write(f"{'would forget' if done.check else 'forgot'} {name}")
        write(f"{len(done.kept)} copies stay")

    emit(ctx, done, render)


@app.command(
    "migrate",
    epilog=examples("standfast backup migrate 000007-20260301T060000Z-0.1.0-0a1b2c3d-9f8e7d6c --to /srv/m7"),
)
def migrate_(
    ctx: typer.Context,
    which: Annotated[str, typer.Argument(metavar="NAME|PATH", help="A backup's name or folder.")],
    to: Annotated[str, typer.Option(metavar="PATH", help="The folder to make.")],
) -> None:
    """Bring a backup of an older schema forward, as a copy; the original stays as it is."""
    context = current(ctx)
    done = migrate(context.layout, which, to, limits=Limits(), report=progress(), check=context.check)
    told = "would make" if done.check else "made"
    emit(ctx, done, lambda: write(f"{told} {done.folder} from {done.source}, which stays"))


def _render_checks(path: str, ok: bool, checks: list[Check]) -> None:
    facts([("backup", path), ("verdict", "good" if ok else "NOT GOOD")])
    table(["CHECK", "OUTCOME", "OBSERVED"], [[one.name, one.outcome, one.observed] for one in checks])


def _checked(found: Checked | None) -> str:
    return "never" if found is None else f"{'ok' if found.ok else 'FAILED'} {found.at}"
