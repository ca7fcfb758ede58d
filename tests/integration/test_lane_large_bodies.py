"""Large bodies over HTTP, whole gateway over in-memory endpoints: nobody else waits for them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from gateway.frontends.codec_pool import CodecPool
from gateway.frontends.codecs import binding_codecs
from gateway.frontends.grpc_lane import GrpcLane
from gateway.frontends.handlers import Handlers
from gateway.frontends.http_lane import HttpLane
from gateway.pipeline.director import BUDGET_BODIES
from tests.support.fakes import Bench, bench, config_of
from tests.support.waiting import until

pytestmark = pytest.mark.quiet

pb: Any = service_pb2
INFER = "/v2/models/digits/infer"
LIMIT = 8 * 2**20
LARGE = 2**20
"""Elements: 4 MiB as FP32, several times that as JSON."""
SMALL = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}'


class Served:
    """Both lanes over one director whose endpoint answers with `outputs` elements of FP32."""

    def __init__(self, gateway: Bench) -> None:
        self.bench = gateway
        self.pool = CodecPool()
        self.outputs = 1
        self.asked = 0
        self.release = asyncio.Event()
        self.release.set()
        handlers = Handlers(gateway.director, binding_codecs(self.pool, LIMIT), name="gw", version="0")
        self._http = HttpLane(handlers, None, "127.0.0.1", 0, max_body_bytes=LIMIT)
        self._grpc = GrpcLane(handlers, "127.0.0.1", 0, max_message_bytes=LIMIT)
        for endpoint in gateway.endpoints.values():
            endpoint.behaviour = self._answer

    async def start(self) -> None:
        self.port = await self._http.start()
        self.grpc_port = await self._grpc.start()
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=60)

    async def close(self) -> None:
        await self.client.aclose()
        await asyncio.gather(self._http.drain(0), self._grpc.drain(0))
        await self.pool.close()

    async def _answer(self, message: Any, timeout_s: float) -> bytes:
        self.asked += 1
        await self.release.wait()
        answer = pb.ModelInferResponse(model_name=message.model_name, model_version="1")
        answer.outputs.add(name="y", datatype="FP32", shape=[self.outputs])
        numbers = np.random.default_rng(7).standard_normal(self.outputs).astype("<f4")
        answer.raw_output_contents.append(numbers.tobytes())
        return answer.SerializeToString()

    async def infer(self, body: bytes = SMALL, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(INFER, content=body, headers=named)

    async def answer_to_head(self, length: int) -> str:
        """The answer to a request that announces a body and sends none of it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"POST {INFER} HTTP/1.1\r\nHost: gw\r\nContent-Length: {length}\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer.decode()

    async def longest_wait(self, request: asyncio.Task[httpx.Response]) -> tuple[float, float]:
        """The longest time that liveness took while `request` ran, and how long that ran, in seconds."""
        started, waits = time.monotonic(), [0.0]
        while not request.done():
            asked = time.monotonic()
            assert (await self.client.get("/v2/health/live")).status_code == 200
            waits.append(time.monotonic() - asked)
            await asyncio.sleep(0)
        return max(waits), time.monotonic() - started


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    gateway = {**config_of().gateway.model_dump(), "limits": {"max_body_mb": LIMIT / 2**20}}
    served = Served(await bench(config_of(gateway=gateway)))
    await served.start()
    yield served
    await served.close()


def numbers(count: int, datatype: str = "FP32") -> bytes:
    data = b"0," * (count - 1) + b"0"
    return b'{"inputs": [{"name": "x", "datatype": "%b", "shape": [%d], "data": [%b]}]}' % (
        datatype.encode(),
        count,
        data,
    )


def binary(datatype: str, count: int, raw: bytes) -> tuple[bytes, dict[str, str]]:
    """The body and the header of a request with binary data in both directions."""
    text = (
        b'{"parameters": {"binary_data_output": true}, "inputs": [{"name": "x", "datatype": "%b", '
        b'"shape": [%d], "parameters": {"binary_data_size": %d}}]}' % (datatype.encode(), count, len(raw))
    )
    return text + raw, {"inference_header_content_length": str(len(text))}


async def test_health_answers_while_a_large_answer_is_written(served: Served):
    served.outputs = LARGE
    longest, whole = await served.longest_wait(asyncio.create_task(served.infer()))
    assert longest < whole / 3


async def test_health_answers_while_a_large_request_is_parsed(served: Served):
    request = asyncio.create_task(served.infer(numbers(LARGE)))
    longest, whole = await served.longest_wait(request)
    assert request.result().status_code == 200
    assert longest < whole / 3


async def test_a_deadline_ends_the_writing_of_an_answer(served: Served):
    await served.infer(numbers(2**16))
    served.outputs = LARGE
    started = time.monotonic()
    whole = await served.infer()
    took = time.monotonic() - started
    assert (whole.status_code, len(whole.json()["outputs"][0]["data"])) == (200, LARGE)
    started = time.monotonic()
    late = await served.infer(tidegate_deadline_ms=str(int(took * 250)))
    assert late.status_code == 504
    assert time.monotonic() - started < took


async def test_what_is_small_or_plain_binary_starts_no_process(served: Served):
    assert (await served.infer()).status_code == 200
    body, header = binary("FP32", LARGE, b"\0" * 4 * LARGE)
    served.outputs = LARGE
    answer = await served.infer(body, **header)
    assert answer.status_code == 200
    assert len(answer.content) > 4 * LARGE
    assert served.pool.pids == []


async def test_much_binary_bytes_data_is_checked_elsewhere(served: Served):
    body, header = binary("BYTES", 2**19, b"\0" * 4 * 2**19)
    assert (await served.infer(body, **header)).status_code == 200
    assert len(served.pool.pids) == 1
    short, header = binary("BYTES", 2**19, b"\0" * 4 * 2**19 + b"\1")
    refused = await served.infer(short, **header)
    assert refused.status_code == 400
    assert "expecting 4 bytes but only 1 bytes available" in refused.json()["error"]


async def test_a_caller_that_leaves_ends_the_work_for_it(served: Served):
    served.outputs = LARGE
    request = asyncio.create_task(served.infer())
    await until(lambda: bool(served.pool.pids), 30)
    (pid,) = served.pool.pids
    request.cancel()
    await until(lambda: not served.pool.pids, 30)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    served.outputs = 2**15
    assert (await served.infer()).status_code == 200


async def test_a_process_that_is_killed_is_replaced(served: Served):
    body = numbers(2**16)
    assert (await served.infer(body)).status_code == 200
    (pid,) = served.pool.pids
    os.kill(pid, signal.SIGKILL)
    assert (await served.infer(body)).status_code == 200
    assert served.pool.pids != [pid]
    # In the middle of its work: the job is done by another.
    served.outputs = LARGE
    request = asyncio.create_task(served.infer())
    (idle,) = served.pool.pids
    await until(lambda: served.asked == 3, 30)
    os.kill(idle, signal.SIGKILL)
    answer = await request
    assert (answer.status_code, len(answer.json()["outputs"][0]["data"])) == (200, LARGE)


async def test_close_ends_the_processes(served: Served):
    await served.infer(numbers(2**16))
    (pid,) = served.pool.pids
    await served.pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    refused = await served.infer(numbers(2**16))
    assert refused.status_code == 503


async def test_a_tensor_over_the_limit_is_refused_though_its_text_is_under_it(served: Served):
    count = LIMIT // 8 + 1
    body = numbers(count, "FP64")
    assert len(body) < LIMIT / 2
    refused = await served.infer(body)
    assert refused.status_code == 413
    assert f"{count * 8} bytes" in refused.json()["error"]
    assert f"limit of {LIMIT}." in refused.json()["error"]


async def test_bodies_beyond_the_budget_are_refused_on_both_lanes_until_others_end(served: Served):
    served.release.clear()
    body, header = binary("FP32", LIMIT // 4 - 256, b"\0" * (LIMIT - 1024))
    running = [asyncio.create_task(served.infer(body, **header)) for _ in range(BUDGET_BODIES)]
    await until(lambda: served.asked == BUDGET_BODIES, 30)
    refused = await served.answer_to_head(len(body))
    assert refused.startswith("HTTP/1.1 503 ")
    assert "\r\nretry-after: 1\r\n" in refused
    assert f"fill the {BUDGET_BODIES * LIMIT} bytes" in refused
    message = pb.ModelInferRequest(model_name="digits", raw_input_contents=[b"\0" * (LIMIT - 1024)])
    message.inputs.add(name="x", datatype="FP32", shape=[LIMIT // 4 - 256])
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await infer(message.SerializeToString())
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        running[0].cancel()
        served.release.set()
        answers = await asyncio.gather(*running[1:])
        assert {answer.status_code for answer in answers} == {200}
        assert await infer(message.SerializeToString())
    assert (await served.infer(body, **header)).status_code == 200
