"""Random worlds to decide in: gateways, endpoints in places, groups of devices, and who asks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from edgewire.allowed import AllowedRule, AllowedSet, of_rules
from gateway.core.config import (
    Config,
    EndpointConfig,
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
from gateway.core.fleet import Device, Group, group_of
from gateway.core.place import Origin, Place, Tier
from gateway.core.request import ANYBODY, Caller, Options, Request
from gateway.routing.latency import haste

TIERS = [t.value for t in Tier]
REGIONS = [None, "r1", "r2"]
SITES = [None, "s1", "s2"]
DEVICES = [None, "d1", "d2", "x1", "x2"]
"""Those with x are never an origin, so only a peer's set names them."""
CLASSES = ["c0", "c1", "c2", "c3"]

LOCATIONS = [
    Location(tier=Tier(tier), region=region, site=site, device=device)
    for tier, region, site, device in itertools.product(TIERS, REGIONS, SITES, DEVICES[:3])
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
GATEWAY_NAMES = ["g0", "g1", "g2", "g3"]
GATEWAYS = {
    name: [GatewayConfig(name=name, location=where, limits=Limits()) for where in LOCATIONS]
    for name in GATEWAY_NAMES
}
NAMES = [f"e{i}" for i in range(5)]
ENDPOINTS = {
    name: [PlacedConfig(name=name, kind="triton", location=where, price=price) for where in LOCATIONS]
    for name, price in zip([*NAMES, *GATEWAY_NAMES], itertools.cycle(PRICES), strict=False)
}
GROUPS = {name: EndpointConfig(name=name, kind="edge", price=Price()) for name in NAMES}
VARIANTS = {
    name: [
        VariantConfig(endpoint=name, version=version, weight=weight, quality=quality)
        for version, weight, quality in [(None, 1, None), ("1", 1, 0.9), ("2", 0, 0.5), (None, 3, 0.7)]
    ]
    for name in [*NAMES, *GATEWAY_NAMES]
}
VERSIONS = [(), (), (), ("1",), ("2",), ("1", "2")]
"""That an endpoint says it answers with; () where it does not say."""
MODELS_ON_DEVICES = [
    frozenset({("m0", "1"), ("m1", "1")}),
    frozenset({("m0", "1"), ("m1", "2")}),
    frozenset({("m0", "2")}),
    frozenset({("m0", "2"), ("m1", "1")}),
]
FLEET = [
    Device(name, Place(Tier.DEVICE, region, site, name), connected, drained, models=models)
    for name in ("d1", "d2", "x1", "x2")
    for region, site in itertools.product((None, None, "r1", "r2"), (None, "s1", "s2", "s1", "s2"))
    for connected, drained in ((True, False), (True, False), (True, False), (False, False), (True, True))
    for models in MODELS_ON_DEVICES
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
    if rng.random() < 0.7:
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


def random_config(rng: random.Random, gateway: GatewayConfig | None = None, onward: float = 0.3) -> Config:
    """A valid configuration; only its outermost parts go unvalidated, for speed. Endpoints named g0 to
    g3 are gateways, each there with a chance of `onward`, those without a location device groups."""
    if gateway is None:
        gateway = rng.choice(GATEWAYS["g0"])
    names = NAMES[: rng.randint(1, 4)]
    endpoints: list[EndpointConfig] = [
        GROUPS[name] if rng.random() < 0.4 else rng.choice(ENDPOINTS[name]) for name in names
    ]
    for name in GATEWAY_NAMES:
        if name != gateway.name and rng.random() < onward:
            endpoints.append(rng.choice(ENDPOINTS[name]))
    classes = {name: random_class(rng, gateway.location) for name in CLASSES[: rng.randint(1, 4)]}
    names = list(classes)
    models = tuple(
        ModelConfig.model_construct(
            name=f"m{i}",
            privacy=rng.choice([None, *names]),
            idempotent=rng.random() < 0.5,
            variants=tuple(
                rng.choice(VARIANTS[rng.choice(endpoints).name]) for _ in range(rng.randint(1, 5))
            ),
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
        endpoints=tuple(endpoints),
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


def random_groups(rng: random.Random, config: Config) -> dict[str, Group]:
    """Devices of every group, each in a random place and state; some groups are not told of at all."""
    groups: dict[str, Group] = {}
    for endpoint in config.endpoints:
        if endpoint.place is None and rng.random() < 0.95:
            groups[endpoint.name] = group_of(rng.choices(FLEET, k=rng.choice((0, 1, 2, 4, 4))))
    return groups


def random_allowed(rng: random.Random) -> AllowedSet:
    """What a peer leaves of the places; often all of some tiers."""
    rules: list[AllowedRule] = []
    if rng.random() < 0.6:
        rules.append(AllowedRule(frozenset(Tier(t) for t in rng.sample(TIERS, rng.randint(2, 4)))))
    for _ in range(rng.choice((1, 1, 2, 3))):
        tiers = _some(rng, TIERS, 0.8)
        rules.append(
            AllowedRule(
                None if tiers is None else frozenset(Tier(t) for t in tiers),
                *(
                    None if names is None else frozenset(names)
                    for names in (
                        _some(rng, ["r1", "r2"], 0.2),
                        _some(rng, ["s1", "s2"], 0.3),
                        _some(rng, ["d1", "d2", "x1", "x2"], 0.2),
                    )
                ),
            )
        )
    return of_rules(rules)


def random_caller(rng: random.Random) -> Caller:
    """Anybody, a device or a peer gateway, whose own place nobody may take for the origin."""
    kind = rng.random()
    site = rng.choice((None, "s1", "s1", "s2"))
    if kind < 0.55:
        return ANYBODY
    if kind < 0.8:
        device = rng.choice(("d1", "d2"))
        return Caller(device=device, origin=Origin(site, device))
    return Caller(peer="g9", origin=None if site is None else Origin(site))


def random_options(rng: random.Random, names: Sequence[str], caller: Caller) -> Options:
    """The options of a caller; a peer always sends a set, and the gateways that were passed."""
    peer = bool(caller.peer)
    return Options(
        privacy=rng.choice([None, None, *names, *names]) if rng.random() < 0.98 else "no-such-class",
        policy=None if rng.random() < 0.9 else "p0",
        max_cost=None if rng.random() < 0.9 else 0.0005,
        site=rng.choice((None, None, None, "s1", "s2")),
        device=rng.choice((None, None, None, "d1", "d2")),
        idempotent=rng.choice((None, True, True)),
        allowed=random_allowed(rng) if peer else None,
        hops=tuple(_some(rng, ["g0", "g1", "g2", "g9", "g8", "g7"], 0.3) or ("g9",)) if peer else (),
        caller=caller,
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
                    versions=rng.choice(VERSIONS),
                )
    options = random_options(rng, names, random_caller(rng))
    request = Request(
        model=rng.choice(("m0", "m1")),
        version=rng.choice(("", "", "", "", "", "", "1", "2")),
        options=options,
        payload_bytes=100,
        time_left_s=rng.choice((None, None, 0.03, 1.0)),
        decision_id="d",
        wall_time=0.0,
    )
    endpoints = {e.name: EndpointState(rng.random() < 0.9) for e in config.endpoints}
    return World(Snapshot(config, "1", endpoints, variants, random_groups(rng, config)), request)


def narrowed(world: World, privacy: str) -> World:
    """The same request with a class that the caller adds."""
    request = world.request
    return replace(world, request=replace(request, options=replace(request.options, privacy=privacy)))
