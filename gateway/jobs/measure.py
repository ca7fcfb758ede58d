"""How fast a variant answers, and how much it can take: measured directly at its endpoint.

First one request at a time, for the latency an idle place gives. Then twice as many in flight, again
and again, until throughput stops growing, waiting explodes or the place begins to refuse: the best
throughput seen is the capacity. Everything is bounded by counts and by time, so a slow place is
measured on fewer samples, not for longer.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gateway.core.config import EndpointConfig
from gateway.core.decision import VariantKey
from gateway.core.errors import AttemptError
from gateway.core.ports import Permit
from gateway.jobs.synthetic import synthetic_permit, synthetic_request
from gateway.routing.latency import quantile
from gateway.store.profiles import Profile

Progress = Callable[[float], None]
"""Told the share done, 0..1, never falling."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure one variant.

    Latency: after `warmup` requests, at most `samples` requests or `latency_s` seconds, but at least
    `MIN_SAMPLES`. Saturation: one step per doubling, 2, 4 .. up to `max_inflight`, each `step_s` seconds or
    three times the latency, if that is longer. A request that takes over `timeout_s` is a failure.
    """

    warmup: int = 5
    samples: int = 200
    latency_s: float = 2.0
    step_s: float = 0.6
    max_inflight: int = 64
    timeout_s: float = 10.0


METADATA_TIMEOUT_S = 5.0
BODIES = 16
"""So many different made-up requests."""
MIN_SAMPLES = 5
GROWTH = 1.05
"""A doubling that raises throughput by less than this factor is flat ..."""
FLAT_STEPS = 2
"""... and this many in a row are the plateau; a single one may be the machine's own noise."""
MAX_SLOWDOWN = 20.0
"""A median latency this many times the idle one ends the doubling."""
REACH_S = 10.0
"""How long a place that cannot be reached is tried before it is given up."""
LATENCY_SHARE = 0.4
"""Of the progress told."""


class Measurable(Protocol):
    """What is asked of an endpoint; see `gateway.core.ports.Endpoint`."""

    async def infer(
        self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float, permit: Permit
    ) -> bytes: ...

    async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes: ...


class MeasureError(RuntimeError):
    """The variant cannot be measured. The message says which and why."""


async def measure_with_made_up_data(
    endpoint: Measurable,
    declared: EndpointConfig,
    key: VariantKey,
    *,
    gateway: str,
    effort: Effort = Effort(),
    progress: Progress | None = None,
) -> Profile:
    """As `measure`, with requests that say nothing about anyone and so may go anywhere. Raises
    MeasureError, OipError where the place does not tell what the model takes, and ValueError where no
    such request can be made up."""
    rng = np.random.default_rng()
    metadata = await endpoint.model_metadata(key.model, key.version, METADATA_TIMEOUT_S)
    bodies = [synthetic_request(metadata, rng, version=key.version) for _ in range(BODIES)]
    return await measure(
        endpoint,
        key,
        lambda i: bodies[i % BODIES],
        identity=declared.identity,
        permit=synthetic_permit(declared.place, gateway),
        effort=effort,
        progress=progress,
    )


async def measure(
    endpoint: Measurable,
    key: VariantKey,
    make_body: Callable[[int], bytes],
    *,
    identity: str,
    permit: Permit,
    effort: Effort = Effort(),
    progress: Progress | None = None,
    wall: Callable[[], float] = time.time,
) -> Profile:
    """Measure the variant `key` at a started endpoint.

    `make_body(i)` is the i-th serialized ModelInferRequest, with the model named as the endpoint
    names it. `identity` is the endpoint's configured identity, `permit` the leave that the data goes under,
    `wall` dates the profile. Raises
    MeasureError when the place does not answer one request at a time.
    """
    job = _Job(endpoint, key, make_body, effort, progress or (lambda share: None), permit)
    latencies = await job.latency()
    capacity = await job.saturate(statistics.median(latencies))
    return Profile(
        endpoint=key.endpoint,
        model=key.model,
        version=key.version,
        measured_at=wall(),
        latency_p50_ms=statistics.median(latencies) * 1000,
        latency_p95_ms=quantile(sorted(latencies), 0.95) * 1000,
        capacity_rps=capacity,
        samples=len(latencies),
        payload_bytes=job.sent_bytes / job.answered,
        response_bytes=job.received_bytes / job.answered,
        identity=identity,
    )


class _Job:
    """One measurement under way; the sums are over all answered requests."""

    def __init__(
        self,
        endpoint: Measurable,
        key: VariantKey,
        make_body: Callable[[int], bytes],
        effort: Effort,
        progress: Progress,
        permit: Permit,
    ) -> None:
        self._permit = permit
        self._endpoint = endpoint
        self._key = key
        self._make_body = make_body
        self._effort = effort
        self._progress = progress
        self._numbers = itertools.count()
        self.answered = 0
        self.sent_bytes = 0
        self.received_bytes = 0

    async def latency(self) -> list[float]:
        """Seconds of each request, one at a time."""
        effort = self._effort
        taken: list[float] = []
        try:
            await self._reach()
            for _ in range(effort.warmup):
                await self._one()
            begin = time.perf_counter()
            while len(taken) < effort.samples:
                spent = (time.perf_counter() - begin) / effort.latency_s
                if spent >= 1 and len(taken) >= MIN_SAMPLES:
                    break
                self._progress(LATENCY_SHARE * min(1.0, max(spent, len(taken) / effort.samples)))
                taken.append(await self._one())
        except AttemptError as error:
            raise MeasureError(
                f"{self._key.model} on {self._key.endpoint} did not answer: {error.message}"
            ) from None
        self._progress(LATENCY_SHARE)
        return taken

    async def _reach(self) -> None:
        """One request, made again for a while if the connection is not there yet."""
        until = time.perf_counter() + REACH_S
        while True:
            try:
                await self._one()
                return
            except AttemptError as error:
                if error.sent or time.perf_counter() >= until:
                    raise
                await asyncio.sleep(REACH_S / 30)

    async def saturate(self, idle_s: float) -> float:
        """The best throughput, in requests per second."""
        effort = self._effort
        best, flat = 1 / idle_s, 0
        doublings = [2**n for n in range(1, effort.max_inflight.bit_length())]
        for done, inflight in enumerate(doublings, 1):
            try:
                rate, median_s = await self._step(inflight, max(effort.step_s, 3 * idle_s))
            except AttemptError:
                break  # what it refuses to take on is beyond its capacity
            self._progress(LATENCY_SHARE + (1 - LATENCY_SHARE) * done / len(doublings))
            flat = 0 if rate > best * GROWTH else flat + 1
            best = max(best, rate)
            if flat == FLAT_STEPS or median_s > MAX_SLOWDOWN * idle_s:
                break
        self._progress(1.0)
        return best

    async def _step(self, inflight: int, duration_s: float) -> tuple[float, float]:
        """Requests per second and the median latency in seconds with that many in flight.

        Requests that run when the time is up are waited for and count, with the time they took.
        """
        begin = time.perf_counter()
        taken: list[float] = []

        async def caller() -> None:
            while time.perf_counter() - begin < duration_s:
                taken.append(await self._one())

        callers = [asyncio.create_task(caller()) for _ in range(inflight)]
        try:
            await asyncio.gather(*callers)
        finally:
            for task in callers:
                task.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
        return len(taken) / (time.perf_counter() - begin), statistics.median(taken)

    async def _one(self) -> float:
        body = self._make_body(next(self._numbers))
        begin = time.perf_counter()
        answer = await self._endpoint.infer(body, (), self._effort.timeout_s, self._permit)
        taken = time.perf_counter() - begin
        self.answered += 1
        self.sent_bytes += len(body)
        self.received_bytes += len(answer)
        return taken
