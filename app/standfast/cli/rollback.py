"""`standfast rollback`: an older kept release takes the service over; the state stays as it is."""

from typing import Annotated

import typer

from standfast.cli.common import current, examples, group
from standfast.cli.keeping import KeepsReceipt
from standfast.cli.upgrade import CanaryTimeout, RunId, StartTimeout, StopTimeout, switched, tell
from standfast.operations.upgrade.beginning import Asked, named
from standfast.operations.upgrade.rolling_back import Force, roll_back
from standfast.operations.upgrade.switching import Limits

app = group("Let an older kept release take the service over; the state stays as it is.")


@app.command(
    epilog=examples(
        "standfast --check rollback --to 0.1.0-1a2b3c4d-5e6f7a8b",
        "standfast rollback --to 0.1.0-1a2b3c4d-5e6f7a8b",
        "standfast rollback --to ID --below-floor 0.2.0 --reason 'the repair itself loses orders'",
    )
)
def rollback(
    ctx: typer.Context,
    *,
    to: Annotated[str, typer.Option(metavar="ID", help="The kept release to go back to.")],
    run_id: RunId = None,
    below_floor: Annotated[
        str | None, typer.Option(metavar="VERSION", help="The rollback floor that is passed, by name.")
    ] = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why it is passed; on record.")] = None,
    stop_timeout: StopTimeout = Limits.stop,
    start_timeout: StartTimeout = Limits.start,
    canary_timeout: CanaryTimeout = Limits.canary,
    receipt: KeepsReceipt = True,
) -> None:
    """Go back to an older release's code, and see it finish a canary; the database is never restored.

    \b
    Run it with the release that the service runs now. Refused (exit 3) for a release that is missing,
    altered, does not know the store's schema, keeps another authority contract, was seen not to work, or lies
    under the rollback floor. Exit 1: it did not work out, and the output says which release runs now.
    """
    context = current(ctx)
    asked = Asked.of(run_id, Limits(stop=stop_timeout, start=start_timeout, canary=canary_timeout))
    kept_release, force = named(to, "--to"), Force.of(below_floor, reason)
    switched(
        ctx,
        "rollback",
        lambda: roll_back(context.layout, kept_release, asked, force=force, tell=tell, check=context.check),
        receipt=receipt,
    )
