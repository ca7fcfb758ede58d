"""What privacy means in a random world, worked out in another way.

The oracle knows nothing of rules and matching: it turns every class, and every text of allowed places,
into the set of places, as (tier, region, site, device) tuples, that it lists, and intersects sets.
"""

from __future__ import annotations

import itertools
from functools import cache

from gateway.core.config import Config
from gateway.core.config.models import Allow
from gateway.core.fleet import Device, Group
from gateway.core.place import Place, Tier
from gateway.core.request import Options
from tests.property.decide_worlds import DEVICES, REGIONS, SITES, TIERS

PlaceTuple = tuple[str, str | None, str | None, str | None]
Places = frozenset[PlaceTuple]


def where(place: Place) -> PlaceTuple:
    return (place.tier.value, place.region, place.site, place.device)


def declared(config: Config) -> dict[str, PlaceTuple]:
    """Where each endpoint is that is in one place."""
    return {e.name: where(e.place) for e in config.endpoints if e.place is not None}


def origin_tuple(config: Config, options: Options) -> tuple[str | None, str | None]:
    """(site, device) the request comes from, as far as anybody knows."""
    caller = options.caller
    if caller.peer or caller.device:
        site = None if caller.origin is None else caller.origin.site
        device = None if caller.origin is None else caller.origin.device
    else:
        site, device = config.gateway.location.site, config.gateway.location.device
    if options.device is not None and options.device != device:
        device = None
    if options.site is not None and site is not None and options.site != site:
        site = device = None
    return site, device


def class_names(config: Config, model: str, privacy: str | None) -> set[str]:
    found = next(m for m in config.models if m.name == model)
    return {found.privacy or config.privacy.default} | ({privacy} if privacy else set())


def places_of(config: Config, names: set[str], origin: tuple[str | None, str | None]) -> Places:
    """Every place that each of the classes lists, out of all places there are."""
    sets = [_places_of_class(config.privacy.classes[name].allow, origin) for name in sorted(names)]
    return frozenset.intersection(*sets)


def places_in(text: str) -> Places:
    """Every place that a text of allowed places lists."""
    found: set[PlaceTuple] = set()
    for rule in text.split(",") if text != "none" else ():
        parts = dict(part.split("=") for part in rule.split(";") if part)
        columns = [
            parts[key].split("+") if key in parts else domain
            for key, domain in (("tier", TIERS), ("region", REGIONS), ("site", SITES), ("device", DEVICES))
        ]
        found |= set(itertools.product(*columns))
    return frozenset(found)


def can_answer(device: Device, model: str, version: str) -> bool:
    """Whether a device is there and has the model; any version of it for ""."""
    if device.drained or not device.connected:
        return False
    return any(name == model and version in ("", own) for name, own in device.models)


def allowed_devices(group: Group, allowed: Places) -> list[Device]:
    return [device for device in group.devices.values() if where(device.place) in allowed]


def _places_of_class(rules: tuple[Allow, ...], origin: tuple[str | None, str | None]) -> Places:
    found: set[PlaceTuple] = set()
    for rule in rules:
        found |= _places_of_rule(rule.tier, rule.region, rule.site, rule.same, origin)
    return frozenset(found)


@cache
def _places_of_rule(
    tier: tuple[Tier, ...] | None,
    region: tuple[str, ...] | None,
    site: tuple[str, ...] | None,
    same: tuple[str, ...] | None,
    origin: tuple[str | None, str | None],
) -> Places:
    tiers = set(TIERS) if tier is None else {t.value for t in tier}
    regions = set(REGIONS) if region is None else set(region)
    sites = set(SITES) if site is None else set(site)
    devices = set(DEVICES)
    if same is not None and "site" in same:
        sites &= {origin[0]} - {None}
    if same is not None and "device" in same:
        devices &= {origin[1]} - {None}
        if origin[0] is not None:
            sites &= {origin[0]}
    return frozenset(itertools.product(tiers, regions, sites, devices))
