"""What the models of `tidegate.yaml` have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field

from gateway.core.place import Place, Tier

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=NAME_PATTERN)]
"""Names of endpoints, policies, classes, sites: they become labels and headers."""
ModelName = Annotated[str, Field(min_length=1, max_length=256)]
Glob = Annotated[str, Field(min_length=1, max_length=256)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


_PUBLIC = frozenset(
    {"name", "kind", "endpoint", "model", "privacy", "default", "region", "site", "device", "currency"}
)


def _shown(key: str, value: object) -> object:
    if isinstance(value, str) and not isinstance(value, Enum) and key not in _PUBLIC:
        return "***"
    if isinstance(value, Mapping):
        mapping = cast("Mapping[str, object]", value)
        return {name: _shown("", item) for name, item in mapping.items()}
    return value


class Strict(BaseModel):
    """A part of the file: unknown keys and coerced types are errors, instances are frozen."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for key, value in super().__repr_args__():
            yield key, _shown(key or "", value)


class Location(Strict):
    """Where the operator says something is."""

    tier: Annotated[Tier, Field(strict=False)]
    region: Name | None = None
    site: Name | None = None
    """Needed by tiers device and site for `same: [site]`; required on tier site."""
    device: Name | None = None
    """Required on tier device, and on no other."""

    @property
    def place(self) -> Place:
        return Place(self.tier, self.region, self.site, self.device)
