"""Where something is, and the rules that say where data may go."""

from __future__ import annotations

from dataclasses import dataclass

from edgewire.places import Place, Tier

__all__ = ["Origin", "Place", "PlaceRule", "PrivacyClass", "Tier"]


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
