"""Device groups behind the privacy wall: who of a group may answer, and which device is asked.

A decision looks at the sites of a group and at the few devices that a rule names, never at every
device; so what it costs does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from gateway.core.decision import Snapshot, VariantKey
from gateway.core.fleet import Device, Group, Nearby
from gateway.decide.tables import Target, Wall
from gateway.routing.devices import best, sample
from gateway.routing.pick import Rng

_NOBODY = Group()


class Reach(NamedTuple):
    """What a request finds at an endpoint. `refused_by` names what forbids its place, or every device
    of a group, () when one is allowed; `away` says why none of those allowed can answer now, "" when one
    can, and for an endpoint in one place. `lacks`: some can, but none in the version asked for."""

    refused_by: tuple[str, ...]
    away: str
    lacks: str = ""


def reach(snapshot: Snapshot, target: Target, wall: Wall, version: str = "") -> Reach:
    """For any variant's endpoint. `version` is the one asked for, "" for none."""
    if target.place is not None:
        return Reach(wall.endpoints[target.key.endpoint], "")
    if version and not target.key.version:
        exact = reach_group(snapshot, target.key._replace(version=version), wall)
        if exact.refused_by or not exact.away:
            return exact
        some = reach_group(snapshot, target.key, wall)
        return some if some.away else Reach((), "", f"no device has version {version} ready")
    return reach_group(snapshot, target.key, wall)


def reach_group(snapshot: Snapshot, key: VariantKey, wall: Wall) -> Reach:
    """A group without devices forbids nothing and has nobody to answer. A `key` without a version asks for
    any."""
    group = snapshot.groups.get(key.endpoint, _NOBODY)
    if not group.devices:
        return Reach((), "no device is enrolled")
    ready = group.ready.get((key.model, key.version), {})
    if any(not wall.of_devices(where) for where in ready):
        return Reach((), "")
    places = [where for where in group.nearby if not wall.of_devices(where)]
    named = [device for device in _named(group, wall) if _nearby(device) not in places]
    if not places and not named:
        return Reach(_refusing(group, wall), "")
    if any(_can(device, key) for device in named):
        return Reach((), "")
    count = sum(len(group.nearby[where]) for where in places) + len(named)
    if count > 1:
        return Reach((), f"none of the {count} devices that may answer is connected with the model ready")
    only = named[0] if named else group.devices[group.nearby[places[0]][0]]
    return Reach((), f"device {only.name} {_state(only)}")


def pick(snapshot: Snapshot, key: VariantKey, wall: Wall, tried: Collection[str], rng: Rng) -> Device | None:
    """The device to ask: the best of a few that are ready, allowed where each is now, and not tried."""
    group = snapshot.groups.get(key.endpoint, _NOBODY)
    ready = group.ready.get((key.model, key.version), {})
    open_to_all = {where: names for where, names in ready.items() if not wall.of_devices(where)}
    named = [device.name for device in _named(group, wall) if _nearby(device) not in open_to_all]
    pools = [*open_to_all.values(), named]
    drawn = [group.devices[name] for name in sample(pools, tried, rng) if name in group.devices]
    return best([d for d in drawn if _can(d, key) and not wall.of(d.place)], snapshot.device_load)


def _named(group: Group, wall: Wall) -> Iterator[Device]:
    """The allowed ones among the devices that a rule names."""
    for name in sorted(wall.devices):
        device = group.devices.get(name)
        if device is not None and not wall.of(device.place):
            yield device


def _can(device: Device, key: VariantKey) -> bool:
    if not device.connected or device.drained:
        return False
    return any(model == key.model and key.version in ("", version) for model, version in device.models)


def _state(device: Device) -> str:
    if not device.connected:
        return "is away"
    return "is drained" if device.drained else "does not have the model ready"


def _refusing(group: Group, wall: Wall) -> tuple[str, ...]:
    """What forbids the devices, each name once."""
    return tuple(dict.fromkeys(name for where in group.nearby for name in wall.of_devices(where)))


def _nearby(device: Device) -> Nearby:
    return (device.place.region, device.place.site)
