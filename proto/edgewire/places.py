"""Where something is, in the terms that privacy rules compare."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def is_name(text: str) -> bool:
    """Whether a region, a site or a device may be called so: 1 to 128 letters, digits, '.', '_' and '-',
    the first a letter or digit."""
    return _NAME.fullmatch(text) is not None


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
