"""What a sound configuration still says about itself: who may go where, and what can never happen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gateway.core.config import Config
from gateway.core.config.problems import Finding, Loc
from gateway.core.place import Origin, Place, PrivacyClass
from gateway.policy.privacy import allowed, compile_classes


@dataclass(frozen=True, slots=True)
class MayGo:
    """Where data of a class may go: through the gateway's own place, and to each endpoint."""

    gateway: bool
    endpoints: dict[str, bool]


def matrix_of(config: Config) -> dict[str, MayGo]:
    """Privacy class x place, for data that comes from the gateway's own site and device."""
    origin = _origin(config)
    here = config.gateway.location.place
    return {
        name: MayGo(
            allowed([c], here, origin),
            {e.name: allowed([c], e.location.place, origin) for e in config.endpoints},
        )
        for name, c in compile_classes(config).items()
    }


def warnings_of(config: Config) -> list[Finding]:
    """What can never happen under this configuration, at the path that says so."""
    return [*_shut_out(config), *_unused_variants(config), *_idle_policies(config)]


def _origin(config: Config) -> Origin:
    return Origin(config.gateway.location.site, config.gateway.location.device)


def _class_of(config: Config, index: int) -> tuple[str, Loc]:
    """A model's class and the path that sets it."""
    model = config.models[index]
    if model.privacy is None:
        return config.privacy.default, ("models", index, "name")
    return model.privacy, ("models", index, "privacy")


def _shut_out(config: Config) -> Iterator[Finding]:
    here = config.gateway.location.place
    origin = _origin(config)
    closed = {name for name, c in compile_classes(config).items() if not allowed([c], here, origin)}
    own = f"the gateway's own place ({_words(here)})"
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
    classes = compile_classes(config)
    origin = _origin(config)
    places = {e.name: e.location.place for e in config.endpoints}
    here = config.gateway.location.place
    for index, model in enumerate(config.models):
        name, _ = _class_of(config, index)
        applies: Sequence[PrivacyClass] = [classes[name]]
        if not allowed(applies, here, origin):
            continue
        for number, variant in enumerate(model.variants):
            place = places[variant.endpoint]
            if not allowed(applies, place, origin):
                yield Finding(
                    ("models", index, "variants", number, "endpoint"),
                    f"'{variant.endpoint}' will never answer '{model.name}': "
                    f"class '{name}' forbids its place ({_words(place)})",
                )


def _idle_policies(config: Config) -> Iterator[Finding]:
    names = {"models": [m.name for m in config.models], "privacy": list(config.privacy.classes)}
    for index, policy in enumerate(config.policies):
        for key, known in names.items():
            globs = getattr(policy.match, key)
            if not any(fnmatchcase(name, glob) for glob in globs for name in known):
                noun = "model" if key == "models" else "privacy class"
                yield Finding(
                    ("policies", index, "match", key),
                    f"policy '{policy.name}' never applies: no {noun} has a name that {key} matches",
                )


def _words(place: Place) -> str:
    parts = [f"tier {place.tier}"]
    parts += [
        f"{part} {value}"
        for part, value in (("region", place.region), ("site", place.site), ("device", place.device))
        if value is not None
    ]
    return ", ".join(parts)
