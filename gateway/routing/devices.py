"""Which device of a group gets a request: a few are drawn, the best of them is taken.

Of `SAMPLED` devices drawn at random the one with the highest score is taken, so that replicas which
do not know of each other's choices do not all run to the same one. The score is the product of

- load: 1 / (1 + requests at the device), what it told or what this replica has there, whichever is more;
- freshness: 1 for a heartbeat up to `FRESH_S` behind the newest of those drawn, `WORST` from `LATE_S`;
- battery: 1 from `BATTERY_GOOD` percent, `WORST` at `BATTERY_EMPTY` and below;
- heat: 1 up to `COOL_C` degrees, `WORST` from `HOT_C`; `THROTTLED` times that for a device that slows itself.

Between two bounds it is linear. What a device does not tell, or no finite number, counts as 1: there may
be no battery. Nothing here excludes a device.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isfinite

from gateway.core.fleet import Device
from gateway.routing.pick import Rng

SAMPLED = 8
"""Devices looked at for one choice, however many there are."""
FRESH_S = 15.0
LATE_S = 60.0
BATTERY_GOOD = 50.0
BATTERY_EMPTY = 10.0
COOL_C = 70.0
HOT_C = 90.0
THROTTLED = 0.5
WORST = 0.1
"""The least that one reading makes of a score."""


def sample(pools: Sequence[Sequence[str]], tried: Collection[str], rng: Rng) -> list[str]:
    """Up to `SAMPLED` different names out of all pools, none of them tried, in random order.

    The pools share no name. The work does not grow with their length, only with their number and
    with what was tried.
    """
    total = sum(map(len, pools))
    moved: dict[int, int] = {}
    found: list[str] = []
    for drawn in range(min(total, SAMPLED + len(tried))):
        # Fisher and Yates's shuffle of all positions, of which only the moved ones are written down.
        at = drawn + int(rng.random() * (total - drawn))
        position, moved[at] = moved.get(at, at), moved.get(drawn, drawn)
        name = _at(pools, position)
        if name not in tried:
            found.append(name)
            if len(found) == SAMPLED:
                break
    return found


def best(devices: Sequence[Device], under_way: Mapping[str, int]) -> Device | None:
    """The device with the highest score, the first of equals; `under_way` counts this replica's own
    attempts by device."""
    if not devices:
        return None
    newest = max(device.heard_at for device in devices)
    return max(devices, key=lambda device: suitability(device, newest, under_way.get(device.name, 0)))


def suitability(device: Device, newest: float, under_way: int) -> float:
    """The score, in (0,1]. `newest` is the monotonic instant of the newest heartbeat to compare with."""
    score = 1 / (1 + max(device.inflight, under_way, 0))
    score *= _scaled(newest - device.heard_at, LATE_S, FRESH_S)
    score *= _scaled(device.battery_percent, BATTERY_EMPTY, BATTERY_GOOD)
    score *= _scaled(device.temperature_c, HOT_C, COOL_C)
    return score * THROTTLED if device.throttled else score


def _scaled(reading: float | None, bad: float, good: float) -> float:
    """1 at `good` and beyond, `WORST` at `bad` and beyond, linear between."""
    if reading is None or not isfinite(reading):
        return 1.0
    share = (reading - bad) / (good - bad)
    return WORST + (1 - WORST) * min(1.0, max(0.0, share))


def _at(pools: Sequence[Sequence[str]], position: int) -> str:
    for pool in pools:
        if position < len(pool):
            return pool[position]
        position -= len(pool)
    raise IndexError(position)
