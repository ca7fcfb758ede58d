"""Reading a plain tree that may hold anything anywhere: what is not of the expected shape is stepped over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

Plain = Mapping[str, object]


def mapping(value: object) -> Plain:
    return cast("Plain", value) if isinstance(value, dict) else {}


def mappings(value: object) -> Iterator[tuple[int, Plain]]:
    """The mappings of a list, each with its index."""
    if isinstance(value, list | tuple):
        for index, item in enumerate(cast("Sequence[object]", value)):
            if isinstance(item, dict):
                yield index, cast("Plain", item)


def texts(value: object) -> list[str] | None:
    """A list of texts, or a text as a list of one; None for anything else."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list | tuple):
        return None
    items = cast("Sequence[object]", value)
    return [item for item in items if isinstance(item, str)]
