"""Names of a package that are looked up when they are asked for.

A command pays for the imports of what it uses: `health` runs every minute on every host, and needs a tenth of
what the packages that it asks offer.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """The ``__getattr__`` of ``package``: ``homes`` gives each module's names, separated by spaces."""
    home_of = {name: home for home, names in homes.items() for name in names.split()}
    if home_of.keys() & homes.keys():  # the module, once imported, would stand for the name
        raise ValueError(f"{package}: a name cannot be its module's: {home_of.keys() & homes.keys()}")

    def look_up(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(import_module(f"{package}.{home_of[name]}"), name)
        setattr(sys.modules[package], name, found)  # asked once: the next look finds it without this function
        return found

    return look_up


def leave_out(module: str) -> None:
    """Let the import of ``module`` fail, as where it is not installed, unless it was imported before.

    For what a library tries to import and does without.
    """
    sys.modules.setdefault(module, None)  # type: ignore[arg-type] # Python's own word for "there is none"
