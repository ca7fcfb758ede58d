"""What this replica measured and heard of its places.

The one mutable thing that decisions look at. It lives on the replica's loop; `snapshot` hands out
views that are consistent because nothing awaits between reading and deciding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gateway.core.config import Config
from gateway.core.decision import EndpointState, Outcome, Snapshot, VariantKey, VariantState
from gateway.core.ports import Health
from gateway.routing.latency import LatencyWindow, from_profile
from gateway.routing.predict import key_of
from gateway.store.profiles import Profile

RESPONSE_SHARE = 0.1
"""How much one answer moves the mean answer size."""


class ReplicaState:
    """Health, readiness and measurements of every endpoint and variant of one configuration.

    Instants are monotonic seconds.
    """

    def __init__(self, config: Config, revision: str) -> None:
        self._config = config
        self._revision = revision
        self._endpoints: dict[str, EndpointState] = {
            e.name: EndpointState(up=False, detail="not asked yet") for e in config.endpoints
        }
        keys = [key_of(model, variant) for model in config.models for variant in model.variants]
        self._windows = {key: LatencyWindow() for key in keys}
        self._variants = {key: VariantState() for key in keys}

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(self._config, self._revision, self._endpoints, self._variants)

    def models_of(self, endpoint: str) -> list[tuple[str, str]]:
        """(model, version) pairs that the configuration wants from an endpoint."""
        return sorted({(k.model, k.version) for k in self._variants if k.endpoint == endpoint})

    def heard(self, endpoint: str, health: Health) -> None:
        """Take in one look at an endpoint."""
        self._endpoints[endpoint] = EndpointState(health.up, health.detail)
        for model in health.models:
            key = VariantKey(endpoint, model.model, model.version)
            if key in self._variants:
                self._variants[key] = replace(self._variants[key], ready=model.ready)

    def gone(self, endpoint: str) -> None:
        """An attempt found the endpoint gone; the next look decides whether it is back."""
        self._endpoints[endpoint] = EndpointState(up=False, detail="an attempt found it gone")

    def begun(self, key: VariantKey, given_s: float, now: float) -> None:
        """An attempt begins and has `given_s` seconds."""
        self._windows[key].begin(given_s * 1000, now)
        self._refresh(key, now)

    def ended(
        self,
        key: VariantKey,
        outcome: Outcome,
        elapsed_ms: float,
        given_s: float,
        response_bytes: int | None,
        now: float,
    ) -> None:
        """An attempt that had `given_s` seconds ended; `response_bytes` is None where no answer came."""
        self._windows[key].observe(outcome, elapsed_ms, given_s * 1000, now)
        if response_bytes is not None:
            state = self._variants[key]
            mean = response_bytes if state.response_bytes is None else state.response_bytes
            mean += RESPONSE_SHARE * (response_bytes - mean)
            self._variants[key] = replace(state, response_bytes=mean)
        self._refresh(key, now)

    def profiles(self, profiles: Iterable[Profile], now: float, wall: float) -> None:
        """Take in stored measurements; those of unknown variants are not this gateway's business, nor
        those of another server that once had an endpoint's name."""
        identities = {endpoint.name: endpoint.identity for endpoint in self._config.endpoints}
        for profile in profiles:
            key = VariantKey(profile.endpoint, profile.model, profile.version)
            state = self._variants.get(key)
            if state is None or profile.identity != identities[profile.endpoint]:
                continue
            self._windows[key].set_profile(
                from_profile(
                    p50_ms=profile.latency_p50_ms,
                    p95_ms=profile.latency_p95_ms,
                    samples=profile.samples,
                    age_s=wall - profile.measured_at,
                    now=now,
                )
            )
            size = profile.response_bytes if state.response_bytes is None else state.response_bytes
            self._variants[key] = replace(state, capacity_rps=profile.capacity_rps, response_bytes=size)
            self._refresh(key, now)

    def tick(self, now: float) -> None:
        """Let figures grow old: an idle variant's trials begin anew once its figure is stale."""
        for key in self._variants:
            self._refresh(key, now)

    def _refresh(self, key: VariantKey, now: float) -> None:
        window, state = self._windows[key], self._variants[key]
        self._variants[key] = replace(
            state,
            latency=window.figure(now),
            trials=window.trials(now),
            answers=window.answers(now),
            hurry=window.hurry,
        )
