"""`standfast canary`: prove that the running service finishes new work."""

from typing import Annotated

import typer

from standfast.cli.common import current, emit, examples, group, write
from standfast.operations.canary import DEFAULT_TIMEOUT, CanaryResult, Expectation, run

app = group("Prove that the running service finishes new work.")


@app.command(epilog=examples("standfast canary", "standfast --json canary --timeout 30 --expect-pid 4711"))
def canary(
    ctx: typer.Context,
    timeout: Annotated[
        float, typer.Option(min=1, max=3600, metavar="SECONDS", help="How long to wait.")
    ] = DEFAULT_TIMEOUT,
    expect_pid: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Fail unless this process finished it.")
    ] = None,
    expect_release: Annotated[
        str | None, typer.Option(metavar="ID", help="Fail unless this release finished it.")
    ] = None,
) -> None:
    """Ask for one fresh unit of work and wait until the running service has finished it with a report.

    Refused while paused. When the time is up, a request that nobody claimed is canceled again.
    """
    context = current(ctx)
    expect = Expectation(pid=expect_pid, release=expect_release)
    result = run(context.layout, timeout=timeout, expect=expect, check=context.check)
    emit(ctx, result, lambda: write(_told(result, timeout)))


def _told(result: CanaryResult, timeout: float) -> str:
    if result.run is None:
        return f"would ask for one unit of work and wait up to {timeout:g} s for the service to finish it"
    return (
        f"work {result.work}, generation {result.generation}, finished in {result.seconds} s"
        f" by run {result.run.id} (release {result.run.release}, pid {result.run.pid})"
    )
