"""Measuring, over a place that takes a known time and a known number of requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

import gateway.jobs.measure as measuring
from gateway.core.decision import VariantKey
from gateway.core.errors import AttemptError
from gateway.core.ports import Endpoint, Permit
from gateway.jobs.measure import Effort, MeasureError, measure
from gateway.jobs.synthetic import synthetic_request
from oip.reasons import Reason
from tests.support.permits import PERMIT

KEY = VariantKey("place", "m", "2")
TAKES_S = 0.02
QUICK = Effort(warmup=2, samples=20, latency_s=0.6, step_s=0.2, max_inflight=16, timeout_s=2)
FAR_OFF = 512
"""More in flight than any noise in two flat doublings leads to."""


class Workbench:
    """Answers with 3 bytes after `TAKES_S`, `hands` requests at a time; more than `takes_on` at once
    are refused."""

    def __init__(self, hands: int, takes_on: int = 1000) -> None:
        self._free = asyncio.Semaphore(hands)
        self._takes_on = takes_on
        self.inflight = 0
        self.peak = 0
        self.bodies: list[bytes] = []

    async def infer(
        self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float, permit: Permit
    ) -> bytes:
        self.bodies.append(body)
        self.inflight += 1
        self.peak = max(self.peak, self.inflight)
        try:
            if self.inflight > self._takes_on:
                raise AttemptError(
                    Reason.OVERLOADED, "too much", grpc_status="UNAVAILABLE", sent=True, retryable=True
                )
            async with self._free:
                await asyncio.sleep(TAKES_S)
            return b"yes"
        finally:
            self.inflight -= 1


def as_endpoint(place: Workbench) -> Endpoint:
    return place  # pyright: ignore[reportReturnType]  # measuring calls nothing but infer


async def test_latency_and_capacity_are_those_of_the_place():
    place, told = Workbench(hands=2), []
    profile = await measure(
        as_endpoint(place),
        KEY,
        lambda i: b"x" * (10 + i % 2),
        identity="aa",
        permit=PERMIT,
        effort=replace(QUICK, max_inflight=FAR_OFF),
        progress=told.append,
        wall=lambda: 1234.5,
    )
    assert (profile.endpoint, profile.model, profile.version) == KEY
    assert profile.measured_at == 1234.5
    assert profile.samples == 20
    assert profile.latency_p95_ms >= profile.latency_p50_ms >= TAKES_S * 1000
    # Two at a time, 50 a second each; a loaded machine can only take away from that.
    assert 1.2 * 1000 / profile.latency_p50_ms < profile.capacity_rps <= 100
    assert place.peak < FAR_OFF, "doubling goes on although throughput has stopped growing"
    assert profile.response_bytes == 3
    assert 10 <= profile.payload_bytes <= 11
    assert told == sorted(told)
    assert told[-1] == 1.0


async def test_quantiles_are_those_of_live_figures(monkeypatch: pytest.MonkeyPatch):
    taken = [0.001 * i for i in range(20, 0, -1)]

    async def latency(job: measuring._Job) -> list[float]:
        return taken

    monkeypatch.setattr(measuring._Job, "latency", latency)
    profile = await measure(
        as_endpoint(Workbench(hands=1)), KEY, lambda i: b"x", identity="aa", permit=PERMIT, effort=QUICK
    )
    assert profile.latency_p50_ms == pytest.approx(10.5)
    assert profile.latency_p95_ms == pytest.approx(np.quantile(taken, 0.95) * 1000)


async def test_every_request_is_asked_for_by_its_number():
    place = Workbench(hands=1)
    await measure(
        as_endpoint(place), KEY, lambda i: str(i).encode(), identity="aa", permit=PERMIT, effort=QUICK
    )
    assert place.bodies[:30] == [str(i).encode() for i in range(30)]


async def test_a_slow_place_is_measured_on_fewer_samples():
    profile = await measure(
        as_endpoint(Workbench(hands=1)),
        KEY,
        lambda i: b"",
        identity="aa",
        permit=PERMIT,
        effort=Effort(warmup=0, samples=1000, latency_s=0.1, step_s=0.05, max_inflight=2),
    )
    assert 5 <= profile.samples <= 7


async def test_what_a_place_refuses_to_take_on_is_beyond_its_capacity():
    place = Workbench(hands=8, takes_on=4)
    profile = await measure(
        as_endpoint(place), KEY, lambda i: b"", identity="aa", permit=PERMIT, effort=QUICK
    )
    assert profile.capacity_rps <= 4 / TAKES_S
    assert place.inflight == 0


async def test_a_place_that_does_not_answer_cannot_be_measured():
    with pytest.raises(MeasureError, match="m on place did not answer: too much"):
        await measure(
            as_endpoint(Workbench(hands=1, takes_on=0)),
            KEY,
            lambda i: b"",
            identity="aa",
            permit=PERMIT,
            effort=QUICK,
        )


SIZES = {
    "BOOL": 1, "INT8": 1, "UINT8": 1, "INT16": 2, "UINT16": 2, "FP16": 2, "BF16": 2,
    "INT32": 4, "UINT32": 4, "FP32": 4, "INT64": 8, "UINT64": 8, "FP64": 8,
}  # fmt: skip


@pytest.mark.parametrize("datatype", SIZES)
def test_made_up_tensors_have_the_declared_size(datatype: str):
    metadata = service_pb2.ModelMetadataResponse(name="m")
    metadata.inputs.add(name="x", datatype=datatype, shape=[-1, 3, 2])
    made = service_pb2.ModelInferRequest.FromString(
        synthetic_request(metadata.SerializeToString(), np.random.default_rng(1), version="4")
    )
    assert (made.model_name, made.model_version) == ("m", "4")
    assert [(t.name, t.datatype, list(t.shape)) for t in made.inputs] == [("x", datatype, [1, 3, 2])]
    assert [len(raw) for raw in made.raw_input_contents] == [6 * SIZES[datatype]]


def test_made_up_bytes_are_short_decimal_texts_with_their_lengths():
    metadata = service_pb2.ModelMetadataResponse(name="m")
    metadata.inputs.add(name="x", datatype="BYTES", shape=[2])
    made = service_pb2.ModelInferRequest.FromString(
        synthetic_request(metadata.SerializeToString(), np.random.default_rng(1))
    )
    raw = made.raw_input_contents[0]
    assert (raw[:4], raw[5:9], len(raw)) == (b"\1\0\0\0", b"\1\0\0\0", 10)
    assert raw[4:5].isdigit()
    assert raw[9:].isdigit()


def test_made_up_bf16_is_the_upper_half_of_a_float():
    metadata = service_pb2.ModelMetadataResponse(name="m")
    metadata.inputs.add(name="x", datatype="BF16", shape=[64])
    made = service_pb2.ModelInferRequest.FromString(
        synthetic_request(metadata.SerializeToString(), np.random.default_rng(1))
    )
    upper = np.frombuffer(made.raw_input_contents[0], "<u2").astype("<u4")
    values = (upper << 16).view("<f4")
    assert 0 <= values.min() < 0.3 < 0.7 < values.max() < 1


def test_what_nothing_can_be_made_up_for_is_said():
    metadata = service_pb2.ModelMetadataResponse(name="m")
    metadata.inputs.add(name="x", datatype="FP8", shape=[1])
    with pytest.raises(ValueError, match="'x' has datatype 'FP8'"):
        synthetic_request(metadata.SerializeToString(), np.random.default_rng(1))
    with pytest.raises(ValueError, match="not a ModelMetadataResponse"):
        synthetic_request(b"\xff\xff", np.random.default_rng(1))
