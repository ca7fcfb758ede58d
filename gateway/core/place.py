"""Where something is, and the rules that say where data may go."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Tier(StrEnum):
    """How far from the origin of the data a place is, nearest first."""

    DEVICE = "device"
    SITE = "site"
    REGIONAL = "regional"
    CLOUD = "cloud"


@dataclass(frozen=True, slots=True)
class Place:
    """A declared location. Absent parts are None and match no rule that asks for them."""

    tier: Tier
    region: str | None = None
    site: str | None = None
    device: str | None = None

    def __str__(self) -> str:
        """As messages name it: tier cloud, region eu-west-1."""
        parts = (("tier", self.tier), ("region", self.region), ("site", self.site), ("device", self.device))
        return ", ".join(f"{part} {value}" for part, value in parts if value is not None)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request's data comes from. None: not known, and `same` then matches nothing."""

    site: str | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class PlaceRule:
    """One entry of a class's `allow`: every part that is given must hold.

    `tiers`, `regions` and `sites` are sets of names; None means not asked for. `same` holds
    "site" and/or "device": the place's value must be known and equal to the origin's.
    """

    tiers: frozenset[Tier] | None = None
    regions: frozenset[str] | None = None
    sites: frozenset[str] | None = None
    same: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PrivacyClass:
    """A named set of places: whatever no rule lists is forbidden."""

    name: str
    allow: tuple[PlaceRule, ...]
