"""What a device gathers of requests to real models."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.analytics import Gatherer, gatherer
from edge_agent.spool import Spool
from edge_agent.update import DeviceModels
from edgewire import signals
from edgewire.allowed import NOTHING
from edgewire.places import Place, Tier
from edgewire.signals import CONFIDENCE, INPUT_MEAN
from edgewire.v1 import edge_pb2
from edgewire.wire_places import to_wire
from oip.errors import OipError
from tests.support import tflite_models as models
from tests.support.tflite_models import Hub, output, request
from tests.support.waiting import until

SITE = Place(Tier.SITE, site="plant-7")
CLOUD = Place(Tier.CLOUD, region="eu-west-1")
ON_SITE = "tier=device+site;site=plant-7"
ANYWHERE = "tier=device+site+regional+cloud"
MEANS = [0.25, 0.5]
SURE = [0.5, 0.9]
PIXELS = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 64)


@dataclass
class Device:
    """Models with what is gathered of them; reports come when `report` is awaited."""

    models: DeviceModels
    gatherer: Gatherer
    spool: Spool
    hub: Hub
    there: Place | None = SITE

    async def wish(self, *wanted: edge_pb2.DesiredModel) -> None:
        port = replace(self.hub.port(), there=self.there)
        self.models.desire(edge_pb2.Desired(models=wanted, report_ms=3_600_000), port)
        for model in wanted:
            await until(
                lambda model=model: any(
                    (s.model, s.active_version) == (model.model, model.version) for s in self.models.states()
                ),
                30,
            )

    async def report(self) -> list[edge_pb2.Record]:
        """What was counted and kept since the last time."""
        await asyncio.sleep(0)
        self.gatherer._write_report()
        await self.spool.flush()
        batch = await self.spool.front(64, 2**20)
        if batch is None:
            return []
        await self.spool.forget(batch, batch.last)
        return [held.record for held in batch.records]


@asynccontextmanager
async def device(folder: Path) -> AsyncIterator[Device]:
    spool = Spool(folder / "spool.db", 4 * 2**20)

    async def telemetry() -> edge_pb2.Telemetry:
        return edge_pb2.Telemetry(cpu_percent=12.5)

    found = Gatherer(spool, telemetry)
    await found.start()
    served = DeviceModels(folder / "models", observer=found)
    await served.start()
    try:
        yield Device(served, found, spool, Hub())
    finally:
        await served.close()
        await found.close()


def gather(
    allowed: str = ON_SITE, below: float = 0.0, training: Place = SITE, per_day: int = 100
) -> edge_pb2.Gather:
    return edge_pb2.Gather(
        allowed=allowed,
        signals=[
            edge_pb2.Signal(name=INPUT_MEAN, edges=MEANS),
            edge_pb2.Signal(name=CONFIDENCE, edges=SURE),
        ],
        samples=edge_pb2.Samples(training=to_wire(training), max_per_day=per_day, confidence_below=below),
    )


def counts(window: edge_pb2.Window) -> dict[str, list[int]]:
    assert {one.bins for one in window.signals} <= {signals.edges_crc(MEANS), signals.edges_crc(SURE)}
    return {one.name: list(one.counts) for one in window.signals}


async def test_every_request_is_counted_by_what_became_of_it(tmp_path: Path):
    data = models.digits_file()
    async with device(tmp_path) as made:
        await made.wish(made.hub.desired("digits", data, "3", batch_max_size=4, batch_delay_ms=300))
        answers = await asyncio.gather(
            *(made.models.infer(request("digits", pixels=PIXELS), 20) for _ in range(3))
        )
        assert len(answers) == 3
        for wrong in (request("digits", pixels=PIXELS[:, :9]), request("digits", noise=PIXELS)):
            with pytest.raises(OipError):
                await made.models.infer(wrong, 5)
        with pytest.raises(OipError):
            await made.models.infer(request("digits", pixels=PIXELS), 0.01)
        # The deadline of whoever asks is the same, and may pass first.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await made.models.infer(request("digits", pixels=PIXELS), 0.02)
        left = asyncio.create_task(made.models.infer(request("digits", pixels=PIXELS), 20))
        await until(lambda: made.models.inflight > 0)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        # Nobody has answered these, and no version of a model failed at them.
        for nobody in (request("other", pixels=PIXELS), request("digits", "9", pixels=PIXELS), b"\xff"):
            with pytest.raises(OipError):
                await made.models.infer(nobody, 5)
        (record,) = await made.report()
        window = record.window
        assert (window.model, window.version, window.digest) == ("digits", "3", models.digest(data))
        assert window.answered == 3
        assert dict(window.failed) == {"malformed": 2, "deadline": 2, "cancelled": 1}
        (latency,) = window.latency
        assert 0.3 <= signals.latency_of(latency) < 20
        assert window.latency[latency] == 3
        assert window.took_ms > 300
        assert not window.signals
        assert await made.report() == [], "nothing is written of a time in which nothing came"


async def test_values_are_counted_where_the_requests_own_set_allows_the_gateway(tmp_path: Path):
    dark, bright = np.zeros((2, 64), np.float32), np.ones((1, 64), np.float32)
    sure = models.digits_model().predict(np.vstack([dark, bright])).max(axis=1)
    async with device(tmp_path) as made:
        await made.wish(made.hub.desired("digits", models.digits_file(), gather=gather()))
        for pixels, asked in (
            (dark, None),
            (bright, ON_SITE),
            (dark, NOTHING),
            (bright, "tier=device;device=cam-7a"),
            (bright, "tier=cloud"),
            (bright, "no set at all"),
        ):
            await made.models.infer(request("digits", pixels=pixels), 20, asked)
        (record,) = await made.report()
        assert record.window.answered == 6
        assert counts(record.window) == {
            INPUT_MEAN: [2, 0, 1],
            CONFIDENCE: signals.bin_counts(np.asarray(sure, np.float64), SURE),
        }
        # A gateway elsewhere, which the model's set does not allow: plain counts.
        made.there = CLOUD
        await made.wish(made.hub.desired("digits", models.digits_file(), gather=gather()))
        await made.models.infer(request("digits", pixels=dark), 20, None)
        (record,) = await made.report()
        assert (record.window.answered, counts(record.window)) == (1, {})


async def test_a_new_word_of_the_hub_closes_the_window_before_it(tmp_path: Path):
    """What the old rule let be counted is not mixed with what the new one does."""
    async with device(tmp_path) as made:
        wanted = made.hub.desired("digits", models.digits_file(), gather=gather())
        await made.wish(wanted)
        await made.models.infer(request("digits", pixels=PIXELS), 20, None)
        await asyncio.sleep(0)
        await made.wish(wanted)
        wanted.gather.ClearField("signals")
        await made.wish(wanted)
        await made.models.infer(request("digits", pixels=PIXELS), 20, None)
        windows = [record.window for record in await made.report()]
        assert [(w.answered, bool(w.signals)) for w in windows] == [(1, True), (1, False)]


async def test_each_version_is_counted_for_itself_in_its_own_bins(tmp_path: Path):
    async with device(tmp_path) as made:
        await made.wish(made.hub.desired("digits", models.digits_file(), "1", gather=gather()))
        await made.models.infer(request("digits", pixels=PIXELS), 20, None)
        other = edge_pb2.Gather(allowed=ON_SITE, signals=[edge_pb2.Signal(name=CONFIDENCE, edges=[0.7])])
        bad = made.hub.desired("digits", b"no model", "2", gather=other)
        port = made.hub.port()
        made.models.desire(edge_pb2.Desired(models=[bad]), port)
        await until(lambda: made.models.states()[0].state == edge_pb2.ModelState.FAILED, 30)
        # The first file serves on, and in its bins.
        await made.models.infer(request("digits", pixels=PIXELS), 20, None)
        await made.wish(made.hub.desired("digits", models.digits_int8_file(), "3", gather=other))
        await made.models.infer(request("digits", pixels=PIXELS), 20, None)
        windows = [record.window for record in await made.report()]
        assert [(w.version, w.answered, [s.bins for s in w.signals]) for w in windows] == [
            ("1", 1, [signals.edges_crc(MEANS), signals.edges_crc(SURE)]),
            ("1", 1, [signals.edges_crc(MEANS), signals.edges_crc(SURE)]),
            ("3", 1, [signals.edges_crc([0.7])]),
        ]


async def test_what_the_model_was_not_sure_of_is_kept_whole_with_its_set(tmp_path: Path):
    unsure, sure = np.full((1, 64), 0.5, np.float32), models_sure()
    below = float(models.digits_model().predict(sure).max()) - 0.01
    assert models.digits_model().predict(unsure).max() < below
    async with device(tmp_path) as made:
        await made.wish(
            made.hub.desired("digits", models.digits_file(), gather=gather(below=below, per_day=2))
        )
        both = np.vstack([sure, unsure])
        asked: list[tuple[np.ndarray, str | None]] = [
            (sure, None),
            (both, "tier=device+site"),
            (unsure, NOTHING),
            (unsure, "tier=device"),
            (unsure, None),
            (unsure, None),
        ]
        for pixels, allowed in asked:
            await made.models.infer(request("digits", pixels=pixels), 20, allowed)
        records = await made.report()
        samples = [record.sample for record in records if record.HasField("sample")]
        assert [(s.model, s.version, s.request) for s in samples] == [
            ("digits", "1", request("digits", pixels=both)),
            ("digits", "1", request("digits", pixels=unsure)),
        ], "two a day, and none of what may not go to the place of training"
        assert [s.allowed for s in samples] == [ON_SITE, ON_SITE]
        assert all(s.confidence < below for s in samples)


def models_sure() -> np.ndarray:
    """An image of which the model is surer than of a grey one."""
    images = np.random.default_rng(1).random((200, 64), np.float32)
    at = models.digits_model().predict(images).max(axis=1).argmax()
    return images[at : at + 1]


async def test_samples_are_as_few_after_a_restart(tmp_path: Path):
    order = gather(below=1.1, per_day=2)
    hub = Hub()
    for kept in (2, 0):
        async with device(tmp_path) as made:
            made.hub = hub
            await made.wish(hub.desired("digits", models.digits_file(), gather=order))
            for _ in range(3):
                await made.models.infer(request("digits", pixels=PIXELS), 20, None)
            found = [record.HasField("sample") for record in await made.report()]
            assert found.count(True) == kept


async def test_a_request_too_large_to_keep_is_counted_alone(tmp_path: Path):
    async with device(tmp_path) as made:
        await made.wish(made.hub.desired("digits", models.digits_file(), gather=gather(below=1.1)))
        many = np.zeros((1100, 64), np.float32)
        await made.models.infer(request("digits", pixels=many), 20, None)
        await until(lambda: made.gatherer._measuring is not None and made.gatherer._measuring.done())
        (record,) = await made.report()
        assert counts(record.window)[INPUT_MEAN] == [1100, 0, 0]


async def test_large_requests_that_come_together_are_measured_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The loop never waits for a sum over millions of elements, and no queue of them builds up."""
    monkeypatch.setattr(gatherer, "LARGE", 100)
    async with device(tmp_path) as made:
        await made.wish(made.hub.desired("digits", models.digits_file(), gather=gather()))
        pixels = np.zeros((2, 64), np.float32)
        before = made.gatherer._answered
        tasks: set[Any] = set()

        def seen(*given: Any) -> None:
            before(*given)
            tasks.add(made.gatherer._measuring)

        made.gatherer._answered = seen  # pyright: ignore[reportAttributeAccessIssue]
        await asyncio.gather(
            *(made.models.infer(request("digits", pixels=pixels), 20, None) for _ in range(6))
        )
        await asyncio.gather(*tasks)
        (record,) = await made.report()
        assert record.window.answered == 6
        assert sum(counts(record.window)[INPUT_MEAN]) == 2 * len(tasks)


async def test_a_request_is_answered_though_it_cannot_be_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    text = "quotes the request"

    def broken(*_: Any) -> Any:
        raise RuntimeError(text)

    monkeypatch.setattr(gatherer, "values_of", broken)
    async with device(tmp_path) as made:
        await made.wish(made.hub.desired("digits", models.digits_file(), gather=gather()))
        for _ in range(3):
            answer = await made.models.infer(request("digits", pixels=PIXELS), 20, None)
            np.testing.assert_allclose(output(answer), models.digits_model().predict(PIXELS), atol=1e-5)
        (record,) = await made.report()
        assert (record.window.answered, list(record.window.signals)) == (3, [])
    told = [record.getMessage() for record in caplog.records if "counting requests" in record.getMessage()]
    assert len(told) == 1
    assert text not in told[0]


async def test_reports_come_at_the_hubs_interval_with_the_devices_readings(tmp_path: Path):
    async with device(tmp_path) as made:
        wanted = made.hub.desired("digits", models.digits_file())
        await made.wish(wanted)
        made.models.desire(edge_pb2.Desired(models=[wanted], report_ms=100), made.hub.port())
        kinds: Counter[str] = Counter()
        while kinds["telemetry"] < 3 or kinds["window"] < 1:
            if kinds["telemetry"] == 1:
                await made.models.infer(request("digits", pixels=PIXELS), 20)
            await made.spool.grown.wait()
            batch = await made.spool.front(64, 2**20)
            if batch is None:
                continue
            await made.spool.forget(batch, batch.last)
            for held in batch.records:
                kinds[held.record.WhichOneof("kind") or ""] += 1
                if held.record.HasField("telemetry"):
                    assert held.record.telemetry.cpu_percent == 12.5
        assert set(kinds) == {"telemetry", "window"}
