"""One stream over grpc.aio: moves messages between the call and its session, and runs what it starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from edge_agent.faults import unexpected
from edge_agent.link import client
from edge_agent.link.client import CallEnded
from edge_agent.link.dialing import Setback
from edge_agent.link.messages import OK, infer_span, sampled
from edge_agent.link.session import Desire, Effect, LinkBroken, Session, Start, Stop, Welcomed
from edge_agent.ports import Hub, Models
from edgewire.v1 import edge_pb2
from oip.errors import OipError
from oip.reasons import Reason

STATES_EVERY_S = 0.25
"""How soon a model's new state, or a request that is late, is noticed."""
_LEAVE_S = 1.0
"""How long the hub has to end a stream on which nothing more is sent."""

Telemetry = Callable[[], Awaitable[edge_pb2.Telemetry]]


class Stream:
    """A session on a call to `hub`. Everything that it started has ended when `run` has.

    `spooled` gives how many records wait to be delivered. `welcomed` is called once the hub has taken the device, and gives what is handed to `models` with each
    desired state.
    """

    def __init__(
        self,
        session: Session,
        models: Models,
        telemetry: Telemetry,
        spooled: Callable[[], int],
        welcomed: Callable[[Welcomed], Hub],
    ) -> None:
        self.session = session
        self._models = models
        self._telemetry = telemetry
        self._spooled = spooled
        self._welcomed = welcomed
        self._hub: Hub | None = None
        self._heartbeat_s = 0.0
        self._up = asyncio.Event()
        self._wake = asyncio.Event()
        self._leaving = False
        self._over = asyncio.Event()
        self._running: dict[int, asyncio.Task[None]] = {}

    async def run(self, hub: str, credential: str) -> None:
        """Connect and serve until the stream ends. Returns when it ends because of `drain`; raises
        CallEnded otherwise."""
        await client.reach(hub)
        async with client.channel_to(hub) as stub:
            call: Any = stub.Connect(metadata=client.bearer(credential))
            read = asyncio.create_task(self._read(call))
            write = asyncio.create_task(self._write(call))
            beat = asyncio.create_task(self._beat())
            try:
                # Whoever writes sees only that the call is over; whoever reads learns how.
                await asyncio.wait((read, beat), return_when=asyncio.FIRST_COMPLETED)
            finally:
                call.cancel()
                tasks = [read, write, beat, *self._running.values()]
                ended = read.done() and not read.cancelled()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self.session.close()
                self._over.set()
            if not ended:
                beat.result()
            read.result()

    async def drain(self, grace_s: float) -> None:
        """Take no more inferences, answer those that run, at most `grace_s`, and end the stream. One that
        is not up yet is left to be cancelled."""
        self._leaving = True
        if not self._up.is_set():
            return
        self.session.drain()
        self._wake.set()
        try:
            async with asyncio.timeout(grace_s + _LEAVE_S):
                await self._over.wait()
        except TimeoutError:
            return

    async def _read(self, call: Any) -> None:
        while True:
            try:
                async with asyncio.timeout(None if self._up.is_set() else client.CALL_TIMEOUT_S):
                    message = await call.read()
                if message is client.EOF:
                    if self._leaving:
                        return
                    raise CallEnded(Setback.UNREACHABLE, 0.0, "ended the stream")
                for effect in self.session.received(message, time.monotonic()):
                    self._do(effect)
            except grpc.aio.AioRpcError as error:
                raise client.call_ended(error) from None
            except TimeoutError:
                raise CallEnded(Setback.UNREACHABLE, 0.0, "does not answer") from None
            except LinkBroken as broken:
                words = f"broke the edge link's protocol: {broken}"
                raise CallEnded(Setback.UNKNOWN, 0.0, words) from None
            self._wake.set()

    async def _write(self, call: Any) -> None:
        try:
            while True:
                message = self.session.outbox.next()
                if message is not None:
                    await call.write(message)
                    continue
                if self._leaving and not self.session.busy:
                    await call.done_writing()
                    return
                self._wake.clear()
                await self._wake.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return

    async def _beat(self) -> None:
        await self._up.wait()
        while True:
            telemetry = await self._telemetry()
            telemetry.inflight = self._models.inflight
            told = self._states()
            self.session.heartbeat(telemetry, *told, self._spooled())
            self._wake.set()
            due = time.monotonic() + self._heartbeat_s
            while (left := due - time.monotonic()) > 0 and self._states() == told:
                await asyncio.sleep(min(left, STATES_EVERY_S))
                self.session.expire(time.monotonic())
                self._wake.set()

    def _states(self) -> tuple[list[edge_pb2.ModelState], list[edge_pb2.Trial]]:
        return list(self._models.states()), list(self._models.trials())

    def _do(self, effect: Effect) -> None:
        match effect:
            case Welcomed(_, heartbeat_s):
                self._heartbeat_s = heartbeat_s
                self._up.set()
                self._hub = self._welcomed(effect)
            case Desire(message):
                assert self._hub is not None
                self._models.desire(message, self._hub)
            case Start(id):
                task = asyncio.create_task(self._infer(effect))
                self._running[id] = task
                task.add_done_callback(lambda ended: self._ended(id, ended))
            case Stop(id):
                if (running := self._running.get(id)) is not None:
                    running.cancel()

    def _ended(self, id: int, task: asyncio.Task[None]) -> None:
        # A hub that gives a cancelled number out again may have another task under it by now.
        if self._running.get(id) is task:
            del self._running[id]

    async def _infer(self, start: Start) -> None:
        began = time.monotonic()
        error: OipError | None = None
        response = b""
        try:
            async with asyncio.timeout_at(start.deadline):
                left = max(0.0, start.deadline - began)
                response = await self._models.infer(start.request, left, start.allowed)
        except TimeoutError:
            error = OipError(Reason.DEADLINE, "the deadline passed before an answer came")
        except OipError as raised:
            error = raised
        except Exception as raised:
            error = unexpected(raised, "an inference")
        spans = ()
        if sampled(start.traceparent):
            outcome = OK if error is None else error.reason.value
            spans = (infer_span(began - start.arrived, time.monotonic() - began, outcome),)
        if error is None:
            self.session.answered(start.id, response, spans)
        else:
            self.session.failed(start.id, error, spans)
        self._wake.set()
