"""Compression over HTTP, both ways, on the gateway's lane and on the device's server."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as client

from edge_agent.local.handlers import Handlers as LocalHandlers
from edge_agent.local.http_server import HttpServer
from gateway.frontends.codec_pool import CodecPool
from gateway.frontends.codecs import binding_codecs
from gateway.frontends.handlers import Handlers
from gateway.frontends.http_lane import HttpLane
from oip import content_coding
from oip.held import BodyBudget
from tests.support.fakes import Bench, bench, config_of
from tests.support.tiny_models import TinyModels

LIMIT = 8 * 2**20
SQUEEZE: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


class Server:
    """One of the two, and what it must give back when nothing runs."""

    def __init__(self, port: int, budget: BodyBudget, infer: str, tensor: str) -> None:
        self.budget = budget
        self.infer_path = infer
        self.tensor = tensor
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60)
        self.port = port

    async def post(self, body: bytes, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(self.infer_path, content=body, headers={"accept-encoding": "", **named})

    def json(self, count: int = 4) -> bytes:
        tensor = {"name": self.tensor, "datatype": "FP32", "shape": [count // 4, 4], "data": [0.5] * count}
        return json.dumps({"inputs": [tensor]}).encode()


@pytest.fixture
async def gateway() -> AsyncIterator[Server]:
    made: Bench = await bench(
        config_of(gateway={**config_of().gateway.model_dump(), "limits": {"max_body_mb": LIMIT / 2**20}})
    )
    pool = CodecPool()
    handlers = Handlers(made.director, binding_codecs(pool, LIMIT), name="gw", version="0")
    lane = HttpLane(handlers, None, "127.0.0.1", 0, max_body_bytes=LIMIT)
    server = Server(await lane.start(), made.director._bodies, "/v2/models/digits/infer", "x")
    yield server
    await server.client.aclose()
    await lane.drain(0)
    await pool.close()
    assert server.budget.held == 0


@pytest.fixture
async def device() -> AsyncIterator[Server]:
    budget = BodyBudget(4 * LIMIT, "device")
    http = HttpServer(
        LocalHandlers(TinyModels(), lambda: "cam-7a", budget, LIMIT), "127.0.0.1", 0, max_body_bytes=LIMIT
    )
    server = Server(await http.start(), budget, "/v2/models/identity/infer", "x")
    yield server
    await server.client.aclose()
    await http.close(1.0)
    assert budget.held == 0


@pytest.fixture(params=["gateway", "device"])
def server(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("coding", SQUEEZE)
async def test_a_compressed_request_gets_the_answer_of_a_plain_one(server: Server, coding: str):
    plain = await server.post(server.json())
    assert plain.status_code == 200
    squeezed = await server.post(SQUEEZE[coding](server.json()), content_encoding=coding.upper())
    assert (squeezed.status_code, squeezed.json()) == (200, plain.json())


async def test_the_header_length_is_that_of_the_inflated_body(server: Server):
    text = json.dumps(
        {
            "inputs": [
                {
                    "name": server.tensor,
                    "datatype": "FP32",
                    "shape": [1, 4],
                    "parameters": {"binary_data_size": 16},
                }
            ]
        }
    ).encode()
    body = text + np.float32([1, 2, 3, 4]).tobytes()
    squeezed = gzip.compress(body)
    told = {"content_encoding": "gzip", "inference_header_content_length": str(len(text))}
    assert (await server.post(squeezed, **told)).status_code == 200
    told["inference_header_content_length"] = str(len(gzip.compress(text)))
    assert (await server.post(squeezed, **told)).status_code == 400


async def test_codings_that_are_not_served_are_415(server: Server):
    for coding in ("br", "gzip, deflate"):
        answer = await server.post(server.json(), content_encoding=coding)
        assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "gzip, deflate")
    assert (await server.post(server.json(), content_encoding="identity")).status_code == 200


async def test_what_does_not_inflate_is_400(server: Server):
    whole = gzip.compress(server.json())
    for body in (server.json(), whole[:20], whole[:-4], whole + b"more", b""):
        answer = await server.post(body, content_encoding="gzip")
        assert answer.status_code == 400
        assert "gzip" in answer.json()["error"]


async def test_a_bomb_is_refused_while_it_is_inflated(server: Server):
    stream = zlib.compressobj(9, wbits=31)
    bomb = b"".join([*(stream.compress(bytes(2**24)) for _ in range(64)), stream.flush()])
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, server.budget.held)
            await asyncio.sleep(0)

    watcher = asyncio.create_task(watch())
    answer = await server.post(bomb, content_encoding="gzip")
    watcher.cancel()
    assert answer.status_code == 413
    assert answer.json()["error"] == f"the body inflates to more than the limit of {LIMIT} bytes"
    assert LIMIT / 2 < most <= LIMIT


async def test_inflated_bodies_count_in_the_budget(server: Server):
    server.budget.held += (taken := server.budget.limit - 2**20)
    answer = await server.post(gzip.compress(b" " * 2**21), content_encoding="gzip")
    assert answer.status_code == 503
    assert "bodies of running requests" in answer.json()["error"]
    server.budget.held -= taken


async def test_answers_are_compressed_where_the_caller_wants_it(device: Server):
    plain = await device.post(device.json(1000), accept_encoding="identity")
    assert "content-encoding" not in plain.headers
    assert plain.headers["vary"] == "accept-encoding"
    for coding in SQUEEZE:
        told = await device.post(device.json(1000), accept_encoding=f"{coding}, br;q=0.1")
        assert (told.headers["content-encoding"], told.headers["vary"]) == (coding, "accept-encoding")
        assert int(told.headers["content-length"]) < len(plain.content) / 2
        assert told.json() == plain.json()


async def test_small_answers_are_compressed_only_where_they_must_be(server: Server):
    small = await server.post(server.json(), accept_encoding="gzip")
    assert "content-encoding" not in small.headers
    only = await server.post(server.json(), accept_encoding="gzip, identity;q=0")
    assert only.headers["content-encoding"] == "gzip"
    assert only.json() == small.json()


async def test_only_inferences_are_compressed(server: Server):
    must = {"accept-encoding": "gzip, identity;q=0"}
    for path in (server.infer_path.removesuffix("/infer") + "/config", "/v2", "/v2/models/nobody"):
        answer = await server.client.get(path, headers=must)
        assert answer.content
        assert "content-encoding" not in answer.headers


def _infers(port: int, binary: bool, coding: str) -> Any:
    """The answer's tensor, and the coding that the answer came in."""
    given = client.InferInput("x", [500, 4], "FP32")
    given.set_data_from_numpy(np.ones((500, 4), np.float32), binary_data=binary)
    wanted = client.InferRequestedOutput("x", binary_data=binary)
    with client.InferenceServerClient(f"127.0.0.1:{port}") as triton:
        seen: list[str | None] = []
        answered = triton._post

        def post(**kwargs: Any) -> Any:
            answer = answered(**kwargs)
            seen.append(answer.get("content-encoding"))
            return answer

        triton._post = post
        result = triton.infer(
            "identity",
            [given],
            outputs=[wanted],
            request_compression_algorithm=coding,
            response_compression_algorithm=coding,
        )
        return result.as_numpy("x"), seen


@pytest.mark.parametrize("coding", SQUEEZE)
@pytest.mark.parametrize("binary", [True, False])
async def test_an_unmodified_client_compresses_both_ways(device: Server, coding: str, binary: bool):
    values, seen = await asyncio.to_thread(_infers, device.port, binary, coding)
    assert values.tolist() == [[1, 1, 1, 1]] * 500
    assert seen == [coding]


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Holds how many steps of inflating and compressing went into other threads."""
    steps = [0]
    to_thread = asyncio.to_thread

    async def counted(step: Callable[..., Any], *arguments: Any) -> Any:
        steps[0] += step.__module__ == content_coding.__name__
        return await to_thread(step, *arguments)

    monkeypatch.setattr(asyncio, "to_thread", counted)
    return steps


async def test_the_loop_inflates_little_at_a_time(server: Server, beside: list[int]):
    body = server.json() + b" " * (4 * content_coding.STEP_BYTES)
    assert (await server.post(gzip.compress(server.json()), content_encoding="gzip")).status_code == 200
    assert beside == [0]
    assert (await server.post(gzip.compress(body), content_encoding="gzip")).status_code == 200
    assert beside == [4]


async def test_the_loop_compresses_little_at_a_time(device: Server, beside: list[int]):
    count = content_coding.STEP_BYTES
    tensor = {
        "name": "x",
        "datatype": "FP32",
        "shape": [count // 4, 4],
        "parameters": {"binary_data_size": 4 * count},
    }
    text = json.dumps({"parameters": {"binary_data_output": True}, "inputs": [tensor]}).encode()
    told = {"inference_header_content_length": str(len(text))}
    plain = await device.post(text + bytes(4 * count), **told)
    assert beside == [0]
    small = await device.post(text + bytes(4 * count), **told, accept_encoding="gzip")
    assert small.content == plain.content
    assert int(small.headers["content-length"]) < count / 10
    assert beside == [4]
