"""Views of several replicas put together to the gateway's: pure functions over what `views` makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Plain = dict[str, Any]
COUNTED_HERE = frozenset({"pool", "edge"})
"""Kinds whose statistics are what each replica sent there; those of others are the endpoint's own."""
_SAME = frozenset({"name", "version", "batch_size"})
_LATEST = frozenset({"last_inference"})


def endpoints(parts: Sequence[Sequence[Plain]]) -> list[Plain]:
    """What any replica finds wrong with an endpoint or a model is wrong with it. A latency is that of the
    replica that saw the most."""
    return [_endpoint(of) for of in _by_key(parts, lambda view: view["name"])]


def models(parts: Sequence[Sequence[Plain]]) -> list[Plain]:
    """A variant that some replica does not have ready is not ready."""
    return [_model(of) for of in _by_key(parts, lambda view: view["name"])]


def _by_key(parts: Sequence[Sequence[Plain]], key: Callable[[Plain], Any]) -> list[list[Plain]]:
    """Entries with the same key, in the order that keys come."""
    found: dict[Any, list[Plain]] = {}
    for part in parts:
        for entry in part:
            found.setdefault(key(entry), []).append(entry)
    return list(found.values())


def _endpoint(of: Sequence[Plain]) -> Plain:
    here = of[0]["kind"] in COUNTED_HERE
    by_variant = _by_key([view["models"] for view in of], lambda view: (view["model"], view["version"]))
    return {
        **of[0],
        "up": all(view["up"] for view in of),
        "detail": next((view["detail"] for view in of if view["detail"]), ""),
        "models": [_variant(variants, len(of), here) for variants in by_variant],
    }


def _variant(of: Sequence[Plain], replicas: int, here: bool) -> Plain:
    latencies = [view["latency"] for view in of if view["latency"] is not None]
    told = [view["statistics"] for view in of if view["statistics"] is not None]
    statistics = None if not told else told[0]
    for other in told[1:] if here else ():
        statistics = _added(statistics, other)
    return {
        **of[0],
        "versions": _versions(of),
        "ready": len(of) == replicas and all(view["ready"] for view in of),
        "latency": max(latencies, key=lambda latency: latency["samples"], default=None),
        "statistics": statistics,
    }


def _model(of: Sequence[Plain]) -> Plain:
    by_variant = _by_key(
        [view["variants"] for view in of], lambda v: (v["endpoint"], v.get("model"), v.get("version"))
    )
    variants = [
        {**views[0], "versions": _versions(views), "ready": all(view["ready"] for view in views)}
        for views in by_variant
    ]
    return {**of[0], "variants": variants}


def _versions(of: Sequence[Plain]) -> list[str]:
    versions = {version for view in of for version in view["versions"]}
    return sorted(versions, key=lambda version: (len(version), version))


def _added(one: Any, other: Any, key: str = "") -> Any:
    """Statistics of two replicas as one: numbers add up, entries of lists go by their version or size."""
    if isinstance(one, Mapping):
        both = dict.fromkeys([*one, *other])
        return {
            name: _added(one[name], other[name], name)
            if name in one and name in other
            else {**other, **one}[name]
            for name in both
        }
    if isinstance(one, list):
        groups = _by_key([one, other], lambda e: tuple(e.get(name) for name in sorted(_SAME)))
        return [group[0] if len(group) == 1 else _added(group[0], group[1]) for group in groups]
    if key in _SAME:
        return one
    return max(one, other) if key in _LATEST else one + other
