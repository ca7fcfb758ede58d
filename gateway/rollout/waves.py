"""How many devices a wave has, and which.

Waves count from the beginning of the rollout: a wave of 50% ends with half of the devices on the new
version, those of the waves before it included.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from fractions import Fraction


def size_of(wave: str, able: int) -> int:
    """Of a wave, "3" or "10%", where `able` devices can take the release: rounded up, and at least one
    while there is any."""
    if able <= 0:
        return 0
    wanted = math.ceil(Fraction(wave[:-1]) * able / 100) if wave.endswith("%") else int(wave)
    return min(wanted, able)


def order_of(rollout: str, sites: Mapping[str, str]) -> tuple[str, ...]:
    """Devices, given with their sites, in the order in which they are chosen: every site's first, then
    every site's second, and so on. Within that by lot, which another rollout draws anew; the same rollout
    draws the same."""
    lots = {device: _lot(rollout, device) for device in sites}
    ranks: dict[str, int] = {}
    seen: dict[str, int] = {}
    for device in sorted(lots, key=lots.__getitem__):
        site = sites[device]
        ranks[device] = seen[site] = seen.get(site, -1) + 1
    return tuple(sorted(lots, key=lambda device: (ranks[device], lots[device])))


def by_lot(rollout: str, devices: Iterable[str]) -> list[str]:
    """Devices by lot alone."""
    return sorted(devices, key=lambda device: _lot(rollout, device))


def _lot(rollout: str, device: str) -> bytes:
    return hashlib.sha256(f"{rollout}/{device}".encode()).digest()
