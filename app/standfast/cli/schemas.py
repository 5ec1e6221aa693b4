"""The published models: every object that `--json` prints or a command reads, by name.

Names only, so that asking for one schema does not import the whole package.
"""

from importlib import import_module
from typing import cast

from pydantic import BaseModel

PUBLISHED: dict[str, str] = {
    "canary": "standfast.operations.canary:CanaryResult",
    "env-change": "standfast.operations.environment:EnvironmentChange",
    "env-check": "standfast.operations.environment:EnvironmentCheck",
    "env-compare": "standfast.operations.environment:EnvironmentComparison",
    "failure": "standfast.cli.common:Failure",
    "health": "standfast.operations.health:Health",
    "receipt": "standfast.receipts.model:Receipt",
    "receipt-draft": "standfast.receipts.model:Draft",
    "receipt-list": "standfast.receipts.model:ReceiptList",
    "receipt-recorded": "standfast.receipts.model:Recorded",
    "receipt-verification": "standfast.receipts.model:Verification",
    "unit": "standfast.operations.unit:UnitText",
    "version": "standfast.cli.main:Version",
}
"""Schema name -> `module:Class`. Whoever owns a model adds its line, in alphabetical order."""


def load(name: str) -> type[BaseModel]:
    """The published model of that name; KeyError when there is none."""
    module, _, attribute = PUBLISHED[name].partition(":")
    return cast("type[BaseModel]", getattr(import_module(module), attribute))
