"""Told of every inference; writes what comes of it to the spool."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from edge_agent.analytics.gathering import Gathering, Written
from edge_agent.faults import unexpected
from edge_agent.ports import Seen, Served
from edge_agent.spool import Spool
from edgewire.gathering import values_of
from edgewire.places import Place
from edgewire.signals import Array, Values
from edgewire.v1 import edge_pb2
from oip.errors import OipError
from oip.reasons import Reason

REPORT_S = 60.0
"""How often a record is written while no hub says how often."""
REPORTS_S = (0.1, 3600.0)
"""A hub may ask for no more often, and no less."""
LARGE = 32 * 1024
"""Elements of a request from which on its signals are taken in another thread; one request at a time, and
those that come meanwhile are counted without their values."""
LATE_S = 0.005
"""By so much a caller's deadline may end the wait before the model's own does."""


class Gatherer:
    """`ports.Observer`. `telemetry` gives the device's readings. Lives on one loop, from `start` to `close`."""

    def __init__(
        self,
        spool: Spool,
        telemetry: Callable[[], Awaitable[edge_pb2.Telemetry]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spool = spool
        self._telemetry = telemetry
        self._clock = clock
        self._gathering = Gathering(clock(), {})
        self._every_s = REPORT_S
        self._changed = asyncio.Event()
        self._reporting: asyncio.Task[None] | None = None
        self._measuring: asyncio.Task[None] | None = None
        self._told = False

    async def start(self) -> None:
        """Open the spool and report from now on."""
        self._gathering = Gathering(self._clock(), await self._spool.open())
        self._reporting = asyncio.create_task(self._report_on(), name="tidegate reports")

    async def close(self) -> None:
        """Write down what was counted since the last report."""
        tasks = [task for task in (self._reporting, self._measuring) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._write_report()
        await self._spool.close()

    def desire(self, desired: edge_pb2.Desired, there: Place | None) -> None:
        """As `ports.Observer.desire`."""
        self._keep(self._gathering.desire(desired, there, self._clock()))
        asked_s = desired.report_ms / 1000 if desired.report_ms else REPORT_S
        self._every_s = min(max(asked_s, REPORTS_S[0]), REPORTS_S[1])
        self._changed.set()

    async def observe(
        self,
        served: Served,
        request: bytes,
        asked: str | None,
        timeout_s: float,
        infer: Callable[[Seen], Awaitable[bytes]],
    ) -> bytes:
        """As `ports.Observer.observe`."""
        seen: list[tuple[Mapping[str, Array], Mapping[str, Array]]] = []
        began = self._clock()
        try:
            response = await infer(lambda inputs, outputs: seen.append((inputs, outputs)))
        except OipError as fault:
            self._gathering.failed(served, fault.reason.value)
            raise
        except asyncio.CancelledError:
            late = self._clock() - began >= timeout_s - LATE_S
            self._gathering.failed(served, (Reason.DEADLINE if late else Reason.CANCELLED).value)
            raise
        except BaseException:
            self._gathering.failed(served, Reason.INTERNAL.value)
            raise
        took_s = self._clock() - began
        inputs, outputs = seen[-1] if seen else ({}, {})
        # The answer goes first.
        asyncio.get_running_loop().call_soon(self._answered, served, took_s, request, asked, inputs, outputs)
        return response

    def _answered(
        self,
        served: Served,
        took_s: float,
        request: bytes,
        asked: str | None,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
    ) -> None:
        values: Mapping[str, Values] = {}
        try:
            wanted = self._gathering.wanted(served, asked)
            if sum(array.size for array in (*inputs.values(), *outputs.values())) <= LARGE or not wanted:
                values = values_of(wanted, inputs, outputs)
            elif self._measuring is None or self._measuring.done():
                self._measuring = asyncio.create_task(
                    self._measure(served, took_s, request, asked, wanted, inputs, outputs),
                    name="tidegate signals",
                )
                return
        except Exception as error:
            self._failed(error)
        self._count(served, took_s, request, asked, values)

    async def _measure(
        self,
        served: Served,
        took_s: float,
        request: bytes,
        asked: str | None,
        wanted: Collection[str],
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
    ) -> None:
        values: Mapping[str, Values] = {}
        try:
            values = await asyncio.to_thread(values_of, wanted, inputs, outputs)
        except Exception as error:
            self._failed(error)
        self._count(served, took_s, request, asked, values)

    def _count(
        self, served: Served, took_s: float, request: bytes, asked: str | None, values: Mapping[str, Values]
    ) -> None:
        try:
            sample = self._gathering.answered(served, took_s, request, asked, values, self._clock())
            if sample is not None:
                self._keep((sample,))
        except Exception as error:
            self._failed(error)

    async def _report_on(self) -> None:
        last = self._clock()
        while True:
            self._changed.clear()
            try:
                async with asyncio.timeout(last + self._every_s - self._clock()):
                    await self._changed.wait()
                continue
            except TimeoutError:
                last = self._clock()
            try:
                self._write_report()
                self._spool.append(edge_pb2.Record(telemetry=await self._telemetry()))
                await self._spool.flush()
            except Exception as error:
                self._failed(error)

    def _write_report(self) -> None:
        now = self._clock()
        self._keep(self._gathering.report(now))

    def _keep(self, written: Iterable[Written]) -> None:
        for record, place in written:
            self._spool.append(record, place)
        for model, left in self._gathering.left(self._clock()).items():
            self._spool.keep(model, left)

    def _failed(self, error: Exception) -> None:
        """Nobody's request fails because it cannot be counted."""
        if not self._told:
            self._told = True
            unexpected(error, "counting requests")
