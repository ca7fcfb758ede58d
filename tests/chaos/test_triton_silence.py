"""Connections that die without a word, and a Triton killed under many calls."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest

from gateway.core.errors import AttemptError
from gateway.demo.triton import TritonServer
from oip.reasons import Reason
from tests.support.permits import PERMIT
from tests.support.triton import REPOSITORY, infer_body, output0, slow_body, triton_endpoint
from tests.support.waiting import until

SLACK_S = 1.5


@pytest.fixture(scope="module")
def triton() -> Iterator[TritonServer]:
    server = TritonServer(REPOSITORY, load=["slow_identity", "id2d_fp32"])
    server.start()
    yield server
    server.kill()


@contextlib.contextmanager
def listener_that_drops() -> Iterator[int]:
    """A port whose queue of connections is full, so that the kernel answers no more of them."""
    with contextlib.ExitStack() as held:
        server = held.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            filler = held.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        yield server.getsockname()[1]


@contextlib.contextmanager
def listener_that_says_nothing() -> Iterator[int]:
    """A port that takes connections and never writes."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("listener", [listener_that_drops, listener_that_says_nothing])
@pytest.mark.parametrize("timeout_s", [2.0, 20.0])
async def test_a_place_that_cannot_be_connected_to_leaves_time_for_another(listener, timeout_s: float):
    with listener() as port:
        endpoint = triton_endpoint(port)
        await endpoint.start()
        begin = time.monotonic()
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(slow_body(0), (), timeout_s, PERMIT)
        assert time.monotonic() - begin < min(timeout_s, 1 + SLACK_S)
        error = caught.value
        assert (error.reason, error.sent, error.retryable) == (Reason.UNAVAILABLE, False, True)
        await endpoint.close()


class Relay:
    """Carries bytes to a port until it falls silent; connections made after that are carried again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    def fall_silent(self) -> None:
        for pump in self._pumps:
            pump.cancel()

    async def close(self) -> None:
        self.fall_silent()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, there_writer]
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            pump = asyncio.create_task(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
            sink.close()


@pytest.fixture
async def relay(triton: TritonServer) -> AsyncIterator[Relay]:
    relay = Relay(triton.grpc_port)
    yield relay
    await relay.close()


async def test_a_connection_that_falls_silent_is_given_up_and_made_anew(relay: Relay):
    endpoint = triton_endpoint(await relay.start())
    await endpoint.start()
    assert await endpoint.infer(slow_body(0), (), 10, PERMIT)
    call = asyncio.create_task(endpoint.infer(slow_body(60), (), 60, PERMIT))
    done, _ = await asyncio.wait({call}, timeout=0.3)
    assert not done
    relay.fall_silent()
    begin = time.monotonic()
    with pytest.raises(AttemptError) as caught:
        await call
    assert time.monotonic() - begin < 10 + SLACK_S, "a dead connection is noticed long before the deadline"
    assert (caught.value.reason, caught.value.sent) == (Reason.UNAVAILABLE, True)
    assert output0(await endpoint.infer(slow_body(0, value=4), (), 10, PERMIT), "int32").tolist() == [4]
    await endpoint.close()


async def test_killed_in_the_middle_of_many_calls_every_one_ends(triton: TritonServer):
    endpoint = triton_endpoint(triton.grpc_port)
    await endpoint.start()
    timeout_s = 8.0
    finished: list[int] = []

    async def one(number: int) -> str:
        value = np.full((2, 3), number, np.float32)
        begin = time.monotonic()
        try:
            answer = await endpoint.infer(infer_body("id2d_fp32", value), (), timeout_s, PERMIT)
            outcome = "right" if np.array_equal(output0(answer, "float32"), value) else "wrong"
        except AttemptError as error:
            outcome = error.reason.value
        finished.append(number)
        return outcome if time.monotonic() - begin < timeout_s + SLACK_S else "late"

    slow = [asyncio.create_task(endpoint.infer(slow_body(60), (), 30, PERMIT)) for _ in range(8)]
    gate = asyncio.Semaphore(16)

    async def queued(number: int) -> str:
        async with gate:
            return await one(number)

    calls = [asyncio.create_task(queued(number)) for number in range(200)]
    await until(lambda: len(finished) >= 50)
    await asyncio.to_thread(triton.kill)
    try:
        outcomes = await asyncio.gather(*calls)
        assert set(outcomes) == {"right", "unavailable"}
        assert outcomes.count("right") >= 50
        ended = await asyncio.wait_for(asyncio.gather(*slow, return_exceptions=True), SLACK_S)
        assert {e.reason for e in ended if isinstance(e, AttemptError)} == {Reason.UNAVAILABLE}
        assert len(ended) == 8
    finally:
        await asyncio.to_thread(triton.start)
    await endpoint.close()
