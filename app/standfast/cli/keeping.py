"""The receipt of a command that was typed by hand."""

from collections.abc import Callable, Sequence
from typing import Annotated, Protocol

import typer

from standfast.cli.common import Context
from standfast.operations.receipting import Told, with_receipt
from standfast.operations.upgrade.receipting import with_switch_receipt
from standfast.operations.upgrade.result import Operation, Switch
from standfast.receipts.model import Check

KeepsReceipt = Annotated[
    bool, typer.Option("--receipt/--no-receipt", help="Keep an operation receipt; a playbook keeps its own.")
]


class _Seen(Told, Protocol):
    def seen(self) -> Sequence[Check]: ...


def kept[T: _Seen](context: Context, operation: str, act: Callable[[], T], *, receipt: bool) -> T:
    """Do it; with its receipt, unless the caller keeps one or only asks what would be done."""
    if context.check or not receipt:
        return act()
    return with_receipt(context.layout, operation, act, lambda found: found.seen())


def kept_switch(
    context: Context, operation: Operation, act: Callable[[], Switch], *, receipt: bool
) -> Switch:
    """The same of a change of code or configuration, which leaves a receipt where it fails, too."""
    return act() if context.check or not receipt else with_switch_receipt(context.layout, operation, act)
