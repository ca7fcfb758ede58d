"""What is derived from a configuration once: names to nouns, globs to patterns, weights to shares."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from edgewire.allowed import AllowedRule, AllowedSet
from gateway.core.config import Config, ModelConfig, PolicyConfig, Price, Relax, VariantConfig
from gateway.core.decision import VariantKey
from gateway.core.fleet import Nearby
from gateway.core.place import Origin, Place, PrivacyClass, Tier
from gateway.core.request import Options
from gateway.policy.match import CompiledPolicy, compile_policies
from gateway.policy.privacy import allowed_set, compile_classes, refusing
from gateway.policy.require import PEERS_SET, Rule, requirements
from gateway.routing.predict import key_of
from gateway.routing.score import shares

WALLS_KEPT = 1024
"""Walls that a configuration holds: pairs of classes and origins, and the sets that peers send."""
ANSWERS_KEPT = 4096
"""Places that a wall remembers its answer for."""
GROUP_PLACE = Place(Tier.DEVICE)
"""Of a device group, until one of its devices is chosen."""


@dataclass(frozen=True, slots=True)
class Target:
    """A variant with what its endpoint declares; `place` is None for a device group."""

    variant: VariantConfig
    key: VariantKey
    place: Place | None
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


class Wall:
    """What a set of classes, and a peer's set where there is one, say to every place, for one origin.

    `gateway` and `endpoints` (those in a place of their own) hold the names of what forbids each, as
    `of` gives them. `allowed` is the same as travels with the data; `devices` are those that `of` tells
    from any other of their site.
    """

    __slots__ = ("_asked", "_classes", "_of", "_origin", "allowed", "devices", "endpoints", "gateway")

    def __init__(
        self,
        classes: tuple[PrivacyClass, ...],
        origin: Origin,
        left: AllowedSet | None,
        gateway: Place,
        places: Mapping[str, Place],
    ) -> None:
        own = allowed_set(classes, origin)
        self.allowed = own if left is None else own.narrowed(left)
        same = frozenset(() if origin.device is None else (origin.device,))
        self.devices: frozenset[str] = same if left is None else same | left.devices
        self._classes = classes
        self._origin = origin
        self._asked = left
        self._of: dict[tuple[Tier, str | None, str | None, str | None], tuple[str, ...]] = {}
        self.gateway = self.of(gateway)
        self.endpoints: Mapping[str, tuple[str, ...]] = {name: self.of(p) for name, p in places.items()}

    def of(self, place: Place) -> tuple[str, ...]:
        """The names of what forbids the place: classes, and PEERS_SET; () where it is allowed.

        Devices that no rule tells apart share an answer, so what is kept grows with sites, not devices.
        """
        device = place.device if place.device in self.devices else None
        key = (place.tier, place.region, place.site, device)
        found = self._of.get(key)
        if found is None:
            place = Place(*key)
            found = refusing(self._classes, place, self._origin)
            if self._asked is not None and not self._asked.allows(place):
                found = (*found, PEERS_SET)
            if len(self._of) >= ANSWERS_KEPT:
                self._of.clear()
            self._of[key] = found
        return found

    def of_devices(self, where: Nearby) -> tuple[str, ...]:
        """What forbids a device there that no rule names."""
        region, site = where
        found = self._of.get((Tier.DEVICE, region, site, None))
        return self.of(Place(Tier.DEVICE, region, site)) if found is None else found


WallKey = tuple[tuple[str, ...], str | None, str | None, tuple[AllowedRule, ...] | None]


@dataclass(frozen=True, slots=True)
class Compiled:
    """`name` and `gateway` are the gateway's own name and place. `places` are those of endpoints that
    have one; `groups` names the others, whose devices have places of their own. `walls` are the last
    used: a peer's set comes from outside, so there may be any number."""

    name: str
    gateway: Place
    buffer_bytes: int
    classes: Mapping[str, PrivacyClass]
    places: Mapping[str, Place]
    groups: frozenset[str]
    models: Mapping[str, Model]
    policies: tuple[CompiledPolicy, ...]
    by_name: Mapping[str, PolicyConfig]
    terms: Mapping[str, Terms]
    walls: OrderedDict[WallKey, Wall] = field(default_factory=OrderedDict[WallKey, Wall], compare=False)

    def wall(self, names: tuple[str, ...], origin: Origin, allowed: AllowedSet | None = None) -> Wall:
        """The privacy wall for a request with all these classes, and what a peer left of the places.
        Everything that asks where data may go asks here. A class that is not there (any more) allows
        nothing. Raises ValueError without classes: that is not a question of privacy."""
        key = (names, origin.site, origin.device, None if allowed is None else allowed.rules)
        wall = self.walls.pop(key, None)
        if wall is None:
            if not names:
                raise ValueError("a privacy wall needs at least one class")
            wall = Wall(self.classes_named(names), origin, allowed, self.gateway, self.places)
            while len(self.walls) >= WALLS_KEPT:
                self.walls.popitem(last=False)
        self.walls[key] = wall
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
                Target(v, key_of(m, v), places.get(v.endpoint), endpoints[v.endpoint].price)
                for v in m.variants
            ),
        )

    return Compiled(
        name=config.gateway.name,
        gateway=config.gateway.location.place,
        buffer_bytes=int(config.gateway.limits.buffer_mb * 2**20),
        classes=compile_classes(config),
        places=places,
        groups=frozenset(endpoints.keys() - places.keys()),
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
