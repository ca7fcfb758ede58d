"""The gRPC listener with real sockets and unmodified clients, in front of an in-memory service."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client
import tritonclient.grpc.aio as aio_client
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gateway.core.call import Binding, Call, Reply
from gateway.core.ports import InferCodec
from gateway.frontends import handlers as handlers_module
from gateway.frontends.grpc_lane import GrpcLane
from tests.integration.lane_support import (
    CountingProxy,
    FakeService,
    handlers_of,
    infer_request,
    pb,
)
from tests.support.waiting import until

INFER = "/inference.GRPCInferenceService/ModelInfer"
LIMIT = 64 * 2**20


class Served:
    """A running lane, its service and one plain channel to it."""

    def __init__(self, service: FakeService, lane: GrpcLane, port: int) -> None:
        self.service = service
        self.lane = lane
        self.port = port
        self.channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{port}",
            options=[("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)],
        )

    def rpc(self, name: str) -> Any:
        return self.channel.unary_unary(f"/inference.GRPCInferenceService/{name}")

    def infer(self, message: bytes, **call: Any) -> Any:
        return self.rpc("ModelInfer")(message, **call)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    service = FakeService()
    handlers = handlers_of(service)
    lane = GrpcLane(handlers, "127.0.0.1", 0, max_message_bytes=LIMIT)
    served = Served(service, lane, await lane.start())
    yield served
    await served.channel.close()
    await lane.drain(0)


def tensors() -> tuple[list[Any], np.ndarray, np.ndarray]:
    a, b = np.arange(4, dtype=np.int32).reshape(1, 4), np.full((1, 4), 7, np.int32)
    inputs = [client.InferInput("INPUT0", [1, 4], "INT32"), client.InferInput("INPUT1", [1, 4], "INT32")]
    inputs[0].set_data_from_numpy(a)
    inputs[1].set_data_from_numpy(b)
    return inputs, a, b


async def failure(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_an_unmodified_client_infers_and_asks(served: Served):
    inputs, a, b = tensors()
    async with aio_client.InferenceServerClient(f"127.0.0.1:{served.port}") as triton:
        result = await triton.infer("add_sub", inputs, request_id="7")
        assert np.array_equal(result.as_numpy("OUTPUT0"), a + b)
        assert np.array_equal(result.as_numpy("OUTPUT1"), a - b)
        assert result.get_response().id == "7"
        assert await triton.is_server_live()
        assert await triton.is_server_ready()
        assert await triton.is_model_ready("add_sub", "1")
        assert not await triton.is_model_ready("nobody")
        assert not await triton.is_model_ready("add_sub", "9")
        assert not await triton.is_model_ready("gone")
        metadata = await triton.get_server_metadata()
        assert (metadata.name, metadata.version) == ("gw", "0.1.0")
        assert list(metadata.extensions) == ["binary_tensor_data", "model_configuration", "generate"]
        assert (await triton.get_model_metadata("add_sub", "1")).inputs[1].name == "INPUT1"
        assert (await triton.get_model_config("add_sub")).config.max_batch_size == 8
    assert served.service.asked[-2:] == [("add_sub", "1"), ("add_sub", "")]


@pytest.mark.parametrize("method", ["ModelReady", "ModelMetadata", "ModelConfig"])
async def test_question_that_its_options_forbid_is_refused_before_it_is_read(served: Served, method: str):
    ask = served.channel.stream_unary(f"/inference.GRPCInferenceService/{method}")
    call = ask(metadata=[("tidegate-privacy", "elsewhere")], timeout=10)  # the message is never sent
    assert (await failure(call)).code() is grpc.StatusCode.PERMISSION_DENIED
    assert not served.service.asked


async def test_request_bytes_arrive_as_they_were_sent_with_their_metadata(served: Served):
    message = infer_request() + b"\x9a\x06\x03abc"  # a field that no stub knows
    call = served.infer(message, metadata=[("x-a", "1"), ("x-a", "2"), ("k-bin", b"\x00\xff")], timeout=30)
    await call
    seen = served.service.calls[0]
    assert served.service.bodies == [len(message)]
    kept = [pair for pair in seen.metadata if pair[0] in ("x-a", "k-bin")]
    assert kept == [("x-a", "1"), ("x-a", "2"), ("k-bin", b"\x00\xff")]
    assert (seen.method, seen.binding, seen.model) == ("ModelInfer", Binding.GRPC, None)
    assert seen.deadline is not None
    assert 20 < seen.deadline - seen.received < 31


async def test_no_deadline_is_none(served: Served):
    await served.infer(infer_request())
    assert served.service.calls[0].deadline is None


async def test_answer_headers_are_initial_metadata_on_answers_and_on_errors(served: Served):
    call = served.infer(infer_request())
    assert dict(await call.initial_metadata())["tidegate-endpoint"] == "gpu-east"
    error = await failure(served.infer(infer_request("nobody")))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.details() == "Request for unknown model: 'nobody' is not found"
    assert dict(error.initial_metadata())["tidegate-attempts"] == "1"


@pytest.mark.parametrize(
    ("model", "code"),
    [("gone", "UNAVAILABLE"), ("rejects", "INTERNAL"), ("boom", "INTERNAL")],
)
async def test_a_failures_status_follows_from_its_reason(served: Served, model: str, code: str):
    error = await failure(served.infer(infer_request(model)))
    assert error.code().name == code
    assert "quotes" not in str(error.details())


async def test_a_bad_option_is_refused_on_every_rpc(served: Served):
    for method, message in [("ModelInfer", infer_request()), ("ModelConfig", b"\x0a\x07add_sub")]:
        error = await failure(served.rpc(method)(message, metadata=[("tidegate-nope", "1")]))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "tidegate-nope" in str(error.details())


async def test_a_refusal_from_metadata_answers_while_the_body_stays_with_the_caller(served: Served):
    body = infer_request(padding=50 * 2**20)
    async with (
        CountingProxy(served.port) as proxy,
        grpc.aio.insecure_channel(
            f"127.0.0.1:{proxy.port}",
            options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)],
        ) as channel,
    ):
        error = await failure(channel.unary_unary(INFER)(body, metadata=[("tidegate-privacy", "secret")]))
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "secret" in str(error.details())
        assert proxy.sent < 128 * 1024  # one flow-control window and the headers
        assert served.service.bodies == []
        await channel.unary_unary(INFER)(body)
        assert proxy.sent > len(body)
    assert served.service.bodies == [len(body)]


async def test_too_large_is_resource_exhausted_with_both_numbers(served: Served):
    error = await failure(served.infer(infer_request(padding=LIMIT)))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(LIMIT) in str(error.details())
    await served.infer(infer_request())


async def test_a_small_message_that_inflates_over_the_limit_is_refused(served: Served):
    call = served.infer(infer_request(padding=LIMIT), compression=grpc.Compression.Gzip)
    assert (await failure(call)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert served.service.bodies == []


async def test_cancelling_the_call_cancels_the_handler(served: Served):
    call = served.infer(infer_request("slow"))
    await asyncio.wait_for(served.service.entered.wait(), 5)
    call.cancel()
    await until(lambda: served.service.cancelled == 1)


async def test_the_callers_deadline_ends_the_call_and_the_handler(served: Served):
    error = await failure(served.infer(infer_request("slow"), timeout=0.2))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: served.service.cancelled == 1)


async def test_the_deadline_option_bounds_metadata_too(served: Served):
    call = served.rpc("ModelMetadata")(b"\x0a\x04slow", metadata=[("tidegate-deadline-ms", "50")])
    assert (await failure(call)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert served.service.cancelled == 1


async def test_a_message_that_is_no_protobuf_is_refused(served: Served):
    error = await failure(served.rpc("ModelConfig")(b"\xff\xff"))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "The request is not well-formed protobuf."


async def test_a_call_without_a_message_is_refused(served: Served):
    call = served.channel.stream_unary(INFER)(iter(()))
    assert (await failure(call)).code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("method", ["ModelInfer", "ModelMetadata", "ModelConfig", "ModelReady"])
@pytest.mark.parametrize("deadline_s", [None, 3600])
async def test_a_message_that_never_comes_is_not_waited_for(method: str, deadline_s: float | None):
    handlers = handlers_of(FakeService())
    lane = GrpcLane(handlers, "127.0.0.1", 0, max_message_bytes=LIMIT, message_timeout_s=0.1)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{await lane.start()}") as channel:
        call = channel.stream_unary(f"/inference.GRPCInferenceService/{method}")(timeout=deadline_s)
        error = await failure(asyncio.wait_for(call, 10))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert error.details() == "the request message was not complete after 0.1 s"
    await lane.drain(0)


async def test_a_question_without_a_deadline_has_one(served: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(handlers_module, "ANSWER_TIMEOUT_S", 0.1)
    error = await failure(asyncio.wait_for(served.rpc("ModelMetadata")(b"\x0a\x04slow"), 10))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert error.details() == "the deadline passed before ModelMetadata was answered"
    assert served.service.cancelled == 1


@pytest.mark.parametrize("character", ["a", "%", "模"])
async def test_an_error_that_quotes_a_long_name_keeps_its_status(served: Served, character: str):
    name = character * (20_000 // len(character.encode()))
    message = pb.ModelMetadataRequest(name=name).SerializeToString()
    error = await failure(served.rpc("ModelMetadata")(message))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    details = str(error.details())
    assert details.startswith(f"Request for unknown model: '{character * 100}")
    assert details.endswith("…")


UNSERVED = [
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
    "TraceSetting",
    "LogSettings",
]


def test_the_list_of_unserved_rpcs_is_the_rest_of_the_service():
    rpcs = {m.name for m in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}
    handlers = handlers_of(FakeService())
    assert rpcs - set(UNSERVED) == set(handlers.methods)


@pytest.mark.parametrize("method", [*UNSERVED, "NoSuchRpc"])
async def test_what_is_not_served_is_unimplemented_by_name(served: Served, method: str):
    error = await failure(served.rpc(method)(b""))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert error.details() == f"{method} is not served by this version"


async def test_health_follows_the_service(served: Served):
    health = health_pb2_grpc.HealthStub(served.channel)
    status = health_pb2.HealthCheckResponse
    for name in ("", "inference.GRPCInferenceService"):
        assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == status.SERVING
    watch = health.Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == status.SERVING
    served.service.is_ready = False
    assert (await watch.read()).status == status.NOT_SERVING
    assert (await health.Check(health_pb2.HealthCheckRequest())).status == status.NOT_SERVING
    served.service.is_ready = True
    assert (await watch.read()).status == status.SERVING
    drain = asyncio.create_task(served.lane.drain(5))
    assert (await watch.read()).status == status.NOT_SERVING
    assert await watch.read() is grpc.aio.EOF
    await asyncio.wait_for(drain, 3)


async def test_health_of_an_unknown_service(served: Served):
    health = health_pb2_grpc.HealthStub(served.channel)
    error = await failure(health.Check(health_pb2.HealthCheckRequest(service="nobody")))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    watch = health.Watch(health_pb2.HealthCheckRequest(service="nobody"))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


async def test_reflection_describes_the_service(served: Served):
    stub = reflection_pb2_grpc.ServerReflectionStub(served.channel)
    ask = reflection_pb2.ServerReflectionRequest
    requests = [
        ask(list_services=""),
        ask(file_containing_symbol="inference.GRPCInferenceService"),
    ]
    listed, described = [response async for response in stub.ServerReflectionInfo(iter(requests))]
    names = [service.name for service in listed.list_services_response.service]
    assert names == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
    ]
    assert any(b"ModelInferRequest" in f for f in described.file_descriptor_response.file_descriptor_proto)


async def test_a_port_in_use_is_a_clear_error(served: Served):
    second = GrpcLane(handlers_of(served.service), "127.0.0.1", served.port, max_message_bytes=1)
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{served.port}"):
        await second.start()


async def test_it_listens_only_where_told(served: Served):
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(("127.0.0.2", served.port))


async def test_drain_lets_calls_finish_and_takes_no_new_ones(served: Served):
    running = asyncio.ensure_future(served.infer(infer_request("slow")))
    await asyncio.wait_for(served.service.entered.wait(), 5)
    drain = asyncio.create_task(served.lane.drain(20))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.port}") as late:
        await until(lambda: not _accepts(served.port))
        error = await failure(late.unary_unary(INFER)(infer_request(), timeout=5))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
    served.service.release.set()
    assert pb.ModelInferResponse.FromString(await running).model_name == "slow"
    await asyncio.wait_for(drain, 5)
    assert served.service.cancelled == 0


async def test_drain_cancels_what_outlasts_its_grace(served: Served):
    running = asyncio.ensure_future(served.infer(infer_request("slow")))
    await asyncio.wait_for(served.service.entered.wait(), 5)
    await asyncio.wait_for(served.lane.drain(0.1), 5)
    assert (await failure(running)).code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert served.service.cancelled == 1


async def test_drain_waits_for_no_connection_without_a_call(served: Served):
    with socket.create_connection(("127.0.0.1", served.port)) as silent:
        running = asyncio.ensure_future(served.infer(infer_request("slow")))
        await asyncio.wait_for(served.service.entered.wait(), 5)
        drain = asyncio.create_task(served.lane.drain(60))
        done, _ = await asyncio.wait((drain,), timeout=1)
        assert not done  # a call is still running
        served.service.release.set()
        assert pb.ModelInferResponse.FromString(await running).model_name == "slow"
        await asyncio.wait_for(drain, 10)
        silent.settimeout(10)
        while silent.recv(1024):
            pass


async def test_drain_waits_while_an_answer_is_on_its_way_to_a_slow_reader(
    served: Served, monkeypatch: pytest.MonkeyPatch
):
    answer = infer_request(padding=48 * 2**20)  # more than all buffers on the way hold

    async def large(call: Call, codec: InferCodec) -> Reply:
        await call.body.read()
        return Reply(body=answer)

    monkeypatch.setattr(served.service, "infer", large)
    async with (
        CountingProxy(served.port) as proxy,
        grpc.aio.insecure_channel(
            f"127.0.0.1:{proxy.port}", options=[("grpc.max_receive_message_length", -1)]
        ) as channel,
    ):
        running = asyncio.ensure_future(channel.unary_unary(INFER)(b""))
        await until(lambda: proxy.replied > 2**16)
        proxy.replying.clear()
        drain = asyncio.create_task(served.lane.drain(60))
        done, _ = await asyncio.wait((drain,), timeout=3)
        assert not done
        proxy.replying.set()
        await asyncio.wait_for(drain, 30)
        assert proxy.replied > len(answer) / 2
        running.cancel()


async def test_drain_after_callers_that_left_at_once_is_at_once(served: Served):
    for _ in range(200):
        call = served.infer(infer_request("slow"))
        await asyncio.sleep(0)
        call.cancel()
    begun = asyncio.get_running_loop().time()
    with socket.create_connection(("127.0.0.1", served.port)):
        await asyncio.wait_for(served.lane.drain(60), 30)
    assert asyncio.get_running_loop().time() - begun < 20


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
