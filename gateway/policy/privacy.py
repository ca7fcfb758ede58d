"""The privacy wall as one predicate.

A place is allowed when every class that applies has a rule that matches it: classes intersect, so
adding one can only narrow. Whatever is empty allows nothing: no classes, a class without rules, a
rule that asks for nothing, a part of a place that is not declared, an origin that is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgewire.allowed import AllowedRule, AllowedSet, of_rules
from gateway.core.config import Config
from gateway.core.place import Origin, Place, PlaceRule, PrivacyClass
from gateway.core.request import Options


def compile_classes(config: Config) -> dict[str, PrivacyClass]:
    """The classes of a configuration, by name."""
    return {
        name: PrivacyClass(
            name,
            tuple(
                PlaceRule(
                    tiers=None if rule.tier is None else frozenset(rule.tier),
                    regions=None if rule.region is None else frozenset(rule.region),
                    sites=None if rule.site is None else frozenset(rule.site),
                    same=frozenset(rule.same or ()),
                )
                for rule in declared.allow
            ),
        )
        for name, declared in config.privacy.classes.items()
    }


def origin_of(gateway: Place, options: Options) -> Origin:
    """Where a request comes from. What the caller's credential says, and the gateway's own place for a
    caller without one: a peer of unknown site has no origin, whatever gateway it asks.

    `tidegate-site` and `tidegate-device` can deny the origin but never replace it. Data of another
    site does not come from this site's device either, so denying a known site denies the device."""
    home = home_of(gateway, options)
    site = home.site if options.site in (None, home.site) else None
    device = home.device if options.device in (None, home.device) else None
    return Origin(site, None if site != home.site else device)


def home_of(gateway: Place, options: Options) -> Origin:
    """The origin before the caller's options deny any of it."""
    caller = options.caller
    if not (caller.peer or caller.device):
        return Origin(gateway.site, gateway.device)
    return caller.origin or Origin()


def allowed(classes: Sequence[PrivacyClass], place: Place, origin: Origin) -> bool:
    """Whether data of a request with all these classes may go to the place."""
    return bool(classes) and not refusing(classes, place, origin)


def allowed_set(classes: Sequence[PrivacyClass], origin: Origin) -> AllowedSet:
    """The places that all these classes allow, with `same` put as the origin's own names, so that it
    means the same to whoever receives it. Allows exactly what `allowed` does."""
    found: AllowedSet | None = None
    for one in classes:
        places = of_rules(_concrete(rule, origin) for rule in one.allow)
        found = places if found is None else found.narrowed(places)
    return found or AllowedSet(())


def _concrete(rule: PlaceRule, origin: Origin) -> AllowedRule:
    sites, devices = rule.sites, None
    if "site" in rule.same:
        own = frozenset(() if origin.site is None else (origin.site,))
        sites = own if sites is None else sites & own
    if "device" in rule.same:
        devices = frozenset(() if origin.device is None else (origin.device,))
        if origin.site is not None:
            own = frozenset((origin.site,))
            sites = own if sites is None else sites & own
    return AllowedRule(rule.tiers, rule.regions, sites, devices)


def refusing(classes: Iterable[PrivacyClass], place: Place, origin: Origin) -> tuple[str, ...]:
    """Names of the classes that forbid the place, in the order given. Without classes nobody refuses
    and yet nothing is allowed: ask `allowed` where there may be none."""
    return tuple(c.name for c in classes if not any(_matches(rule, place, origin) for rule in c.allow))


def _matches(rule: PlaceRule, place: Place, origin: Origin) -> bool:
    if rule.tiers is None and rule.regions is None and rule.sites is None and not rule.same:
        return False
    if rule.tiers is not None and place.tier not in rule.tiers:
        return False
    if rule.regions is not None and place.region not in rule.regions:
        return False
    if rule.sites is not None and place.site not in rule.sites:
        return False
    if "site" in rule.same and (place.site is None or place.site != origin.site):
        return False
    return "device" not in rule.same or _same_device(place, origin)


def _same_device(place: Place, origin: Origin) -> bool:
    """A device's name is its own only among those of one hub: where the origin's site is known, the
    device must be of that site too."""
    if place.device is None or place.device != origin.device:
        return False
    return origin.site is None or place.site == origin.site
