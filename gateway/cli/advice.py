"""What a sound configuration still says about itself: who may go where, and what can never happen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import cast

from gateway.cli.advice_updates import of_updates
from gateway.core.config import Config, EndpointConfig
from gateway.core.config.problems import Finding, Loc
from gateway.core.place import Origin, PrivacyClass, Tier
from gateway.core.request import Options
from gateway.decide.tables import Wall, compiled
from gateway.edgehub.desired import conflicts
from gateway.policy.privacy import origin_of
from gateway.policy.upkeep import sites_of

_NO_USE = {
    "openvino": frozenset({"TPU", "neuron_cores", "HPU", "RBLN", "FURIOSA"}),
    "onnxruntime": frozenset({"TPU", "neuron_cores", "HPU", "NPU", "RBLN", "FURIOSA"}),
}
"""What a runtime of a pool cannot compute on, of the resources that Ray knows by name."""


@dataclass(frozen=True, slots=True)
class MayGo:
    """Where data of a class may go: through the gateway's own place, and to each endpoint in a place.
    `groups` says it of device groups: "yes" for every device of one, "no" for none, else which."""

    gateway: bool
    endpoints: dict[str, bool]
    groups: dict[str, str] = field(default_factory=dict[str, str])


def matrix_of(config: Config) -> dict[str, MayGo]:
    """Privacy class x place, for data that comes from the gateway's own site and device."""
    tables = compiled(config)
    groups = [e for e in config.endpoints if e.name in tables.groups]
    own = origin_of(tables.gateway, Options())
    return {
        name: MayGo(
            not (wall := tables.wall((name,), own)).gateway,
            {place: not by for place, by in wall.endpoints.items()},
            {group.name: devices_of(group, one) for group in groups},
        )
        for name, one in tables.classes.items()
    }


def devices_of(group: EndpointConfig, one: PrivacyClass) -> str:
    """Which devices of a group a class lets answer, in a few words: the rules say it of any origin."""
    sites = sites_of(group)
    found: list[str] = []
    for rule in one.allow:
        if rule.tiers is not None and Tier.DEVICE not in rule.tiers:
            continue
        parts = [f"same {part}" for part in ("site", "device") if part in rule.same]
        if rule.sites is not None:
            some = rule.sites if sites is None else rule.sites & sites
            if not some:
                continue
            if some != sites:
                parts.append(f"site {'+'.join(sorted(some))}")
        if rule.regions is not None:
            parts.append(f"region {'+'.join(sorted(rule.regions))}")
        if not parts:
            return "yes"
        found.append(", ".join(parts))
    return " or ".join(dict.fromkeys(found)) or "no"


def warnings_of(config: Config) -> list[Finding]:
    """What can never happen under this configuration, at the path that says so."""
    return [
        *_shut_out(config),
        *_unused_variants(config),
        *_unused_discoveries(config),
        *_idle_policies(config),
        *_odd_resources(config),
        *_outdone(config),
        *of_updates(config),
    ]


def _outdone(config: Config) -> Iterator[Finding]:
    """Artifacts of which a device in two groups runs only the first."""
    for conflict in conflicts(config):
        loc: Loc = ("models",)
        for index, model in enumerate(config.models):
            for number, variant in enumerate(model.variants):
                if (variant.model or model.name, variant.endpoint) == (conflict.model, conflict.second):
                    loc = ("models", index, "variants", number, "endpoint")
        yield Finding(loc, str(conflict))


def _walls(config: Config, name: str) -> list[Wall]:
    """What a class says to data of every origin that a caller can have: this gateway's own place, each
    peer's site, and a device of each site that a group selects or a rule names."""
    tables = compiled(config)
    sites = {peer.site for peer in config.gateway.peers}
    if tables.groups:
        sites |= {None, tables.gateway.site}
        for endpoint in config.endpoints:
            sites |= sites_of(endpoint) or frozenset()
        for rule in tables.classes[name].allow:
            sites |= rule.sites or frozenset()
    origins = [origin_of(tables.gateway, Options())]
    origins += [Origin(site) for site in sorted(sites, key=lambda site: site or "")]
    return [tables.wall((name,), origin) for origin in origins]


def _class_of(config: Config, index: int) -> tuple[str, Loc]:
    """A model's class and the path that sets it."""
    model = config.models[index]
    if model.privacy is None:
        return config.privacy.default, ("models", index, "name")
    return model.privacy, ("models", index, "privacy")


def _closed(config: Config) -> frozenset[str]:
    """The classes that forbid this gateway's own place, whoever asks."""
    return frozenset(
        name for name in config.privacy.classes if all(wall.gateway for wall in _walls(config, name))
    )


def _shut_out(config: Config) -> Iterator[Finding]:
    closed = _closed(config)
    own = f"the gateway's own place ({config.gateway.location.place})"
    for name in config.privacy.classes:
        if name in closed:
            loc: Loc = ("privacy", "classes", name)
            yield Finding(loc, f"class '{name}' can never pass this gateway: it forbids {own}")
    for index, model in enumerate(config.models):
        name, loc = _class_of(config, index)
        if name in closed:
            yield Finding(
                loc, f"model '{model.name}' can never pass this gateway: its class '{name}' forbids {own}"
            )


def _unused_variants(config: Config) -> Iterator[Finding]:
    tables = compiled(config)
    closed = _closed(config)
    groups = {e.name: e for e in config.endpoints if e.name in tables.groups}
    for index, model in enumerate(config.models):
        name, _ = _class_of(config, index)
        if name in closed:
            continue
        walls = _walls(config, name)
        for number, variant in enumerate(model.variants):
            endpoint = variant.endpoint
            if endpoint in groups:
                never = devices_of(groups[endpoint], tables.classes[name]) == "no"
                why = "allows none of its devices"
            else:
                never = all(wall.gateway or wall.endpoints[endpoint] for wall in walls)
                why = f"forbids its place ({tables.places.get(endpoint)})"
            if never:
                yield Finding(
                    ("models", index, "variants", number, "endpoint"),
                    f"'{endpoint}' will never answer '{model.name}': class '{name}' {why}",
                )


def _unused_discoveries(config: Config) -> Iterator[Finding]:
    closed = _closed(config)
    for index, endpoint in enumerate(config.endpoints):
        name = endpoint.discovers
        if name is None:
            continue
        loc: Loc = ("endpoints", index, "discover", "privacy")
        if name in closed:
            own = f"the gateway's own place ({config.gateway.location.place})"
            yield Finding(
                loc,
                f"what '{endpoint.name}' has can never pass this gateway: its class '{name}' forbids {own}",
            )
        elif all(wall.gateway or wall.endpoints[endpoint.name] for wall in _walls(config, name)):
            yield Finding(
                loc,
                f"'{endpoint.name}' will never answer what is discovered there: class '{name}' forbids its"
                f" place ({endpoint.place})",
            )


def _idle_policies(config: Config) -> Iterator[Finding]:
    names = {"privacy": list(config.privacy.classes)}
    if all(endpoint.discovers is None for endpoint in config.endpoints):
        names["models"] = [m.name for m in config.models]
    for index, policy in enumerate(config.policies):
        for key, known in names.items():
            globs = getattr(policy.match, key)
            if not any(fnmatchcase(name, glob) for glob in globs for name in known):
                noun = "model" if key == "models" else "privacy class"
                yield Finding(
                    ("policies", index, "match", key),
                    f"policy '{policy.name}' never applies: no {noun} has a name that {key} matches",
                )


def _odd_resources(config: Config) -> Iterator[Finding]:
    """Pools that hold what their runtime cannot compute on; they run, on the CPU."""
    for index, endpoint in enumerate(config.endpoints):
        written = endpoint.model_dump(mode="json")
        runtime, resources = written.get("runtime"), written.get("resources")
        if not isinstance(runtime, str) or not isinstance(resources, dict):
            continue
        asked = {name for name, amount in cast("dict[str, object]", resources).items() if amount}
        odd = sorted(asked & _NO_USE.get(runtime, frozenset()))
        if odd:
            yield Finding(
                ("endpoints", index, "resources", odd[0]),
                f"runtime {runtime} cannot use {', '.join(odd)}: the replicas of '{endpoint.name}' will hold"
                " it and compute on the CPU",
            )
