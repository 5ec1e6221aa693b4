"""Named points at commit boundaries, where crash tests let a process die.

Nothing arms them outside tests; then each is one comparison.
"""

from collections.abc import Callable

type Action = Callable[[str], None]

_armed: list[Action] = []


def reach(point: str, suffix: str = "") -> None:
    """The code has come to ``point``: ``<boundary>.before_commit`` or ``<boundary>.committed``, mostly."""
    if _armed:
        for action in _armed:
            action(point + suffix)


def arm(action: Action) -> None:
    """Call ``action`` with every point reached from now on, in this process."""
    _armed.append(action)


def disarm() -> None:
    """Forget every action."""
    _armed.clear()
