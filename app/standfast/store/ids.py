"""Identities of rows."""

import os


def new_id(now: float) -> str:
    """24 lower-case hex digits: milliseconds of ``now``, then 48 random bits.

    The time comes first so that an index of a million ids grows at its end only.
    """
    return f"{int(now * 1000) & 0xFFFFFFFFFFFF:012x}{os.urandom(6).hex()}"
