"""How many hosts go at once: what an operator gives as standfast_serial, checked before any host is asked."""

from __future__ import annotations

import json
import re
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError
from ansible.utils.helpers import pct_to_int

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


def batch_of(hosts: Sequence[str], sizes: Sequence[int | str], host: str) -> list[str]:
    """The hosts that go together with one of them when a roll is cut by these sizes, as Ansible cuts it."""
    end = 0
    for size in chain(sizes, repeat(sizes[-1])):
        begin, end = end, end + (pct_to_int(size, len(hosts)))
        if host in hosts[begin:end]:
            return list(hosts[begin:end])
    raise AssertionError(host)


class FilterModule:
    """The filters of these playbooks."""

    def filters(self) -> dict[str, Callable[..., list[Any]]]:
        """By name."""
        return {"batches": batches, "batch_of": batch_of}
