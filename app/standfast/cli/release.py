"""`standfast release`: build, verify, seal, list."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from standfast.cli.common import EXIT_ATTENTION, current, emit, examples, facts, group, note, table, write
from standfast.errors import BadInput

app = group("Build, verify and seal releases.")


class PlatformName(StrEnum):
    """What `uname -m` says on a supported host."""

    x86_64 = "x86_64"
    aarch64 = "aarch64"


@app.command(
    epilog=examples(
        "standfast release build --python 3.12 --python 3.13 -o dist/",
        "standfast release build --python 3.13 --sign ~/.ssh/release_ed25519 -o dist/",
    )
)
def build(
    ctx: typer.Context,
    *,
    pythons: Annotated[
        list[str], typer.Option("--python", metavar="X.Y", help="A Python to carry wheels for.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Where the archive goes.")
    ] = Path("dist"),
    platforms: Annotated[
        list[PlatformName] | None,
        typer.Option("--platform", metavar="NAME", help="x86_64 (the default) or aarch64. May be repeated."),
    ] = None,
    extras: Annotated[
        list[str] | None,
        typer.Option("--extra", metavar="NAME", help="An extra to include: live, supplier. May be repeated."),
    ] = None,
    commit: Annotated[
        str | None, typer.Option(metavar="REVISION", help="Build this commit instead of a clean HEAD.")
    ] = None,
    allow_dirty: Annotated[
        bool, typer.Option("--allow-dirty", help="Take the work tree as it is, and mark the release.")
    ] = False,
    sign: Annotated[
        Path | None, typer.Option(metavar="KEY", help="Sign the archive with this ssh key.")
    ] = None,
) -> None:
    """Build the archive of one commit: package, wheels, lock and manifest. Needs a clone and its .venv."""
    from standfast.release.build import Request, build  # noqa: PLC0415  (only this command needs it)

    request = Request(
        repository=Path.cwd(),
        pythons=tuple(pythons),
        output=output,
        platforms=tuple(platform.value for platform in platforms or [PlatformName.x86_64]),
        extras=tuple(extras or ()),
        commit=commit,
        allow_dirty=allow_dirty,
        key=sign,
    )
    result = build(request, lambda step: note(f"release build: {step}"), check=current(ctx).check)
    emit(
        ctx,
        result,
        lambda: facts(
            [
                ("release", result.release_id),
                ("archive", result.archive),
                ("sha256", result.archive_sha256),
                ("size", f"{result.size / 1e6:.1f} MB"),
                ("signature", result.signature or "none"),
                ("changed", result.changed),
            ]
        ),
    )


@app.command(
    epilog=examples(
        "standfast release verify dist/standfast-0.1.0-1a2b3c4d-5e6f7a8b.tar",
        "standfast release verify --installed /srv/lucy/releases/0.1.0-1a2b3c4d-5e6f7a8b",
    )
)
def verify(
    ctx: typer.Context,
    *,
    path: Annotated[
        Path, typer.Argument(metavar="ARCHIVE|DIR", help="An archive, or the folder of a release.")
    ],
    allowed_signers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Check the signature against this allowed-signers file."),
    ] = None,
    signer: Annotated[
        str | None, typer.Option(metavar="NAME", help="The principal that must have signed.")
    ] = None,
    require_signature: Annotated[
        bool, typer.Option("--require-signature", help="An unsigned archive is a difference.")
    ] = False,
    installed: Annotated[
        bool, typer.Option("--installed", help="The folder must be a finished installation.")
    ] = False,
) -> None:
    """List every way in which a release is not what it says; exit 4 when there is one."""
    from standfast.release.signature import Policy  # noqa: PLC0415
    from standfast.release.verify import verify  # noqa: PLC0415

    if (allowed_signers is None) != (signer is None) or (require_signature and signer is None):
        raise BadInput("--allowed-signers and --signer go together, and --require-signature needs both")
    policy = Policy(allowed_signers, signer, require_signature) if allowed_signers and signer else None
    result = verify(path, policy=policy, must_be_installed=installed)

    def render() -> None:
        facts(
            [
                ("release", result.release_id or "unknown"),
                ("kind", result.kind),
                ("sha256", result.archive_sha256 or "-"),
                ("signed by", result.signed_by or "not checked"),
                ("verified", "yes" if result.verified else f"NO: {len(result.differences)} differences"),
            ]
        )
        if result.differences:
            rows = [[found.problem, found.path, found.detail] for found in result.differences]
            table(["PROBLEM", "PATH", "DETAIL"], rows)

    emit(ctx, result, render)
    if not result.verified:
        raise typer.Exit(EXIT_ATTENTION)


@app.command(
    epilog=examples(
        "cd /srv/lucy/releases/0.1.0-1a2b3c4d-5e6f7a8b && venv/bin/python -I -B -m standfast release seal ."
    )
)
def seal(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The release that this Python belongs to.")],
) -> None:
    """Prove an installed release and write its seal: from then on it counts as installed."""
    from standfast.release.seal import seal  # noqa: PLC0415

    result = seal(folder, check=current(ctx).check)
    emit(ctx, result, lambda: facts(result.model_dump().items()))


@app.command("list", epilog=examples("standfast --state /srv/lucy/state release list"))
def list_releases(
    ctx: typer.Context,
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Root's record of what worked [default: the instance's own]."),
    ] = None,
) -> None:
    """Show the releases below the instance's root: which worked, and which may be rolled back to."""
    from standfast.operations.kept import kept  # noqa: PLC0415

    result = kept(current(ctx).layout, record)

    def render() -> None:
        table(
            ["RELEASE", "INSTALLED", "CURRENT", "VERDICT", "PYTHON", "SCHEMA", "ROLL BACK TO IT"],
            [
                [
                    found.id,
                    found.installed_at or "half-made",
                    "yes" if found.current else "",
                    found.verdict,
                    found.python or "-",
                    " ".join(f"{name} {at}" for name, at in (found.schema_versions or {}).items()) or "-",
                    "yes" if found.may_roll_back else f"no: {found.why_not}",
                ]
                for found in result.releases
            ],
        )
        if result.floor is not None:
            write(f"rollback floor: {result.floor.version}, set by {result.floor.release}")

    emit(ctx, result, render)
