"""What this replica measured and heard of its places.

The one mutable thing that decisions look at. It lives on the replica's loop; `snapshot` hands out
views that are consistent because nothing awaits between reading and deciding.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from gateway.core.config import Config
from gateway.core.decision import EndpointState, Outcome, Snapshot, VariantKey, VariantState
from gateway.core.fleet import Device, Group, group_of
from gateway.core.ports import Health
from gateway.routing.latency import LatencyWindow, from_profile
from gateway.routing.predict import key_of
from gateway.store.profiles import Profile
from oip.signature import Signature

RESPONSE_SHARE = 0.1
"""How much one answer moves the mean answer size."""
REMEMBERED_S = 600.0
REMEMBERED = 1000
"""For how long, and of how many variants, measurements are kept that are in force no more."""

_UNKNOWN = VariantState()


class _Parted(NamedTuple):
    """What was measured of a variant that left at `at`."""

    at: float
    window: LatencyWindow
    state: VariantState


class ReplicaState:
    """Health, readiness and measurements of every endpoint and variant of the configuration in force.

    That may change its models while requests run: those go on by what they were decided on, and what they
    measure of a variant that left is not kept. Instants are monotonic seconds.
    """

    def __init__(self, config: Config, revision: str) -> None:
        self._config = config
        self._revision = revision
        self._endpoints: dict[str, EndpointState] = {
            e.name: EndpointState(up=False, detail="not asked yet") for e in config.endpoints
        }
        keys = _keys_of(config)
        self._windows = {key: LatencyWindow() for key in keys}
        self._variants = dict.fromkeys(keys, _UNKNOWN)
        self._parted: OrderedDict[VariantKey, _Parted] = OrderedDict()
        self._learnt_at: dict[VariantKey, float] = {}
        self._groups = {e.name: group_of(()) for e in config.endpoints if e.place is None}
        self._credentials: dict[str, dict[bytes, Device]] = {}
        self._device_load: Counter[str] = Counter()

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(
            self._config,
            self._revision,
            self._endpoints,
            self._variants,
            self._groups,
            self._device_load,
        )

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._config

    def variant(self, key: VariantKey) -> VariantState:
        """What is known about a variant; nothing of one that is in force no more."""
        return self._variants.get(key, _UNKNOWN)

    def move(self, config: Config, now: float) -> Collection[VariantKey]:
        """From now on `config`, which differs in its models alone, is in force. Returns the variants that are
        new. What was measured of the others is kept; one that left and comes back within a while is found
        as it was, but for what it takes and whether it is ready."""
        self._config = config
        wanted = _keys_of(config)
        for key in [key for key in self._variants if key not in wanted]:
            self._parted[key] = _Parted(now, self._windows.pop(key), self._variants.pop(key))
            self._learnt_at.pop(key, None)
        new = [key for key in wanted if key not in self._variants]
        for key in new:
            before = self._parted.pop(key, None)
            if before is None:
                self._windows[key], self._variants[key] = LatencyWindow(), _UNKNOWN
            else:
                self._windows[key] = before.window
                self._variants[key] = replace(before.state, ready=None, signature=None, versions=())
        self._forget(now)
        return new

    def models_of(self, endpoint: str) -> list[tuple[str, str]]:
        """(model, version) pairs that the configuration wants from an endpoint."""
        return sorted({(k.model, k.version) for k in self._variants if k.endpoint == endpoint})

    def heard(self, endpoint: str, health: Health) -> None:
        """Take in one look at an endpoint. Which models a group has ready is its devices' to say."""
        self._endpoints[endpoint] = EndpointState(health.up, health.detail, health.replicas)
        if endpoint in self._groups:
            return
        for model in health.models:
            key = VariantKey(endpoint, model.model, model.version)
            if key in self._variants:
                self._variants[key] = replace(self._variants[key], ready=model.ready, versions=model.versions)

    def fleet(self, endpoint: str, group: Group) -> None:
        """Take in the devices of a group, as they are now."""
        self._groups[endpoint] = group
        self._credentials[endpoint] = {d.credential_sha256: d for d in group.devices.values()}
        for key, state in self._variants.items():
            if key.endpoint == endpoint:
                ready = bool(group.ready.get((key.model, key.version)))
                self._variants[key] = replace(state, ready=ready)

    def device_of(self, digest: bytes) -> Device | None:
        """The enrolled device whose credential has this SHA-256."""
        found = (devices.get(digest) for devices in self._credentials.values())
        return next((device for device in found if device is not None), None)

    def gone(self, endpoint: str, device: str = "") -> None:
        """An attempt found the endpoint gone; the next look decides whether it is back. One `device`
        that is gone takes nothing from the others of its group."""
        if not device:
            self._endpoints[endpoint] = EndpointState(up=False, detail="an attempt found it gone")

    def learnt(self, key: VariantKey, signature: Signature | None, now: float) -> None:
        """Take in what the endpoint says its model takes and gives; None: it says nothing."""
        if key in self._variants:
            self._variants[key] = replace(self._variants[key], signature=signature)
            self._learnt_at[key] = now

    def learnt_at(self, key: VariantKey) -> float | None:
        """When the endpoint was last asked for the variant's signature; None: never."""
        return self._learnt_at.get(key)

    def begun(self, key: VariantKey, given_s: float, now: float, device: str = "") -> None:
        """An attempt begins and has `given_s` seconds."""
        if device:
            self._device_load[device] += 1
        if key in self._windows:
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
        device: str = "",
    ) -> None:
        """An attempt that had `given_s` seconds ended; `response_bytes` is None where no answer came."""
        if device:
            self._device_load[device] -= 1
            if not self._device_load[device]:
                del self._device_load[device]
        if key not in self._windows:
            return
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
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._parted:
            longest = next(iter(self._parted.values()))
            if len(self._parted) <= REMEMBERED and now - longest.at < REMEMBERED_S:
                return
            self._parted.popitem(last=False)

    def _refresh(self, key: VariantKey, now: float) -> None:
        window, state = self._windows[key], self._variants[key]
        self._variants[key] = replace(
            state,
            latency=window.figure(now),
            trials=window.trials(now),
            answers=window.answers(now),
            hurry=window.hurry,
        )


def _keys_of(config: Config) -> dict[VariantKey, None]:
    """Every variant's, in the order of the configuration."""
    return {key_of(model, variant): None for model in config.models for variant in model.variants}
