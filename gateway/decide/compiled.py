"""What is derived from a configuration once: names to nouns, globs to patterns, weights to shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from gateway.core.config import Config, ModelConfig, PolicyConfig, Price, Relax, VariantConfig
from gateway.core.decision import VariantKey
from gateway.core.place import Place, PrivacyClass
from gateway.core.request import Options
from gateway.policy.match import CompiledPolicy, compile_policies
from gateway.policy.privacy import compile_classes
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
    config: ModelConfig
    privacy: PrivacyClass
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Scoring:
    """What of a policy the candidates are weighed with: the scorers' shares, what may be relaxed."""

    shares: tuple[tuple[str, float], ...]
    relax: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compiled:
    """`places` are the endpoints' by name."""

    gateway: Place
    buffer_bytes: int
    classes: Mapping[str, PrivacyClass]
    places: Mapping[str, Place]
    models: Mapping[str, Model]
    policies: tuple[CompiledPolicy, ...]
    by_name: Mapping[str, PolicyConfig]
    scoring: Mapping[str, Scoring]

    def class_named(self, name: str) -> PrivacyClass:
        """A class that is not there (any more) allows nothing."""
        return self.classes.get(name) or PrivacyClass(name, ())

    def classes_of(self, options: Options, model: Model | None) -> tuple[PrivacyClass, ...]:
        """The classes that apply, each once: the model's, then the caller's. The caller's class
        must exist. Empty only where neither is known."""
        found = () if model is None else (model.privacy,)
        if options.privacy is not None and all(c.name != options.privacy for c in found):
            found = (*found, self.class_named(options.privacy))
        return found


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
    classes = compile_classes(config)
    endpoints = {e.name: e for e in config.endpoints}
    places = {name: e.location.place for name, e in endpoints.items()}

    def model(m: ModelConfig) -> Model:
        name = config.privacy.default if m.privacy is None else m.privacy
        return Model(
            m,
            classes.get(name) or PrivacyClass(name, ()),
            tuple(
                Target(v, key_of(m, v), places[v.endpoint], endpoints[v.endpoint].price) for v in m.variants
            ),
        )

    return Compiled(
        gateway=config.gateway.location.place,
        buffer_bytes=int(config.gateway.limits.buffer_mb * 2**20),
        classes=classes,
        places=places,
        models={m.name: model(m) for m in config.models},
        policies=compile_policies(config.policies),
        by_name={p.name: p for p in config.policies},
        scoring={
            p.name: Scoring(
                shares(p.weights), p.on_no_candidate.relax if isinstance(p.on_no_candidate, Relax) else ()
            )
            for p in config.policies
        },
    )
