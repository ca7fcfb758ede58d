"""Random worlds to decide in, and what privacy means in them, worked out in another way.

The oracle knows nothing of rules and matching: it turns every class into the set of places, as
(tier, region, site, device) tuples, that it lists, and intersects sets.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace
from functools import cache

from gateway.core.config import (
    Config,
    GatewayConfig,
    Limits,
    Location,
    Match,
    ModelConfig,
    PlacedConfig,
    PolicyConfig,
    Price,
    PrivacyConfig,
    Relax,
    Require,
    Retry,
    Telemetry,
    VariantConfig,
    Weights,
)
from gateway.core.config.models import Allow, ClassConfig
from gateway.core.decision import (
    EndpointState,
    Hurry,
    LatencyFigure,
    Snapshot,
    Source,
    VariantKey,
    VariantState,
)
from gateway.core.place import Tier
from gateway.core.request import Options, Request
from gateway.routing.latency import haste

PlaceTuple = tuple[str, str | None, str | None, str | None]

TIERS = [t.value for t in Tier]
REGIONS = [None, "r1", "r2"]
SITES = [None, "s1", "s2"]
DEVICES = [None, "d1", "d2"]
CLASSES = ["c0", "c1", "c2", "c3"]

LOCATIONS = [
    Location(tier=Tier(tier), region=region, site=site, device=device)
    for tier, region, site, device in itertools.product(TIERS, REGIONS, SITES, DEVICES)
    if (device is not None) == (tier == "device") and (site is not None or tier != "site")
]
PRICES = [
    Price(),
    Price(per_request=0.001),
    Price(per_hour=1.0, egress_per_gb=0.1),
    Price(per_hour=9.0),
]
WEIGHTS = [Weights(latency=1), Weights(cost=1), Weights(cost=0.7, latency=0.3), Weights(quality=1, cost=1)]
REQUIRES = [
    Require(),
    Require(),
    Require(latency_p95_ms=50),
    Require(max_cost_per_1k=1),
    Require(min_quality=0.6, latency_p95_ms=200),
]
RETRIES = [Retry(num_retries=n) for n in (0, 1, 10)]
MATCHES = [Match(), Match(privacy=("c[01]",)), Match(sites=("s1",)), Match(models=("m1",))]
RELAXES = ["reject", "reject", Relax(relax=("cost", "latency", "quality")), Relax(relax=("latency",))]
GATEWAYS = [GatewayConfig(name="g", location=where, limits=Limits()) for where in LOCATIONS]
ENDPOINTS = [
    [PlacedConfig(name=f"e{i}", kind="triton", location=where, price=price) for where in LOCATIONS]
    for i, price in zip(range(5), [*PRICES, Price()], strict=True)
]
VARIANTS = [
    VariantConfig(endpoint=f"e{i}", version=version, weight=weight, quality=quality)
    for i in range(5)
    for version, weight, quality in [(None, 1, None), ("1", 1, 0.9), ("2", 0, 0.5), (None, 3, 0.7)]
]


@cache
def _allow(
    tiers: tuple[str, ...] | None,
    regions: tuple[str, ...] | None,
    sites: tuple[str, ...] | None,
    same: tuple[str, ...] | None,
) -> Allow:
    return Allow(
        tier=None if tiers is None else tuple(Tier(t) for t in tiers), region=regions, site=sites, same=same
    )


def _some(rng: random.Random, values: list[str], share: float) -> tuple[str, ...] | None:
    if rng.random() >= share:
        return None
    return tuple(rng.sample(values, rng.randint(1, len(values))))


def random_class(rng: random.Random, gateway: Location) -> ClassConfig:
    """Often with a rule for the gateway's own tier, for what it refuses proves little of the rest."""
    rules: list[Allow] = []
    if rng.random() < 0.6:
        rules.append(_allow((gateway.tier.value,), None, None, None))
    for _ in range(rng.choice((1, 1, 2))):
        tiers = _some(rng, TIERS, 0.7)
        regions = _some(rng, ["r1", "r2"], 0.3)
        sites = _some(rng, ["s1", "s2"], 0.2)
        same = _some(rng, ["site", "device"], 0.2)
        if tiers is None and regions is None and sites is None and same is None:
            tiers = (rng.choice(TIERS),)
        rules.append(_allow(tiers, regions, sites, same))
    return ClassConfig.model_construct(allow=tuple(rules))


@dataclass(frozen=True)
class World:
    """A configuration, what is known about its places, and one request."""

    snapshot: Snapshot
    request: Request

    @property
    def config(self) -> Config:
        return self.snapshot.config


def random_config(rng: random.Random) -> Config:
    """A valid configuration; only its outermost parts go unvalidated, for speed."""
    count = rng.randint(1, 5)
    endpoints = tuple(rng.choice(ENDPOINTS[i]) for i in range(count))
    gateway = rng.choice(GATEWAYS)
    classes = {name: random_class(rng, gateway.location) for name in CLASSES[: rng.randint(1, 4)]}
    names = list(classes)
    models = tuple(
        ModelConfig.model_construct(
            name=f"m{i}",
            privacy=rng.choice([None, *names]),
            idempotent=rng.random() < 0.5,
            variants=tuple(rng.choice(VARIANTS[: 4 * count]) for _ in range(rng.randint(1, 5))),
        )
        for i in range(2)
    )
    policies = tuple(
        PolicyConfig.model_construct(
            name=f"p{i}",
            match=rng.choice(MATCHES) if i == 0 else MATCHES[0],
            require=rng.choice(REQUIRES),
            weights=rng.choice(WEIGHTS),
            retry=rng.choice(RETRIES),
            on_no_candidate=rng.choice(RELAXES),
        )
        for i in range(2)
    )
    return Config.model_construct(
        version=1,
        currency="USD",
        gateway=gateway,
        endpoints=endpoints,
        models=models,
        privacy=PrivacyConfig.model_construct(default=rng.choice(names), classes=classes),
        policies=policies,
        telemetry=Telemetry(),
    )


def validated(config: Config) -> Config:
    """The same configuration through every validator."""
    return Config(
        version=1,
        currency=config.currency,
        gateway=config.gateway,
        endpoints=config.endpoints,
        models=tuple(ModelConfig(**dict(m)) for m in config.models),
        privacy=PrivacyConfig(
            default=config.privacy.default,
            classes={name: ClassConfig(allow=c.allow) for name, c in config.privacy.classes.items()},
        ),
        policies=tuple(PolicyConfig(**dict(p)) for p in config.policies),
    )


def random_world(rng: random.Random) -> World:
    config = random_config(rng)
    names = list(config.privacy.classes)
    variants: dict[VariantKey, VariantState] = {}
    for model in config.models:
        for variant in model.variants:
            if rng.random() < 0.8:
                p50 = rng.choice((1.0, 20.0, 45.0, 400.0))
                figure = LatencyFigure(p50, p50 * 2, 50, rng.choice((0.0, 950.0)), Source.LIVE)
                variants[VariantKey(variant.endpoint, model.name, variant.version or "")] = VariantState(
                    ready=rng.choice((None, True, True, True, False)),
                    latency=None if rng.random() < 0.2 else figure,
                    capacity_rps=rng.choice((None, 10.0, 500.0)),
                    response_bytes=rng.choice((None, 1000.0)),
                    trials=rng.randint(0, 4),
                    answers=None if rng.random() < 0.3 else figure,
                    hurry=Hurry({haste(30.0): 999.5} if rng.random() < 0.3 else {}),
                )
    options = Options(
        privacy=rng.choice([None, None, *names, *names]) if rng.random() < 0.98 else "no-such-class",
        policy=None if rng.random() < 0.9 else "p0",
        max_cost=None if rng.random() < 0.9 else 0.0005,
        site=rng.choice((None, None, None, "s1", "s2")),
        device=rng.choice((None, None, None, "d1", "d2")),
        idempotent=rng.choice((None, True, True)),
    )
    request = Request(
        model=rng.choice(("m0", "m1")),
        version=rng.choice(("", "", "", "1")),
        options=options,
        payload_bytes=100,
        time_left_s=rng.choice((None, None, 0.03, 1.0)),
        decision_id="d",
        wall_time=0.0,
    )
    endpoints = {e.name: EndpointState(rng.random() < 0.9) for e in config.endpoints}
    return World(Snapshot(config, "1", endpoints, variants), request)


def narrowed(world: World, privacy: str) -> World:
    """The same request with a class that the caller adds."""
    request = world.request
    return replace(world, request=replace(request, options=replace(request.options, privacy=privacy)))


def where(location: Location) -> PlaceTuple:
    return (location.tier.value, location.region, location.site, location.device)


def origin_tuple(world: World) -> tuple[str | None, str | None]:
    """(site, device) the request comes from, as far as anybody knows."""
    mine, options = world.config.gateway.location, world.request.options
    site, device = mine.site, mine.device
    if options.device is not None and options.device != device:
        device = None
    if options.site is not None and site is not None and options.site != site:
        site = device = None
    return site, device


def class_names(world: World) -> set[str]:
    config, options = world.config, world.request.options
    model = next(m for m in config.models if m.name == world.request.model)
    given = {model.privacy or config.privacy.default}
    return given | ({options.privacy} if options.privacy else set())


def places_of(
    config: Config, names: set[str], origin: tuple[str | None, str | None]
) -> frozenset[PlaceTuple]:
    """Every place that each of the classes lists, out of all places there are."""
    sets = [_places_of_class(config.privacy.classes[name].allow, origin) for name in sorted(names)]
    return frozenset.intersection(*sets)


def _places_of_class(
    rules: tuple[Allow, ...], origin: tuple[str | None, str | None]
) -> frozenset[PlaceTuple]:
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
) -> frozenset[PlaceTuple]:
    tiers = set(TIERS) if tier is None else {t.value for t in tier}
    regions = set(REGIONS) if region is None else set(region)
    sites = set(SITES) if site is None else set(site)
    devices = set(DEVICES)
    if same is not None and "site" in same:
        sites &= {origin[0]} - {None}
    if same is not None and "device" in same:
        devices &= {origin[1]} - {None}
    return frozenset(itertools.product(tiers, regions, sites, devices))
