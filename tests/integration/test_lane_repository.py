"""The repository's calls over both bindings: what they say, and that they are for operators alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest
import tritonclient.grpc.aio as grpc_client
import tritonclient.http.aio as http_client
from tritonclient.grpc import service_pb2

from gateway.frontends.grpc_lane import GrpcLane
from gateway.frontends.http_lane import HttpLane
from tests.integration.lane_support import FakeService, handlers_of

pb: Any = service_pb2
FORWARDED = "operator calls are served to loopback only while no operators are configured, and this one was"


class Lanes:
    def __init__(self) -> None:
        self.service = FakeService()
        handlers = handlers_of(self.service)
        self._grpc = GrpcLane(handlers, "127.0.0.1", 0, max_message_bytes=2**20)
        self._http = HttpLane(handlers, None, "127.0.0.1", 0, max_body_bytes=2**20)

    async def start(self) -> None:
        self.grpc = await self._grpc.start()
        self.http = await self._http.start()
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.http}")
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.grpc}")

    async def close(self) -> None:
        await self.client.aclose()
        await self.channel.close()
        await self._grpc.drain(0)
        await self._http.drain(0)

    async def rpc(self, method: str, message: Any, **metadata: str) -> bytes:
        call = self.channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        pairs = [(key.replace("_", "-"), value) for key, value in metadata.items()]
        return await call(message.SerializeToString(), metadata=pairs, timeout=10)


@pytest.fixture
async def lanes() -> AsyncIterator[Lanes]:
    made = Lanes()
    await made.start()
    yield made
    await made.close()


async def test_unmodified_clients_see_the_repository(lanes: Lanes):
    async with http_client.InferenceServerClient(f"127.0.0.1:{lanes.http}") as triton:
        assert await triton.get_model_repository_index() == [
            {"name": "add_sub", "version": "1", "state": "READY"},
            {"name": "gone", "state": "UNAVAILABLE", "reason": "gpu-east: cannot be reached"},
        ]
        await triton.load_model("add_sub", config='{"max_batch_size": 4}')
        await triton.load_model("a b")
        await triton.unload_model("add_sub")
    async with grpc_client.InferenceServerClient(f"127.0.0.1:{lanes.grpc}") as triton:
        index = await triton.get_model_repository_index()
        assert [(m.name, m.version, m.state, m.reason) for m in index.models] == [
            ("add_sub", "1", "READY", ""),
            ("gone", "", "UNAVAILABLE", "gpu-east: cannot be reached"),
        ]
        await triton.load_model("add_sub", config='{"max_batch_size": 4}')
        await triton.unload_model("add_sub", unload_dependents=True)
    config = ("add_sub", '{"max_batch_size": 4}')
    assert lanes.service.loads == [config, ("a b", ""), ("add_sub", False), config, ("add_sub", True)]


async def test_the_index_of_what_is_ready(lanes: Lanes):
    answer = await lanes.client.post("/v2/repository/index", json={"ready": True})
    assert [entry["name"] for entry in answer.json()] == ["add_sub"]
    told = await lanes.rpc("RepositoryIndex", pb.RepositoryIndexRequest(ready=True))
    assert [model.name for model in pb.RepositoryIndexResponse.FromString(told).models] == ["add_sub"]


@pytest.mark.parametrize("path", ["index", "models/add_sub/load", "models/add_sub/unload"])
async def test_only_operators_are_served_over_http(lanes: Lanes, path: str):
    url = f"/v2/repository/{path}"
    assert (await lanes.client.post(url)).status_code == 200
    for headers in (
        {"x-forwarded-for": "10.1.1.1"},
        {"host": "gw.example"},
        {"origin": "https://evil.example"},
    ):
        answer = await lanes.client.post(url, headers=headers)
        assert answer.status_code == 403
        assert answer.json()["error"].startswith("operator calls are served to loopback only")
    answer = await lanes.client.get(url)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert len(lanes.service.loads) == ("models" in path)


@pytest.mark.parametrize("method", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"])
async def test_only_operators_are_served_over_grpc(lanes: Lanes, method: str):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await lanes.rpc(method, pb.RepositoryIndexRequest(), x_forwarded_for="10.1.1.1")
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert (caught.value.details() or "").startswith(FORWARDED)
    assert lanes.service.loads == []


WRONG = {
    "a file": ({"file:1/../../x": "aGk="}, 501, grpc.StatusCode.UNIMPLEMENTED, "would bring a file"),
    "no parameter": ({"bogus": "1"}, 400, grpc.StatusCode.INVALID_ARGUMENT, "is not one of a load"),
    "no JSON": ({"config": "{"}, 400, grpc.StatusCode.INVALID_ARGUMENT, "is not a JSON object"),
    "no object": ({"config": "[]"}, 400, grpc.StatusCode.INVALID_ARGUMENT, "is not a JSON object"),
    "no text": ({"config": 5}, 400, grpc.StatusCode.INVALID_ARGUMENT, "must be a string"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_parameters_that_a_load_does_not_take(lanes: Lanes, name: str):
    parameters, status, code, words = WRONG[name]
    answer = await lanes.client.post("/v2/repository/models/add_sub/load", json={"parameters": parameters})
    assert answer.status_code == status
    assert words in answer.json()["error"]
    request = pb.RepositoryModelLoadRequest(model_name="add_sub")
    for key, value in parameters.items():
        kind = "int64_param" if isinstance(value, int) else "string_param"
        setattr(request.parameters[key], kind, value)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await lanes.rpc("RepositoryModelLoad", request)
    assert (caught.value.code(), caught.value.details()) == (code, answer.json()["error"])
    assert lanes.service.loads == []


@pytest.mark.parametrize(
    "body", [b"[]", b"{", b'{"parameters": []}', b'{"parameters": {"unload_dependents": 1}}']
)
async def test_bodies_that_are_no_unload(lanes: Lanes, body: bytes):
    answer = await lanes.client.post("/v2/repository/models/add_sub/unload", content=body)
    assert answer.status_code == 400
    assert lanes.service.loads == []


async def test_repositories_have_no_names(lanes: Lanes):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await lanes.rpc("RepositoryIndex", pb.RepositoryIndexRequest(repository_name="r"))
    assert caught.value.details() == "'repository_name' specification is not supported"
