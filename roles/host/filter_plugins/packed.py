"""A text as a fraction of its length, in characters that no shell touches."""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DOCUMENTATION = """
name: packed
short_description: A text, compressed and in base64
options:
  _input:
    description: The text.
    type: str
    required: true
"""


def packed(text: str) -> str:
    """What `zlib.decompress(base64.b64decode(...))` turns into the text again."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


class FilterModule:
    """The filters of this role."""

    def filters(self) -> dict[str, Callable[[str], str]]:
        """By name."""
        return {"packed": packed}
