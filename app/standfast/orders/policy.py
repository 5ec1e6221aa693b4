"""What may be spent, with whom, and who may approve it: the operator's rules from ``shop.toml``."""

from dataclasses import dataclass

from standfast.errors import Refused

LONGEST_APPROVAL = 86_400
"""Seconds: an approval ends at most one day ahead."""
LONGEST_DRAFT = 7 * 86_400
"""Seconds after which a draft that nobody approves ends: prices and needs have changed by then."""
POLICY_OPERATOR = "policy:allowance"
"""Who approved what the automatic allowance covers."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules for spending. The default allows nothing."""

    currency: str = "EUR"
    target: str = "supplier"
    ceiling_cents: int = 0
    """The most that is reserved, or was spent on this UTC day, at any moment."""
    allowance_cents: int = 0
    """How much of a UTC day's ceiling is approved without an operator."""
    operators: tuple[str, ...] = ()

    def refuse_unless_operator(self, operator: str) -> None:
        """Raise Refused ``operator_unknown`` unless the operator is on the list."""
        if operator not in self.operators:
            raise Refused(
                "operator_unknown",
                "this operator is not on the list",
                observed=f"operator {operator!r}; allowed: {', '.join(self.operators) or 'nobody'}",
                remedy="an operator of [operators] in shop.toml must do it",
            )
