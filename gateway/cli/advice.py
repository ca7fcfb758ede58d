"""What a sound configuration still says about itself: who may go where, and what can never happen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gateway.core.config import Config
from gateway.core.config.problems import Finding, Loc
from gateway.core.request import Options
from gateway.decide.tables import Wall, compiled
from gateway.policy.privacy import origin_of


@dataclass(frozen=True, slots=True)
class MayGo:
    """Where data of a class may go: through the gateway's own place, and to each endpoint."""

    gateway: bool
    endpoints: dict[str, bool]


def matrix_of(config: Config) -> dict[str, MayGo]:
    """Privacy class x place, for data that comes from the gateway's own site and device."""
    walls = {name: _wall(config, name) for name in config.privacy.classes}
    return {
        name: MayGo(not wall.gateway, {place: not by for place, by in wall.endpoints.items()})
        for name, wall in walls.items()
    }


def warnings_of(config: Config) -> list[Finding]:
    """What can never happen under this configuration, at the path that says so."""
    return [*_shut_out(config), *_unused_variants(config), *_idle_policies(config)]


def _wall(config: Config, name: str) -> Wall:
    """What a class says to data that comes from the gateway's own site and device."""
    tables = compiled(config)
    return tables.wall((name,), origin_of(tables.gateway, Options()))


def _class_of(config: Config, index: int) -> tuple[str, Loc]:
    """A model's class and the path that sets it."""
    model = config.models[index]
    if model.privacy is None:
        return config.privacy.default, ("models", index, "name")
    return model.privacy, ("models", index, "privacy")


def _shut_out(config: Config) -> Iterator[Finding]:
    closed = {name for name in config.privacy.classes if _wall(config, name).gateway}
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
    places = compiled(config).places
    for index, model in enumerate(config.models):
        name, _ = _class_of(config, index)
        wall = _wall(config, name)
        if wall.gateway:
            continue
        for number, variant in enumerate(model.variants):
            if wall.endpoints[variant.endpoint]:
                yield Finding(
                    ("models", index, "variants", number, "endpoint"),
                    f"'{variant.endpoint}' will never answer '{model.name}': "
                    f"class '{name}' forbids its place ({places[variant.endpoint]})",
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
