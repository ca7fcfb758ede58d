"""What updates need from their surroundings, as protocols."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from edgewire.places import Place
from gateway.analytics.evidence import SignalWindows
from gateway.analytics.samples import Kept
from gateway.control.ports import Changed, Fits, Fleet
from gateway.core.release import ANYWHERE, Blob, Reference, Release
from gateway.core.training import TrainResult
from gateway.core.training_run import PlacedSample, RunEvent, TrainSpec
from gateway.jobs.judging import MeasuredQuality, QualitySpec


class Releases(Protocol):
    """Every change is on disk before it returns, and raises OipError when it cannot be made."""

    def get(self, model: str, version: str) -> Release:
        """Raises OipError NOT_FOUND."""
        ...

    def of(self, model: str) -> Sequence[Release]:
        """Every release of a model."""
        ...

    def standing(self) -> Mapping[str, str]:
        """The version that stands, by model."""
        ...

    async def add(
        self,
        model: str,
        files: Mapping[str, tuple[str, bytes | Blob, bytes | Blob | None]],
        *,
        places: str = ANYWHERE,
        reference: Mapping[str, Reference] | None = None,
        metrics: Mapping[str, float] | None = None,
        source: str,
        version: str | None = None,
    ) -> Release:
        """A new candidate; `files` by slot: format, content, golden vectors."""
        ...

    async def judged(
        self, model: str, version: str, passed: bool, metrics: Mapping[str, float] | None = None
    ) -> Release:
        """The gate's word on a release; it may be said again."""
        ...


class Samples(Protocol):
    """Requests that are kept. Whoever takes one names the place that it goes to."""

    async def listed(self, model: str) -> Sequence[Kept]:
        """All of a model, newest first, without their requests."""
        ...

    async def unlabelled(
        self, model: str, place: Place, most: int, but: Collection[str] = ()
    ) -> Sequence[Kept]:
        """The newest without a teacher's word that may go to the teacher's place, `but` these."""
        ...

    async def label(self, model: str, id: str, labels: Sequence[int]) -> bool: ...

    async def trainable(
        self, model: str, training: Place, labels: Mapping[str, Sequence[int]] | None = None
    ) -> int:
        """How many `for_training` gives."""
        ...

    async def for_training(
        self, model: str, training: Place, labels: Mapping[str, Sequence[int]] | None = None
    ) -> Sequence[PlacedSample]:
        """Every labelled one that may go to the training place; the operator's labels go before a teacher's."""
        ...


class Evidence(Protocol):
    async def windows(
        self, model: str, version: str, signal: str, since: float, until: float
    ) -> SignalWindows: ...


class Rollouts(Protocol):
    """Rollouts as gateway.rollout.view tells them."""

    async def start(self, model: str, version: str, *, source: str) -> str:
        """The id of the rollout. Asked again by the same source it answers the same. Raises OipError where
        none may be started now."""
        ...

    async def abort(self, id: str) -> object: ...

    def views(self) -> Sequence[Mapping[str, Any]]: ...


Heard = Callable[[RunEvent], None]

Train = Callable[[TrainSpec, Heard, int], Awaitable[TrainResult]]
"""Run the trainer, from the attempt of that number (from 1) on. Raises TrainFailed."""

MeasureQuality = Callable[[QualitySpec, Heard], Awaitable[MeasuredQuality]]
"""Raises JudgingFailed."""

ContentOf = Callable[[Blob], Awaitable[bytes]]
"""Raises BlobError."""

Teach = Callable[[str, str, bytes, str], Awaitable[Sequence[int]]]
"""Ask, for a model, an endpoint for the labels of a serialized ModelInferRequest, one a row; the text is the set of places
that the request may go to. Raises OipError."""


@dataclass(frozen=True, slots=True)
class UpdatePorts:
    """All of it."""

    releases: Releases
    samples: Samples
    evidence: Evidence
    rollouts: Rollouts
    train: Train
    measure: MeasureQuality
    content: ContentOf
    teach: Teach
    fleet: Fleet
    fits: Fits
    changed: Changed
