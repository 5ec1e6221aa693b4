"""A migration that a host may have run is never edited: a store says its version, and not what that was."""

import hashlib

from standfast.operations.schema import COMPONENTS

FROZEN = {
    ("authority", 1): "4d2fe24f5a6de1d1",
    ("authority", 2): "e35996cbbf1eea95",
    ("authority", 3): "96151257b19d31e8",
    ("work", 1): "750b988ba82d97f8",
    ("work", 2): "83d17995f23ce592",
    ("work", 3): "bf330ebea83c9e73",
    ("channel", 1): "367789c6ba509596",
    ("orders", 1): "e7e2393c0bde8b48",
    ("usage", 1): "b29aa0d01474530c",
    ("orders", 2): "fd59e6fce7c88bf7",
    ("orders", 3): "1d4c842c4b64ccf6",
    ("orders", 4): "23f6a33a0964dc88",
    ("shop", 1): "a8790e3de6b38dfc",
    ("recovery", 1): "4cdf2b2f05011223",
}
"""Component and version -> digest of the statements that lead to it. Add a line for a new version."""


def test_every_migration_is_as_it_was_published() -> None:
    found = {
        (component.name, version): hashlib.sha256("\0".join(statements).encode()).hexdigest()[:16]
        for component in COMPONENTS
        for version, statements in enumerate(component.migrations, start=1)
    }
    assert found == FROZEN, "append a migration instead of editing one that stores may have run"
