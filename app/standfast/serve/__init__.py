"""The always-on service."""

from standfast.serve.service import Served, serve

__all__ = ["Served", "serve"]
