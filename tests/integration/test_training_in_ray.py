"""Training runs and measurements of quality in a real Ray, which is started once for all of them."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.support.quiet_ray import ray  # isort: skip  # before anything that uses Ray
from gateway.core.config.updates import GateConfig, TrainConfig
from gateway.core.errors import Refusal
from gateway.core.training import Sample, TrainResult
from gateway.core.training_run import (
    Fault,
    PlacedSample,
    RunEvent,
    RunKind,
    RunLog,
    TrainFailed,
    TrainSpec,
    is_held_out,
    split,
)
from gateway.demo.digits import HELD_OUT, sample
from gateway.demo.digits.drift import rotate_and_fade
from gateway.jobs.judging import JudgingFailed, ModelFile, QualitySpec, measure_quality
from gateway.jobs.training import train
from gateway.rollout.gate import Figures, judge
from tests.support.tflite_models import digits_int8_file, digits_model
from tests.support.waiting import until

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")]

HERE = "tier=device+site;site=a"
IDS = [hashlib.sha256(str(n).encode()).hexdigest() for n in range(40)]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=2,
        resources={"npu": 1},
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()
    # Ray leaves its processes' handles to the collector, which would warn of them in a test of somebody else's.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def placed(number: int, places: str = HERE) -> PlacedSample:
    given = {"x": np.full((1, 2), number, np.float32)}
    return PlacedSample(Sample(IDS[number], given, np.array([number])), places)


TRAINED = [number for number in range(40) if not is_held_out(IDS[number])]


def spec(
    trainer: str, *samples: PlacedSample, files: dict[str, bytes] | None = None, **keys: Any
) -> TrainSpec:
    entrypoint = trainer if ":" in trainer else f"tests.support.trainers:{trainer}"
    config = TrainConfig.model_validate(
        {"entrypoint": entrypoint, "location": {"tier": "site", "site": "a"}, "retries": 0, **keys}
    )
    return TrainSpec("m", "2", config, config.location.place, files or {}, HERE, samples)


class Told:
    """What is heard, and a wait for a kind of it."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []
        self._heard = asyncio.Event()

    def __call__(self, event: RunEvent) -> None:
        self.events.append(event)
        self._heard.set()

    def of(self, kind: RunKind) -> list[RunEvent]:
        return [event for event in self.events if event.kind is kind]

    async def until(self, kind: RunKind) -> RunEvent:
        async with asyncio.timeout(60):
            while not self.of(kind):
                self._heard.clear()
                await self._heard.wait()
        return self.of(kind)[0]

    @property
    def log(self) -> str:
        log = RunLog()
        for event in self.of(RunKind.LOG):
            log.add(event.words)
        return log.text()


@pytest.fixture
def told() -> Told:
    return Told()


async def failure(run: TrainSpec, told: Told) -> TrainFailed:
    with pytest.raises(TrainFailed) as caught:
        await train(run, told)
    return caught.value


def ended(number: int) -> bool:
    try:
        return psutil.Process(number).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def gone(path: Path) -> None:
    """Every process that a trainer noted has ended."""
    numbers = [int(word) for word in (await asyncio.to_thread(path.read_text)).split()]
    assert len(numbers) == 2
    await until(lambda: all(map(ended, numbers)))


async def test_a_trainer_gets_the_files_and_samples_and_is_heard(told: Told):
    samples = [placed(number) for number in TRAINED[:3]]
    run = spec(
        "echoing", *samples, files={"onnx": b"old onnx"}, data="base/of/data", resources={"CPU": 1, "npu": 1}
    )
    found = await train(run, told)
    ids = "|".join(one.sample.id for one in samples)
    assert found.files["onnx"].content == f"m|2|base/of/data|{ids}|onnx|old onnx".encode()
    # Golden vectors carry the samples back; the trainer overwrote its own copy of the first.
    firsts = [float(given["x"][0, 0]) for given, _ in found.files["onnx"].golden.cases]
    assert firsts == [0.0, *map(float, TRAINED[1:3])]
    assert next(e.kind for e in told.events if e.kind is not RunKind.WAITING) is RunKind.BEGAN
    assert told.of(RunKind.PROGRESS)[-1] == RunEvent(RunKind.PROGRESS, "half 2", 1.0)
    assert told.log == "given 3\nto standard error\n"
    assert found.metrics["pid"] not in {float(process.pid) for process in psutil.process_iter()}


async def test_what_may_pass_is_tried_again_in_a_new_process(told: Told, tmp_path: Path):
    await train(spec("noting", data=str(tmp_path / "notes"), retries=2), told)
    assert len(set((tmp_path / "notes").read_text().split())) == 3
    crashed, raised = told.of(RunKind.RETRYING)
    assert (crashed.attempt, crashed.words) == (1, "The trainer's process ended by itself with exit code 3.")
    assert (raised.attempt, len(raised.words)) == (2, 300)
    assert raised.words.startswith("The trainer raised RuntimeError: not yet [0m xxx")
    assert "RuntimeError: not\nyet" in told.log
    assert [event.attempt for event in told.of(RunKind.BEGAN)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("trainer", "keys", "fault", "says"),
    [
        ("missing", {}, Fault.ENTRYPOINT, r"module 'tests\.support\.trainers' has no function 'missing'"),
        (
            "tests.support.nowhere:run",
            {},
            Fault.ENTRYPOINT,
            r"no module 'tests\.support\.nowhere' where the trainer",
        ),
        ("tests.support:__path__", {}, Fault.ENTRYPOINT, "has no function"),
        ("empty", {}, Fault.CONTRACT, "gave back no files"),
        (
            "empty",
            {"resources": {"GPU": 1.5}},
            Fault.RESOURCES,
            r"resources GPU 1\.5: GPU resource quantities",
        ),
        ("killed", {"retries": 0}, Fault.CRASHED, "ended by SIGKILL: the machine may have run out of memory"),
        (
            "greedy",
            {"data": "96", "memory_mb": 64, "retries": 0},
            Fault.MEMORY,
            "more memory than memory_mb: 64",
        ),
    ],
)
async def test_a_run_that_fails_says_why(
    trainer: str, keys: dict[str, Any], fault: Fault, says: str, told: Told
):
    failed = await failure(spec(trainer, **{"retries": 3, **keys}), told)
    assert failed.fault is fault
    with pytest.raises(TrainFailed, match=says):
        raise failed
    assert told.of(RunKind.RETRYING) == []


async def test_what_is_within_its_memory_runs(told: Told):
    found = await train(spec("greedy", data="32", memory_mb=64), told)
    assert found.metrics["pieces"] == 8


async def test_a_run_that_takes_too_long_is_ended_with_its_children(told: Told, tmp_path: Path):
    failed = await failure(spec("staying", data=str(tmp_path / "pids"), timeout_s=1.5), told)
    assert (failed.fault, failed.sentence) == (
        Fault.TIMED_OUT,
        "The trainer took longer than timeout_s: 1.5 allows.",
    )
    await gone(tmp_path / "pids")


async def test_a_run_that_is_cancelled_is_gone_with_its_children(told: Told, tmp_path: Path):
    run = asyncio.create_task(train(spec("staying", data=str(tmp_path / "pids"), retries=3), told))
    await told.until(RunKind.PROGRESS)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await gone(tmp_path / "pids")
    assert told.of(RunKind.RETRYING) == []


async def test_a_run_whose_ray_worker_is_killed_is_lost_and_leaves_no_trainer(told: Told):
    run = asyncio.create_task(failure(spec("idle"), told))
    trainer = psutil.Process(int((await told.until(RunKind.PROGRESS)).words))
    trainer.parent().kill()
    assert ((await run).fault, (await run).sentence) == (Fault.LOST, "Ray lost it (WorkerCrashedError).")
    await until(lambda: ended(trainer.pid))


async def test_a_run_that_waits_for_resources_says_which_and_can_be_cancelled(told: Told):
    run = asyncio.create_task(train(spec("empty", resources={"npu": 1, "tpu": 4}, timeout_s=0.1), told))
    assert (await told.until(RunKind.WAITING)).words == "waits for tpu 4 (there is none)"
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert told.of(RunKind.BEGAN) == []


async def test_a_waiting_run_begins_when_the_other_has_ended(told: Told, tmp_path: Path):
    first, second = Told(), told
    holder = asyncio.create_task(
        train(spec("staying", data=str(tmp_path / "pids"), resources={"npu": 1}), first)
    )
    await first.until(RunKind.PROGRESS)
    waiting = asyncio.create_task(train(spec("greedy", resources={"npu": 1}), second))
    assert (await second.until(RunKind.WAITING)).words == "waits for npu 1 (0 of 1 free)"
    holder.cancel()
    found = await waiting
    assert found.metrics["pieces"] == 0


async def test_a_log_without_end_is_kept_to_its_last_part(told: Told):
    await train(spec("chatty"), told)
    assert told.log.endswith(f"line 99999 {'x' * 20}\n")
    assert len(told.log) <= 2**20 + 40


async def test_a_planted_sample_that_may_not_be_there_reaches_no_trainer(told: Told, tmp_path: Path):
    """The trainer notes that it ran at all: it does not."""
    good = [placed(number) for number in TRAINED[:3]]
    planted = placed(TRAINED[3], "tier=device+site;site=b")
    with pytest.raises(Refusal, match="1 of 4 samples may not go to tier site, site a"):
        await train(spec("noting", *good, planted, data=str(tmp_path / "notes")), told)
    assert not (tmp_path / "notes").exists()
    assert told.events == []


async def test_the_digits_trained_on_their_drift_pass_the_gate_where_the_old_ones_fail(
    told: Told, tmp_path: Path
):
    pixels, labels = sample(HELD_OUT)
    drifted = rotate_and_fade(pixels, 35, 0.5)
    samples = [
        PlacedSample(
            Sample(hashlib.sha256(row.tobytes()).hexdigest(), {"pixels": row[None]}, labels[n : n + 1]), HERE
        )
        for n, row in enumerate(drifted)
    ]
    trained, held_out = split(samples)
    old = {"onnx": digits_model().onnx(), "tflite": digits_int8_file()}
    found = await train(spec("gateway.demo.digits.train:run", *trained, files=old), told)
    np.savez(tmp_path / "held.npz", **{"input/pixels": pixels, "label": labels})

    def measured(candidate: TrainResult | None) -> QualitySpec:
        new = old if candidate is None else {name: file.content for name, file in candidate.files.items()}
        return QualitySpec(
            spec("empty").place,
            {name: ModelFile(name, content) for name, content in new.items()},
            {name: ModelFile(name, content) for name, content in old.items()},
            HERE,
            held_out,
            tmp_path / "held.npz",
        )

    quality = await measure_quality(measured(found), told)
    config = GateConfig(min=0.9)
    verdict = judge(Figures(quality.candidate, quality.current, quality.unmeasured), config)
    assert verdict.passed, verdict.reasons
    assert verdict.metrics["held_out_rows"] == HELD_OUT + len(held_out)
    assert verdict.metrics["accuracy.tflite"] >= 0.92
    assert verdict.metrics["current.accuracy.tflite"] < verdict.metrics["accuracy.tflite"] - 0.05
    same = await measure_quality(measured(None))
    assert same.candidate == same.current == quality.current
    assert not judge(Figures(same.candidate, same.current), config).passed


async def test_a_measurement_that_takes_too_long_says_so():
    given = PlacedSample(Sample(IDS[0], {"x": np.zeros((1, 2), np.float32)}, np.array([1])), HERE)
    slow = QualitySpec(
        spec("empty").place,
        {"onnx": ModelFile("onnx", digits_model().onnx())},
        {},
        HERE,
        (given,),
        timeout_s=0.0,
    )
    with pytest.raises(JudgingFailed, match=r"The gate failed measuring.* It took longer than 0 s\."):
        await measure_quality(slow)
