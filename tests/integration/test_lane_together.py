"""Both listeners on one loop in a thread of its own, as the gateway runs them."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from gateway.backends._triton_status import failure_of
from gateway.frontends.grpc_lane import GrpcLane
from gateway.frontends.http_lane import HttpLane
from oip.reasons import STATUS
from tests.integration.lane_support import FakeService, handlers_of, infer_request

ENDPOINTS_STATUSES = [code.name for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
JSON_INFER = {
    "inputs": [
        {"name": name, "datatype": "INT32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        for name in ("INPUT0", "INPUT1")
    ]
}


async def test_both_bindings_tell_an_endpoints_verdict_by_the_one_table():
    service = FakeService()
    handlers = handlers_of(service)
    over_grpc = GrpcLane(handlers, "127.0.0.1", 0, max_message_bytes=2**20)
    over_http = HttpLane(handlers, None, "127.0.0.1", 0, max_body_bytes=2**20)
    grpc_port, http_port = await over_grpc.start(), await over_http.start()
    told: dict[str, tuple[str, int]] = {}
    async with (
        grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{http_port}") as client,
    ):
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for status in ENDPOINTS_STATUSES:
            for text in ("odd", "Request for unknown model: 'm' has no available versions"):
                service.failure = failure_of("gpu", status, text)
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await infer(infer_request("fails"))
                answer = await client.post("/v2/models/fails/infer", json=JSON_INFER)
                told[f"{status} {text[:3]}"] = (failed.value.code().name, answer.status_code)
                assert (
                    answer.json() == {"error": failed.value.details()} == {"error": service.failure.message}
                )
                assert told[f"{status} {text[:3]}"] == STATUS[service.failure.reason]
    assert told["UNAVAILABLE Req"] == ("UNAVAILABLE", 503)
    assert told["PERMISSION_DENIED odd"] == ("INTERNAL", 500)
    assert told["FAILED_PRECONDITION odd"] == ("INVALID_ARGUMENT", 400)
    await over_grpc.drain(0)
    await over_http.drain(0)


def test_one_loop_in_a_thread_serves_both_and_leaves_the_process_alone():
    signals = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    loggers = [logging.getLogger(name) for name in (None, "uvicorn", "uvicorn.access", "uvicorn.error")]
    logging_before = [(logger.level, list(logger.handlers), logger.propagate) for logger in loggers]
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="lanes")
    thread.start()

    async def start() -> tuple[GrpcLane, HttpLane, int, int]:
        handlers = handlers_of(FakeService())
        over_grpc = GrpcLane(handlers, "127.0.0.1", 0, max_message_bytes=2**20)
        over_http = HttpLane(handlers, None, "127.0.0.1", 0, max_body_bytes=2**20)
        return over_grpc, over_http, await over_grpc.start(), await over_http.start()

    over_grpc, over_http, grpc_port, http_port = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    values = np.arange(4, dtype=np.int32).reshape(1, 4)
    for module, port in ((grpc_client, grpc_port), (http_client, http_port)):
        inputs = [module.InferInput(name, [1, 4], "INT32") for name in ("INPUT0", "INPUT1")]
        for tensor in inputs:
            tensor.set_data_from_numpy(values)
        with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
            result = client.infer("add_sub", inputs)
            assert np.array_equal(result.as_numpy("OUTPUT0"), values + values)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == signals
    assert [(logger.level, list(logger.handlers), logger.propagate) for logger in loggers] == logging_before

    async def drain() -> list[asyncio.Task[object]]:
        await asyncio.gather(over_grpc.drain(5), over_http.drain(5))
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    left = asyncio.run_coroutine_threadsafe(drain(), loop).result(10)
    assert left == []
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()
