"""A hub that speaks the edge link over grpc.aio and does as a test says, also what a good one would not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from edgewire.v1 import edge_pb2, edge_pb2_grpc
from tests.support.waiting import until

ALLOWED = "tier=device;site=plant-7;device=cam-7a"
PIECE = 64 * 1024


@dataclass
class Arrived:
    """What came of an inference."""

    answer: edge_pb2.Answer
    body: bytearray = field(default_factory=bytearray)

    @property
    def whole(self) -> bool:
        return len(self.body) == self.answer.size


class HubDouble(edge_pb2_grpc.EdgeHubServicer):
    """One device at a time. `refuse` ends every call with that status; `silent` says no welcome."""

    def __init__(self, *, heartbeat_ms: int = 60_000, max_message_bytes: int = 2**26) -> None:
        self.heartbeat_ms = heartbeat_ms
        self.max_message_bytes = max_message_bytes
        self.refuse: grpc.StatusCode | None = None
        self.retry_after_ms: int | None = None
        self.silent = False
        self.enrolments: list[edge_pb2.EnrolRequest] = []
        self.credentials: list[str] = []
        self.hellos: list[edge_pb2.Hello] = []
        self.heartbeats: list[edge_pb2.Heartbeat] = []
        self.answers: dict[int, Arrived] = {}
        self.frames: list[str] = []
        self.artifact = b""
        self.metadata: Mapping[str, bytes] = {}
        self.place: edge_pb2.Place | None = None
        """Where the gateway says it is."""
        self.root = b""
        self.fetches: list[edge_pb2.FetchRequest] = []
        self.streams = 0
        self.reading = asyncio.Event()
        """While it is not set, nothing is read of what the device sends."""
        self.reading.set()
        self.hold_at_answer = False
        self._out: asyncio.Queue[edge_pb2.HubMessage | None] = asyncio.Queue()
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int = 0) -> str:
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 5000),
                # As the gateway's hub: little may be under way unread.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", 256 * 1024),
            ]
        )
        edge_pb2_grpc.add_EdgeHubServicer_to_server(self, self._server)
        bound = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()
        return f"127.0.0.1:{bound}"

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(None)

    async def send(self, message: edge_pb2.HubMessage) -> None:
        await self._out.put(message)

    async def cut(self) -> None:
        """End the stream."""
        await self._out.put(None)

    async def infer(
        self,
        id: int,
        request: bytes,
        *,
        timeout_ms: int = 10_000,
        allowed: str = ALLOWED,
        traceparent: str = "",
    ) -> None:
        """Send an inference whole."""
        await self.send(
            edge_pb2.HubMessage(
                infer=edge_pb2.Infer(
                    id=id,
                    size=len(request),
                    timeout_ms=timeout_ms,
                    allowed=allowed,
                    traceparent=traceparent,
                )
            )
        )
        for at in range(0, len(request), PIECE):
            await self.send(edge_pb2.HubMessage(data=edge_pb2.Data(id=id, piece=request[at : at + PIECE])))

    async def answer(self, id: int) -> Arrived:
        """An inference's answer, once it is whole."""
        await until(lambda: id in self.answers and self.answers[id].whole)
        return self.answers[id]

    async def Enrol(
        self, request: edge_pb2.EnrolRequest, context: grpc.aio.ServicerContext
    ) -> edge_pb2.EnrolReply:
        await self._gate(context)
        self.enrolments.append(request)
        if request.token != "good":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is used up")
        return edge_pb2.EnrolReply(device="cam-7a", site="plant-7", labels={"soc": "imx8mp"}, root=self.root)

    async def Fetch(
        self, request: edge_pb2.FetchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[edge_pb2.Chunk]:
        await self._gate(context)
        self.fetches.append(request)
        for at in range(request.offset, len(self.artifact), PIECE):
            yield edge_pb2.Chunk(piece=self.artifact[at : at + PIECE])

    async def Metadata(
        self, request: edge_pb2.MetadataRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[edge_pb2.Chunk]:
        await self._gate(context)
        content = self.metadata.get(request.name)
        if content is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such file")
        for at in range(0, len(content), PIECE):
            yield edge_pb2.Chunk(piece=content[at : at + PIECE])

    async def Connect(
        self, request_iterator: AsyncIterator[edge_pb2.DeviceMessage], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[edge_pb2.HubMessage]:
        await self._gate(context)
        metadata = dict(context.invocation_metadata() or ())
        self.credentials.append(str(metadata["authorization"]))
        self._out = asyncio.Queue()
        reading = asyncio.create_task(self._read(request_iterator))
        self.streams += 1
        try:
            if not self.silent:
                yield edge_pb2.HubMessage(
                    welcome=edge_pb2.Welcome(
                        gateway="gw-plant-7",
                        heartbeat_ms=self.heartbeat_ms,
                        max_message_bytes=self.max_message_bytes,
                        place=self.place,
                    )
                )
            while (message := await self._out.get()) is not None:
                yield message
        finally:
            self.streams -= 1
            reading.cancel()

    async def _read(self, messages: AsyncIterator[Any]) -> None:
        async for message in messages:
            kind = message.WhichOneof("kind")
            await self.reading.wait()
            self.frames.append(kind)
            match kind:
                case "hello":
                    self.hellos.append(message.hello)
                case "heartbeat":
                    self.heartbeats.append(message.heartbeat)
                case "answer":
                    assert message.answer.id not in self.answers
                    self.answers[message.answer.id] = Arrived(message.answer)
                    if self.hold_at_answer:
                        self.reading.clear()
                case "data":
                    self.answers[message.data.id].body += message.data.piece
        await self._out.put(None)

    async def _gate(self, context: grpc.aio.ServicerContext) -> None:
        if self.refuse is None:
            return
        if self.retry_after_ms is not None:
            context.set_trailing_metadata((("retry-after-ms", str(self.retry_after_ms)),))
        await context.abort(self.refuse, "as the test says")
