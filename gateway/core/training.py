"""The trainer's contract: a function `run(job: TrainJob) -> TrainResult`, named MODULE:FUNCTION.

It runs in a process of its own where the update's `location` is, within its time and memory. What it
prints is kept as the run's log. It may raise: the sentence of its exception is shown, and the run is tried
again as often as configured. It gets no data that the model's class does not allow at that place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.core.release import Reference

Array = NDArray[Any]
Tensors = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Sample:
    """One labelled request: its inputs by name, rows first, and the label of every row, INT64 [rows]."""

    id: str
    inputs: Tensors
    labels: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TrainJob:
    """`version` is what the new release will be. `current`: the files of the release that serves, by slot.
    `data`: the base data set, as configured. `samples` are a share of what there is: others are held out
    for the gate. `progress(share, words)` tells how far it is, 0 to 1; it raises Cancelled when the run is
    to end, which the function lets pass."""

    model: str
    version: str
    current: Mapping[str, bytes]
    samples: Sequence[Sample]
    data: str | None = None
    progress: Callable[[float, str], None] = lambda share, words: None


class Cancelled(Exception):
    """The run is to end; nobody waits for what comes of it."""


@dataclass(frozen=True, slots=True)
class Golden:
    """Cases of inputs and the outputs that the file must give for them, to within `tolerance`."""

    cases: Sequence[tuple[Tensors, Tensors]]
    tolerance: float


@dataclass(frozen=True, slots=True)
class TrainedFile:
    """A model file and its golden vectors, without which no device would run it."""

    content: bytes = field(repr=False)
    golden: Golden


@dataclass(frozen=True, slots=True)
class TrainResult:
    """`files` by format, "onnx" and "tflite", made from the same weights. `reference`: each signal as it is
    on the data trained on (edgewire.signals), with bins that suit it. `metrics` are the trainer's own
    figures; the gate makes its own."""

    files: Mapping[str, TrainedFile]
    reference: Mapping[str, Reference]
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
