"""A gateway in front of servers like MLServer and KServe's Python server: callers cannot tell them from a Triton."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from gateway.core.config.load import kinds_in, parse_config
from gateway.demo.triton import Ports, _free_ports
from gateway.serve.runtime import Runtime
from gateway.serve.settings import Address, Listen, ReplicaSettings
from tests.support.oip_server import MODELS, SERVICE, OipServer, start
from tests.support.replica import _nobody

pb: Any = service_pb2
FLAVOURS = ["mlserver", "kserve"]
NAMES = [*MODELS, "gone"]
CONFIG = """
version: 1
gateway: {{name: gw, location: {{tier: cloud}}}}
endpoints:
  - {{name: s, kind: oip, url: "grpc://127.0.0.1:{port}", location: {{tier: cloud}}{discover}}}
models: [{models}]
privacy: {{default: any, classes: {{any: {{allow: [{{tier: cloud}}]}}}}}}
policies: [{{name: default, match: {{}}, weights: {{latency: 1}}}}]
"""


@dataclass
class World:
    server: OipServer
    runtime: Runtime
    channel: grpc.aio.Channel
    http: httpx.AsyncClient

    async def call(self, rpc: str, message: Any) -> bytes:
        return await self.channel.unary_unary(SERVICE + rpc)(message.SerializeToString(), timeout=10)

    async def infer(self, message: Any) -> Any:
        """The answer, whose data is in the one form."""
        answer = pb.ModelInferResponse.FromString(await self.call("ModelInfer", message))
        assert len(answer.raw_output_contents) == len(answer.outputs)
        assert not any(output.contents.ListFields() for output in answer.outputs)
        return answer

    async def refused(self, message: Any) -> tuple[str, str]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.infer(message)
        return caught.value.code().name, caught.value.details() or ""

    async def post(self, model: str, document: dict[str, Any]) -> tuple[int, Any]:
        answer = await self.http.post(f"/v2/models/{model}/infer", json=document)
        return answer.status_code, answer.json()


@asynccontextmanager
async def running(flavour: str, folder: Path, *, discover: bool = False) -> AsyncIterator[World]:
    server = OipServer(flavour)
    listening, port = await start(server)
    models = ", ".join(f"{{name: {name}, variants: [{{endpoint: s}}]}}" for name in NAMES)
    text = CONFIG.format(
        port=port,
        discover=", discover: {privacy: any}" if discover else "",
        models="" if discover else models,
    )
    config = parse_config(text, "t.yaml", kinds_in("gateway.backends"), os.environ, folder)
    ports = _free_ports(Ports(0, 0, 0))
    listen = Listen(*(Address("127.0.0.1", port) for port in (ports.http, ports.grpc, ports.metrics)))
    runtime = Runtime(ReplicaSettings(config, "r", listen, folder), _nobody)
    await runtime.start()
    try:
        async with (
            grpc.aio.insecure_channel(str(listen.grpc)) as channel,
            httpx.AsyncClient(base_url=f"http://{listen.http}") as http,
        ):
            yield World(server, runtime, channel, http)
    finally:
        await runtime.drain(2.0)
        await listening.stop(None)


@pytest.fixture(params=FLAVOURS)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with running(request.param, tmp_path) as found:
        yield found


def request(model: str, values: np.ndarray[Any, Any], *, typed: bool = False) -> Any:
    message = pb.ModelInferRequest(model_name=model, id="7")
    datatype = {"float32": "FP32", "int32": "INT32", "int8": "INT8", "object": "BYTES"}[values.dtype.name]
    tensor = message.inputs.add(name="INPUT0", datatype=datatype, shape=values.shape)
    flat = values.ravel().tolist()
    if typed:
        field = {
            "FP32": "fp32_contents",
            "INT32": "int_contents",
            "INT8": "int_contents",
            "BYTES": "bytes_contents",
        }
        getattr(tensor.contents, field[datatype]).extend(flat)
    else:
        raw = (
            b"".join(len(x).to_bytes(4, "little") + x for x in flat)
            if datatype == "BYTES"
            else values.tobytes()
        )
        message.raw_input_contents.append(raw)
    return message


FLOATS = np.array([[0.5, -0.0, 3.25]], np.float32)
VALUES = {
    "id2d_fp32": FLOATS,
    "typed_fp32": FLOATS,
    "typed_int8": np.array([[-128, 127]], np.int8),
    "typed_bytes": np.array([[b"a", b"", b"\xff\x00"]], object),
    "mixed_fp32": FLOATS,
    "untold_fp32": FLOATS,
}


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("model", VALUES)
async def test_answers_have_one_form_whatever_the_server_writes(world: World, model: str, typed: bool):
    message = request(model, VALUES[model], typed=typed)
    answer = await world.infer(message)
    assert (answer.model_name, answer.id) == (model, "7")
    found = {o.name: raw for o, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)}
    assert found["OUTPUT0"] == request(model, VALUES[model]).raw_input_contents[0]
    if model == "mixed_fp32":
        assert found["COUNT"] == b"\3\0\0\0"


async def test_json_has_data_and_no_word_of_binary(world: World):
    document = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 3], "data": [0.5, 1, 3.25]}]}
    for model in ("id2d_fp32", "typed_fp32"):
        status, body = await world.post(model, document)
        assert status == 200
        assert body["outputs"] == [
            {"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 3], "data": [0.5, 1.0, 3.25]}
        ]


async def test_every_parameter_arrives_or_is_refused_by_name(world: World):
    message = request("id2d_fp32", FLOATS)
    message.parameters["text"].string_param = "x"
    message.parameters["yes"].bool_param = True
    message.parameters["less"].int64_param = -(2**63)
    message.parameters["priority"].uint64_param = 2**63 - 1
    await world.infer(message)
    assert world.server.parameters == {"text": "x", "yes": True, "less": -(2**63), "priority": 2**63 - 1}
    world.server.parameters = {}
    message.parameters["temperature"].double_param = 0.7
    status, text = await world.refused(message)
    assert status == "INVALID_ARGUMENT"
    assert text == (
        "Parameter 'temperature' is a double, which the server's protocol cannot carry: its parameters are"
        " bool, int64 or string. Send it as a string."
    )
    document = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
    answer = await world.post("id2d_fp32", {**document, "parameters": {"temperature": 0.7}})
    assert answer == (400, {"error": text})
    assert world.server.parameters == {}
    assert (await world.post("id2d_fp32", {**document, "parameters": {"temperature": "0.7"}}))[0] == 200
    assert world.server.parameters == {"temperature": "0.7"}


async def test_a_wrong_request_is_the_callers_fault_in_our_words(world: World):
    told = await world.refused(request("id2d_fp32", np.array([[7, 8]], np.int32)))
    assert told == (
        "INVALID_ARGUMENT",
        "inference input 'INPUT0' data-type is 'INT32', but model 'id2d_fp32' expects 'FP32'",
    )
    # Of the other the server says nothing beforehand: it is the gateway that finds the length wrong.
    cut = request("untold_fp32", FLOATS)
    cut.raw_input_contents[0] = cut.raw_input_contents[0][:-4]
    status, text = await world.refused(cut)
    assert status == "INVALID_ARGUMENT"
    assert text.startswith("input byte size mismatch for input 'INPUT0' for model 'untold_fp32'")


async def test_no_word_of_the_server_goes_on(world: World):
    secret = np.array([[31337.25]], np.float32)
    status, text = await world.refused(request("boom", secret))
    assert (status, text) == ("INTERNAL", "Endpoint s failed while it worked on the request.")
    wrong = request("untold_fp32", secret.astype(np.int32))
    status, text = await world.refused(wrong)
    assert "31337" not in text
    if world.server.flavour == "kserve":
        assert status == "INVALID_ARGUMENT"
        assert "its reason is not passed on" in text


async def test_a_configuration_is_made_of_the_metadata(world: World):
    answer = await world.call("ModelConfig", pb.ModelConfigRequest(name="typed_int8"))
    config = pb.ModelConfigResponse.FromString(answer).config
    assert (config.name, config.max_batch_size) == ("typed_int8", 0)
    assert [(i.name, i.data_type, list(i.dims), i.optional) for i in config.input] == [
        ("INPUT0", 6, [-1, -1], False)
    ]
    assert [(o.name, o.data_type, list(o.dims)) for o in config.output] == [("OUTPUT0", 6, [-1, -1])]
    shown = (await world.http.get("/v2/models/typed_int8/config")).json()
    assert shown["input"][0]["data_type"] == "TYPE_INT8"


async def test_a_model_that_is_not_there_harms_no_other(world: World):
    """MLServer fails over the question whether it is ready."""
    assert (await world.http.get("/v2/models/gone/ready")).status_code == 503
    assert (await world.http.get("/v2/models/id2d_fp32/ready")).status_code == 200
    (view,) = await world.runtime.endpoints_view()
    assert (view["up"], view["detail"]) == (True, "")
    assert {model["model"]: model["ready"] for model in view["models"]} == {
        name: name != "gone" for name in NAMES
    }


async def test_statistics_are_what_was_sent_from_here(world: World):
    for _ in range(3):
        await world.infer(request("id2d_fp32", FLOATS))
    await world.refused(request("boom", FLOATS))
    (view,) = await world.runtime.endpoints_view()
    told = {model["model"]: model["statistics"] for model in view["models"]}
    (stats,) = told["id2d_fp32"]
    assert (stats["name"], stats["inference_count"], stats["execution_count"]) == ("id2d_fp32", 3, 3)
    assert stats["inference_stats"]["success"]["count"] == 3
    assert stats["inference_stats"]["success"]["ns"] > 0
    (failed,) = told["boom"]
    assert failed["inference_stats"]["fail"]["count"] == 1
    assert told["gone"] is None


async def test_an_index_is_followed(tmp_path: Path):
    async with running("mlserver", tmp_path, discover=True) as world:
        assert [model["name"] for model in await world.runtime.models_view()] == sorted(MODELS)
        assert (await world.infer(request("typed_fp32", FLOATS))).model_name == "typed_fp32"
        del world.server.models["typed_fp32"]
        world.server.models["a/new one"] = MODELS["id2d_fp32"]
        world.server.index += ["a/new one", "tab\there"]
        world.server.models["tab\there"] = MODELS["id2d_fp32"]

        await world.runtime._monitors["s"].look()
        told = [model["name"] for model in await world.runtime.models_view()]
        assert told == sorted({*MODELS, "a/new one"} - {"typed_fp32"})
        assert (await world.http.get("/v2/models/a%2Fnew%20one/ready")).status_code == 200
        assert (await world.refused(request("typed_fp32", FLOATS)))[0] == "NOT_FOUND"
        (view,) = await world.runtime.endpoints_view()
        assert view["discover"] == {"privacy": "any", "offered": len(MODELS), "left_out": 1}
        assert view["detail"] == (
            "not all of its models are offered: 1 with names that are too long or cannot be shown"
        )


async def test_without_an_index_nothing_is_offered_and_that_is_told(tmp_path: Path):
    async with running("kserve", tmp_path, discover=True) as world:
        assert await world.runtime.models_view() == []
        (view,) = await world.runtime.endpoints_view()
        assert (view["up"], view["discover"]["offered"]) == (True, 0)
        assert view["detail"].startswith("its server keeps no index of its models")
        status, text = await world.refused(request("id2d_fp32", FLOATS))
        assert (status, text) == ("NOT_FOUND", "Request for unknown model: 'id2d_fp32' is not found")
