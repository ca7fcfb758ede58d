"""A small configuration to decide in, and requests for it."""

from __future__ import annotations

from typing import Any

from gateway.core.config import Config
from gateway.core.decision import (
    EndpointState,
    LatencyFigure,
    Snapshot,
    Source,
    VariantKey,
    VariantState,
)
from gateway.core.request import Options, Request
from tests.support.configs import config_from

NOW = 10_000.0


class Fixed:
    """An rng that always says the same."""

    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


def config_of(**changes: Any) -> Config:
    """Two priced places in eu, a free one in us; `changes` replace whole sections."""
    sections: dict[str, Any] = {
        "version": 1,
        "gateway": {"name": "gw", "location": {"tier": "site", "site": "plant-7"}},
        "endpoints": [
            endpoint("cheap", region="eu", price={"per_request": 0.001}),
            endpoint("dear", region="eu", price={"per_request": 0.004}),
            endpoint("us", region="us", price={}),
        ],
        "models": [model()],
        "privacy": {
            "default": "internal",
            "classes": {
                "public": {"allow": [{"tier": ["device", "site", "regional", "cloud"]}]},
                "internal": {"allow": [{"tier": ["site"]}, {"tier": ["cloud"], "region": ["eu"]}]},
                "personal": {"allow": [{"tier": ["device", "site"], "same": ["site"]}]},
                "secret": {"allow": [{"tier": ["device"], "same": ["device"]}]},
                "american": {"allow": [{"tier": ["site"]}, {"tier": ["cloud"], "region": ["us"]}]},
            },
        },
        "policies": [policy()],
    }
    return config_from({**sections, **changes})


def endpoint(name: str, *, tier: str = "cloud", price: dict[str, float] | None = None, **where: str) -> Any:
    return {
        "name": name,
        "kind": "triton",
        "location": {"tier": tier, **where},
        "price": price or {},
    }


def model(**changes: Any) -> dict[str, Any]:
    return {
        "name": "digits",
        "idempotent": True,
        "variants": [{"endpoint": "cheap"}, {"endpoint": "dear"}, {"endpoint": "us"}],
        **changes,
    }


def policy(**changes: Any) -> dict[str, Any]:
    return {"name": "default", "match": {}, "weights": {"latency": 1.0}, **changes}


def figure(p50_ms: float, p95_ms: float | None = None, *, age_s: float = 0.0) -> LatencyFigure:
    return LatencyFigure(p50_ms, p50_ms if p95_ms is None else p95_ms, 50, NOW - age_s, Source.LIVE)


def measured(p50_ms: float, p95_ms: float | None = None, *, age_s: float = 0.0, **more: Any) -> VariantState:
    """A ready variant, measured by answers alone."""
    of_answers = figure(p50_ms, p95_ms, age_s=age_s)
    return VariantState(True, of_answers, answers=of_answers, **more)


def snapshot_of(
    config: Config, variants: dict[str, VariantState] | None = None, down: dict[str, str] | None = None
) -> Snapshot:
    """`variants` by endpoint, for the model digits without a version; `down` endpoint -> detail."""
    known = {"cheap": measured(40), "dear": measured(10)}
    return Snapshot(
        config,
        "rev-1",
        {
            e.name: EndpointState(e.name not in (down or {}), (down or {}).get(e.name, ""))
            for e in config.endpoints
        },
        {VariantKey(name, "digits", ""): state for name, state in (variants or known).items()},
    )


def request_of(
    model: str = "digits",
    version: str = "",
    *,
    payload_bytes: int = 1000,
    time_left_s: float | None = None,
    **options: Any,
) -> Request:
    return Request(model, version, Options(**options), payload_bytes, time_left_s, "id-1", 1_700_000_000.1234)
