"""Calls about the repository and the gateway's settings over both bindings: what they say, and what of them
is for operators alone."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator
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
from tests.support.log_levels import at_warning

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


TRACE = {
    "trace_level": ["TIMESTAMPS"],
    "trace_rate": "20",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_mode": "opentelemetry",
}


async def test_unmodified_clients_change_the_trace_settings(lanes: Lanes):
    async with http_client.InferenceServerClient(f"127.0.0.1:{lanes.http}") as triton:
        assert await triton.get_trace_settings() == TRACE
        changed = {**TRACE, "trace_level": ["OFF"], "trace_rate": "7"}
        assert (
            await triton.update_trace_settings(settings={"trace_level": ["OFF"], "trace_rate": "7"})
            == changed
        )
        assert await triton.update_trace_settings(settings={"trace_level": None}) == {
            **TRACE,
            "trace_rate": "7",
        }
    async with grpc_client.InferenceServerClient(f"127.0.0.1:{lanes.grpc}") as triton:
        told = (await triton.get_trace_settings()).settings
        assert {key: list(value.value) for key, value in told.items()} == {
            key: [value] if isinstance(value, str) else value
            for key, value in {**TRACE, "trace_rate": "7"}.items()
        }
        told = (await triton.update_trace_settings(settings={"trace_rate": None})).settings
        assert list(told["trace_rate"].value) == ["20"]
    assert (await lanes.client.get("/v2/trace/setting")).json() == TRACE


@pytest.fixture
def levels() -> Iterator[None]:
    with at_warning():
        yield


@pytest.mark.usefixtures("levels")
async def test_unmodified_clients_change_the_log_settings(lanes: Lanes):
    at_first = {
        "log_file": "",
        "log_info": False,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }
    async with http_client.InferenceServerClient(f"127.0.0.1:{lanes.http}") as triton:
        assert await triton.get_log_settings() == at_first
        assert await triton.update_log_settings({"log_info": True}) == {**at_first, "log_info": True}
    assert logging.getLogger("gateway").level == logging.INFO
    async with grpc_client.InferenceServerClient(f"127.0.0.1:{lanes.grpc}") as triton:
        told = (await triton.update_log_settings({"log_verbose_level": 2})).settings
        assert told["log_verbose_level"].uint32_param == 2
        assert told["log_info"].bool_param
        assert told["log_format"].string_param == "default"
    assert logging.getLogger("gateway.frontends").getEffectiveLevel() == logging.DEBUG


@pytest.mark.parametrize("path", ["/v2/trace/setting", "/v2/logging"])
async def test_settings_are_read_by_all_and_written_by_operators(lanes: Lanes, path: str):
    elsewhere = {"x-forwarded-for": "10.1.1.1"}
    before = await lanes.client.get(path, headers=elsewhere)
    assert before.status_code == 200
    change = {"trace_rate": "3"} if "trace" in path else {"log_verbose_level": 3}
    refused = await lanes.client.post(path, json=change, headers=elsewhere)
    assert (refused.status_code, refused.json()["error"].startswith(FORWARDED)) == (403, True)
    body = json.dumps(change).encode()
    with_body = await lanes.client.request("GET", path, content=body)
    assert with_body.json() == before.json(), "the body of a GET changes nothing"
    wrong = await lanes.client.put(path, json=change)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD, POST")
    for bad in (b"[]", b"{", b'{"bogus": 1}'):
        assert (await lanes.client.post(path, content=bad)).status_code == 400
    assert (await lanes.client.get(path)).json() == before.json()


async def test_settings_of_a_model_are_not_served(lanes: Lanes):
    for verb in ("GET", "POST"):
        answer = await lanes.client.request(verb, "/v2/models/add_sub/trace/setting")
        assert (answer.status_code, "not a model's" in answer.json()["error"]) == (501, True)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await lanes.rpc("TraceSetting", pb.TraceSettingRequest(model_name="add_sub"))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
