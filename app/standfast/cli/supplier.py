"""`standfast supplier`: the stand-in supplier account, a process of its own."""

import ipaddress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from standfast.cli.common import current, emit, examples, group, note, write
from standfast.errors import BadInput, Refused
from standfast.layout import checked_path
from standfast.supplier.settings import Settings
from standfast.supplier.wire import DEFAULT_KEY_WINDOW

app = group("The supplier stand-in: somebody else's account, with a ledger of its own.")


@app.callback()
def supplier() -> None:
    """The supplier stand-in: somebody else's account, with a ledger of its own."""


@app.command(
    epilog=examples(
        "standfast supplier serve --ledger /srv/supplier/ledger --token-file /srv/supplier/token",
        "standfast supplier serve --ledger /srv/supplier/ledger --token-file /srv/supplier/token --faults",
    )
)
def serve(
    ctx: typer.Context,
    *,
    ledger: Annotated[str, typer.Option(metavar="DIR", help="The ledger's own folder.")],
    token_file: Annotated[
        Path, typer.Option(metavar="FILE", help="Holds the bearer token; readable by its owner only.")
    ],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The IP address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8440,
    key_window: Annotated[
        int, typer.Option(min=1, metavar="SECONDS", help="How long an operation id may be sent again.")
    ] = DEFAULT_KEY_WINDOW,
    faults: Annotated[bool, typer.Option("--faults", help="Let clients switch failures on (tests).")] = False,
) -> None:
    """Keep an account that accepts orders, until SIGTERM. Needs a release built with `--extra supplier`.

    A token file that cannot be used ends it with exit 78, before anything is opened.
    """
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise Refused(
            "extra_missing",
            "this release does not carry what the supplier needs",
            observed=f"not installed: {', '.join(missing)}",
            remedy="build a release with `standfast release build --extra supplier` and install that",
        )
    from standfast.supplier import service  # noqa: PLC0415  (only here, and only when the extra is there)

    settings = Settings(
        ledger=checked_path(ledger, "--ledger"),
        token_file=token_file,
        host=host,
        port=port,
        key_window=key_window,
        faults=faults,
    )
    if not _is_loopback(host):
        note("standfast: the token crosses the network unencrypted: keep it on a network of your own")
    result = service.check(settings) if current(ctx).check else service.serve(settings)
    emit(ctx, result, lambda: write(f"the supplier can listen on {result.address}") if result.check else None)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise BadInput(f"--host: {host!r} is not an IP address") from None
