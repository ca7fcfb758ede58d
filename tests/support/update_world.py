"""Everything that updates need, as a script says it. What has an effect outside is written to a file, each
effect a line, so that a test can count them after a kill."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgewire.places import Place, Tier
from edgewire.signals import CONFIDENCE, default_edges
from gateway.analytics.evidence import SignalWindows
from gateway.analytics.samples import Kept
from gateway.control.ports import Fit
from gateway.control.update_ports import Heard, UpdatePorts
from gateway.core.config import Config
from gateway.core.config.load import kinds_in, parse_config
from gateway.core.evidence import Histogram
from gateway.core.fleet import DeviceReport, ModelReport, TrialReport
from gateway.core.release import ANYWHERE, Blob, Reference, Release, ReleaseFile, Stage
from gateway.core.training import Golden, Sample, TrainedFile, TrainResult
from gateway.core.training_run import Fault, PlacedSample, RunEvent, RunKind, TrainFailed, TrainSpec
from gateway.jobs.judging import MeasuredQuality, QualitySpec
from gateway.rollout.gate import Quality
from oip.errors import OipError
from oip.reasons import Reason

EDGES = default_edges(CONFIDENCE)
SURE, UNSURE = len(EDGES), 8
"""Bins of a confidence beyond 0.95, and of about 0.42."""
TEXT = """\
version: 1
gateway: {name: gw, location: {tier: site, site: plant-7}}
endpoints:
  - {name: cams, kind: edge}
  - {name: large, kind: triton, url: "grpc://127.0.0.1:1", location: {tier: site, site: plant-7}}
models:
  - name: digits
    variants: [{endpoint: cams, artifact: digits.tflite}, {endpoint: large, model: digits_large}]
  - name: gauges
    variants: [{endpoint: cams, artifact: digits.tflite}]
privacy:
  default: plant
  classes: {plant: {allow: [{tier: [device, site]}]}}
policies:
  - {name: default, match: {}, weights: {latency: 1}}
updates:
  - model: digits
    drift: {min_samples: 20, window_s: 10}
    samples: {collect: hard, labels: {teacher: large}}
    train: {entrypoint: "gateway.cli.schema:text", location: {tier: site, site: plant-7}, min_samples: 4}
    rollout: {soak_s: 3, device_timeout_s: 5}
  - model: gauges
    drift: {min_samples: 20, window_s: 10}
"""


def config(text: str = TEXT) -> Config:
    base = Path(__file__).parents[1] / "data" / "config"
    return parse_config(text, "t.yaml", kinds_in("gateway.backends"), {}, base)


def reference(*counts: tuple[int, int]) -> Reference:
    found = Counter(dict(counts))
    return Reference(EDGES, tuple(found[at] for at in range(len(EDGES) + 1)))


@dataclass
class Ledger:
    """Effects, in memory and, with a path, in a file that a new process reads. Each line is on disk before
    the effect counts as done."""

    path: Path | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            whole = self.path.read_text().split("\n")[:-1]
            self.lines = [json.loads(line) for line in whole]

    def add(self, what: str, **facts: Any) -> None:
        line = {"what": what, **facts}
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        self.lines.append(line)

    def of(self, what: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["what"] == what]


FIRST = Release(
    "digits",
    "1",
    {"tflite": ReleaseFile("tflite", Blob("sha256:1", 9))},
    1,
    Stage.PASSED,
    reference={CONFIDENCE: reference((SURE, 900), (UNSURE, 100))},
)


class WorldReleases:
    def __init__(self, ledger: Ledger, faults: dict[str, list[OipError]]) -> None:
        self._ledger = ledger
        self._faults = faults

    def of(self, model: str) -> Sequence[Release]:
        first = replace(FIRST, model=model)
        made = [self._release(line) for line in self._ledger.of("release") if line["model"] == model]
        return [first, *made]

    def get(self, model: str, version: str) -> Release:
        for release in self.of(model):
            if release.version == version:
                return release
        raise OipError(Reason.NOT_FOUND, f"no release {version}")

    def standing(self) -> Mapping[str, str]:
        done = {line["model"]: line["version"] for line in self._ledger.of("stands")}
        return {"digits": "1", "gauges": "1", **done}

    async def add(
        self, model: str, files: Any, *, source: str, version: str | None = None, **more: Any
    ) -> Release:
        self._fail("add")
        number = version or str(len(self.of(model)) + 1)
        if any(release.version == number for release in self.of(model)):
            raise OipError(Reason.CONFLICT, f"version {number} is there with other files")
        counts = {name: list(one.counts) for name, one in (more.get("reference") or {}).items()}
        self._ledger.add(
            "release", model=model, version=number, source=source, places=more["places"], reference=counts,
            golden=[files[slot][2] is not None for slot in files],
        )  # fmt: skip
        return self.get(model, number)

    async def judged(
        self, model: str, version: str, passed: bool, metrics: Mapping[str, float] | None = None
    ) -> Release:
        self._fail("judged")
        self._ledger.add("judged", model=model, version=version, passed=passed, metrics=dict(metrics or {}))
        return self.get(model, version)

    def _fail(self, what: str) -> None:
        if self._faults.get(what):
            raise self._faults[what].pop(0)

    def _release(self, line: Mapping[str, Any]) -> Release:
        words = [w for w in self._ledger.of("judged") if w["version"] == line["version"]]
        stage = Stage.CANDIDATE if not words else Stage.PASSED if words[-1]["passed"] else Stage.REFUSED
        blob = Blob(f"sha256:{line['version']}", 9)
        return Release(
            line["model"],
            line["version"],
            {"tflite": ReleaseFile("tflite", blob, blob)},
            int(line["version"]),
            stage,
            line["places"],
            {name: Reference(EDGES, tuple(counts)) for name, counts in line["reference"].items()},
            source=line["source"],
        )


class WorldRollouts:
    """`script`: outcomes of rollouts after so many looks at them; None stays open."""

    def __init__(self, ledger: Ledger, faults: dict[str, list[OipError]]) -> None:
        self._ledger = ledger
        self._faults = faults
        self.ends: str | None = "done"

    async def start(self, model: str, version: str, *, source: str) -> str:
        for line in self._ledger.of("rollout"):
            if line["source"] == source:
                return line["id"]
        if self._faults.get("start"):
            raise self._faults["start"].pop(0)
        id = f"ro-{len(self._ledger.of('rollout')) + 1}"
        self._ledger.add("rollout", id=id, model=model, version=version, source=source)
        return id

    async def abort(self, id: str) -> None:
        if self._faults.get("abort"):
            raise self._faults["abort"].pop(0)
        self._ledger.add("ended", id=id, outcome="aborted")

    def go_on(self) -> None:
        for line in self._ledger.of("rollout"):
            ended = any(end["id"] == line["id"] for end in self._ledger.of("ended"))
            if ended or self.ends is None:
                continue
            if self.ends == "done":
                self._ledger.add("stands", model=line["model"], version=line["version"])
            self._ledger.add("ended", id=line["id"], outcome=self.ends)

    def views(self) -> Sequence[Mapping[str, Any]]:
        ends = {line["id"]: line["outcome"] for line in self._ledger.of("ended")}
        return [
            {
                "id": line["id"], "model": line["model"], "to": line["version"], "source": line["source"],
                "open": line["id"] not in ends, "phase": "moving", "outcome": ends.get(line["id"]),
                "waits_for": None, "cause": "Wave 1 fails too often." if ends.get(line["id"]) == "halted" else None,
            }
            for line in reversed(self._ledger.of("rollout"))
        ]  # fmt: skip


class World:
    """Set the attributes to script it. `drifts`: of which versions the requests are unsure."""

    def __init__(self, path: Path | None = None) -> None:
        self.now = 1000.0
        self.ledger = Ledger(path)
        self.faults: dict[str, list[OipError]] = {}
        self.releases = WorldReleases(self.ledger, self.faults)
        self.rollouts = WorldRollouts(self.ledger, self.faults)
        self.drifts: set[str] = {"1"}
        self.values = 100
        self.labelled: dict[str, Sequence[int]] = {}
        self.samples = 8
        self.right = {"1": 5, "2": 9}
        self.training: list[TrainFailed] = []
        self.before_result: Callable[[Heard], Any] | None = None
        self.specs: list[TrainSpec] = []
        self.measured: list[QualitySpec] = []
        self.connected = {"cam-1": "plant-7", "cam-2": "plant-7"}
        self.trial: TrialReport | None = TrialReport("", "active", p50_ms=1.0, runs=5, active_p50_ms=1.0)
        self.told = 0
        self.taught: list[tuple[str, str]] = []
        self.unfit = ""

    def ports(self) -> UpdatePorts:
        return UpdatePorts(
            self.releases, self, self, self.rollouts, self._train, self._measure, self._content, self._teach,
            self._fleet, self._fits, self._changed,
        )  # fmt: skip

    # Samples

    def _kept(self) -> list[Kept]:
        return [
            Kept("digits", f"{n:064x}", "plant-7", "site=plant-7", "1", 0.4, 900.0 + n, 1, b"request", self.labelled.get(f"{n:064x}"))
            for n in range(self.samples)
        ]  # fmt: skip

    async def listed(self, model: str) -> Sequence[Kept]:
        return self._kept()

    async def unlabelled(
        self, model: str, place: Place, most: int, but: Collection[str] = ()
    ) -> Sequence[Kept]:
        return [one for one in self._kept() if one.labels is None and one.id not in but][:most]

    async def label(self, model: str, id: str, labels: Sequence[int]) -> bool:
        self.labelled[id] = tuple(labels)
        return len(labels) == 1

    async def trainable(self, model: str, training: Place, labels: Any = None) -> int:
        return len(await self.for_training(model, training, labels))

    async def for_training(self, model: str, training: Place, labels: Any = None) -> Sequence[PlacedSample]:
        assert training == Place(Tier.SITE, site="plant-7")
        known = {one.id: one.labels for one in self._kept() if one.labels is not None} | dict(labels or {})
        return [
            PlacedSample(Sample(id, {"x": np.zeros((1, 1))}, np.asarray(told, np.int64)), "site=plant-7")
            for id, told in known.items()
        ]

    # Evidence

    async def windows(
        self, model: str, version: str, signal: str, since: float, until: float
    ) -> SignalWindows:
        at = UNSURE if version in self.drifts else SURE
        counts = [0] * (len(EDGES) + 1)
        counts[at], counts[SURE - at + UNSURE] = self.values, self.values // 9
        if version not in self.drifts:
            counts[SURE], counts[UNSURE] = self.values, self.values // 9
        one = Histogram(EDGES, tuple(counts))
        return SignalWindows([one], {"plant-7": [one]})

    # Jobs

    async def _train(self, spec: TrainSpec, heard: Heard, attempt: int) -> TrainResult:
        self.specs.append(spec)
        self.ledger.add("train", attempt=attempt)
        heard(RunEvent(RunKind.BEGAN, attempt=attempt))
        heard(RunEvent(RunKind.LOG, "epoch 1\n", attempt=attempt))
        heard(RunEvent(RunKind.PROGRESS, "half", 0.5, attempt))
        if self.before_result is not None:
            await self.before_result(heard)
        while self.training:
            failed = self.training.pop(0)
            if failed.fault is not Fault.RAISED:
                raise failed
            heard(RunEvent(RunKind.RETRYING, failed.sentence, attempt=attempt))
            attempt += 1
        golden = Golden([({"x": np.zeros((1, 1))}, {"y": np.zeros((1, 1))})], 0.1)
        return TrainResult(
            {"tflite": TrainedFile(b"....TFL3 new", golden)},
            {CONFIDENCE: reference((SURE, 900), (UNSURE, 100))},
            {"accuracy": 0.9},
        )

    async def _measure(self, spec: QualitySpec, heard: Heard) -> MeasuredQuality:
        self.measured.append(spec)

        def quality(right: int) -> dict[str, Quality]:
            return {"tflite": Quality("tflite", {0: 10}, {0: right})}

        candidate = max(self.right, key=int)
        current = quality(self.right["1"]) if spec.current else {}
        return MeasuredQuality(quality(self.right[candidate]), current, {})

    async def _content(self, blob: Blob) -> bytes:
        return blob.digest.encode()

    async def _teach(self, model: str, endpoint: str, request: bytes, places: str) -> Sequence[int]:
        if self.faults.get("teach"):
            raise self.faults["teach"].pop(0)
        self.taught.append((endpoint, places))
        return [7]

    # Devices

    async def _fleet(self) -> Sequence[DeviceReport]:
        asked = {line["version"] for line in self.ledger.of("release")}
        return [
            DeviceReport(
                name,
                Place(Tier.DEVICE, site=site, device=name),
                {},
                True,
                models={"digits": ModelReport("1", "sha256:1", "active", "", "1", "sha256:1")},
                trials={}
                if self.trial is None
                else {("digits", v): replace(self.trial, digest=f"sha256:{v}") for v in asked},
            )
            for name, site in self.connected.items()
        ]

    def _fits(self, release: Release, device: DeviceReport) -> Fit | None:
        return Fit("digits", release.files["tflite"].blob.digest, self.unfit)

    async def _changed(self) -> None:
        if self.faults.get("changed"):
            raise self.faults["changed"].pop(0)
        self.told += 1


__all__ = ["ANYWHERE", "FIRST", "World", "config"]
