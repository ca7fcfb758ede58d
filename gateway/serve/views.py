"""What an operator sees of endpoints and models, as plain JSON-ready data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gateway.core.config import EndpointConfig
from gateway.core.config.discovered import Offered
from gateway.core.decision import Snapshot, VariantKey, VariantState
from gateway.core.place import Place
from gateway.core.ports import Endpoint
from gateway.routing.predict import key_of
from oip.codec import statistics_to_json
from oip.errors import OipError

STATISTICS_TIMEOUT_S = 1.0
ASKED_AT_ONCE = 32
"""Questions for statistics that are under way at the same time."""


async def endpoints(
    snapshot: Snapshot,
    started: Mapping[str, Endpoint],
    discovered: Callable[[str], Offered | None],
    now: float,
) -> list[dict[str, Any]]:
    """One entry an endpoint: what was declared, whether it is up, what was discovered there, and per variant
    what was measured here and what the endpoint itself counted. `now` is monotonic."""
    turns = asyncio.Semaphore(ASKED_AT_ONCE)

    async def counted(name: str, key: VariantKey, up: bool) -> Any:
        async with turns:
            return await _counted(started[name], key, up)

    async def view(declared: EndpointConfig) -> dict[str, Any]:
        state, offered = snapshot.endpoints[declared.name], discovered(declared.name)
        states = {key: known for key, known in snapshot.variants.items() if key.endpoint == declared.name}
        keys = sorted(states)
        own = await asyncio.gather(*(counted(declared.name, key, state.up) for key in keys))
        return {
            "name": declared.name,
            "kind": declared.kind,
            "url": declared.model_dump().get("url"),
            "location": _place(declared.place),
            "labels": declared.labels,
            "hardware": declared.hardware,
            "price": declared.price.model_dump(mode="json", exclude_none=True),
            "up": state.up,
            "detail": state.detail,
            **({} if state.replicas is None else {"replicas": dict(state.replicas)}),
            **({} if offered is None else {"discover": _discover(declared, offered)}),
            "models": [
                {**_variant(snapshot, key, states[key], now), "statistics": told}
                for key, told in zip(keys, own, strict=True)
            ],
        }

    return list(await asyncio.gather(*(view(declared) for declared in snapshot.config.endpoints)))


def models(snapshot: Snapshot, declared: Collection[str]) -> list[dict[str, Any]]:
    """One entry a model: its class and which variants can answer now; those that are not `declared` were
    discovered. Of an artifact only the file's name is told: its folder is the machine's."""
    config = snapshot.config
    return [
        {
            "name": model.name,
            "discovered": model.name not in declared,
            "privacy": model.privacy or config.privacy.default,
            "idempotent": model.idempotent,
            "variants": [
                {
                    **variant.model_dump(mode="json", exclude_none=True),
                    **({} if variant.artifact is None else {"artifact": Path(variant.artifact).name}),
                    "versions": _versions(snapshot, key, snapshot.variants[key]),
                    "ready": snapshot.endpoints[variant.endpoint].up and snapshot.variants[key].ready is True,
                }
                for variant in model.variants
                for key in [key_of(model, variant)]
            ],
        }
        for model in config.models
    ]


def _discover(declared: EndpointConfig, offered: Offered) -> dict[str, Any]:
    """In which class, how many models are offered, and how many are not."""
    return {"privacy": declared.discovers, "offered": len(offered.names), "left_out": offered.left_out}


def _place(place: Place | None) -> dict[str, str] | None:
    if place is None:
        return None
    return {name: str(value) for name, value in asdict(place).items() if value is not None}


def _variant(snapshot: Snapshot, key: VariantKey, state: VariantState, now: float) -> dict[str, Any]:
    figure = state.latency
    return {
        "model": key.model,
        "version": key.version or None,
        "versions": _versions(snapshot, key, state),
        "ready": state.ready is True,
        "latency": None
        if figure is None
        else {
            "p50_ms": figure.p50_ms,
            "p95_ms": figure.p95_ms,
            "samples": figure.samples,
            "age_s": round(max(0.0, now - figure.at), 3),
            "source": figure.source.value,
        },
        "capacity_rps": state.capacity_rps,
        "response_bytes": state.response_bytes,
    }


def _versions(snapshot: Snapshot, key: VariantKey, state: VariantState) -> list[str]:
    """Those that answer now, of a group those that some connected device has; none where only the endpoint
    knows."""
    if key.version:
        return [key.version]
    group = snapshot.groups.get(key.endpoint)
    if group is None:
        return list(state.versions)
    return sorted((v for model, v in group.ready if model == key.model and v), key=lambda v: (len(v), v))


async def _counted(endpoint: Endpoint, key: VariantKey, up: bool) -> Any:
    """The endpoint's own statistics of a model; None where it is down or says nothing that can be read."""
    if not up:
        return None
    try:
        answer = await endpoint.statistics(key.model, key.version, STATISTICS_TIMEOUT_S)
        return json.loads(statistics_to_json(answer))["model_stats"]
    except OipError:
        return None
