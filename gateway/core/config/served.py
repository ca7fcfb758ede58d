"""What CONTRACT.md names and this version does not serve yet. One table, read by loader and schema.

A kind's own model may serve a key that is not listed here; a key listed here is refused whatever
the kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from gateway.core.config.problems import Finding, Loc

NOT_SERVED: Mapping[str, tuple[object, ...]] = {
    "tenants": ([],),
    "operators": ([],),
    "store": ("sqlite",),
    "gateway.tls": (None,),
    "endpoints.power": (),
    "endpoints.price.energy_per_kwh": (),
    "policies.weights.energy": (),
    "policies.hedge": (),
    "policies.cascade": (),
    "policies.shadow": (),
}
"""Dotted name (lists add nothing to it) -> the values that ask for nothing and so pass."""


def strip(data: dict[str, object]) -> tuple[dict[str, object], list[Finding]]:
    """A copy of the plain tree without the keys of the table, and a finding for each that asks for
    something."""
    findings: list[Finding] = []

    def walk(value: object, loc: Loc, name: str) -> object:
        if isinstance(value, list):
            items = cast("list[object]", value)
            return [walk(item, (*loc, index), name) for index, item in enumerate(items)]
        if not isinstance(value, dict):
            return value
        kept: dict[str, object] = {}
        for key, item in cast("dict[str, object]", value).items():
            dotted = f"{name}.{key}" if name else key
            neutral = NOT_SERVED.get(dotted)
            if neutral is None:
                kept[key] = walk(item, (*loc, key), dotted)
                continue
            if not any(type(item) is type(good) and item == good for good in neutral):
                message = f"{dotted} is not served by this version{_but(neutral)}"
                findings.append(Finding((*loc, key), message, at_key=not neutral))
        return kept

    return cast("dict[str, object]", walk(data, (), "")), findings


def _but(neutral: tuple[object, ...]) -> str:
    return "".join(f": leave it out or write {_yaml(value)}" for value in neutral)


def _yaml(value: object) -> str:
    return "null" if value is None else str(value)


def neutral_keys() -> Iterator[tuple[tuple[str, ...], tuple[object, ...]]]:
    """Keys that no model declares but that pass with a neutral value, as paths, for the schema."""
    for name, neutral in NOT_SERVED.items():
        if neutral:
            yield tuple(name.split(".")), neutral
