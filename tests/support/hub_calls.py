"""Calls to an edge hub as a data plane replica makes them, and a slow link for its devices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from edgewire.v1 import inside_pb2, inside_pb2_grpc
from tests.support.hub import ListedRoll, Running, running_hub
from tests.support.simfleet import FIXTURE_STATES, SimDevice, SimFleet, enrolled, run_fixture
from tests.support.waiting import until

ANYWHERE = "tier=device"
LARGE = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


class Inside:
    """Calls as a data plane replica makes them."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub = inside_pb2_grpc.HubInsideStub(channel)

    async def forward(
        self, device: str, body: bytes, timeout_s: float = 10, allowed: str = ANYWHERE
    ) -> inside_pb2.ForwardReply:
        return await self.stub.Forward(
            inside_pb2.ForwardRequest(
                device=device,
                request=body,
                timeout_ms=round(timeout_s * 1000),
                allowed=allowed,
                traceparent="00-1",
            )
        )

    def start(self, device: str, body: bytes, **options: Any) -> asyncio.Task[inside_pb2.ForwardReply]:
        return asyncio.create_task(self.forward(device, body, **options))


@asynccontextmanager
async def inside_of(hub: Running) -> AsyncIterator[Inside]:
    async with grpc.aio.insecure_channel(hub.inside, options=LARGE) as channel:
        yield Inside(channel)


@asynccontextmanager
async def one_device(
    answer=run_fixture, **hub_options: Any
) -> AsyncIterator[tuple[Running, Inside, SimDevice]]:
    roll = ListedRoll([enrolled("cam-1")])
    async with (
        running_hub(roll, **hub_options) as hub,
        SimFleet(hub.devices, ["cam-1"], answer, FIXTURE_STATES) as fleet,
        inside_of(hub) as inside,
    ):
        await until(lambda: fleet.connected == 1)
        yield hub, inside, fleet["cam-1"]


def why(reply: inside_pb2.ForwardReply) -> tuple[str, bool]:
    return reply.reason, reply.sent


@asynccontextmanager
async def thin_link(to: str, bytes_per_s: int):
    """A relay to HOST:PORT that carries so many bytes a second each way and holds little; yields its
    own address, and how many bytes it has carried."""
    host, _, port = to.partition(":")
    carried = [0]
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(16 * 1024):
                writer.write(chunk)
                await writer.drain()
                carried[0] += len(chunk)
                await asyncio.sleep(len(chunk) / bytes_per_s)
        except OSError:
            pass
        finally:
            writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(host, int(port), limit=16 * 1024)
        for way in (pump(reader, up_writer), pump(up_reader, writer)):
            task = asyncio.create_task(way)
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(relay, "127.0.0.1", 0, limit=16 * 1024)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", lambda: carried[0]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
