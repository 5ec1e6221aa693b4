"""`standfast facts`: the business facts that an upgrade must leave as they are."""

import time

import typer

from standfast.cli.common import current, emit, examples, facts, group
from standfast.operations.upgrade.facts import Facts, look

app = group("The business facts that an upgrade must leave as they are.")


@app.command("facts", epilog=examples("standfast facts", "standfast --json facts"))
def facts_(ctx: typer.Context) -> None:
    """Read orders, money, stock, work and reports in one moment, and their digest; changes nothing."""
    found = look(current(ctx).layout, time.time())
    emit(ctx, found, lambda: _render(found))


def _render(found: Facts) -> None:
    def counts(numbers: dict[str, int]) -> str:
        return "  ".join(f"{name} {number}" for name, number in numbers.items()) or "none"

    facts(
        [
            ("at", found.at),
            ("epoch", found.epoch),
            ("schema", counts(found.schema_versions)),
            ("orders", counts(found.orders)),
            ("spent", f"{found.spent_cents} cents"),
            ("reserved", f"{found.reserved_cents} cents"),
            ("stock", counts(found.stock)),
            ("work", counts(found.work)),
            ("reports", counts(found.reports)),
            ("digest", found.digest),
        ]
    )
