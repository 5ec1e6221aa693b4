"""`standfast health`: how the instance is."""

import time

import typer

from standfast.agent.access import OFFLINE
from standfast.cli.common import EXIT_ATTENTION, current, emit, examples, facts, group, table, write
from standfast.operations.health import Channel, Health, Spending, look
from standfast.operations.usage import UsageToday

app = group("How the instance is.")


@app.command(epilog=examples("standfast health", "standfast --json health"))
def health(ctx: typer.Context) -> None:
    """Say how the instance is; changes nothing. Exit 0, or 4 when something needs attention.

    \b
    Attention: paused; marker and epoch disagree; another host's state; a store newer than the release;
    the service's process is gone; a READY item older than 15 minutes while not paused; a RUNNING item
    claimed more than 30 minutes ago; reports or orders whose outcome is not known; once backups are made:
    a last backup older than 36 hours or failed, a last rehearsal older than 8 days or failed;
    a ceiling that refuses live model calls today; a channel that refuses reports or has not answered for
    5 minutes.
    """
    found = look(current(ctx).layout, time.time())
    emit(ctx, found, lambda: _render(found))
    if not found.ok:
        raise typer.Exit(EXIT_ATTENTION)


def _render(found: Health) -> None:
    facts(
        [
            ("health", "ok" if found.ok else "ATTENTION"),
            ("release", found.release),
            ("service", _service(found)),
            ("authority", _authority(found)),
            ("work", "  ".join(f"{status} {items}" for status, items in found.work.items())),
            ("oldest READY", _seconds(found.oldest_ready_seconds)),
            ("oldest RUNNING", _seconds(found.oldest_running_seconds)),
            ("last finished", _finished(found)),
            ("uncertain", f"orders {found.uncertain_orders}  reports {found.uncertain_reports}"),
            ("channel", _channel(found.channel)),
            ("pending approvals", found.pending_approvals),
            ("spending", _spending(found.spending)),
            ("model", _model(found.usage)),
            ("last backup", _backup(found)),
            ("last rehearsal", _rehearsal(found)),
            ("store", "  ".join(f"{name} {version}" for name, version in found.schema_versions.items())),
            ("SQLite", found.sqlite.version),
        ]
    )
    if found.attention:
        write()
        table(
            ["ATTENTION", "OBSERVED", "REMEDY"],
            [[told.rule, told.observed, told.remedy] for told in found.attention],
        )
    for told in found.notes:
        write(f"note: {told}")


def _channel(found: Channel | None) -> str:
    if found is None:
        return "-"
    held = f"; {found.held_reports} reports held" if found.held_reports else ""
    return f"{found.kind}: {found.problem or 'ok'}{held}"


def _spending(found: Spending) -> str:
    # 0: nothing was approved yet, so no ceiling of shop.toml was in use.
    limit = f" of {found.ceiling_cents}" if found.ceiling_cents else ""
    return f"{found.spent_cents} cents spent and {found.reserved_cents} reserved{limit} on {found.day}"


def _model(found: UsageToday | None) -> str:
    if found is None or found.model is None:
        return "not known before the service's next start"
    if found.model == OFFLINE:
        return "offline: no live model is configured"
    used, ceilings = found.today.figures, found.ceilings
    limit = "" if ceilings is None or ceilings.daily_calls is None else f" of {ceilings.daily_calls}"
    cents = "" if used.cents is None else f", {used.cents} cents"
    last = f"; the last was {found.last_call}, {found.last_call_at}" if found.last_call else ""
    return f"{found.model}, {used.calls}{limit} calls{cents} on {found.today.day}{last}"


def _service(found: Health) -> str:
    run = found.service
    if run is None:
        return "never started"
    return (
        f"{'running' if run.alive else 'gone'}: pid {run.pid}, release {run.release}, since {run.started_at}"
    )


def _authority(found: Health) -> str:
    marker = "marker agrees" if found.marker_agrees else "marker DISAGREES"
    return f"{'PAUSED' if found.paused else 'active'}, epoch {found.epoch}, {marker}"


def _finished(found: Health) -> str:
    latest = found.last_finished
    return f"{latest.work}, {_seconds(latest.age_seconds)} ago" if latest else "nothing yet"


def _backup(found: Health) -> str:
    last = found.last_backup
    if last is None:
        return "none"
    verified = {None: "never verified", True: "verified", False: "NOT GOOD"}[last.verified]
    return f"{last.made_at}, {_seconds(last.age_seconds)} ago, {verified}"


def _rehearsal(found: Health) -> str:
    last = found.last_rehearsal
    if last is None:
        return "none"
    return f"{last.at}, {_seconds(last.age_seconds)} ago, {'good' if last.ok else 'FAILED'}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"
