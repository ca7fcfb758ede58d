"""What is derived from a configuration once: names to nouns, globs to patterns, weights to shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from edgewire.allowed import AllowedSet
from gateway.core.config import Config, ModelConfig, PolicyConfig, Price, Relax, VariantConfig
from gateway.core.decision import VariantKey
from gateway.core.place import Origin, Place, PrivacyClass
from gateway.core.request import Options
from gateway.policy.match import CompiledPolicy, compile_policies
from gateway.policy.privacy import allowed_set, compile_classes, refusing
from gateway.policy.require import Rule, requirements
from gateway.routing.predict import key_of
from gateway.routing.score import shares


@dataclass(frozen=True, slots=True)
class Target:
    """A variant with what its endpoint declares."""

    variant: VariantConfig
    key: VariantKey
    place: Place
    price: Price


@dataclass(frozen=True, slots=True)
class Model:
    """`privacy` is the name of its class."""

    config: ModelConfig
    privacy: str
    targets: tuple[Target, ...]

    def classes(self, options: Options) -> tuple[str, ...]:
        """The classes that apply, each once: the model's, then the caller's."""
        if options.privacy is None or options.privacy == self.privacy:
            return (self.privacy,)
        return (self.privacy, options.privacy)


@dataclass(frozen=True, slots=True)
class Terms:
    """A policy as it is applied: the requirements it sets, which may be relaxed in which order, and
    the scorers' shares."""

    requirements: tuple[tuple[str, Rule], ...]
    relax: tuple[str, ...]
    shares: tuple[tuple[str, float], ...]


class Wall(NamedTuple):
    """What a set of classes says to every place of a configuration, for one origin: the names of
    the classes that forbid it, () where it is allowed. `allowed` is the same as travels with the data."""

    gateway: tuple[str, ...]
    endpoints: Mapping[str, tuple[str, ...]]
    allowed: AllowedSet


@dataclass(frozen=True, slots=True)
class Compiled:
    """`places` are the endpoints' by name. `walls` grows on demand and is bounded by itself: its
    keys are configured classes and the few origins that the gateway's own place allows."""

    gateway: Place
    buffer_bytes: int
    classes: Mapping[str, PrivacyClass]
    places: Mapping[str, Place]
    models: Mapping[str, Model]
    policies: tuple[CompiledPolicy, ...]
    by_name: Mapping[str, PolicyConfig]
    terms: Mapping[str, Terms]
    walls: dict[tuple[tuple[str, ...], str | None, str | None], Wall] = field(
        default_factory=dict[tuple[tuple[str, ...], str | None, str | None], Wall], compare=False
    )

    def wall(self, names: tuple[str, ...], origin: Origin) -> Wall:
        """The privacy wall for a request with all these classes. Everything that asks where data may
        go asks here. A class that is not there (any more) allows nothing. Raises ValueError without
        classes: that is not a question of privacy."""
        key = (names, origin.site, origin.device)
        wall = self.walls.get(key)
        if wall is None:
            if not names:
                raise ValueError("a privacy wall needs at least one class")
            classes = self.classes_named(names)
            wall = self.walls[key] = Wall(
                refusing(classes, self.gateway, origin),
                {name: refusing(classes, place, origin) for name, place in self.places.items()},
                allowed_set(classes, origin),
            )
        return wall

    def classes_named(self, names: tuple[str, ...]) -> tuple[PrivacyClass, ...]:
        return tuple(self.classes.get(name) or PrivacyClass(name, ()) for name in names)


class _Same:
    """A configuration as a cache key by identity: its content is neither cheap nor possible to hash."""

    __slots__ = ("config",)

    def __init__(self, config: Config) -> None:
        self.config = config

    def __hash__(self) -> int:
        return id(self.config)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.config is other.config


def compiled(config: Config) -> Compiled:
    """The tables of a configuration, kept for the few that are in use at a time."""
    return _compile(_Same(config))


@lru_cache(maxsize=8)
def _compile(same: _Same) -> Compiled:
    config = same.config
    endpoints = {e.name: e for e in config.endpoints}
    places = {name: e.place for name, e in endpoints.items() if e.place is not None}

    def model(m: ModelConfig) -> Model:
        return Model(
            m,
            config.privacy.default if m.privacy is None else m.privacy,
            tuple(
                Target(v, key_of(m, v), places[v.endpoint], endpoints[v.endpoint].price) for v in m.variants
            ),
        )

    return Compiled(
        gateway=config.gateway.location.place,
        buffer_bytes=int(config.gateway.limits.buffer_mb * 2**20),
        classes=compile_classes(config),
        places=places,
        models={m.name: model(m) for m in config.models},
        policies=compile_policies(config.policies),
        by_name={p.name: p for p in config.policies},
        terms={
            p.name: Terms(
                requirements(p.require),
                p.on_no_candidate.relax if isinstance(p.on_no_candidate, Relax) else (),
                shares(p.weights),
            )
            for p in config.policies
        },
    )
