"""Named points at commit boundaries, where crash tests let a process die.

Nothing arms them outside tests; then each is one comparison.
"""

from collections.abc import Callable

type Action = Callable[[str], None]

armed: list[Action] = []
"""What is called at every point; empty outside tests."""


def reach(point: str) -> None:
    """The code has come to ``point``: ``<boundary>.before_commit`` or ``<boundary>.committed``, mostly."""
    for action in armed:
        action(point)


def arm(action: Action) -> None:
    """Call ``action`` with every point reached from now on, in this process."""
    armed.append(action)


def disarm() -> None:
    """Forget every action."""
    armed.clear()
