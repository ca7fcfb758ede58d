"""The device side of the edge link for hundreds of devices in one process.

It speaks the wire as an agent does (hello, heartbeats, pieces in turns, cancel, full jitter) and runs
no models: `answer` says what a device does with a request. Each device has a connection of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from edgewire.v1 import edge_pb2, edge_pb2_grpc
from gateway.registry.devices import Enrolled
from oip.errors import OipError
from oip.reasons import Reason

PIECE_BYTES = 64 * 1024
OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 256 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 200),
)


def enrolled(name: str, site: str = "plant-7", **labels: str) -> Enrolled:
    """A device whose credential is `secret-of-NAME`."""
    return Enrolled(name, site, labels, digest(secret(name)))


def secret(name: str) -> str:
    return f"secret-of-{name}"


def digest(credential: str) -> bytes:
    return hashlib.sha256(credential.encode()).digest()


class Die(Exception):
    """Raised by an answer: the device sends the beginning of one and is gone."""


@dataclass(slots=True)
class Given:
    """One inference as it came to a device."""

    infer: edge_pb2.Infer
    body: bytes


Answer = Callable[["SimDevice", Given], Awaitable[bytes]]
"""Raises OipError for an error, Die to be gone in the middle of the answer."""


@dataclass(eq=False)
class SimDevice:
    """One device. `states` is what it tells of its models. `silent` stops everything it would send."""

    hub: str
    name: str
    answer: Answer
    states: Sequence[edge_pb2.ModelState] = ()
    credential: str = ""
    back_off_s: float = 0.5
    silent: bool = False
    telemetry: edge_pb2.Telemetry = field(default_factory=edge_pb2.Telemetry)
    facts: Mapping[str, str] = field(
        default_factory=lambda: {"os": "sim", "runtime": "tflite-runtime 2.14.0"}
    )
    connects: int = 0
    ends: list[tuple[str, str]] = field(default_factory=list)
    """Status and text of every stream that ended."""
    desired: edge_pb2.Desired | None = None
    welcome: edge_pb2.Welcome | None = None
    cancelled: list[str] = field(default_factory=list)
    """OIP ids of the inferences that the hub cancelled here."""
    log: Path | None = None
    """Takes the same ids, one a line."""
    given: int = 0
    up: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._bodies: dict[int, tuple[edge_pb2.Infer, list[bytes], int]] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._small: deque[edge_pb2.DeviceMessage] = deque()
        self._pieces: deque[tuple[int, bytes, int]] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._call: Any = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._live(), name=f"device {self.name}")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def cut(self) -> None:
        """Lose the stream; the device comes back by itself."""
        if self._call is not None:
            self._call.cancel()

    def tell(self, message: edge_pb2.DeviceMessage) -> None:
        """Send a message of one's own making."""
        self._small.append(message)
        self._wake.set()

    def beat(self) -> None:
        self.tell(
            edge_pb2.DeviceMessage(heartbeat=edge_pb2.Heartbeat(telemetry=self.telemetry, models=self.states))
        )

    async def _live(self) -> None:
        failures = 0
        while True:
            hint_s = 0.0
            try:
                await self._connect()
            except grpc.aio.AioRpcError as error:
                self.ends.append((error.code().name, error.details() or ""))
                told = dict(error.trailing_metadata() or ())
                hint_s = float(told.get("retry-after-ms", 0)) / 1000
            failures = 0 if self.up.is_set() else failures + 1
            self.up.clear()
            most = min(5.0, self.back_off_s * 2**failures)
            await asyncio.sleep(hint_s + random.uniform(0, most))

    async def _connect(self) -> None:
        async with grpc.aio.insecure_channel(self.hub, options=OPTIONS) as channel:
            stub = edge_pb2_grpc.EdgeHubStub(channel)
            metadata = (("authorization", f"Bearer {self.credential or secret(self.name)}"),)
            call: Any = stub.Connect(metadata=metadata)
            self._call = call
            self._small.clear()
            self._pieces.clear()
            self._bodies.clear()
            self.tell(
                edge_pb2.DeviceMessage(hello=edge_pb2.Hello(agent_version="sim", facts=dict(self.facts)))
            )
            tasks = [
                asyncio.create_task(work) for work in (self._read(call), self._write(call), self._beats())
            ]
            try:
                await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
            finally:
                # Cancelling a stream that the hub has ended must not take the place of its status.
                running = [*tasks, *self._running.values()]
                for task in running[1:]:
                    task.cancel()
                if not tasks[0].done():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.5):
                            await asyncio.wait([tasks[0]])
                tasks[0].cancel()
                await asyncio.gather(*running, return_exceptions=True)
                self._running.clear()
                call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                tasks[0].result()

    async def _read(self, call: Any) -> None:
        while (message := await call.read()) is not grpc.aio.EOF:
            self._received(message)
        # The status comes after the last message.
        if await call.code() is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(
                await call.code(),
                await call.initial_metadata(),
                await call.trailing_metadata(),
                await call.details(),
            )

    def _received(self, message: edge_pb2.HubMessage) -> None:
        match message.WhichOneof("kind"):
            case "welcome":
                self.welcome = message.welcome
                self.connects += 1
                self.up.set()
                self.beat()
            case "desired":
                self.desired = message.desired
            case "infer":
                self._bodies[message.infer.id] = (message.infer, [], 0)
            case "data":
                if message.data.id in self._bodies:
                    infer, pieces, got = self._bodies[message.data.id]
                    pieces.append(message.data.piece)
                    self._bodies[infer.id] = (infer, pieces, got + len(message.data.piece))
                    if got + len(message.data.piece) == infer.size:
                        del self._bodies[infer.id]
                        self._begin(Given(infer, b"".join(pieces)))
            case "cancel":
                self._bodies.pop(message.cancel.id, None)
                running = self._running.pop(message.cancel.id, None)
                if running is not None:
                    running.cancel()

    def _begin(self, given: Given) -> None:
        self.given += 1
        number = given.infer.id
        task = asyncio.create_task(self._run(given))
        self._running[number] = task
        task.add_done_callback(lambda _: self._running.pop(number, None))

    async def _run(self, given: Given) -> None:
        number = given.infer.id
        answer = edge_pb2.Answer(id=number)
        body = b""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            body = await self.answer(self, given)
            answer.size = len(body)
        except OipError as error:
            answer.reason, answer.message = error.reason.value, error.message
        except Die:
            self.tell(edge_pb2.DeviceMessage(answer=edge_pb2.Answer(id=number, size=2 * PIECE_BYTES)))
            self.tell(edge_pb2.DeviceMessage(data=edge_pb2.Data(id=number, piece=bytes(PIECE_BYTES))))
            await asyncio.sleep(0.1)
            self.cut()
            return
        except asyncio.CancelledError:
            with contextlib.suppress(DecodeError):
                self.cancelled.append(service_pb2.ModelInferRequest.FromString(given.body).id)
                if self.log is not None:
                    self.log.write_text("".join(f"{one}\n" for one in self.cancelled))
            raise
        if given.infer.traceparent:
            took = round((loop.time() - began) * 1e6)
            answer.spans.add(
                name="tidegate.agent.infer",
                began_us=0,
                took_us=took,
                attributes={"outcome": answer.reason or "ok"},
            )
        self.tell(edge_pb2.DeviceMessage(answer=answer))
        if body:
            self._pieces.append((number, body, 0))
            self._wake.set()

    async def _write(self, call: Any) -> None:
        while True:
            self._wake.clear()
            while (message := self._next()) is not None:
                await call.write(message)
            await self._wake.wait()

    def _next(self) -> edge_pb2.DeviceMessage | None:
        if self.silent:
            return None
        if self._small:
            return self._small.popleft()
        if not self._pieces:
            return None
        number, body, at = self._pieces.popleft()
        piece = body[at : at + PIECE_BYTES]
        if at + len(piece) < len(body):
            self._pieces.append((number, body, at + len(piece)))
        return edge_pb2.DeviceMessage(data=edge_pb2.Data(id=number, piece=piece))

    async def _beats(self) -> None:
        await self.up.wait()
        assert self.welcome is not None
        while True:
            await asyncio.sleep(self.welcome.heartbeat_ms / 1000)
            self.beat()


class SimFleet:
    """Many devices, `hub` being HOST:PORT."""

    def __init__(
        self, hub: str, names: Sequence[str], answer: Answer, states: Sequence[edge_pb2.ModelState] = ()
    ) -> None:
        self.devices: Mapping[str, SimDevice] = {n: SimDevice(hub, n, answer, states) for n in names}

    async def __aenter__(self) -> SimFleet:
        for device in self.devices.values():
            device.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(device.stop() for device in self.devices.values()))

    def __getitem__(self, name: str) -> SimDevice:
        return self.devices[name]

    @property
    def connected(self) -> int:
        return sum(device.up.is_set() for device in self.devices.values())


def active(model: str, *, version: str = "1", shape: Sequence[int] = (-1, -1), datatype: str = "FP32"):
    """What a device tells of a model that it runs."""
    metadata = service_pb2.ModelMetadataResponse(name=model, versions=[version], platform="sim")
    metadata.inputs.add(name="INPUT0", datatype=datatype, shape=shape)
    metadata.outputs.add(name="OUTPUT0", datatype=datatype, shape=shape)
    found = "sha256:" + hashlib.sha256(model.encode()).hexdigest()
    return edge_pb2.ModelState(
        model=model,
        version=version,
        digest=found,
        state=edge_pb2.ModelState.ACTIVE,
        active_digest=found,
        active_version=version,
        metadata=metadata.SerializeToString(),
    )


FIXTURES = {"id2d_fp32": "FP32", "slow_identity": "INT32"}
"""Models that `run_fixture` runs, with their type."""
FIXTURE_STATES = (active("id2d_fp32"), active("slow_identity", shape=(-1,), datatype="INT32"))


async def run_fixture(device: SimDevice | None, given: Given) -> bytes:
    """id2d_fp32 gives back its input, slow_identity does so after `seconds`."""
    try:
        request = service_pb2.ModelInferRequest.FromString(given.body)
    except DecodeError:
        raise OipError(Reason.MALFORMED, "The request is not well-formed protobuf.") from None
    wanted = FIXTURES.get(request.model_name)
    if wanted is None or request.model_version not in ("", "1"):
        raise OipError(Reason.UNKNOWN_MODEL, f"Request for unknown model: {request.model_name!r}.")
    for tensor in request.inputs:
        if tensor.datatype != wanted:
            text = f"inference input '{tensor.name}' data-type is '{tensor.datatype}', but expects '{wanted}'"
            raise OipError(Reason.MALFORMED, text)
    if request.model_name == "slow_identity":
        await asyncio.sleep(float(request.parameters["seconds"].string_param or 0))
    response = service_pb2.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    (tensor,) = request.inputs
    response.outputs.add(name="OUTPUT0", datatype=tensor.datatype, shape=tensor.shape)
    response.raw_output_contents.append(request.raw_input_contents[0])
    return response.SerializeToString()


def numbers(model: str, count: int, request_id: str = "") -> bytes:
    """A request of `count` float32 in one row."""
    value = np.arange(count, dtype=np.float32)
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    request.inputs.add(name="INPUT0", datatype="FP32", shape=(1, count))
    request.raw_input_contents.append(value.tobytes())
    return request.SerializeToString()


async def _one(hub: str, name: str, log: str) -> None:
    device = SimDevice(hub, name, run_fixture, FIXTURE_STATES, back_off_s=0.1, log=Path(log))
    device.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_one(*sys.argv[1:]))
