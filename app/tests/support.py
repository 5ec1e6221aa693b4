"""An initialised instance in a temporary folder, for tests of the shop and the service."""

from standfast.operations.schema import COMPONENTS

__all__ = ["COMPONENTS"]
