"""Devices as decisions see them: who is enrolled, who is there, and how each is doing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gateway.core.place import Place

ModelKey = tuple[str, str]
"""A model's name and version on a device; version "" stands for whichever it has."""
Nearby = tuple[str | None, str | None]
"""Region and site: what a place rule can ask of a device besides its name."""


@dataclass(frozen=True, slots=True)
class Device:
    """One enrolled device.

    `place` is of tier device and names its device and site, as enrolled. `heard_at` is the monotonic
    instant of its last heartbeat, `inflight` the requests at it. What it does not tell is None:
    `battery_percent` 0 to 100, `temperature_c`, `throttled` (by heat or power). `models` are those it
    can answer now. `drained` devices get no new requests. `credential_sha256` is the digest of what the
    device shows when it asks by itself.
    """

    name: str
    place: Place
    connected: bool
    drained: bool = False
    heard_at: float = 0.0
    inflight: int = 0
    battery_percent: float | None = None
    temperature_c: float | None = None
    throttled: bool | None = None
    models: frozenset[ModelKey] = frozenset()
    credential_sha256: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Group:
    """The devices of one endpoint.

    `ready` lists, for each model and place, the names of those that can answer it now: a decision
    looks at the few places, not at every device. Made by `group_of`.
    """

    devices: Mapping[str, Device] = field(default_factory=dict[str, Device])
    ready: Mapping[ModelKey, Mapping[Nearby, tuple[str, ...]]] = field(
        default_factory=dict[ModelKey, Mapping[Nearby, tuple[str, ...]]]
    )
    nearby: Mapping[Nearby, tuple[str, ...]] = field(default_factory=dict[Nearby, tuple[str, ...]])
    """Every device, enrolled and away alike, by region and site."""


def group_of(devices: Iterable[Device]) -> Group:
    """The index of some devices; linear in their number."""
    by_name = {device.name: device for device in devices}
    ready: dict[ModelKey, dict[Nearby, list[str]]] = {}
    nearby: dict[Nearby, list[str]] = {}
    for device in by_name.values():
        where = (device.place.region, device.place.site)
        nearby.setdefault(where, []).append(device.name)
        if not device.connected or device.drained:
            continue
        for key in {*device.models, *((model, "") for model, _ in device.models)}:
            ready.setdefault(key, {}).setdefault(where, []).append(device.name)
    return Group(
        by_name,
        {key: {where: tuple(names) for where, names in places.items()} for key, places in ready.items()},
        {where: tuple(names) for where, names in nearby.items()},
    )


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What became of a model on a device. `state`: fetching, trying, active or failed, of `version`;
    `active_version` is what serves now, "" for nothing. `reason` is a sentence of the device's."""

    version: str
    digest: str
    state: str
    reason: str = ""
    active_version: str = ""
    active_digest: str = ""


@dataclass(frozen=True, slots=True)
class TrialReport:
    """What came of a trial: `state` as in ModelReport, active for one that works. Milliseconds on the golden
    vectors, of the file on trial and of what serves; 0 where nothing was measured."""

    digest: str
    state: str
    reason: str = ""
    p50_ms: float = 0.0
    p95_ms: float = 0.0
    runs: int = 0
    active_p50_ms: float = 0.0
    active_p95_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """An enrolled device as control sees it. `models` by name, `trials` by model and version."""

    name: str
    place: Place
    labels: Mapping[str, str]
    connected: bool
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    models: Mapping[str, ModelReport] = field(default_factory=dict[str, ModelReport])
    trials: Mapping[ModelKey, TrialReport] = field(default_factory=dict[ModelKey, TrialReport])
    spooled: int = 0
