"""Places as the edge link's messages hold them."""

from __future__ import annotations

from edgewire.places import Place, Tier, is_name
from edgewire.v1 import edge_pb2


def to_wire(place: Place) -> edge_pb2.Place:
    return edge_pb2.Place(
        tier=place.tier.value, region=place.region or "", site=place.site or "", device=place.device or ""
    )


def from_wire(message: edge_pb2.Place) -> Place | None:
    """None for what is no place: nothing may go there."""
    try:
        tier = Tier(message.tier)
    except ValueError:
        return None
    parts = (message.region, message.site, message.device)
    if not all(part == "" or is_name(part) for part in parts):
        return None
    region, site, device = (part or None for part in parts)
    return Place(tier, region, site, device)
