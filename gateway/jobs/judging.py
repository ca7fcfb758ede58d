"""How right a candidate's files and the current ones are on held-out data, found by a Ray task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.core.place import Place
from gateway.core.release import ANYWHERE
from gateway.core.training_run import PlacedSample, RunEvent, refuse_forbidden
from gateway.rollout.gate import Quality


class JudgingFailed(Exception):
    """Nothing was measured. `sentence` says why and what to do."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class ModelFile:
    """`format` is one of gateway.core.release.FORMATS."""

    format: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class QualitySpec:
    """Files by slot, `current` {} where there is none. `places`: where the candidate's files may go.
    `samples`: held out and labelled. `data`: the operator's held-out .npz. Raises Refusal where something
    of it may not be at `place`."""

    place: Place
    candidate: Mapping[str, ModelFile]
    current: Mapping[str, ModelFile] = field(default_factory=dict[str, ModelFile])
    places: str = ANYWHERE
    samples: tuple[PlacedSample, ...] = field(default=(), repr=False)
    data: Path | None = None
    resources: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        refuse_forbidden(self.place, self.places, self.samples)


@dataclass(frozen=True, slots=True)
class MeasuredQuality:
    """As gateway.rollout.gate.Figures takes it."""

    candidate: Mapping[str, Quality]
    current: Mapping[str, Quality]
    unmeasured: Mapping[str, str]


async def measure_quality(
    spec: QualitySpec, heard: Callable[[RunEvent], None] = lambda event: None
) -> MeasuredQuality:
    """Run every file over all held-out data. Raises JudgingFailed."""
    raise NotImplementedError
