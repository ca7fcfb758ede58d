"""What an update has done: its samples labelled, its trainer run, its release measured and judged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from edgewire.places import Place
from gateway.analytics.labels import LabelError, read_labels
from gateway.control.update_ports import Heard, UpdatePorts
from gateway.control.update_sights import why_not, worst_of
from gateway.core.config import Config, LabelsConfig, TrainConfig, UpdateConfig
from gateway.core.errors import Refusal
from gateway.core.fleet import DeviceReport
from gateway.core.release import ANYWHERE, Release
from gateway.core.training import TrainResult
from gateway.core.training_run import PlacedSample, TrainFailed, TrainSpec, split
from gateway.jobs.judging import JudgingFailed, MeasuredQuality, ModelFile, QualitySpec
from gateway.rollout.gate import Figures, Verdict, judge
from gateway.rollout.loop_messages import Judged, Measured, SamplesSeen, Trained, WorkFailed
from gateway.rollout.loop_state import Phase, Update
from gateway.store.blobs import BlobError
from gateway.store.golden import golden_npz
from oip.errors import OipError
from oip.reasons import Reason

logger = logging.getLogger(__name__)

AGAIN_S = 5.0
"""Until what a run made is offered once more to a store that did not take it."""
TAUGHT_AT_A_TIME = 32
_AWAY = frozenset(
    {Reason.UNAVAILABLE, Reason.MODEL_UNAVAILABLE, Reason.OVERLOADED, Reason.DRAINING, Reason.DEADLINE}
)
"""Reasons of a teacher's that another sample would meet as well."""
_QUALITY: TypeAdapter[MeasuredQuality] = TypeAdapter(MeasuredQuality)


class Work:
    """Each part answers the event that it comes to. An OipError UNAVAILABLE says that it may be tried again."""

    def __init__(self, config: Config, ports: UpdatePorts, again_s: float = AGAIN_S) -> None:
        self._config = config
        self._ports = ports
        self._updates = {update.model: update for update in config.updates}
        self._places = {e.name: e.place for e in config.endpoints}
        self._again_s = again_s
        self._unteachable: dict[str, set[str]] = {}
        """By model, samples that a teacher has no answer to: until control starts again it is not asked for
        them."""

    def configured(self, model: str) -> UpdateConfig:
        """A pushed release of a model without an update is judged by what a gate asks by itself."""
        return self._updates.get(model) or UpdateConfig(model=model)

    async def gather(self, state: Update) -> SamplesSeen:
        """Have some more samples labelled, and count."""
        update = self.configured(state.model)
        if update.train is None or update.samples.collect == "none":
            return SamplesSeen(0, 0)
        labels, place, wanting = update.samples.labels, update.train.location.place, ""
        if labels is None:
            wanting = "none is ever labelled: add samples.labels to the update"
        elif labels.teacher is not None:
            wanting = await self._teach(state.model, labels.teacher)
        told, fault = await self._operators(labels)
        kept = await self._ports.samples.listed(state.model)
        self._unteachable.setdefault(state.model, set()).intersection_update(one.id for one in kept)
        counted = sum(one.labels is not None or one.id in told for one in kept)
        if counted >= update.train.min_samples:
            counted = await self._ports.samples.trainable(state.model, place, told)
        return SamplesSeen(counted, len(kept), wanting or fault)

    async def train(self, state: Update, heard: Heard) -> Trained | WorkFailed:
        """Run the trainer and release what it made. A release of this update that is there already is what
        came of it."""
        update, made = self.configured(state.model), self.made_by(state)
        if made is not None:
            return Trained(made.version)
        if update.train is None:
            return WorkFailed(Phase.TRAINING, "There is no trainer: add train to the model's update.")
        try:
            spec = await self._spec(state.model, update.train)
            result = await self._ports.train(spec, heard, state.attempt)
        except TrainFailed as failed:
            return WorkFailed(Phase.TRAINING, failed.sentence)
        except (Refusal, ValueError) as error:
            return WorkFailed(Phase.TRAINING, str(error))
        return await self._release(state, spec, result)

    def made_by(self, state: Update) -> Release | None:
        """The release that came of an update."""
        return next((r for r in self._ports.releases.of(state.model) if r.source == state.id), None)

    async def measure(self, state: Update, heard: Heard) -> Measured | WorkFailed:
        """Measure the release and what stands on the same held-out data."""
        update, releases = self.configured(state.model), self._ports.releases
        place = self._place(update)
        try:
            release = releases.get(state.model, state.version)
            current = self._current(release)
            labels = update.samples.labels
            told, _ = await self._operators(labels)
            held: Sequence[PlacedSample] = ()
            if update.samples.collect != "none":
                _, held = split(await self._ports.samples.for_training(state.model, place, told))
            spec = QualitySpec(
                place,
                await self._files(release),
                {} if current is None else await self._files(current),
                release.places,
                tuple(held),
                None if update.gate.data is None else Path(update.gate.data),
                # They lead to the machines of the place.
                resources={"CPU": 1.0} if update.train is None else update.train.resources,
                current_places=ANYWHERE if current is None else current.places,
            )
            measured = await self._ports.measure(spec, heard)
        except JudgingFailed as failed:
            return WorkFailed(Phase.MEASURING, failed.sentence)
        except Refusal as error:
            return WorkFailed(Phase.MEASURING, str(error))
        verdict = judge(self._figures(measured, release), update.gate)
        # No device is asked to try what cannot pass any more.
        failed = None if verdict.passed else await self._word(state, verdict)
        return failed or Measured(_QUALITY.dump_python(measured, mode="json"), verdict.rules)

    async def labels_of(self, model: str) -> Mapping[str, Sequence[int]]:
        """The operator's labels, by sample."""
        return (await self._operators(self.configured(model).samples.labels))[0]

    async def judge(self, state: Update, devices: Sequence[DeviceReport]) -> Judged | WorkFailed:
        """Ask the gate, and put its word on the release."""
        release = self._ports.releases.get(state.model, state.version)
        tried_on, trial = worst_of(state)
        verdict = judge(
            self._figures(
                _QUALITY.validate_python(state.quality),
                release,
                fits=why_not(self._config, release, devices, self._ports.fits),
                trial=trial,
                tried_on=tried_on,
            ),
            self.configured(state.model).gate,
        )
        return await self._word(state, verdict) or Judged(verdict.rules)

    async def _teach(self, model: str, teacher: str) -> str:
        """Have a teacher label some samples; what keeps it from more, in a clause, "" for nothing."""
        place = self._places.get(teacher)
        if place is None:
            return f"{teacher} has no place of its own, so no sample is shown to it"
        refused, said = self._unteachable.setdefault(model, set()), ""
        for one in await self._ports.samples.unlabelled(model, place, TAUGHT_AT_A_TIME, refused):
            try:
                labels = await self._ports.teach(model, teacher, one.request, one.places)
            except OipError as error:
                said = f"{teacher} gives no label: {error.message}"
                if error.reason in _AWAY:
                    return said
                refused.add(one.id)
                continue
            if not await self._ports.samples.label(model, one.id, labels):
                said = f"{teacher} gave {len(labels)} labels for a sample of {one.rows} rows"
                refused.add(one.id)
        return said

    async def _operators(self, labels: LabelsConfig | None) -> tuple[Mapping[str, Sequence[int]], str]:
        """The operator's labels by sample, and what is wrong with the file, in a clause."""
        if labels is None or labels.file is None:
            return {}, ""
        try:
            told = await asyncio.to_thread(read_labels, Path(labels.file))
        except LabelError as error:
            return {}, str(error)
        more = f" and {len(told.faults) - 1} more lines" if len(told.faults) > 1 else ""
        return told.by_sample, f"{told.faults[0]}{more}" if told.faults else ""

    async def _spec(self, model: str, train: TrainConfig) -> TrainSpec:
        update, place = self.configured(model), train.location.place
        samples: tuple[PlacedSample, ...] = ()
        if update.samples.collect != "none":
            told, _ = await self._operators(update.samples.labels)
            samples, _ = split(await self._ports.samples.for_training(model, place, told))
        releases = self._ports.releases
        standing = releases.standing().get(model)
        current = None if standing is None else releases.get(model, standing)
        files = {} if current is None else await self._contents(current)
        version = str(max((int(r.version) for r in releases.of(model)), default=0) + 1)
        places = ANYWHERE if current is None else current.places
        return TrainSpec(model, version, train, place, files, places, samples)

    async def _release(self, state: Update, spec: TrainSpec, result: TrainResult) -> Trained | WorkFailed:
        files = {
            format: (format, file.content, golden_npz(file.golden)) for format, file in result.files.items()
        }
        version: str | None = spec.version
        while True:
            try:
                release = await self._ports.releases.add(
                    state.model,
                    files,
                    places=spec.new_places,
                    reference=result.reference,
                    metrics={f"trainer.{name}": value for name, value in result.metrics.items()},
                    source=state.id,
                    version=version,
                )
            except OipError as error:
                made = self.made_by(state)
                if made is not None:
                    return Trained(made.version)
                if error.reason is Reason.CONFLICT and version is not None:
                    version = None  # Somebody has pushed a version of that number meanwhile.
                    continue
                if error.reason is not Reason.UNAVAILABLE:
                    return WorkFailed(Phase.TRAINING, error.message)
                logger.warning("what update %s made is not taken yet: %s", state.id, error.message)
                await asyncio.sleep(self._again_s)
                continue
            return Trained(release.version)

    def _figures(self, measured: MeasuredQuality, release: Release, **found: Any) -> Figures:
        return Figures(
            measured.candidate,
            measured.current,
            measured.unmeasured,
            compared=self._current(release) is not None,
            **found,
        )

    def _current(self, release: Release) -> Release | None:
        """What stands, unless that is the release itself."""
        standing = self._ports.releases.standing().get(release.model)
        if standing is None or standing == release.version:
            return None
        return self._ports.releases.get(release.model, standing)

    def _place(self, update: UpdateConfig) -> Place:
        """Where held-out data is used: where the rest is trained on."""
        if update.train is not None:
            return update.train.location.place
        return self._config.gateway.location.place

    async def _word(self, state: Update, verdict: Verdict) -> WorkFailed | None:
        """Put the gate's word on the release; None where that is done."""
        try:
            await self._ports.releases.judged(state.model, state.version, verdict.passed, verdict.metrics)
        except OipError as error:
            if error.reason is Reason.UNAVAILABLE:
                raise
            return WorkFailed(state.phase, error.message)
        return None

    async def _contents(self, release: Release) -> dict[str, bytes]:
        try:
            return {slot: await self._ports.content(file.blob) for slot, file in release.files.items()}
        except BlobError as error:
            raise OipError(Reason.UNAVAILABLE, str(error)) from None

    async def _files(self, release: Release) -> dict[str, ModelFile]:
        contents = await self._contents(release)
        return {slot: ModelFile(file.format, contents[slot]) for slot, file in release.files.items()}
