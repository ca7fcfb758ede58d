"""May the gateway itself take the request? Answered from headers alone, before the body is read.

Every byte passes through the gateway, so its own place is the first that the classes must allow.
The caller's class is asked before the model's: on gRPC it is known first, and both protocols are
to refuse the same request for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.core.config import Config
from gateway.core.errors import Refusal
from gateway.core.place import Origin, Place, PrivacyClass, Tier
from gateway.core.request import Options
from gateway.decide.tables import Compiled, Model, compiled
from gateway.policy.privacy import allowed, home_of, origin_of
from oip.names import shown, version_fault
from oip.reasons import Reason

SHOWN_CHARS = 256
"""Names from a caller are cut to this length before they go into a record; no configured name is
longer."""

LISTED = 6
"""How many places a message names before it only counts them."""


def gateway_refusal(config: Config, options: Options, model: str | None) -> Refusal | None:
    """Why the gateway must not take the request any further, None when it may.

    `model` None: not known yet (gRPC before the scanner has it); then only the caller's class is
    asked, and the question is to be put again with the name. Reasons: BAD_OPTION, LOOP, UNKNOWN_MODEL,
    PRIVACY.
    """
    tables = compiled(config)
    return admit(tables, options, origin_of(tables.gateway, options), model)


def unknown_model(name: str, version: str = "") -> Refusal:
    """The refusal of a model that is not there, or, with `version`, of a version that it does not
    have. Both come from a caller, so the message quotes and cuts them."""
    if not version:
        return Refusal(Reason.UNKNOWN_MODEL, f"Request for unknown model: {shown(name)} is not found")
    return Refusal(
        Reason.UNKNOWN_VERSION,
        f"Request for unknown model: {shown(name)} version {shown(version)[1:-1]} is not found",
    )


def _check_names(tables: Compiled, options: Options) -> Refusal | None:
    if options.privacy is not None and options.privacy not in tables.classes:
        return Refusal(
            Reason.BAD_OPTION, f"Unknown privacy class {shown(options.privacy)} in tidegate-privacy"
        )
    if options.policy is not None and options.policy not in tables.by_name:
        return Refusal(Reason.BAD_OPTION, f"Unknown policy {shown(options.policy)} in tidegate-policy")
    return None


def _check_passage(tables: Compiled, options: Options) -> Refusal | None:
    """Why the request must not come here from another gateway."""
    if tables.name in options.hops:
        return Refusal(
            Reason.LOOP,
            f"The request has passed gateway {shown(tables.name)} before: routes lead in a circle",
        )
    if options.allowed is not None and not options.allowed.allows(tables.gateway):
        return Refusal(
            Reason.PRIVACY,
            f"The places of tidegate-allowed leave out this gateway's place ({tables.gateway}), so the request"
            " is not taken",
        )
    return None


def admit(tables: Compiled, options: Options, origin: Origin, model: str | None) -> Refusal | None:
    refusal = _check_names(tables, options) or _check_passage(tables, options)
    if refusal is not None:
        return refusal
    if options.privacy is not None and tables.wall((options.privacy,), origin).gateway:
        return _own_place(tables, options, origin, (options.privacy,), None)
    if model is None:
        return None
    found = tables.models.get(model)
    if found is None:
        return unknown_model(model)
    names = found.classes(options)
    if tables.wall(names, origin).gateway:
        return _own_place(tables, options, origin, names, found)
    return None


def version_refusal(version: str) -> Refusal | None:
    """Why no endpoint has such a version; "" is none and asks for any."""
    fault = version_fault(version)
    return None if fault is None else Refusal(Reason.MALFORMED, fault)


def cut(name: str) -> str:
    return name if len(name) <= SHOWN_CHARS else name[: SHOWN_CHARS - 3] + "..."


def listed(items: Sequence[str], between: str = ", ") -> str:
    """The first few, and how many there are more."""
    more = len(items) - LISTED
    return between.join([*items[:LISTED], f"and {more} more"] if more > 0 else items)


def quoted(names: Sequence[str]) -> str:
    """class 'a', or classes 'a' and 'b'."""
    return ("class " if len(names) == 1 else "classes ") + " and ".join(f"'{n}'" for n in names)


def _own_place(
    tables: Compiled, options: Options, origin: Origin, names: tuple[str, ...], model: Model | None
) -> Refusal:
    wall = tables.wall(names, origin)
    hosts = list(_hosts(tables, options, tables.classes_named(names)))
    may = " or ".join(hosts[:LISTED]) if hosts else "no place"
    targets = None if model is None else {t.variant.endpoint for t in model.targets}
    endpoints = [
        name
        for name, refused_by in wall.endpoints.items()
        if not refused_by and (targets is None or name in targets)
    ]
    ends = f"; of its endpoints {listed(endpoints)} would be allowed" if endpoints else ""
    return Refusal(
        Reason.PRIVACY,
        f"Privacy {quoted(wall.gateway)} {'does' if len(wall.gateway) == 1 else 'do'} not allow this"
        f" gateway's place ({tables.gateway}), so the request is not taken; it may be served"
        f" by {may}{ends}",
    )


_UNNAMED = "\0"
"""Stands for a site, device or region that no configured name can equal."""


def _hosts(tables: Compiled, options: Options, classes: tuple[PrivacyClass, ...]) -> Iterator[str]:
    """Who could take the request instead, by trying every kind of place the classes can tell apart."""
    rules = [rule for c in classes for rule in c.allow]
    home = home_of(tables.gateway, options)
    own_site = options.site or home.site or _UNNAMED
    own_device = options.device or home.device or _UNNAMED
    origin = Origin(own_site, own_device)
    sites = [own_site, *sorted({s for r in rules for s in r.sites or ()} - {own_site})]
    regions = [_UNNAMED, *sorted({name for r in rules for name in r.regions or ()})]

    def may(place: Place) -> bool:
        left = options.allowed
        return allowed(classes, place, origin) and (left is None or left.allows(place))

    def any_region(tier: Tier, site: str, device: str | None) -> bool:
        return any(may(Place(tier, region, site, device)) for region in regions)

    if any_region(Tier.DEVICE, own_site, own_device):
        yield "the device's own agent"
    for site in sites:
        named = "its own site" if site == _UNNAMED else f"site {site}"
        if any_region(Tier.SITE, site, None):
            yield f"the gateway at {named}"
        if any_region(Tier.DEVICE, site, _UNNAMED + "other"):
            yield f"an agent at {named}"
    for tier in (Tier.REGIONAL, Tier.CLOUD):
        for region in regions:
            if may(Place(tier, region, _UNNAMED + "other")):
                where = "any region" if region == _UNNAMED else f"region {region}"
                yield f"a {tier.value} gateway in {where}"
                if region == _UNNAMED:
                    break
