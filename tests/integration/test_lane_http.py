"""The HTTP listener with real sockets and unmodified clients, in front of an in-memory service."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, MutableMapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.http as client
import tritonclient.http.aio as aio_client
from tritonclient.utils import InferenceServerException

from gateway.core.call import Binding
from gateway.frontends import http_app, http_protocol
from gateway.frontends.codec_pool import CodecPool
from gateway.frontends.http_lane import HttpLane
from tests.integration.lane_support import CountingProxy, FakeService, handlers_of
from tests.support.waiting import until

LIMIT = 2**20
BODY_TIMEOUT_S = 0.4
JSON_INFER = json.dumps(
    {
        "inputs": [
            {"name": "INPUT0", "datatype": "INT32", "shape": [1, 4], "data": [1, 2, 3, 4]},
            {"name": "INPUT1", "datatype": "INT32", "shape": [1, 4], "data": [10, 20, 30, 40]},
        ]
    }
).encode()


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.headers if key == name]
        assert len(values) < 2
        return values[0] if values else None

    @property
    def error(self) -> str:
        assert self.header("content-type") == "application/json"
        document = json.loads(self.body)
        assert list(document) == ["error"]
        return document["error"]


class Connection:
    """One TCP connection that sends what it is told, byte for byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, *, head_only: bool = False) -> Answer:
        """The next response: by its Content-Length, as everything here has one."""
        async with asyncio.timeout(10):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status, *lines = head.rstrip("\r\n").split("\r\n")
            pairs = [line.split(": ", 1) for line in lines]
            headers = [(key.lower(), value) for key, value in pairs]
            answer = Answer(int(status.split()[1]), headers, b"")
            length = int(answer.header("content-length") or 0)
            return answer if head_only else answer._replace(body=await self.reader.readexactly(length))

    async def ended(self) -> bool:
        """Whether the server sends nothing more and closes."""
        async with asyncio.timeout(10):
            return await self.reader.read(1) == b""


async def operator_app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    """Echoes the size of the body; fails on /api/v1/boom; on /api/v1/slow it watches for its caller
    to leave, longer than a body may pause, before it answers."""
    if scope["path"] == "/api/v1/boom":
        raise ValueError(f"secret {6 * 7}")
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message["body"])
        more = message["more_body"]
    if scope["path"] == "/api/v1/slow":
        left = asyncio.ensure_future(receive())
        assert not (await asyncio.wait((left,), timeout=BODY_TIMEOUT_S * 1.5))[0]
        left.cancel()
    body = str(size).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Served:
    """A running lane, its service, and connections to it."""

    def __init__(self) -> None:
        self.service = FakeService()
        self.pool = CodecPool()
        self.lane = HttpLane(
            handlers_of(self.service, self.pool),
            operator_app,
            "127.0.0.1",
            0,
            max_body_bytes=LIMIT,
            body_timeout_s=BODY_TIMEOUT_S,
        )
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, port: int | None = None) -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", port or self.port)
        self._writers.append(writer)
        return Connection(reader, writer)

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        await self.lane.drain(0)
        await self.pool.close()

    async def exchange(self, raw: bytes) -> Answer:
        connection = await self.connect()
        await connection.send(raw)
        return await connection.answer()

    async def get(self, path: str, *headers: str, verb: str = "GET") -> Answer:
        return await self.exchange(head(verb, path, *headers))

    async def infer(self, *headers: str, model: str = "add_sub", body: bytes = JSON_INFER) -> Answer:
        return await self.exchange(infer_head(*headers, model=model, length=len(body)) + body)


def head(verb: str, path: str, *headers: str) -> bytes:
    return "\r\n".join([f"{verb} {path} HTTP/1.1", "Host: gw", *headers, "", ""]).encode("latin-1")


def infer_head(*headers: str, model: str = "add_sub", length: int | None = None) -> bytes:
    declared = [] if length is None else [f"Content-Length: {length}"]
    return head("POST", f"/v2/models/{model}/infer", *headers, *declared)


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(http_app, "LINGER_S", 0.5)
    monkeypatch.setattr(http_protocol, "LINGER_S", 0.5)
    served = Served()
    served.port = await served.lane.start()
    yield served
    await served.close()


# Happy paths


@pytest.mark.parametrize("binary", [True, False])
async def test_an_unmodified_client_infers(served: Served, binary: bool):
    a, b = np.arange(4, dtype=np.int32).reshape(1, 4), np.full((1, 4), 7, np.int32)
    inputs = [client.InferInput("INPUT0", [1, 4], "INT32"), client.InferInput("INPUT1", [1, 4], "INT32")]
    inputs[0].set_data_from_numpy(a, binary_data=binary)
    inputs[1].set_data_from_numpy(b, binary_data=binary)
    outputs = [client.InferRequestedOutput(name, binary_data=binary) for name in ("OUTPUT0", "OUTPUT1")]

    def infer() -> tuple[Any, Any, Any]:
        with client.InferenceServerClient(f"127.0.0.1:{served.port}") as triton:
            result = triton.infer("add_sub", inputs, outputs=outputs, request_id="7", model_version="1")
            return result.as_numpy("OUTPUT0"), result.as_numpy("OUTPUT1"), result.get_response()["id"]

    total, difference, request_id = await asyncio.to_thread(infer)
    assert np.array_equal(total, a + b)
    assert np.array_equal(difference, a - b)
    assert request_id == "7"
    seen = served.service.calls[0]
    assert (seen.binding, seen.method, seen.model, seen.version) == (
        Binding.HTTP,
        "ModelInfer",
        "add_sub",
        "1",
    )
    assert seen.deadline is None


async def test_an_unmodified_client_asks(served: Served):
    async with aio_client.InferenceServerClient(f"127.0.0.1:{served.port}") as triton:
        assert await triton.is_server_live()
        assert await triton.is_server_ready()
        assert await triton.is_model_ready("add_sub")
        assert not await triton.is_model_ready("nobody")
        assert not await triton.is_model_ready("gone")
        assert await triton.get_server_metadata() == {
            "name": "gw",
            "version": "0.1.0",
            "extensions": ["binary_tensor_data", "model_configuration", "generate"],
        }
        assert (await triton.get_model_metadata("add_sub", "1"))["inputs"][0]["shape"] == [-1, 4]
        assert (await triton.get_model_config("add_sub"))["max_batch_size"] == 8
        with pytest.raises(InferenceServerException, match="Request for unknown model: 'nobody'"):
            await triton.get_model_metadata("nobody")
    assert served.service.asked[-3:] == [("add_sub", "1"), ("add_sub", ""), ("nobody", "")]


async def test_one_connection_serves_many_requests(served: Served):
    connection = await served.connect()
    for _ in range(3):
        await connection.send(infer_head(length=len(JSON_INFER)) + JSON_INFER)
        answer = await connection.answer()
        assert answer.status == 200
        assert answer.header("connection") is None
        assert answer.header("content-type") == "application/json"
        assert answer.header("tidegate-endpoint") == "gpu-east"
        assert [output["data"] for output in json.loads(answer.body)["outputs"]] == [
            [11, 22, 33, 44],
            [-9, -18, -27, -36],
        ]


async def test_pipelined_requests_are_answered_in_order(served: Served):
    connection = await served.connect()
    unknown = infer_head(model="nobody", length=len(JSON_INFER)) + JSON_INFER
    await connection.send(unknown + head("GET", "/v2") + infer_head(length=len(JSON_INFER)) + JSON_INFER[:50])
    assert (await connection.answer()).status == 404
    assert json.loads((await connection.answer()).body)["name"] == "gw"
    await connection.send(JSON_INFER[50:])
    assert (await connection.answer()).status == 200


async def test_chunked_bodies_of_many_chunks(served: Served):
    every_byte = [JSON_INFER[i : i + 1] for i in range(len(JSON_INFER))]
    raw = infer_head("Transfer-Encoding: chunked") + chunked(*every_byte, *[b" "] * 70_000)
    assert (await served.exchange(raw)).status == 200


async def test_head_has_the_headers_of_get_and_no_body(served: Served):
    connection = await served.connect()
    await connection.send(head("HEAD", "/v2") + head("GET", "/v2"))
    without = await connection.answer(head_only=True)
    with_body = await connection.answer()
    assert without.status == with_body.status == 200
    assert without.header("content-length") == with_body.header("content-length")


async def test_readiness_follows_the_service(served: Served):
    assert (await served.get("/v2/health/ready")).body == b""
    served.service.is_ready = False
    answer = await served.get("/v2/health/ready")
    assert answer.status == 503
    assert answer.error == "the server is not ready"
    assert (await served.get("/v2/health/live")).status == 200


# What callers say, and what the service hears


async def test_headers_arrive_in_order_with_repeats_and_latin_1(served: Served):
    await served.infer("X-A: 1", "tidegate-privacy: a", "x-a: é", "TIDEGATE-Site:  s \t")
    kept = [pair for pair in served.service.calls[0].metadata if pair[0] in ("x-a", "tidegate-site")]
    assert kept == [("x-a", "1"), ("x-a", "é"), ("tidegate-site", "s")]


async def test_a_repeated_option_is_refused(served: Served):
    answer = await served.infer("tidegate-privacy: public", "tidegate-privacy: public")
    assert answer.status == 400
    assert answer.error == "tidegate-privacy is given more than once: give it once"


async def test_options_are_checked_on_every_route(served: Served):
    answer = await served.get("/v2/models/add_sub", "tidegate-nope: 1")
    assert answer.status == 400
    assert "tidegate-nope" in answer.error


async def test_trailer_fields_are_no_headers(served: Served):
    raw = infer_head("Transfer-Encoding: chunked", "Trailer: tidegate-site") + chunked(JSON_INFER)
    assert (await served.exchange(raw[:-2] + b"tidegate-site: s\r\n\r\n")).status == 200
    assert "tidegate-site" not in dict(served.service.calls[0].metadata)


@pytest.mark.parametrize(("path", "name"), [("a%20b", "a b"), ("ns%2Fm", "ns/m")])
async def test_a_models_name_is_decoded_once(served: Served, path: str, name: str):
    assert json.loads((await served.get(f"/v2/models/{path}")).body)["name"] == name
    assert (await served.get(f"/v2/models/{path.replace('%', '%25')}")).status == 404


# Failures


@pytest.mark.parametrize(
    ("model", "status", "message"),
    [
        ("nobody", 404, "Request for unknown model: 'nobody' is not found"),
        ("gone", 503, "endpoint gpu-east is gone"),
        ("rejects", 500, "endpoint gpu-east says no"),
        ("boom", 500, "the gateway failed inside; its log says where"),
    ],
)
async def test_failures_are_json_with_one_sentence(served: Served, model: str, status: int, message: str):
    answer = await served.infer(model=model)
    assert (answer.status, answer.error) == (status, message)
    assert answer.header("retry-after") == ("1" if status == 503 else None)
    assert answer.header("tidegate-endpoint") == (None if model == "boom" else "gpu-east")


@pytest.mark.parametrize("character", ["a", "%E6%A8%A1"])
async def test_an_error_that_quotes_a_long_name_is_bounded(served: Served, character: str):
    answer = await served.get("/v2/models/" + character * (50_000 // len(character)))
    assert answer.status == 404
    assert answer.error.startswith("Request for unknown model: ")
    assert len(answer.body) <= 16 * 1024


async def test_a_fault_is_logged_without_its_text(served: Served, caplog: pytest.LogCaptureFixture):
    await served.infer(model="boom")
    assert "ValueError" in caplog.text
    assert "lane_support.py" in caplog.text
    assert "\\x02" not in caplog.text


@pytest.mark.parametrize(
    ("verb", "path", "rpc"),
    [
        ("GET", "/v2/models/stats", "ModelStatistics"),
        ("GET", "/v2/models/m/versions/1/stats", "ModelStatistics"),
        ("POST", "/v2/repository/index", "RepositoryIndex"),
        ("POST", "/v2/repository/models/m/load", "RepositoryModelLoad"),
        ("POST", "/v2/repository/models/m/unload", "RepositoryModelUnload"),
        ("GET", "/v2/systemsharedmemory/status", "SystemSharedMemoryStatus"),
        ("POST", "/v2/systemsharedmemory/region/r/register", "SystemSharedMemoryRegister"),
        ("POST", "/v2/cudasharedmemory/unregister", "CudaSharedMemoryUnregister"),
        ("GET", "/v2/trace/setting", "TraceSetting"),
        ("POST", "/v2/models/m/trace/setting", "TraceSetting"),
        ("POST", "/v2/logging", "LogSettings"),
    ],
)
async def test_what_is_not_served_is_501_by_name(served: Served, verb: str, path: str, rpc: str):
    answer = await served.get(path, verb=verb)
    assert (answer.status, answer.error) == (501, f"{rpc} is not served by this version")


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v2/", "/v2/nothing", "/v2/models/add_sub/", "/metrics", "/apix"]
)
async def test_an_unknown_path_is_404(served: Served, path: str):
    answer = await served.get(path)
    assert answer.status == 404
    assert "no such path" in answer.error


async def test_a_wrong_verb_is_405_with_what_is_right(served: Served):
    answer = await served.get("/v2/models/add_sub/infer")
    assert (answer.status, answer.header("allow")) == (405, "POST")
    answer = await served.get("/v2", verb="DELETE")
    assert (answer.status, answer.header("allow")) == (405, "GET, HEAD")
    assert answer.error == "this path takes GET and HEAD only"


@pytest.mark.parametrize(
    "raw",
    [
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"GET /v2 HTTP/1.1\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /v2\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET /v2/models/\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v2/models/%FF HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT gw:1 HTTP/1.1\r\nHost: gw\r\n\r\n",
        infer_head("Content-Length: 3", "Content-Length: 3") + b"abc",
        infer_head("Content-Length: 3", "Content-Length: 4") + b"abc",
        infer_head("Content-Length: 3", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
        infer_head("Transfer-Encoding: chunked", "Content-Length: 3") + b"0\r\n\r\n",
        infer_head("Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n",
        infer_head("Transfer-Encoding: gzip"),
        infer_head("Content-Length: 1e3"),
        infer_head("Content-Length: 99999999999999999999999"),
        infer_head("Transfer-Encoding: chunked") + b"zz\r\n",
        infer_head("Transfer-Encoding: chunked") + b"3\r\nabcd\r\n0\r\n\r\n",
        b"POST /v2/models/m/infer HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        head("GET", "/v2", "X: " + "a" * 70_000),
        b"GET /v2 HTTP/1.1\r\nX: " + b"a" * 500_000,
    ],
)
async def test_malformed_http_is_400_in_json(served: Served, raw: bytes):
    connection = await served.connect()
    await connection.send(raw)
    answer = await connection.answer()
    assert answer.status == 400
    assert answer.error
    assert served.service.bodies == []
    assert (await served.infer()).status == 200


async def test_garbage_behind_a_request_does_not_replace_its_answer(served: Served):
    connection = await served.connect()
    await connection.send(infer_head(model="slow", length=len(JSON_INFER)) + JSON_INFER)
    await asyncio.wait_for(served.service.entered.wait(), 5)
    await connection.send(b"\x00GARBAGE\r\n\r\n")
    served.service.release.set()
    answer = await connection.answer()
    assert (answer.status, answer.header("connection")) == (200, "close")
    assert await connection.ended()


async def test_garbage_behind_requests_that_wait_leaves_the_one_that_runs_its_answer(served: Served):
    connection = await served.connect()
    running = infer_head(model="slow", length=len(JSON_INFER)) + JSON_INFER
    await connection.send(running + head("GET", "/v2"))
    await asyncio.wait_for(served.service.entered.wait(), 5)
    await connection.send(head("GET", "/v2") + b"\x00GARBAGE\r\n\r\n")
    await asyncio.sleep(0.05)
    served.service.release.set()
    answer = await connection.answer()
    assert (answer.status, answer.header("connection")) == (200, "close")
    assert json.loads(answer.body)["model_name"] == "slow"
    assert await connection.ended()
    assert served.service.cancelled == 0


async def test_a_broken_chunk_while_the_body_is_read_is_400(served: Served):
    connection = await served.connect()
    await connection.send(infer_head("Transfer-Encoding: chunked") + b"1\r\n{\r\n")
    await until(lambda: len(served.service.calls) == 1)
    await connection.send(b"zz\r\n")
    assert (await connection.answer()).status == 400
    assert await connection.ended()
    assert served.service.bodies == []


UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")


@pytest.mark.parametrize("piece", [1, 7, 1 << 20], ids=["bytewise", "in-sevens", "at-once"])
async def test_an_offer_to_upgrade_is_declined_and_the_connection_goes_on(served: Served, piece: int):
    requests = [
        head("GET", "/v2", *UPGRADE),
        infer_head(*UPGRADE, length=len(JSON_INFER)) + JSON_INFER,
        infer_head(*UPGRADE, "Transfer-Encoding: chunked") + chunked(JSON_INFER[:9], JSON_INFER[9:]),
        infer_head(length=len(JSON_INFER)) + JSON_INFER,
    ]
    connection = await served.connect()
    raw = b"".join(requests)
    for at in range(0, len(raw), piece):
        await connection.send(raw[at : at + piece])
    answers = [await connection.answer() for _ in requests]
    assert [answer.status for answer in answers] == [200] * 4
    assert [answer.header("connection") for answer in answers] == [None] * 4
    assert answers[1].body == answers[2].body == answers[3].body


async def test_an_offer_to_upgrade_excuses_no_wrong_framing(served: Served):
    answer = await served.exchange(infer_head(*UPGRADE, "Transfer-Encoding: gzip") + JSON_INFER)
    assert answer.status == 400
    broken = infer_head(*UPGRADE, "Transfer-Encoding: chunked") + b"nonsense\r\n"
    assert (await served.exchange(broken)).status == 400
    early = await served.exchange(infer_head(*UPGRADE, length=LIMIT + 1))
    assert early.status == 413
    assert served.service.bodies == []


@pytest.mark.parametrize(("target", "status"), [("gw:80", 400), ("/v2", 405)])
async def test_connect_ends_the_connection(served: Served, target: str, status: int):
    answer = await served.exchange(head("CONNECT", target) + b"in another protocol")
    assert (answer.status, answer.header("connection")) == (status, "close")


# Bodies stay where they are until they are wanted


async def test_a_refusal_from_headers_leaves_a_large_body_on_the_socket(served: Served):
    loop = asyncio.get_running_loop()
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 * 1024)
        raw.setblocking(False)
        await loop.sock_connect(raw, ("127.0.0.1", served.port))
        await loop.sock_sendall(raw, infer_head("tidegate-privacy: secret", length=64 * 2**20))
        received = await asyncio.wait_for(loop.sock_recv(raw, 65536), 5)
        assert received.startswith(b"HTTP/1.1 403 ")
        assert b"connection: close" in received
        while chunk := await asyncio.wait_for(loop.sock_recv(raw, 65536), 5):
            received += chunk
        assert b"class secret" in received
        # The server has closed its side but not reset: whatever still fits is in kernel buffers.
        sent = 0
        try:
            while True:
                sent += raw.send(b"x" * 65536)
        except BlockingIOError:
            pass
        assert 0 < sent < 6 * 2**20
    assert served.service.bodies == []


@pytest.mark.parametrize("before", [b"", head("GET", "/v2")], ids=["alone", "pipelined"])
async def test_nothing_of_an_unwanted_body_is_taken_behind_its_head(
    served: Served, monkeypatch: pytest.MonkeyPatch, before: bytes
):
    taken: dict[int, int] = {}
    feed = http_protocol.PatientProtocol.data_received

    def counted(protocol: http_protocol.PatientProtocol, data: bytes) -> None:
        assert protocol.client is not None
        caller = protocol.client[1]
        taken[caller] = taken.get(caller, 0) + len(data)
        feed(protocol, data)

    monkeypatch.setattr(http_protocol.PatientProtocol, "data_received", counted)
    served.service.undecided = asyncio.Event()
    connection = await served.connect()
    caller = connection.writer.get_extra_info("sockname")[1]
    request = before + infer_head("tidegate-privacy: secret", length=64 * 2**20)
    await connection.send(request)
    if before:
        assert (await connection.answer()).status == 200
    await until(lambda: len(served.service.calls) == 1)
    connection.writer.write(b"x" * 8 * 2**20)
    for _ in range(20):
        await served.get("/v2")
    served.service.undecided.set()
    assert (await connection.answer()).status == 403
    assert await connection.ended()
    assert taken[caller] == len(request)


async def test_a_client_that_sends_everything_first_still_gets_the_answer(served: Served):
    inputs = [client.InferInput("INPUT0", [2**23], "INT32")]
    inputs[0].set_data_from_numpy(np.zeros(2**23, np.int32))

    def infer() -> None:
        with client.InferenceServerClient(f"127.0.0.1:{served.port}") as triton:
            triton.infer("add_sub", inputs, headers={"tidegate-privacy": "secret"})

    with pytest.raises(InferenceServerException, match=r"403.*class secret"):
        await asyncio.to_thread(infer)


async def test_the_client_may_wait_for_100_continue(served: Served):
    connection = await served.connect()
    expecting = infer_head("Expect: 100-continue", length=len(JSON_INFER))
    await connection.send(expecting)
    assert await connection.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await connection.send(JSON_INFER)
    assert (await connection.answer()).status == 200
    connection = await served.connect()
    await connection.send(infer_head("Expect: 100-continue", "tidegate-privacy: secret", length=9))
    answer = await connection.answer()
    assert (answer.status, answer.header("connection")) == (403, "close")
    assert await connection.ended()


async def test_a_declared_length_over_the_limit_is_413_unread(served: Served):
    for length in (LIMIT + 1, 2**31, 3282758843):
        answer = await served.exchange(infer_head(length=length))
        assert answer.status == 413
        assert str(LIMIT) in answer.error
    body = JSON_INFER + b" " * (LIMIT - len(JSON_INFER))
    assert (await served.infer(body=body)).status == 200


async def test_a_chunked_body_is_counted(served: Served):
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    connection = await served.connect()
    connection.writer.write(infer_head("Transfer-Encoding: chunked") + chunk * 64)
    answer = await connection.answer()
    assert answer.status == 413
    assert await connection.ended()


async def test_a_body_that_never_ends_is_408(served: Served):
    connection = await served.connect()
    await connection.send(infer_head(length=100) + b"{")
    answer = await connection.answer()
    assert (answer.status, answer.header("connection")) == (408, "close")
    assert answer.error == "no more of the body arrived for 0.4 s"
    assert await connection.ended()


async def test_only_idle_time_counts_against_a_body(served: Served):
    connection = await served.connect()
    await connection.send(infer_head(length=len(JSON_INFER)))
    step = len(JSON_INFER) // 8 + 1
    begun = time.monotonic()
    for at in range(0, len(JSON_INFER), step):
        await connection.send(JSON_INFER[at : at + step])
        await asyncio.sleep(BODY_TIMEOUT_S / 4)
    assert time.monotonic() - begun > BODY_TIMEOUT_S
    assert (await connection.answer()).status == 200


async def test_a_head_that_never_ends_is_408(served: Served):
    connection = await served.connect()
    await connection.send(b"GET /v2 HTTP/1.1\r\n")
    assert (await connection.answer()).status == 408
    assert await connection.ended()
    silent = await served.connect()
    assert await silent.ended()


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "identity, gzip"])
async def test_compressed_bodies_are_415(served: Served, coding: str):
    answer = await served.infer(f"Content-Encoding: {coding}")
    assert (answer.status, answer.header("accept-encoding")) == (415, "identity")
    assert (await served.infer("Content-Encoding: identity")).status == 200


async def test_a_get_with_a_body_is_answered_and_the_connection_closes(served: Served):
    connection = await served.connect()
    await connection.send(head("GET", "/v2", "Content-Length: 10"))
    assert (await connection.answer()).status == 200
    assert await connection.ended()


# Callers that leave, and servers that do


async def test_a_caller_that_leaves_cancels_its_inference(served: Served):
    connection = await served.connect()
    await connection.send(infer_head(model="slow", length=len(JSON_INFER)) + JSON_INFER)
    await asyncio.wait_for(served.service.entered.wait(), 5)
    connection.writer.close()
    await until(lambda: served.service.cancelled == 1, 1)


async def test_a_caller_that_leaves_cancels_its_question(served: Served):
    connection = await served.connect()
    await connection.send(head("GET", "/v2/models/slow"))
    await asyncio.wait_for(served.service.entered.wait(), 5)
    connection.writer.transport.abort()
    await until(lambda: served.service.cancelled == 1, 1)


async def test_a_caller_that_leaves_cancels_what_runs_before_requests_that_wait(served: Served):
    connection = await served.connect()
    await connection.send(infer_head(model="slow", length=len(JSON_INFER)) + JSON_INFER)
    await asyncio.wait_for(served.service.entered.wait(), 5)
    for part in (head("GET", "/v2"), head("GET", "/v2/models/add_sub"), b"GET /v2 HT"):
        await connection.send(part)
        await asyncio.sleep(0.02)
    connection.writer.close()
    await until(lambda: served.service.cancelled == 1, 1)
    assert served.service.asked == [("slow", "")]


async def test_many_requests_that_wait_are_read_no_further_and_all_answered(served: Served):
    connection = await served.connect()
    await connection.send(infer_head(model="slow", length=len(JSON_INFER)) + JSON_INFER)
    await asyncio.wait_for(served.service.entered.wait(), 5)
    waiting = 3 * http_protocol.MAX_WAITING
    (protocol,) = served.lane._connections()
    for number in range(waiting):
        await connection.send(head("GET", f"/v2/models/m{number}"))
        await asyncio.sleep(0.005)
    assert len(protocol.pipeline) <= http_protocol.MAX_WAITING
    served.service.release.set()
    assert (await connection.answer()).status == 200
    for number in range(waiting):
        assert f"'m{number}'" in (await connection.answer()).error


async def test_a_head_that_is_read_no_further_does_not_time_out(served: Served):
    connection = await served.connect()
    await connection.send(infer_head(model="slow", length=len(JSON_INFER)) + JSON_INFER)
    await asyncio.wait_for(served.service.entered.wait(), 5)
    waiting = http_protocol.MAX_WAITING
    await connection.send(b"".join(head("GET", f"/v2/models/m{n}") for n in range(waiting)) + b"GET /v2 HT")
    (protocol,) = served.lane._connections()
    await until(lambda: len(protocol.pipeline) == waiting)
    await connection.send(b"TP/1.1\r\nHost: gw\r\n\r\n")
    await asyncio.sleep(BODY_TIMEOUT_S * 1.5)
    served.service.release.set()
    assert (await connection.answer()).status == 200
    for number in range(waiting):
        assert f"'m{number}'" in (await connection.answer()).error
    assert (await connection.answer()).status == 200


async def test_a_caller_that_leaves_in_mid_body_frees_the_handler(served: Served):
    connection = await served.connect()
    await connection.send(infer_head(length=100) + b"{")
    await until(lambda: len(served.service.calls) == 1)
    connection.writer.close()
    await served.lane.drain(5)
    assert served.service.bodies == []


async def test_the_deadline_option_bounds_a_question(served: Served):
    answer = await served.get("/v2/models/slow", "tidegate-deadline-ms: 50")
    assert answer.status == 504
    assert served.service.cancelled == 1


async def test_drain_finishes_what_runs_and_refuses_what_comes(served: Served):
    running, idle = await served.connect(), await served.connect()
    await idle.send(head("GET", "/v2"))
    assert (await idle.answer()).status == 200
    await running.send(infer_head(model="slow", length=len(JSON_INFER)) + JSON_INFER)
    await asyncio.wait_for(served.service.entered.wait(), 5)
    drain = asyncio.create_task(served.lane.drain(20))
    await asyncio.sleep(0)
    with pytest.raises(ConnectionRefusedError):
        await served.connect()
    await idle.send(head("GET", "/v2/health/ready"))
    answer = await idle.answer()
    assert (answer.status, answer.header("connection")) == (503, "close")
    assert "shutting down" in answer.error
    served.service.release.set()
    answer = await running.answer()
    assert (answer.status, answer.header("connection")) == (200, "close")
    await asyncio.wait_for(drain, 5)
    assert served.service.cancelled == 0


async def test_drain_keeps_liveness(served: Served):
    running, idle = await served.connect(), await served.connect()
    await idle.send(head("GET", "/v2/health/live"))
    await idle.answer()
    await running.send(infer_head(model="slow", length=len(JSON_INFER)) + JSON_INFER)
    await asyncio.wait_for(served.service.entered.wait(), 5)
    drain = asyncio.create_task(served.lane.drain(20))
    await asyncio.sleep(0)
    await idle.send(head("GET", "/v2/health/live"))
    assert (await idle.answer()).status == 200
    served.service.release.set()
    await asyncio.wait_for(drain, 5)


async def test_drain_ends_what_outlasts_its_grace(served: Served):
    running, idle = await served.connect(), await served.connect()
    await running.send(infer_head(model="slow", length=len(JSON_INFER)) + JSON_INFER)
    await asyncio.wait_for(served.service.entered.wait(), 5)
    await asyncio.wait_for(served.lane.drain(0.1), 5)
    answer = await running.answer()
    assert answer.status == 503
    assert "shut down before" in answer.error
    assert served.service.cancelled == 1
    assert await idle.ended()


async def test_a_port_in_use_is_a_clear_error(served: Served):
    second = HttpLane(handlers_of(served.service), None, "127.0.0.1", served.port, max_body_bytes=1)
    with pytest.raises(
        OSError, match=f"HTTP: cannot listen on 127.0.0.1:{served.port}: Address already in use"
    ):
        await second.start()


async def test_no_answer_waits_on_a_slow_neighbour(served: Served):
    async with CountingProxy(served.port) as proxy:
        stuck = await served.connect(proxy.port)
        await stuck.send(infer_head(model="slow", length=len(JSON_INFER)) + JSON_INFER)
        await asyncio.wait_for(served.service.entered.wait(), 5)
        assert (await served.infer()).status == 200


# The operator's application


async def test_operator_paths_are_passed_on(served: Served):
    answer = await served.exchange(head("POST", "/api/v1/route", "Content-Length: 5") + b"12345")
    assert (answer.status, answer.body) == (200, b"5")
    assert (await served.get("/console")).body == b"0"
    assert (await served.get("/console/app.js?x=1")).body == b"0"
    assert served.service.calls == []


async def test_operator_bodies_are_bounded(served: Served):
    size = http_app.OPERATOR_MAX_BODY_BYTES + 1
    assert (await served.exchange(head("POST", "/api/v1/route", f"Content-Length: {size}"))).status == 413
    raw = head("POST", "/api/v1/route", "Transfer-Encoding: chunked") + chunked(b"x" * size)
    connection = await served.connect()
    connection.writer.write(raw)
    assert (await connection.answer()).status == 413


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (("PUT", "/api/v1/artifacts"), 200),
        (("POST", "/api/v1/artifacts"), 413),
        (("PUT", "/api/v1/artifacts/"), 413),
        (("PUT", "/api/v1/%61rtifacts"), 413),
        (("PUT", "/api/v1/models/m/releases"), 413),
    ],
)
async def test_only_an_upload_may_be_as_large_as_a_request(
    served: Served, monkeypatch: pytest.MonkeyPatch, call: tuple[str, str], status: int
):
    monkeypatch.setattr(http_app, "OPERATOR_MAX_BODY_BYTES", 1000)
    for length, wanted in ((1000, 200), (1001, status), (LIMIT, status), (LIMIT + 1, 413)):
        connection = await served.connect()
        connection.writer.write(head(*call, f"Content-Length: {length}") + b"x" * length)
        assert (await connection.answer()).status == wanted


@pytest.mark.parametrize("part", [b"", b"123"])
async def test_operator_bodies_that_never_end_are_408(served: Served, part: bytes):
    connection = await served.connect()
    await connection.send(head("POST", "/api/v1/route", "Content-Length: 10") + part)
    answer = await connection.answer()
    assert (answer.status, answer.header("connection")) == (408, "close")
    assert answer.error == "no more of the body arrived for 0.4 s"
    assert await connection.ended()


async def test_an_operator_application_may_take_its_time_over_a_whole_body(served: Served):
    answer = await served.exchange(head("POST", "/api/v1/slow", "Content-Length: 5") + b"12345")
    assert (answer.status, answer.body) == (200, b"5")


async def test_an_operator_application_that_fails_answers_in_json(
    served: Served, caplog: pytest.LogCaptureFixture
):
    answer = await served.get("/api/v1/boom")
    assert (answer.status, answer.error) == (500, "the gateway failed inside; its log says where")
    assert "ValueError" in caplog.text
    assert "secret 42" not in caplog.text
