"""How right a candidate's files and the current ones are on held-out data, found by a Ray task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gateway.core.place import Place
from gateway.core.release import ANYWHERE
from gateway.core.training import Sample
from gateway.core.training_run import PlacedSample, RunEvent, RunKind, one_sentence, refuse_forbidden
from gateway.jobs.judging_task import Rows, measure
from gateway.jobs.streamed import TaskFailed, streamed
from gateway.rollout.gate import CANDIDATE, CURRENT, Quality


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
    """Files by slot, `current` {} where there is none. `places`, `current_places`: where the candidate's files
    and the current ones may go. `samples`: held out and labelled. `data`: the operator's held-out .npz.
    `resources`: Ray's, which lead to a machine at `place`. Raises Refusal where something of it may not be
    at `place`."""

    place: Place
    candidate: Mapping[str, ModelFile]
    current: Mapping[str, ModelFile] = field(default_factory=dict[str, ModelFile])
    places: str = ANYWHERE
    samples: tuple[PlacedSample, ...] = field(default=(), repr=False)
    data: Path | None = None
    resources: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    timeout_s: float = 600.0
    current_places: str = ANYWHERE

    def __post_init__(self) -> None:
        refuse_forbidden(self.place, self.places, self.samples)
        refuse_forbidden(self.place, self.current_places, ())


@dataclass(frozen=True, slots=True)
class MeasuredQuality:
    """As gateway.rollout.gate.Figures takes it."""

    candidate: Mapping[str, Quality]
    current: Mapping[str, Quality]
    unmeasured: Mapping[str, str]


async def measure_quality(
    spec: QualitySpec, heard: Callable[[RunEvent], None] = lambda event: None
) -> MeasuredQuality:
    """Run every file over all held-out data, each in the runtime of its format. Without held-out data
    nothing is run, and every Quality is of no rows. Raises JudgingFailed."""
    held_out = [*(await asyncio.to_thread(_of_operator, spec.data)), *_of_samples(spec.samples)]
    if not any(len(part.labels) for part in held_out):
        nothing = {slot: Quality(file.format, {}, {}) for slot, file in spec.candidate.items()}
        return MeasuredQuality(nothing, {}, {})
    files = {
        which + slot: (file.format, file.content)
        for which, found in ((CANDIDATE, spec.candidate), (CURRENT, spec.current))
        for slot, file in found.items()
    }
    cpus = spec.resources.get("CPU", 1.0)
    at, qualities, unmeasured = "", {}, {}
    try:
        stream = streamed(
            measure,
            files,
            held_out,
            cpus,
            resources=spec.resources,
            timeout_s=spec.timeout_s,
            waiting=lambda words: heard(RunEvent(RunKind.WAITING, words)),
        )
        async with aclosing(stream) as messages:
            async for message in messages:
                match message:
                    case ("measuring", at):
                        share = list(files).index(at) / len(files)
                        heard(RunEvent(RunKind.PROGRESS, f"measuring {at}", share))
                    case ("measured", name, rows, right):
                        qualities[name] = Quality(files[name][0], rows, right)
                    case ("unmeasured", name, why):
                        unmeasured[name] = why
                    case _:
                        heard(RunEvent(RunKind.BEGAN))
    except TaskFailed as fault:
        doing = f"measuring the file {at}" if at else "measuring"
        raise JudgingFailed(one_sentence(f"The gate failed {doing}. {fault}")) from None
    return MeasuredQuality(_those(qualities, CANDIDATE), _those(qualities, CURRENT), unmeasured)


def _those(qualities: Mapping[str, Quality], prefix: str) -> dict[str, Quality]:
    return {name.removeprefix(prefix): q for name, q in qualities.items() if name.startswith(prefix)}


def _of_samples(samples: tuple[PlacedSample, ...]) -> list[Rows]:
    """Samples of one form together."""
    forms: dict[tuple[object, ...], list[Sample]] = {}
    for placed in samples:
        sample = placed.sample
        if any(array.shape[:1] != sample.labels.shape for array in sample.inputs.values()):
            raise JudgingFailed("A held-out sample has not one label for each of its rows.")
        form = tuple((name, a.dtype.str, a.shape[1:]) for name, a in sorted(sample.inputs.items()))
        forms.setdefault(form, []).append(sample)
    return [
        Rows(
            {name: np.concatenate([sample.inputs[name] for sample in alike]) for name in alike[0].inputs},
            np.concatenate([sample.labels for sample in alike]),
        )
        for alike in forms.values()
    ]


def _of_operator(path: Path | None) -> list[Rows]:
    """The file's rows. Raises JudgingFailed."""
    if path is None:
        return []
    where = f"The held-out data {path.name}"
    try:
        with np.load(path, allow_pickle=False) as found:
            arrays = {name: np.asarray(found[name]) for name in found.files}
    except OSError as error:
        raise JudgingFailed(f"{where} cannot be read: {(error.strerror or 'it is bent').lower()}.") from None
    except Exception:  # zip, its packers and numpy raise what they like of a bent file
        raise JudgingFailed(f"{where} is no .npz that can be read without pickle.") from None
    labels = arrays.pop("label", None)
    if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise JudgingFailed(f"{where} needs an array `label` of one integer for each row.")
    strange = [name for name in arrays if not name.removeprefix("input/") or not name.startswith("input/")]
    if strange or not arrays:
        named = f", and not {strange[0][:64]!r}" if strange else ""
        raise JudgingFailed(f"{where} needs an array `input/NAME` for each of the model's inputs{named}.")
    for name, array in arrays.items():
        if array.shape[:1] != labels.shape:
            raise JudgingFailed(f"{where}: {name[:64]} and label are not of the same length.")
    return [Rows({name.removeprefix("input/"): a for name, a in arrays.items()}, labels.astype(np.int64))]
