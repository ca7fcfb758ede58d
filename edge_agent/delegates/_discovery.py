"""Delegates by kind, found by looking into this package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from edge_agent.delegates._interface import Delegate

_PACKAGE = "edge_agent.delegates"


@cache
def kinds() -> dict[str, type[Delegate]]:
    """Every class with a `kind` in a module of this package whose name does not begin with "_".

    Raises ValueError when two claim one kind.
    """
    found: dict[str, type[Delegate]] = {}
    for info in sorted(pkgutil.iter_modules([str(Path(__file__).parent)]), key=lambda i: i.name):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{_PACKAGE}.{info.name}")
        for _, cls in inspect.getmembers(module, inspect.isclass):
            kind = cls.__dict__.get("kind")
            if cls.__module__ != module.__name__ or not isinstance(kind, str):
                continue
            if kind in found:
                raise ValueError(f"{cls.__name__} and {found[kind].__name__} both claim the kind {kind!r}")
            found[kind] = cast("type[Delegate]", cls)
    return found
