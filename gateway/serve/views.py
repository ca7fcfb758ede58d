"""What an operator sees of endpoints and models, as plain JSON-ready data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gateway.core.config import Config, EndpointConfig
from gateway.core.decision import Snapshot, VariantKey
from gateway.core.place import Place
from gateway.core.ports import Endpoint
from gateway.routing.predict import key_of
from oip.codec import statistics_to_json
from oip.errors import OipError

STATISTICS_TIMEOUT_S = 1.0


async def endpoints(
    config: Config, snapshot: Snapshot, started: Mapping[str, Endpoint], now: float
) -> list[dict[str, Any]]:
    """One entry an endpoint: what was declared, whether it is up, and per variant what was measured
    here and what the endpoint itself counted. `now` is monotonic."""

    async def view(declared: EndpointConfig) -> dict[str, Any]:
        state = snapshot.endpoints[declared.name]
        keys = sorted(key for key in snapshot.variants if key.endpoint == declared.name)
        counted = await asyncio.gather(*(_counted(started[declared.name], key, state.up) for key in keys))
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
            "models": [
                {**_variant(snapshot, key, now), "statistics": own}
                for key, own in zip(keys, counted, strict=True)
            ],
        }

    return list(await asyncio.gather(*(view(declared) for declared in config.endpoints)))


def models(config: Config, snapshot: Snapshot) -> list[dict[str, Any]]:
    """One entry a model: its class and which variants can answer now. Of an artifact only the file's name
    is told: its folder is the machine's."""
    return [
        {
            "name": model.name,
            "privacy": model.privacy or config.privacy.default,
            "idempotent": model.idempotent,
            "variants": [
                {
                    **variant.model_dump(mode="json", exclude_none=True),
                    **({} if variant.artifact is None else {"artifact": Path(variant.artifact).name}),
                    "versions": _versions(snapshot, key_of(model, variant)),
                    "ready": snapshot.endpoints[variant.endpoint].up
                    and snapshot.variants[key_of(model, variant)].ready is True,
                }
                for variant in model.variants
            ],
        }
        for model in config.models
    ]


def _place(place: Place | None) -> dict[str, str] | None:
    if place is None:
        return None
    return {name: str(value) for name, value in asdict(place).items() if value is not None}


def _variant(snapshot: Snapshot, key: VariantKey, now: float) -> dict[str, Any]:
    state = snapshot.variants[key]
    figure = state.latency
    return {
        "model": key.model,
        "version": key.version or None,
        "versions": _versions(snapshot, key),
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


def _versions(snapshot: Snapshot, key: VariantKey) -> list[str]:
    """Those that answer now, of a group those that some connected device has; none where only the endpoint
    knows."""
    if key.version:
        return [key.version]
    group = snapshot.groups.get(key.endpoint)
    if group is None:
        return list(snapshot.variants[key].versions)
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
