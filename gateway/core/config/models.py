"""The models of `tidegate.yaml`. Strict: unknown keys, wrong types and wrong units are errors.

Units are in key names; money is in `currency`. Names and references (a variant's endpoint, a
model's class) are checked by `Config` itself, so an instance of it is consistent. Whether the parts
also make sense together is `checks.sense`'s question, asked of files.

Any text may come from `${env:}` or `${file:}`, so a repr shows names and numbers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    SerializeAsAny,
    Tag,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from gateway.core.config import checks
from gateway.core.config.basis import (
    Glob,
    Location,
    ModelName,
    Name,
    NotNegative,
    Positive,
    Share,
    Strict,
)
from gateway.core.config.endpoints import EndpointConfig
from gateway.core.config.updates import UpdateConfig
from gateway.core.place import Tier

FIRST_VERSION = "1"
"""Of a file that was given none."""
VERSION_PATTERN = r"^[0-9]+$"
CURRENCY_PATTERN = r"^[A-Z]{3}$"

MOST_REPLICAS = 16
"""Control asks all of them for what is told of the gateway as a whole."""
MIN_TOKEN = 32
"""Shortest credential of a peer gateway, in characters: it must not be guessed."""


class Limits(Strict):
    """What the gateway takes on before it refuses."""

    max_body_mb: Positive = 64
    """Largest body taken, in MiB (2**20 bytes)."""
    buffer_mb: Positive = 4
    """A body up to this size (MiB) is kept so that it can be sent again; a larger one gets one attempt."""
    max_inflight: Annotated[int, Field(ge=1)] = 2000
    """Requests in work at once; one more is refused as overloaded."""


class Replicas(Strict):
    """Data plane replicas. This version runs as many as both say, and does not follow the load."""

    min: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1
    max: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1


class PeerConfig(Strict):
    """A gateway that may pass requests on to this one, and where the data it passes on comes from."""

    name: Name
    token: Annotated[str, Field(min_length=MIN_TOKEN)]
    """What it shows as its credential; the same text is `token` on its endpoint for this gateway."""
    site: Name | None = None
    """Origin of its requests, for `same: [site]`; None: not known, and `same` matches nothing."""


class GatewayConfig(Strict):
    """The gateway itself. Its location takes part in every privacy decision."""

    name: Name
    location: Location
    limits: Limits = Limits()
    replicas: Replicas = Replicas()
    peers: Annotated[tuple[PeerConfig, ...], Field(strict=False)] = ()


class Batching(Strict):
    """Requests that may be put together are answered at once: up to `max_size` rows, none kept
    waiting longer than `delay_ms`."""

    max_size: Annotated[int, Field(ge=1, le=1024)]
    delay_ms: NotNegative = 0


class VariantConfig(Strict):
    """One way to answer a model: an endpoint, and what the model is called there."""

    endpoint: Name
    model: ModelName | None = None
    """The model's name on the endpoint; None: the same name as here."""
    version: Annotated[str, Field(pattern=VERSION_PATTERN)] | None = None
    """The version on the endpoint, which it stays at; None: it follows the model's releases, or answers with
    whichever the endpoint chooses."""
    weight: Annotated[int, Field(ge=0)] = 1
    """Share among equals (canary)."""
    precision: Name | None = None
    quality: Share | None = None
    """How good its answers are, 0 to 1, e.g. accuracy on a set of your own."""
    artifact: Annotated[str, Field(min_length=1)] | None = None
    """The model file that a pool or the devices of a group are to run, relative to this file. Beside it
    may lie its golden vectors, `ARTIFACT.golden.npz`."""
    batching: Batching | None = None
    """Only with `artifact`; None: each request is run by itself."""


class ModelConfig(Strict):
    """A model as callers name it, and every way to answer it."""

    name: ModelName
    privacy: Name | None = None
    """The model's class; None: `privacy.default`."""
    idempotent: bool = False
    """Whether asking twice does no harm, so that a failed attempt may be sent again."""
    variants: Annotated[tuple[VariantConfig, ...], Field(min_length=1, strict=False)]


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


SomeTiers = Annotated[
    tuple[Annotated[Tier, Field(strict=False)], ...],
    Field(min_length=1, strict=False),
    BeforeValidator(_listed, json_schema_input_type=Tier | Annotated[list[Tier], Field(min_length=1)]),
]
SomeNames = Annotated[
    tuple[Name, ...],
    Field(min_length=1, strict=False),
    BeforeValidator(_listed, json_schema_input_type=Name | Annotated[list[Name], Field(min_length=1)]),
]
_Same = Literal["site", "device"]
SomeSame = Annotated[
    tuple[_Same, ...],
    Field(min_length=1, strict=False),
    BeforeValidator(_listed, json_schema_input_type=_Same | Annotated[list[_Same], Field(min_length=1)]),
]


class Allow(Strict):
    """One place rule of a class: every part that is given must hold. A single value counts as a
    list of one; an empty list or an empty rule is an error."""

    tier: SomeTiers | None = None
    region: SomeNames | None = None
    site: SomeNames | None = None
    same: SomeSame | None = None
    """The place's site or device must be the one that the request comes from."""

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.tier is None and self.region is None and self.site is None and self.same is None:
            raise PydanticCustomError(
                "rule", "an empty rule would allow every place: name at least its tiers"
            )
        return self


class ClassConfig(Strict):
    """A privacy class: the places where its data may go. What no rule lists is forbidden."""

    allow: Annotated[tuple[Allow, ...], Field(min_length=1, strict=False)]


class PrivacyConfig(Strict):
    """Every class, and the one that a model without a class of its own has."""

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
    """What a place must be measured or declared to meet."""

    latency_p95_ms: Positive | None = None
    max_cost_per_1k: Positive | None = None
    min_quality: Share | None = None


class Weights(Strict):
    """How much each scorer counts. At least one is positive."""

    cost: NotNegative = 0
    latency: NotNegative = 0
    quality: NotNegative = 0

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not (self.cost or self.latency or self.quality):
            raise PydanticCustomError("weights", "at least one weight must be greater than 0")
        return self


class Retry(Strict):
    """Attempts beyond the first, and how much of the traffic they may become."""

    num_retries: Annotated[int, Field(ge=0, le=10)] = 1
    budget_percent: Annotated[float, Field(ge=0, le=100)] = 20
    """Retries in flight may be this share of the requests in flight ..."""
    min_concurrent: Annotated[int, Field(ge=0)] = 10
    """... but this many are always allowed."""


class Relax(Strict):
    """Requirements to drop, in this order, when no place meets them all. Never privacy."""

    relax: Annotated[tuple[Literal["cost", "latency", "quality"], ...], Field(min_length=1, strict=False)]


def _on_no_candidate(value: object) -> str | None:
    if isinstance(value, str):
        return "<reject>"
    return "<relax>" if isinstance(value, Mapping | Relax) else None


OnNoCandidate = Annotated[
    Annotated[Literal["reject"], Tag("<reject>")] | Annotated[Relax, Tag("<relax>")],
    Discriminator(
        _on_no_candidate,
        custom_error_type="on_no_candidate",
        custom_error_message="must be reject or {relax: [...]} with cost, latency or quality",
    ),
]


class PolicyConfig(Strict):
    """What counts for the requests that it matches. The first policy that matches applies."""

    name: Name
    match: Match
    require: Require = Require()
    weights: Weights
    retry: Retry = Retry()
    on_no_candidate: OnNoCandidate = "reject"


class Telemetry(Strict):
    """Where spans and metrics go."""

    otlp_endpoint: str | None = None
    """Base URL of an OTLP/HTTP receiver, e.g. http://127.0.0.1:4318; None: nothing is exported."""
    sample_ratio: Share = 0.05
    """Share of the traces begun here that are kept, 0 to 1; a caller's own choice is followed."""

    @field_validator("otlp_endpoint")
    @classmethod
    def _http_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            url = urlsplit(value)
            good = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
            good = good and not url.query and not url.fragment
        except ValueError:
            good, url = False, None
        if not good or url is None:
            raise PydanticCustomError(
                "url",
                "otlp_endpoint is not the base URL of an OTLP/HTTP receiver such as http://127.0.0.1:4318",
            )
        if url.username is not None:
            raise PydanticCustomError(
                "url", "otlp_endpoint must hold no credentials: use OTEL_EXPORTER_OTLP_HEADERS"
            )
        return value


def _one(value: object) -> object:
    if type(value) is not int or value != 1:
        raise PydanticCustomError("version", "version must be 1, the version of this file format")
    return value


class Config(Strict):
    """The whole file. Raises ValidationError when names repeat or a reference leads nowhere."""

    version: Annotated[Literal[1], BeforeValidator(_one, json_schema_input_type=Literal[1])]
    """Version of this file format."""
    currency: Annotated[str, Field(pattern=CURRENCY_PATTERN)] = "USD"
    """ISO 4217 code of every amount in the file."""
    gateway: GatewayConfig
    endpoints: Annotated[tuple[SerializeAsAny[EndpointConfig], ...], Field(min_length=1, strict=False)]
    """Each an instance of its kind's own model."""
    models: Annotated[tuple[ModelConfig, ...], Field(strict=False)] = ()
    """At least one, unless an endpoint has `discover`."""
    privacy: PrivacyConfig
    policies: Annotated[tuple[PolicyConfig, ...], Field(min_length=1, strict=False)]
    updates: Annotated[tuple[UpdateConfig, ...], Field(strict=False)] = ()
    """Models that are kept fit: at most one entry a model."""
    artifacts: str | None = None
    """URL of the store of released artifacts: file:///PATH or s3://BUCKET/PREFIX; None: a folder of the
    state directory."""
    telemetry: Telemetry = Telemetry()

    @field_validator("artifacts")
    @classmethod
    def _store_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            url = urlsplit(value)
            good = not (url.query or url.fragment) and (
                (url.scheme == "file" and not url.netloc and url.path.startswith("/"))
                or (url.scheme == "s3" and bool(url.hostname))
            )
        except ValueError:
            good, url = False, None
        if url is not None and "@" in url.netloc:
            raise PydanticCustomError(
                "url",
                "artifacts must hold no credentials: use the environment's AWS_ACCESS_KEY_ID and the like",
            )
        if not good:
            raise PydanticCustomError(
                "url", "artifacts is no store's URL: write file:///PATH or s3://BUCKET/PREFIX"
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        found = [finding.message for finding in checks.references(self.model_dump(mode="json"))]
        if found:
            raise PydanticCustomError("references", "{found}", {"found": "; ".join(found)})
        return self
