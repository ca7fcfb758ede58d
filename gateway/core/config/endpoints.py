"""What every kind of endpoint declares. A kind's own model adds its keys by inheritance."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from gateway.core.config.basis import Location, Name, NotNegative, Strict
from gateway.core.place import Place


class Price(Strict):
    """What an endpoint costs. `per_hour` is for the whole endpoint; `per_request` excludes it."""

    per_hour: NotNegative | None = None
    per_request: NotNegative | None = None
    egress_per_gb: NotNegative = 0
    """Per 10**9 bytes carried to and from the endpoint."""

    @model_validator(mode="after")
    def _one_basis(self) -> Self:
        if self.per_hour is not None and self.per_request is not None:
            raise PydanticCustomError("price", "per_hour and per_request exclude each other: keep one")
        return self


def _fact(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PydanticCustomError("fact", "a hardware fact must be a text or a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise PydanticCustomError("fact", "a hardware fact must be a finite number")
    return value


Fact = Annotated[str | int | float, BeforeValidator(_fact, json_schema_input_type=str | int | float)]


class EndpointConfig(Strict):
    """What every kind of endpoint declares. A kind's own model adds its keys by inheritance, from
    `PlacedConfig` where the operator says where it is."""

    name: Name
    kind: str
    labels: dict[str, str] = Field(default_factory=dict)
    """Free text for people; shown by the operator API."""
    hardware: dict[str, Fact] = Field(default_factory=dict)
    """Free facts for people; shown by the operator API."""
    price: Price = Price()

    not_identity: ClassVar[frozenset[str]] = frozenset()
    """Keys of the kind's own that say nothing of which server it is."""

    @property
    def identity(self) -> str:
        """Twelve hex digits that tell one server from another under the same name: they change with
        what the kind itself declares (its address), not with price, place or labels."""
        left_out = (set(PlacedConfig.model_fields) - {"kind"}) | self.not_identity
        own = self.model_dump(mode="json", exclude=left_out)
        return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def place(self) -> Place | None:
        """Where the endpoint is; None for a group of devices, each of which has a place of its own."""
        return None

    @property
    def discovers(self) -> str | None:
        """The class in which every model that it has is offered; None where `models` alone says what is."""
        return None

    def follows(self, artifact: str | None) -> tuple[str, ...]:
        """Formats of the releases that it can be moved to, the best first, for a variant with this artifact
        and no version of its own; () where it is not told what to serve, or its devices are told by
        themselves."""
        return ()


class DiscoverConfig(Strict):
    """Offer every model that the endpoint has, under its own name."""

    privacy: Name
    """The class of these models."""


class PlacedConfig(EndpointConfig):
    """An endpoint in one place."""

    location: Location

    @property
    def place(self) -> Place:
        return self.location.place
