"""The page of one receipt that a person reads."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from standfast.receipts.model import Receipt, Switch

_STYLES = {"done": "green", "failed": "red", "refused": "yellow", "pass": "green", "attention": "yellow"}
PAGE_WIDTH = 110
"""Columns when stdout is not a terminal."""


def show(receipt: Receipt, console: Console | None = None) -> None:
    """Print the page; colours only on a terminal, and never with NO_COLOR."""
    out = console or Console(highlight=False, markup=False, emoji=False)
    if not out.is_terminal:
        out.width = PAGE_WIDTH
    out.print(Text(f"Receipt {receipt.sequence}: {receipt.operation} of {receipt.instance}", style="bold"))
    out.print(_facts(receipt))
    if receipt.switch:
        out.print("\nSwitch", style="bold")
        out.print(_switch(receipt.switch))
    if receipt.phases:
        out.print("\nPhases", style="bold")
        out.print(_grid([[f"{phase.seconds:9.1f} s", phase.name] for phase in receipt.phases]))
    if receipt.checks:
        out.print("\nChecks", style="bold")
        out.print(_grid([[check.outcome, check.name, check.observed] for check in receipt.checks]))


def _facts(receipt: Receipt) -> Table:
    rows: list[tuple[str, str | None]] = [
        ("verdict", receipt.verdict),
        ("stopped at", receipt.stopped_at),
        ("reason", receipt.reason),
        ("host", receipt.host),
        ("release", f"{receipt.release_before or 'none'} -> {receipt.release_after or 'none'}"),
        ("time", f"{receipt.started_at}, {receipt.seconds:.1f} s"),
        ("canary", _canary(receipt)),
        ("unit", _unit(receipt)),
        ("boot", _boot(receipt)),
        ("run", receipt.run_id),
        ("controller", _controller(receipt)),
        ("adopted", receipt.adopted_from),
        ("recorded", f"{receipt.recorded_at} by {receipt.recorded_by}"),
        ("digest", receipt.digest),
        ("previous", receipt.previous or "none: the first"),
    ]
    return _grid([[name, value] for name, value in rows if value])


def _canary(receipt: Receipt) -> str | None:
    canary = receipt.canary
    if canary is None:
        return None
    told = f"work {canary.work}, generation {canary.generation}, finished in {canary.seconds:.1f} s"
    return f"{told} by run {canary.run.id} (release {canary.run.release}, pid {canary.run.pid})"


def _switch(switch: Switch) -> Table:
    migrated = [f"{name} {before} -> {after}" for name, (before, after) in sorted(switch.migrated.items())]
    rows: list[tuple[str, str | None]] = [
        ("outcome", switch.outcome if switch.step is None else f"{switch.outcome}, failed at {switch.step}"),
        ("resumed", switch.resumed_from and f"from {switch.resumed_from}: {switch.resumed_because or ''}"),
        ("silence", None if switch.silence_seconds is None else f"{switch.silence_seconds:.2f} s"),
        ("facts before", switch.facts_before),
        ("facts after", switch.facts_after),
        *(("explained", line) for line in switch.explained),
        ("backup", switch.backup),
        ("migrated", ", ".join(migrated) or "nothing"),
        ("below floor", switch.below_floor),
        *(("way on", line) for line in switch.ways_on),
        *(("step", f"{step.started_at} {step.name}") for step in switch.steps),
    ]
    return _grid([[name, value] for name, value in rows if value])


def _unit(receipt: Receipt) -> str | None:
    unit = receipt.unit
    if unit is None:
        return None
    told = f"{unit.name}: {unit.active_state or '?'} ({unit.sub_state or '?'}), pid {unit.main_pid}"
    return f"{told}, {unit.n_restarts} restarts, exit code {unit.exit_code}, text {unit.text_sha256}"


def _boot(receipt: Receipt) -> str | None:
    if receipt.boot is None:
        return None
    return receipt.boot.marker or f"PID 1 started at {receipt.boot.pid1_started_at}"


def _controller(receipt: Receipt) -> str | None:
    who = receipt.controller
    if who is None:
        return None
    return f"{who.user or '?'}, ansible-core {who.ansible_core or '?'}, bundle {who.bundle_commit or '?'}"


def _grid(rows: list[list[str | None]]) -> Table:
    grid = Table.grid(padding=(0, 2), pad_edge=False)
    for row in rows:
        grid.add_row("", *(Text(_visible(cell or ""), style=_STYLES.get(cell or "", "")) for cell in row))
    return grid


def _visible(text: str) -> str:
    # A tool's error may hold escape sequences; a receipt must not steer the terminal that shows it.
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
