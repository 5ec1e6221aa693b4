"""How many hosts go at once: what an operator gives as standfast_serial, checked before any host is asked."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError

if TYPE_CHECKING:
    from collections.abc import Callable

DOCUMENTATION = """
name: batches
short_description: The sizes of the batches of a roll, checked
options:
  _input:
    description: A number of hosts, a percentage, or a list of them, as a list or as JSON.
    type: raw
    required: true
"""

SIZE = re.compile(r"[1-9][0-9]{0,5}\Z|(?:[1-9][0-9]?|100)%\Z")


def batches(given: Any) -> list[int | str]:
    """The sizes one after the other; the last one is used for the rest of the hosts."""
    sizes = given
    if isinstance(given, str) and given.lstrip().startswith("["):  # -e standfast_serial='[1, "25%"]'
        try:
            sizes = json.loads(given)
        except ValueError:
            sizes = None
    listed = list(sizes) if isinstance(sizes, list | tuple) else [sizes]
    if not listed or not all(SIZE.match(str(size)) and not isinstance(size, bool) for size in listed):
        remedy = 'give a number of hosts, a percentage such as 25%, or a list such as [1, "25%", "100%"]'
        raise AnsibleFilterError(
            f"Refused: standfast_serial is {given!r}. To do: {remedy}; no host was asked."
        )
    return [str(size) if str(size).endswith("%") else int(size) for size in listed]


class FilterModule:
    """The filters of these playbooks."""

    def filters(self) -> dict[str, Callable[[Any], list[int | str]]]:
        """By name."""
        return {"batches": batches}
