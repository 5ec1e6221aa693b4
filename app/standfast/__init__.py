"""Standfast: an always-on agent for one shop, built to outlive terminals, upgrades and restores."""

from importlib.metadata import version

__version__ = version("standfast")
