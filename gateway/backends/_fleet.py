"""From what the hub tells of devices to what decisions look at. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from edgewire.v1 import edge_pb2, inside_pb2
from gateway.core.fleet import Device, Group, group_of
from gateway.core.place import Place, Tier
from gateway.edgehub.groups import EdgeConfig, selects

MAX_NAMED = 3
"""So many devices are named in a detail; more are counted."""


class Seen(NamedTuple):
    """A device as the hub told it last, and the same in the terms of decisions."""

    told: inside_pb2.FleetDevice
    device: Device


def seen(told: inside_pb2.FleetDevice, now: float) -> Seen:
    """`now` is the monotonic instant at which the hub's word came: its durations count back from there."""
    telemetry = told.telemetry
    device = Device(
        name=told.name,
        place=Place(Tier.DEVICE, site=told.site or None, device=told.name),
        connected=told.connected,
        drained=told.drained,
        heard_at=now - told.silent_ms / 1000,
        inflight=told.inflight,
        battery_percent=_reading(telemetry, "battery_percent"),
        temperature_c=_reading(telemetry, "temperature_c"),
        throttled=telemetry.throttled if telemetry.HasField("throttled") else None,
        models=frozenset((m.model, m.active_version) for m in told.models if m.active_digest),
        credential_sha256=told.credential_sha256,
    )
    return Seen(told, device)


def _reading(telemetry: edge_pb2.Telemetry, name: str) -> float | None:
    return getattr(telemetry, name) if telemetry.HasField(name) else None


class Members:
    """The devices of one group, kept up to date device by device."""

    def __init__(self, config: EdgeConfig) -> None:
        self._config = config
        self._seen: dict[str, Seen] = {}

    def take_in(self, names: Iterable[str], fleet: Mapping[str, Seen]) -> bool:
        """Look at these devices again; returns whether any of them is, or was, a member."""
        some = False
        for name in names:
            found = fleet.get(name)
            if found is not None and selects(self._config, found.told.site, found.told.labels):
                self._seen[name] = found
                some = True
            elif self._seen.pop(name, None) is not None:
                some = True
        return some

    def group(self) -> Group:
        return group_of(one.device for one in self._seen.values())

    def states(self, model: str, version: str) -> list[tuple[str, edge_pb2.ModelState]]:
        """What serves a model now, by device, those that are connected first; version "" is any."""
        found = [
            (one.device.connected, one.device.name, state)
            for one in self._seen.values()
            for state in one.told.models
            if state.model == model and state.active_digest and version in ("", state.active_version)
        ]
        found.sort(key=lambda item: (not item[0], item[1]))
        return [(name, state) for _, name, state in found]


def usual(states: Sequence[tuple[str, edge_pb2.ModelState]]) -> edge_pb2.ModelState | None:
    """The state whose metadata most devices tell; the first of equals."""
    told = [state for _, state in states if state.metadata]
    if not told:
        return None
    (most, _), *_ = Counter(state.metadata for state in told).most_common(1)
    return next(state for state in told if state.metadata == most)


def odd_ones(model: str, states: Sequence[tuple[str, edge_pb2.ModelState]]) -> str:
    """A sentence's part that names the devices whose metadata differs from what most tell; "" for none."""
    common = usual(states)
    if common is None:
        return ""
    odd = [name for name, state in states if state.metadata and state.metadata != common.metadata]
    if not odd:
        return ""
    shown = ", ".join(odd[:MAX_NAMED])
    more = f" and {len(odd) - MAX_NAMED} more" if len(odd) > MAX_NAMED else ""
    return f"{shown}{more} tell other metadata of {model} than most devices"
