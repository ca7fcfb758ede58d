"""What rollouts need from their surroundings, as protocols."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.core.config import RolloutConfig
from gateway.core.evidence import Evidence
from gateway.core.fleet import DeviceReport
from gateway.core.release import Release


class Releases(Protocol):
    """The released artifacts and what stands. Every change is on disk before it returns, may be made again,
    and raises OipError when it cannot be made now."""

    def get(self, model: str, version: str) -> Release:
        """Raises OipError NOT_FOUND."""
        ...

    def standing(self) -> Mapping[str, str]:
        """The version that stands, by model."""
        ...

    async def judged(self, model: str, version: str, passed: bool) -> Release:
        """A word on a candidate: without one it cannot be ordered."""
        ...

    async def order_back(self, model: str, version: str) -> Release:
        """Sign a release so that devices may serve it whatever they serve now: with an order above every
        other of the model, and no longer as a trial. One that is so already stays as it is."""
        ...

    async def stand(self, model: str, version: str) -> Release: ...

    async def withdraw(self, model: str, version: str) -> Release: ...


@dataclass(frozen=True, slots=True)
class Fit:
    """How a device of the model stands to a release. `runs_as` is the model's name on the device, `digest`
    that of the file that it is to run. `why_not` says why it cannot run it, in a clause; "" where it can."""

    runs_as: str
    digest: str
    why_not: str = ""


Fits = Callable[[Release, DeviceReport], Fit | None]
"""None for a device that is in no group of the model, or of which a pinned variant says what it runs."""

Fleet = Callable[[], Awaitable[Sequence[DeviceReport]]]
"""Every device that is enrolled and not revoked."""

EvidenceOf = Callable[[str, str, float, float], Awaitable[Evidence]]
"""Of a model and version, from one wall time to another (seconds since the epoch)."""

FollowersOf = Callable[[Release], Mapping[str, str]]
"""Endpoints besides devices whose variants follow the model's standing release: "" where this release can
go, else why not, in a clause."""

Follow = Callable[[str, str], Awaitable[Mapping[str, str]]]
"""Bring the followers of a model to a version; returns when they serve it. By endpoint: "" or why it does
not, in a clause. May be asked again, for the same version or another."""

PlanOf = Callable[[str], RolloutConfig]
"""How a model's releases are rolled out, as configured now."""

Changed = Callable[[], Awaitable[None]]
"""Have the hub read its orders anew. Raises OipError when it cannot be told now."""


@dataclass(frozen=True, slots=True)
class Outside:
    """All of it."""

    releases: Releases
    fleet: Fleet
    fits: Fits
    evidence: EvidenceOf
    followers: FollowersOf
    follow: Follow
    plan_of: PlanOf
    changed: Changed
