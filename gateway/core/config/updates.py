"""How a model is kept fit: what is watched, how it is trained anew, checked, and rolled out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from edgewire.signals import CONFIDENCE
from gateway.core.config.basis import Location, ModelName, Name, NotNegative, Positive, Share, Strict
from gateway.core.evidence import KEPT_S

WAVE_PATTERN = r"^(([1-9][0-9]{0,8})|([1-9][0-9]?|100|0?\.[0-9]*[1-9]|[1-9][0-9]?\.[0-9]+)%)$"
ENTRYPOINT_PATTERN = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"


class DriftConfig(Strict):
    """When a model counts as out of touch with what it is asked."""

    signal: Literal["input.mean", "input.std", "output.confidence"] = CONFIDENCE
    detector: Name = "psi"
    """A kind of detector: psi, ks, adwin."""
    threshold: Positive = 0.2
    """Drift begins at this score, and ends below four fifths of it."""
    min_samples: Annotated[int, Field(ge=1)] = 500
    """Fewer values in the window say nothing."""
    window_s: Annotated[float, Field(gt=0, le=KEPT_S, allow_inf_nan=False)] = 600
    """No evidence is older than its bound."""


class LabelsConfig(Strict):
    """Where the truth about samples comes from: exactly one of the two."""

    file: Annotated[str, Field(min_length=1)] | None = None
    """A CSV file of the operator's, `sample,label`, relative to this file; read again at every run. A sample
    is named by the SHA-256 of its inputs, as `tidegate updates samples` gives it."""
    teacher: Name | None = None
    """The endpoint of a variant of the same model that is asked for the label."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.file is None) == (self.teacher is None):
            raise PydanticCustomError("labels", "labels needs either file or teacher")
        return self


class SamplesConfig(Strict):
    """Requests that are kept to be trained on. Only where their class allows the training place."""

    collect: Literal["none", "hard"] = "none"
    """hard: those of whose answer the model was not sure."""
    max_per_day: Annotated[int, Field(ge=1, le=1_000_000)] = 500
    """Of each device, and of each gateway."""
    confidence_below: Share = 0.8
    labels: LabelsConfig | None = None
    """None: samples are kept, and none is ever trained on."""


class TrainConfig(Strict):
    """A function that makes a better model, and where it runs."""

    entrypoint: Annotated[str, Field(pattern=ENTRYPOINT_PATTERN)]
    """MODULE:FUNCTION, importable where it runs."""
    resources: dict[Name, Positive] = Field(default_factory=lambda: {"CPU": 1.0})
    """By Ray's names."""
    location: Location
    data: str | None = None
    """The base data set, in whatever form the entrypoint takes it."""
    timeout_s: Positive = 3600
    memory_mb: Annotated[int, Field(ge=64)] | None = None
    """Address space that the run may take beyond what it begins with; None: no bound."""
    retries: Annotated[int, Field(ge=0, le=10)] = 1
    min_samples: Annotated[int, Field(ge=1)] = 100
    """Labelled samples that a run waits for."""


class GateConfig(Strict):
    """What a new model must show before any device gets it."""

    metric: Literal["accuracy"] = "accuracy"
    min: Share = 0.0
    not_worse_than_current: bool = True
    data: Annotated[str, Field(min_length=1)] | None = None
    """Held-out data of the operator's, relative to this file: an .npz of `input/NAME` arrays and `label`,
    all of one length. Every fifth labelled sample is held out besides."""
    per_class_drop: Share = 0.1
    """No class may lose more than this against the current model."""
    quantized_drop: Share = 0.03
    """Nor may the file for devices be worse by more than this than the one that it was made from."""
    latency_ratio: Positive = 1.5
    """Nor may one real device take longer by more than this factor."""


class HaltConfig(Strict):
    """What ends a rollout: reached is over. New devices against those still on the old version."""

    error_rate: Share = 0.02
    latency_p95_ratio: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 1.3
    """With 1 every version would be turned back that is no faster."""
    confidence_drop: Share = 0.1
    """Of the mean confidence."""


def _wave(value: object) -> object:
    return str(value) if type(value) is int else value


_Form = Annotated[str, Field(pattern=WAVE_PATTERN)]
Wave = Annotated[
    _Form, BeforeValidator(_wave, json_schema_input_type=_Form | Annotated[int, Field(ge=1, lt=10**9)])
]
"""Devices, as a number or a share; a number may be written as one."""


class RolloutConfig(Strict):
    """How a release reaches the devices."""

    unit: Literal["devices"] = "devices"
    waves: Annotated[tuple[Wave, ...], Field(min_length=1, strict=False)] = ("1", "10%", "50%", "100%")
    """Devices, as a number or a share of those that can take it; the last is 100%."""
    soak_s: NotNegative = 300
    """How long a wave is watched once its devices run the new version."""
    min_requests: Annotated[int, Field(ge=0)] = 20
    """Answers of the new version that a wave must show: no evidence is not success."""
    device_timeout_s: Positive = 900
    """A connected device that has not come to an end of its update by then has failed."""
    halt: HaltConfig = HaltConfig()

    @field_validator("waves")
    @classmethod
    def _ascending(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value[-1] != "100%":
            raise PydanticCustomError("waves", "the last wave must be 100%, all that can take the release")
        for kind in (False, True):
            sizes = [float(wave.rstrip("%")) for wave in value if wave.endswith("%") is kind]
            if any(b <= a for a, b in pairwise(sizes)):
                raise PydanticCustomError("waves", "each wave must be larger than the one before")
        return value


class UpdateConfig(Strict):
    """One model."""

    model: ModelName
    drift: DriftConfig = DriftConfig()
    samples: SamplesConfig = SamplesConfig()
    train: TrainConfig | None = None
    """None: drift is told, and nothing is trained."""
    gate: GateConfig = GateConfig()
    rollout: RolloutConfig = RolloutConfig()


def report_interval_s(updates: Sequence[UpdateConfig]) -> float:
    """How often devices and gateways are to report, 1 to 60 s: so that the shortest window of drift has ten
    reports, and the shortest soak three. Evidence is kept as fine as that."""
    windows = [update.drift.window_s / 10 for update in updates]
    soaks = [update.rollout.soak_s / 3 for update in updates]
    return max(1.0, min([60.0, *windows, *soaks]))
