"""What privacy leaves of a model's update: from where its signals and samples may come at all.

A request's values are counted only where its classes allow the gateway's own place; a sample is kept only
if they also allow the training place, and shown to a teacher only if they allow the teacher's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from gateway.core.config import Config, EndpointConfig, UpdateConfig
from gateway.core.config.problems import Finding, Loc
from gateway.core.place import Origin, Place, PrivacyClass
from gateway.core.request import Options
from gateway.policy.privacy import allowed, compile_classes, origin_of

OTHER_SITES = "other sites"
"""In an origin: a site that no rule names. It is no name, so no rule can."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Origins that requests for a model can have: all, those whose signals are counted, those whose samples
    are kept, and those whose samples the teacher is shown."""

    origins: tuple[Origin, ...]
    counted: tuple[Origin, ...]
    kept: tuple[Origin, ...]
    taught: tuple[Origin, ...]


def reach_of(config: Config, update: UpdateConfig) -> Reach:
    gateway = config.gateway.location.place
    one = (_class_of(config, update.model),)
    training = None if update.train is None else update.train.location.place
    teacher = _teacher_place(config, update)
    origins = tuple(_origins(config, update, [gateway, training, teacher]))

    def of(some: tuple[Origin, ...], place: Place | None) -> tuple[Origin, ...]:
        return some if place is None else tuple(o for o in some if allowed(one, place, o))

    counted = of(origins, gateway)
    kept = of(counted, training)
    return Reach(origins, counted, kept, of(kept, teacher))


def objections(config: Config) -> Iterator[Finding]:
    """Updates of which privacy leaves nothing."""
    for index, update in enumerate(config.updates):
        loc: Loc = ("updates", index)
        reach, name = reach_of(config, update), _class_of(config, update.model).name
        if not reach.counted:
            yield Finding(
                (*loc, "model"),
                f"nothing of '{update.model}' is ever counted here: its class '{name}' forbids the gateway's own"
                f" place ({config.gateway.location.place}) to all of its data",
            )
        elif update.train is None or update.samples.collect == "none":
            continue
        elif not reach.kept:
            yield Finding(
                (*loc, "train", "location"),
                f"no sample of '{update.model}' may be trained on at {update.train.location.place}: class '{name}'"
                " forbids it to all of its data; train where the class allows, or on data alone",
            )
        elif not reach.taught:
            labels = update.samples.labels
            yield Finding(
                (*loc, "samples", "labels", "teacher"),
                f"no sample of '{update.model}' may be shown to '{labels and labels.teacher}': class '{name}'"
                f" forbids its place ({_teacher_place(config, update)})",
            )


def sites_of(group: EndpointConfig) -> frozenset[str] | None:
    """The sites that a group selects, None for any; the kind's own model has them."""
    select = group.model_dump().get("select")
    sites = cast("Mapping[str, object]", select).get("site") if isinstance(select, dict) else None
    names = cast("Sequence[object]", sites) if isinstance(sites, list | tuple) else ()
    return frozenset(map(str, names)) or None


def _origins(config: Config, update: UpdateConfig, places: Sequence[Place | None]) -> Iterator[Origin]:
    """Callers without a credential come from the gateway's own place, peers from their sites, and devices
    from the sites of the groups that run the model; where a group takes any site, from those that could
    matter."""
    seen = {origin_of(config.gateway.location.place, Options())}
    seen |= {Origin(peer.site) for peer in config.gateway.peers}
    model = next(m for m in config.models if m.name == update.model)
    running = {variant.endpoint for variant in model.variants}
    for endpoint in config.endpoints:
        if endpoint.place is not None or endpoint.name not in running:
            continue
        selected = sites_of(endpoint)
        some = {place.site for place in places if place is not None and place.site is not None}
        sites = selected if selected is not None else some | {OTHER_SITES}
        seen |= {Origin(site) for site in sites}
        for place in places:
            if place is not None and place.device is not None and place.site in (None, *sites):
                seen.add(Origin(place.site, place.device))
    yield from sorted(seen, key=lambda origin: (origin.site or "", origin.device or ""))


def _class_of(config: Config, name: str) -> PrivacyClass:
    model = next(m for m in config.models if m.name == name)
    return compile_classes(config)[model.privacy or config.privacy.default]


def _teacher_place(config: Config, update: UpdateConfig) -> Place | None:
    labels = update.samples.labels
    if labels is None or labels.teacher is None:
        return None
    return next((e.place for e in config.endpoints if e.name == labels.teacher), None)
