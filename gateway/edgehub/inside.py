"""The calls of data plane replicas: Forward, Watch."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from edgewire import allowed
from edgewire.v1 import inside_pb2, inside_pb2_grpc
from gateway.core.place import Place, Tier
from gateway.edgehub.book import Book
from gateway.edgehub.fleet import Fleet
from gateway.edgehub.streams import Outcome, Streams
from oip.reasons import Reason

MAX_TIMEOUT_MS = 2**31


class Alive(health_pb2_grpc.HealthServicer):
    """Says that the hub's loop runs: the cheapest question that there is."""

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


class InsideCalls(inside_pb2_grpc.HubInsideServicer):
    def __init__(
        self, book: Book, streams: Streams, fleet: Fleet, max_bytes: int, clock: Callable[[], float]
    ) -> None:
        self._book = book
        self._streams = streams
        self._fleet = fleet
        self._max_bytes = max_bytes
        self._clock = clock
        self._closing = False
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def drain(self, grace_s: float) -> None:
        """Take no new inferences, and wait for those that run."""
        self._closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._idle.wait()

    async def Forward(
        self, request: inside_pb2.ForwardRequest, context: grpc.aio.ServicerContext
    ) -> inside_pb2.ForwardReply:
        """Ends within `timeout_ms`; a cancelled call cancels the inference at the device."""
        began = self._clock()
        self._running += 1
        self._idle.clear()
        try:
            outcome = await self._forwarded(request)
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()
        return inside_pb2.ForwardReply(
            response=outcome.response,
            reason="" if outcome.reason is None else outcome.reason.value,
            message=outcome.message,
            sent=outcome.sent,
            spans=outcome.spans,
            took_us=round((self._clock() - began) * 1e6),
        )

    async def Watch(
        self, request: inside_pb2.WatchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[inside_pb2.Fleet]:
        async for message in self._fleet.watch():
            yield message

    async def _forwarded(self, request: inside_pb2.ForwardRequest) -> Outcome:
        name = request.device
        enrolled = self._book.get(name)
        if enrolled is None:
            return _unsent(Reason.UNAVAILABLE, f"Device {name} is not enrolled.")
        place = Place(Tier.DEVICE, site=enrolled.site, device=enrolled.name)
        try:
            may = allowed.decode(request.allowed).allows(place)
        except ValueError:
            may = False
        if not may:
            return _unsent(Reason.PRIVACY, f"Device {name} is not in the set of allowed places.")
        if self._closing:
            return _unsent(Reason.UNAVAILABLE, "The edge hub is stopping.")
        if enrolled.drained:
            return _unsent(Reason.UNAVAILABLE, f"Device {name} is drained.")
        if len(request.request) > self._max_bytes:
            return _unsent(
                Reason.TOO_LARGE,
                f"The request has {len(request.request)} bytes; devices take {self._max_bytes}.",
            )
        if not 0 < request.timeout_ms <= MAX_TIMEOUT_MS:
            return _unsent(Reason.DEADLINE, f"Device {name} was given no time.")
        stream = self._streams.get(name)
        if stream is None or not stream.session.open:
            return _unsent(Reason.UNAVAILABLE, f"Device {name} is away.")
        return await stream.ask(request.request, request.timeout_ms, request.allowed, request.traceparent)


def _unsent(reason: Reason, message: str) -> Outcome:
    return Outcome(reason=reason, message=message, sent=False)
