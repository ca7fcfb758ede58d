"""The device's own server with real sockets and unmodified clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_client
import tritonclient.http as http_types
import tritonclient.http.aio as http_client
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from edge_agent.local import http_app
from edge_agent.local.grpc_server import GrpcServer
from edge_agent.local.handlers import Handlers
from edge_agent.local.http_server import HttpServer
from edgewire.allowed import NOTHING
from gateway.frontends.codec_pool import CodecPool
from gateway.frontends.codecs import binding_codecs
from gateway.frontends.handlers import Handlers as GatewayHandlers
from gateway.frontends.http_lane import HttpLane
from oip.held import BodyBudget
from oip.reasons import STATUS
from tests.integration.lane_support import FakeService
from tests.support.mistakes import MISTAKES, HttpRequest, Mistake
from tests.support.tiny_models import TinyModels, identity_request, pb
from tests.support.waiting import until

LIMIT = 2**20
GOOD = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]})


@dataclass
class Local:
    models: TinyModels = field(default_factory=TinyModels)
    budget: BodyBudget = field(default_factory=lambda: BodyBudget(4 * LIMIT, "device"))

    def __post_init__(self) -> None:
        self.handlers = Handlers(self.models, lambda: "cam-7a", self.budget, LIMIT)
        self.http_server = HttpServer(self.handlers, "127.0.0.1", 0, max_body_bytes=LIMIT)
        self.grpc_server = GrpcServer(self.handlers, "127.0.0.1", 0, max_message_bytes=LIMIT)

    async def start(self) -> None:
        self.http = await self.http_server.start()
        self.grpc = await self.grpc_server.start()

    async def close(self) -> None:
        await asyncio.gather(self.http_server.close(5.0), self.grpc_server.close(5.0))


@pytest.fixture
async def local() -> AsyncIterator[Local]:
    made = Local()
    await made.start()
    yield made
    await made.close()
    assert made.budget.held == 0


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        assert self.headers["content-type"] == "application/json"
        document = json.loads(self.body)
        assert list(document) == ["error"]
        return document["error"]


async def ask(port: int, raw: bytes) -> Answer:
    """Send bytes as they are, and read one answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(15):
            writer.write(raw)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {}
            for line in head[1:-2]:
                key, _, value = line.partition(": ")
                assert key.lower() not in headers
                headers[key.lower()] = value
            body = await reader.readexactly(int(headers["content-length"]))
            return Answer(int(head[0].split(" ")[1]), headers, body)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def post(path: str, body: bytes | str = GOOD, **headers: str) -> bytes:
    content = body.encode() if isinstance(body, str) else body
    lines = [f"POST {path} HTTP/1.1", "host: device", f"content-length: {len(content)}"]
    lines += [f"{key.replace('_', '-')}: {value}" for key, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content


def get(path: str, verb: str = "GET", *headers: str) -> bytes:
    return "\r\n".join([f"{verb} {path} HTTP/1.1", "host: device", *headers, "", ""]).encode("latin-1")


async def test_tritonclient_over_http(local: Local):
    async with http_client.InferenceServerClient(f"127.0.0.1:{local.http}") as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("identity", "1")
        assert not await client.is_model_ready("fails")
        assert not await client.is_model_ready("nobody")
        server = await client.get_server_metadata()
        assert server["name"] == "tidegate-agent"
        assert server["extensions"] == ["binary_tensor_data", "model_configuration"]
        metadata = await client.get_model_metadata("identity")
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
        assert (await client.get_model_config("identity"))["backend"] == "tflite"
        value = np.arange(8, dtype=np.float32).reshape(2, 4)
        for binary in (True, False):
            given = http_types.InferInput("x", [2, 4], "FP32")
            given.set_data_from_numpy(value, binary_data=binary)
            wanted = http_types.InferRequestedOutput("x", binary_data=binary)
            found = await client.infer("identity", [given], outputs=[wanted], request_id="7")
            np.testing.assert_array_equal(found.as_numpy("x"), value)
            assert found.get_response()["id"] == "7"
        with pytest.raises(InferenceServerException, match="Request for unknown model: 'nobody'"):
            await client.infer("nobody", [given])


async def test_tritonclient_over_grpc(local: Local):
    async with grpc_client.InferenceServerClient(f"127.0.0.1:{local.grpc}") as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("identity", "1")
        assert not await client.is_model_ready("nobody")
        metadata = await client.get_model_metadata("identity")
        assert list(metadata.inputs[0].shape) == [-1, 4]
        assert (await client.get_model_config("identity")).config.backend == "tflite"
        value = np.arange(8, dtype=np.float32).reshape(2, 4)
        given = grpc_client.InferInput("x", [2, 4], "FP32")
        given.set_data_from_numpy(value)
        found = await client.infer("identity", [given], headers={"tidegate-privacy": "secret"})
        np.testing.assert_array_equal(found.as_numpy("x"), value)
        with pytest.raises(InferenceServerException, match="Request for unknown model") as caught:
            await client.infer("nobody", [given])
        assert caught.value.status() == "StatusCode.NOT_FOUND"


async def test_answers_say_who_gave_them(local: Local):
    answer = await ask(local.http, post("/v2/models/identity/infer", tidegate_privacy="secret"))
    assert answer.status == 200
    # The model's own set of places goes for a caller who names no class.
    await ask(local.http, post("/v2/models/identity/infer"))
    assert local.models.asked == [NOTHING, None]
    assert answer.headers["tidegate-endpoint"] == "cam-7a"
    assert answer.headers["tidegate-tier"] == "device"
    async with grpc.aio.insecure_channel(f"127.0.0.1:{local.grpc}") as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(
            pb.ModelInferRequest.FromString(identity_request())
        )
        metadata = dict(await call.initial_metadata())
        await call
    assert metadata["tidegate-endpoint"] == "cam-7a"


async def test_a_raw_request_is_the_data_of_the_one_input(local: Local):
    body = np.float32([1, 2, 3, 4]).tobytes()
    answer = await ask(
        local.http, post("/v2/models/identity/infer", body, inference_header_content_length="0")
    )
    assert answer.status == 200
    cut = int(answer.headers["inference-header-content-length"])
    assert json.loads(answer.body[:cut])["outputs"][0]["shape"] == [1, 4]
    assert answer.body[cut:] == body
    refused = await ask(
        local.http, post("/v2/models/identity/infer", body[:-1], inference_header_content_length="0")
    )
    assert refused.status == 400
    assert "input byte size mismatch" in refused.error


async def test_what_is_not_served_says_so(local: Local):
    for raw in (get("/v2/models/stats"), post("/v2/repository/index"), post("/v2/models/identity/generate")):
        answer = await ask(local.http, raw)
        assert answer.status == 501
        assert answer.error.endswith("is not served by this version")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{local.grpc}") as channel:
        for method, status in (
            ("inference.GRPCInferenceService/ModelStreamInfer", grpc.StatusCode.UNIMPLEMENTED),
            ("inference.GRPCInferenceService/RepositoryIndex", grpc.StatusCode.UNIMPLEMENTED),
            ("inference.GRPCInferenceService/Nonsense", grpc.StatusCode.UNIMPLEMENTED),
            ("other.Service/Call", grpc.StatusCode.UNIMPLEMENTED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(f"/{method}")(b"")
            assert caught.value.code() == status


OPTIONS = [
    ({"tidegate-policy": "fast"}, "tidegate-policy is for gateways, and this is a device's own server"),
    ({"tidegate-site": "plant-9"}, "tidegate-site is for gateways"),
    ({"tidegate-allowed": "tier=cloud"}, "tidegate-allowed is for gateways"),
    ({"tidegate-privcy": "secret"}, "unknown option tidegate-privcy: the options are tidegate-privacy,"),
    ({"tidegate_privacy": "secret"}, "unknown option tidegate_privacy"),
    ({"tidegate-privacy": "a b"}, "tidegate-privacy must be a name of 1 to 128"),
    ({"tidegate-deadline-ms": "-5"}, "tidegate-deadline-ms must be a plain decimal number above 0"),
    ({"tidegate-deadline-ms": "1e3"}, "tidegate-deadline-ms must be a plain decimal number above 0"),
]


@pytest.mark.parametrize(("headers", "message"), OPTIONS, ids=lambda value: str(value)[:40])
async def test_wrong_options_are_errors_on_every_call(local: Local, headers: dict[str, str], message: str):
    lines = [f"{key}: {value}" for key, value in headers.items()]
    for path in ("/v2/health/live", "/v2", "/v2/models/identity/ready"):
        answer = await ask(local.http, get(path, "GET", *lines))
        assert answer.status == 400
        assert answer.error.startswith(message)
    raw = post("/v2/models/identity/infer").replace(b"\r\n\r\n", f"\r\n{lines[0]}\r\n\r\n".encode(), 1)
    assert (await ask(local.http, raw)).error.startswith(message)
    assert local.models.timeouts == []


async def test_a_repeated_option_is_an_error(local: Local):
    answer = await ask(local.http, get("/v2", "GET", "tidegate-privacy: a", "tidegate-privacy: b"))
    assert answer.error == "tidegate-privacy is given more than once: give it once"


async def test_deadlines(local: Local):
    answer = await ask(local.http, post("/v2/models/slow/infer", tidegate_deadline_ms="80"))
    assert answer.status == 504
    assert answer.error == "the deadline passed before an answer came"
    await until(lambda: local.models.cancelled == 1)
    assert local.models.timeouts[0] <= 0.08
    async with grpc_client.InferenceServerClient(f"127.0.0.1:{local.grpc}") as client:
        given = grpc_client.InferInput("x", [1, 4], "FP32")
        given.set_data_from_numpy(np.zeros((1, 4), np.float32))
        with pytest.raises(InferenceServerException) as caught:
            await client.infer("slow", [given], client_timeout=0.1)
        assert "DEADLINE_EXCEEDED" in caught.value.status()
    await until(lambda: local.models.cancelled == 2)


async def test_a_caller_that_leaves_cancels_its_request(local: Local):
    _, writer = await asyncio.open_connection("127.0.0.1", local.http)
    writer.write(post("/v2/models/slow/infer"))
    await local.models.entered.wait()
    writer.close()
    await until(lambda: local.models.cancelled == 1)


async def test_a_fault_inside_is_told_without_its_text(local: Local, caplog: pytest.LogCaptureFixture):
    body = GOOD.replace("{", '{"id": "sesame", ', 1)
    answer = await ask(local.http, post("/v2/models/boom/infer", body))
    assert (answer.status, answer.error) == (500, "the agent failed inside; its log says where")
    assert "ModelInfer failed with ValueError" in caplog.text
    assert "sesame" not in caplog.text


async def test_limits_hold_before_memory_is_taken(local: Local):
    head = f"POST /v2/models/identity/infer HTTP/1.1\r\nhost: d\r\ncontent-length: {LIMIT + 1}\r\n\r\n"
    answer = await ask(local.http, head.encode())
    assert answer.status == 413
    assert answer.error == f"the body is larger than the limit of {LIMIT} bytes"
    chunk = b"%x\r\n%b\r\n" % (2**18, b"x" * 2**18)
    chunked = b"POST /v2/models/identity/infer HTTP/1.1\r\nhost: d\r\ntransfer-encoding: chunked\r\n\r\n"
    answer = await ask(local.http, chunked + 5 * chunk)
    assert answer.status == 413
    local.budget.held = local.budget.limit
    answer = await ask(local.http, post("/v2/models/identity/infer"))
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    local.budget.held = 0
    async with grpc.aio.insecure_channel(f"127.0.0.1:{local.grpc}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await infer(b"x" * (LIMIT + 1))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_json_body_counts_with_the_size_of_its_tensors(local: Local):
    zeros = {"name": "x", "datatype": "FP64", "shape": [1000], "data": [0] * 1000}
    asking = asyncio.create_task(
        ask(local.http, post("/v2/models/slow/infer", json.dumps({"inputs": [zeros]})))
    )
    await local.models.entered.wait()
    assert 8000 <= local.budget.held < 9000
    local.models.release.set()
    assert (await asking).status == 200


async def test_a_body_that_pauses_is_given_up(local: Local, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_app, "BODY_IDLE_S", 0.1)
    monkeypatch.setattr(http_app, "LINGER_S", 0.1)
    answer = await ask(local.http, post("/v2/models/identity/infer")[:-5])
    assert answer.status == 408
    assert answer.error == "no more of the body arrived for 0.1 s"


async def test_close_finishes_what_runs_and_refuses_what_comes():
    local = Local()
    await local.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", local.http)
    writer.write(post("/v2/models/slow/infer"))
    await local.models.entered.wait()
    async with grpc_client.InferenceServerClient(f"127.0.0.1:{local.grpc}") as client:
        assert await client.is_server_ready()
        local.handlers.drain()
        assert await client.is_server_live()
        with pytest.raises(InferenceServerException, match="shutting down"):
            await client.is_server_ready()
    closing = asyncio.create_task(local.close())
    local.models.release.set()
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    await closing
    writer.close()
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection("127.0.0.1", local.http)


async def test_one_listener_for_a_port(local: Local):
    with pytest.raises(OSError, match=f"HTTP: cannot listen on 127.0.0.1:{local.http}"):
        await HttpServer(local.handlers, "127.0.0.1", local.http, max_body_bytes=1).start()
    with pytest.raises(OSError, match=f"gRPC: cannot listen on 127.0.0.1:{local.grpc}"):
        await GrpcServer(local.handlers, "127.0.0.1", local.grpc, max_message_bytes=1).start()


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)
async def test_mistakes_are_told_in_the_words_of_every_route(mistake: Mistake):
    local = Local()
    await local.start()
    try:
        for request in (mistake.json, mistake.binary):
            if request is not None:
                answer = await ask(local.http, _mistaken(request))
                assert (answer.status, answer.error) == (STATUS[mistake.reason].http, mistake.message)
        if mistake.grpc is not None:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{local.grpc}") as channel:
                infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await infer(mistake.grpc)
            assert (caught.value.code().name, caught.value.details()) == (
                STATUS[mistake.reason].grpc,
                mistake.message,
            )
    finally:
        await local.close()


def _mistaken(request: HttpRequest) -> bytes:
    return post(
        "/v2/models/digits/infer",
        request.body,
        **{key.replace("-", "_"): value for key, value in request.headers.items()},
    )


def _headed(raw: bytes, *headers: str) -> bytes:
    return raw.replace(b"\r\n\r\n", "".join(f"\r\n{h}" for h in headers).encode() + b"\r\n\r\n", 1)


INFER = "/v2/models/slow/infer"
SAME = {
    "no such path": get("/v3"),
    "trailing slash": get("/v2/"),
    "empty model": get("/v2/models//ready"),
    "name that is not UTF-8": get("/v2/models/%ff/ready"),
    "wrong verb": get(INFER),
    "wrong verb on health": post("/v2/health/live"),
    "not served": get("/v2/systemsharedmemory/status"),
    "coding not served": post(INFER, content_encoding="br"),
    "not in its coding": post(INFER, content_encoding="gzip"),
    "declared too large": _headed(get(INFER, "POST"), f"content-length: {LIMIT + 1}"),
    "option twice": _headed(post(INFER), "tidegate-privacy: a", "tidegate-privacy: b"),
    "option of a wrong form": post(INFER, tidegate_deadline_ms="0x10"),
    "name of a wrong form": post(INFER, tidegate_privacy="a b"),
    "empty body": post(INFER, ""),
    "no object": post(INFER, "[]"),
    "key twice": post(INFER, '{"inputs": [], "inputs": []}'),
    "depth": post(INFER, "[" * 60_000),
    "not UTF-8": post(INFER, b'{"id": "\xff"}'),
    "no inputs": post(INFER, "{}"),
    "header length": post(INFER, inference_header_content_length="1e3"),
    "header length beyond": post(INFER, inference_header_content_length="99999"),
    "option as parameter": post(INFER, '{"parameters": {"tidegate-privacy": "x"}, "inputs": []}'),
    "shared memory": post(
        INFER,
        '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1],'
        ' "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 4}}]}',
    ),
    "tensors too large": post(
        INFER,
        '{"inputs": [{"name": "x", "datatype": "FP64", "shape": [1048576], "data": [1]}]}',
    ),
}


async def test_what_is_malformed_is_answered_as_by_the_gateway(local: Local):
    pool = CodecPool()
    gateways = GatewayHandlers(FakeService(), binding_codecs(pool, LIMIT), name="gw", version="0.1.0")
    lane = HttpLane(gateways, None, "127.0.0.1", 0, max_body_bytes=LIMIT)
    theirs = await lane.start()
    differ = {}
    try:
        for name, raw in SAME.items():
            gateway, agent = await ask(theirs, raw), await ask(local.http, raw)
            kept = ("content-type", "allow", "accept-encoding", "retry-after")
            one, other = ((a.status, {k: a.headers.get(k) for k in kept}, a.body) for a in (gateway, agent))
            if one != other:
                differ[name] = (one, other)
    finally:
        await lane.drain(0.1)
        await pool.close()
    assert differ == {}
    assert local.models.timeouts == []


async def test_gateway_and_agent_refuse_the_same_over_grpc(local: Local):
    """The scanner's refusals; the table of mistakes holds the rest."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{local.grpc}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for body, message in (
            (b"", "The ModelInferRequest has no model_name."),
            (
                b"\x0a\x01a\x0a\x01b",
                "The ModelInferRequest is not well-formed protobuf: model_name occurs twice.",
            ),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await infer(body)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert caught.value.details() == message


async def test_broken_http_is_answered_in_json(local: Local):
    for raw in (
        b"NONSENSE\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n",
    ):
        answer = await ask(local.http, raw)
        assert answer.status == 400
        assert answer.error == "the request is not well-formed HTTP/1.1"
        assert answer.headers["connection"] == "close"
    both = _headed(get(INFER, "POST"), "content-length: 5", "transfer-encoding: chunked")
    answer = await ask(local.http, both + b"0\r\n\r\n")
    assert answer.error == "the request has both Content-Length and Transfer-Encoding"
    chunked = b"POST /v2/models/identity/infer HTTP/1.1\r\nhost: d\r\ntransfer-encoding: chunked\r\n\r\n"
    for size in (b"zz", b"-5", b"f" * 17):
        assert (await ask(local.http, chunked + size + b"\r\nabc\r\n0\r\n\r\n")).status == 400


async def test_an_offer_to_upgrade_is_declined(local: Local):
    raw = get("/v2/health/live", "GET", "connection: Upgrade", "upgrade: websocket")
    assert (await ask(local.http, raw)).status == 200


async def test_many_requests_on_one_connection(local: Local):
    reader, writer = await asyncio.open_connection("127.0.0.1", local.http)
    writer.write(get("/v2/health/live") * 3 + post("/v2/models/identity/infer"))
    statuses: list[Any] = []
    for _ in range(4):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        statuses.append(head.split(" ")[1])
        length = next(line for line in head.split("\r\n") if line.startswith("content-length"))
        await reader.readexactly(int(length.partition(": ")[2]))
    writer.close()
    assert statuses == ["200"] * 4


@pytest.mark.parametrize(
    ("host", "more", "status"),
    [
        ("127.0.0.1:8090", (), 200),
        ("[::1]:8090", (), 200),
        ("localhost", (), 200),
        ("rebound.example:8090", (), 403),
        ("127.0.0.1.example", (), 403),
        ("[rebound.example]:8090", (), 403),
        ("127.0.0.1:8090", ("origin: http://127.0.0.1:3000",), 403),
        ("127.0.0.1:8090", ("origin: null",), 403),
    ],
)
async def test_a_page_in_a_browser_is_no_program_on_the_device(
    local: Local, host: str, more: tuple[str, ...], status: int
):
    for raw in (get("/v2", "GET", *more), _headed(post("/v2/models/identity/infer"), *more)):
        answer = await ask(local.http, raw.replace(b"host: device", b"host: " + host.encode()))
        assert answer.status == status
    assert len(local.models.timeouts) == (status == 200)
