"""Discovery: one file per plug-in in a package, found by looking, not by a list; and what other installed
packages bring, found by their entry points."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache
from importlib.metadata import entry_points

ENTRY_POINTS = "tidegate"
"""What stands for this package in the names of entry points' groups: `tidegate.pool.runtimes`."""


@cache
def discover(package: str) -> dict[str, type]:
    """Every class defined in a module directly under `package` that has a `kind`, by that kind, and those
    that are entry points of the group of its name.

    Raises ValueError when two classes claim one kind. Modules whose name begins with "_" are helpers.
    """
    found: dict[str, type] = {}
    root = importlib.import_module(package)
    for info in sorted(pkgutil.iter_modules(root.__path__), key=lambda i: i.name):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{package}.{info.name}")
        for _, cls in inspect.getmembers(module, inspect.isclass):
            kind = cls.__dict__.get("kind")
            if cls.__module__ == module.__name__ and isinstance(kind, str):
                _add(found, package, kind, cls)
    for point in entry_points(group=ENTRY_POINTS + package.removeprefix("gateway")):
        cls = point.load()
        _add(found, package, cls.kind, cls)
    return found


def _add(found: dict[str, type], package: str, kind: str, cls: type) -> None:
    if kind in found:
        raise ValueError(f"{package}: {cls.__name__} and {found[kind].__name__} both claim kind {kind!r}")
    found[kind] = cls
