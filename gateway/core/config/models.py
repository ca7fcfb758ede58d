"""The models of `tidegate.yaml`. Strict: unknown keys, wrong types and wrong units are errors.

Units are in key names; money is in `currency`. Cross-references (a variant's endpoint, a model's
class) are checked by `Config` itself, so an instance of it is consistent.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.core.place import Place, Tier

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""Names of endpoints, policies, classes, sites: they become labels and headers."""
ModelName = Annotated[str, Field(min_length=1, max_length=256)]
Glob = Annotated[str, Field(min_length=1, max_length=256)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Location(Strict):
    """Where the operator says something is."""

    tier: Annotated[Tier, Field(strict=False)]
    region: Name | None = None
    site: Name | None = None
    device: Name | None = None

    @property
    def place(self) -> Place:
        return Place(self.tier, self.region, self.site, self.device)


class Limits(Strict):
    max_body_mb: Positive = 64
    """Largest body taken, in MiB (2**20 bytes)."""
    buffer_mb: Positive = 4
    """A body up to this size (MiB) is kept so that it can be sent again; a larger one gets one attempt."""
    max_inflight: Annotated[int, Field(ge=1)] = 2000


class Replicas(Strict):
    """Data plane replicas. This version runs exactly one."""

    min: Annotated[int, Field(ge=1)] = 1
    max: Annotated[int, Field(ge=1)] = 1


class GatewayConfig(Strict):
    name: Name
    location: Location
    limits: Limits = Limits()
    replicas: Replicas = Replicas()


class Price(Strict):
    """What an endpoint costs. `per_hour` is for the whole endpoint; `per_request` excludes it."""

    per_hour: NotNegative | None = None
    per_request: NotNegative | None = None
    egress_per_gb: NotNegative = 0
    """Per 10**9 bytes carried to and from the endpoint."""


class EndpointConfig(Strict):
    """What every kind of endpoint declares. A kind's own model adds its keys by inheritance."""

    name: Name
    kind: str
    location: Location
    labels: dict[str, str] = Field(default_factory=dict)
    hardware: dict[str, str | float | int] = Field(default_factory=dict)
    price: Price = Price()


class VariantConfig(Strict):
    """One way to answer a model: an endpoint, and what the model is called there."""

    endpoint: Name
    model: ModelName | None = None
    """The model's name on the endpoint; None: the same name as here."""
    version: Annotated[str, Field(pattern=r"^[0-9]+$")] | None = None
    """The version on the endpoint; None: whichever the endpoint chooses."""
    weight: Annotated[int, Field(ge=0)] = 1
    """Share among equals (canary)."""
    precision: Name | None = None
    quality: Share | None = None


class ModelConfig(Strict):
    name: ModelName
    privacy: Name | None = None
    """The model's class; None: `privacy.default`."""
    idempotent: bool = False
    variants: Annotated[tuple[VariantConfig, ...], Field(min_length=1, strict=False)]


class Allow(Strict):
    """One place rule of a class; a scalar counts as a list of one, an empty list is an error."""

    tier: (
        Annotated[tuple[Annotated[Tier, Field(strict=False)], ...], Field(min_length=1, strict=False)] | None
    ) = None
    region: Annotated[tuple[Name, ...], Field(min_length=1, strict=False)] | None = None
    site: Annotated[tuple[Name, ...], Field(min_length=1, strict=False)] | None = None
    same: Annotated[tuple[Literal["site", "device"], ...], Field(min_length=1, strict=False)] | None = None


class ClassConfig(Strict):
    allow: Annotated[tuple[Allow, ...], Field(min_length=1, strict=False)]


class PrivacyConfig(Strict):
    default: Name
    classes: Annotated[dict[Name, ClassConfig], Field(min_length=1)]


Globs = Annotated[tuple[Glob, ...], Field(min_length=1, strict=False)]


class Match(Strict):
    """Globs over model, tenant, origin site and privacy class; an absent list matches everything."""

    models: Globs = ("*",)
    tenants: Globs = ("*",)
    sites: Globs = ("*",)
    privacy: Globs = ("*",)


class Require(Strict):
    latency_p95_ms: Positive | None = None
    max_cost_per_1k: Positive | None = None
    min_quality: Share | None = None


class Weights(Strict):
    """How much each scorer counts. At least one is positive."""

    cost: NotNegative = 0
    latency: NotNegative = 0
    quality: NotNegative = 0


class Retry(Strict):
    num_retries: Annotated[int, Field(ge=0, le=10)] = 1
    budget_percent: Annotated[float, Field(ge=0, le=100)] = 20
    """Retries in flight may be this share of the requests in flight ..."""
    min_concurrent: Annotated[int, Field(ge=0)] = 10
    """... but this many are always allowed."""


class Relax(Strict):
    """Requirements to drop, in this order, when no place meets them all. Never privacy."""

    relax: Annotated[tuple[Literal["cost", "latency", "quality"], ...], Field(min_length=1, strict=False)]


class PolicyConfig(Strict):
    name: Name
    match: Match
    require: Require = Require()
    weights: Weights
    retry: Retry = Retry()
    on_no_candidate: Literal["reject"] | Relax = "reject"


class Telemetry(Strict):
    otlp_endpoint: str | None = None
    """Base URL of an OTLP/HTTP receiver, e.g. http://127.0.0.1:4318; None: nothing is exported."""
    sample_ratio: Share = 0.05


class Config(Strict):
    version: Literal[1]
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    gateway: GatewayConfig
    endpoints: Annotated[tuple[EndpointConfig, ...], Field(min_length=1, strict=False)]
    models: Annotated[tuple[ModelConfig, ...], Field(min_length=1, strict=False)]
    privacy: PrivacyConfig
    policies: Annotated[tuple[PolicyConfig, ...], Field(min_length=1, strict=False)]
    telemetry: Telemetry = Telemetry()
