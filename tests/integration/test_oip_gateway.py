"""A gateway in front of servers like MLServer and KServe's Python server: callers cannot tell them from a Triton."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from gateway.backends._channel import MAX_INDEX_BYTES
from gateway.backends.oip import OipConfig
from gateway.core.config import Location
from gateway.core.config.discovered import MAX_MODELS
from gateway.core.place import Tier
from gateway.pipeline.discovery import MANY, TOO_LARGE
from gateway.store.profiles import Profile, ProfileStore
from tests.support.oip_gateway import Front, gateway_of, gateway_to, request
from tests.support.oip_server import MODELS, SERVICE, OipServer, start
from tests.support.waiting import until

pb: Any = service_pb2
FLAVOURS = ["mlserver", "kserve"]
NAMES = [*MODELS, "gone"]


@dataclass
class World:
    """The gateway to a server, and the server."""

    server: OipServer
    front: Front

    def __getattr__(self, name: str) -> Any:
        return getattr(self.front, name)


@asynccontextmanager
async def running(flavour: str, folder: Path, *, discover: bool = False) -> AsyncIterator[World]:
    server = OipServer(flavour)
    listening, port = await start(server)
    try:
        async with gateway_to(port, [] if discover else NAMES, folder) as front:
            yield World(server, front)
    finally:
        await listening.stop(None)


@pytest.fixture(params=FLAVOURS)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with running(request.param, tmp_path) as found:
        yield found


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


async def test_megabytes_of_typed_contents_become_raw(world: World):
    values = np.arange(2**19, dtype=np.float32).reshape(1, -1)
    answer = await world.infer(request("typed_fp32", values, typed=True))
    assert answer.raw_output_contents[0] == values.tobytes()


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

        await until(lambda: "a/new one" in world.runtime._discovery.of("s").names)
        told = [model["name"] for model in await world.runtime.models_view()]
        assert told == sorted({*MODELS, "a/new one"} - {"typed_fp32"})
        assert (await world.http.get("/v2/models/a%2Fnew%20one/ready")).status_code == 200
        assert (await world.refused(request("typed_fp32", FLOATS)))[0] == "NOT_FOUND"
        (view,) = await world.runtime.endpoints_view()
        assert view["discover"] == {"privacy": "any", "offered": len(MODELS), "left_out": 1}
        assert view["detail"] == (
            "not all of its models are offered: 1 with names that are too long or cannot be shown"
        )


ODD = ["a b", "a%b", "a%2Fb", "ns/m", "m:v", "模型", "m.v1", "..", "versions", "infer", "x" * 256]


async def test_odd_names_are_names_like_any_other(tmp_path: Path):
    async with running("mlserver", tmp_path, discover=True) as world:
        hidden = ["x" * 257, " padded", "new\nline", "right\u202eleft", "null\0"]
        world.server.models = dict.fromkeys([*ODD, *hidden], MODELS["id2d_fp32"])
        world.server.index = list(world.server.models)
        await until(lambda: world.runtime._discovery.of("s").names == tuple(sorted(ODD)))
        document = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
        for name in ODD:
            # Clients take a literal .. for the folder above.
            at = quote(name, safe="").replace("..", "%2E%2E")
            status, body = await world.post(at, document)
            assert (status, body.get("model_name")) == (200, name), body
            assert (await world.infer(request(name, FLOATS))).model_name == name
            shown = await world.http.get(f"/v2/models/{at}")
            assert shown.json()["name"] == name
        for name in hidden:
            assert (await world.refused(request(name, FLOATS)))[0] == "NOT_FOUND"


async def test_a_flood_of_names_is_cut_and_one_that_is_too_large_is_not_read(tmp_path: Path):
    async with running("mlserver", tmp_path, discover=True) as world:
        found = world.runtime._discovery
        name = "m{:05}-" + "x" * 40
        world.server.models |= {name.format(n): MODELS["id2d_fp32"] for n in range(MANY + 1000)}
        world.server.index = [name.format(n) for n in range(MANY + 1000)]
        await until(lambda: found.of("s").left_out == MANY)
        assert len(await world.runtime.models_view()) == MAX_MODELS
        assert (await world.infer(request(name.format(999), FLOATS))).model_name == name.format(999)
        assert (await world.refused(request(name.format(1000), FLOATS)))[0] == "NOT_FOUND"
        world.server.index = ["y" * MAX_INDEX_BYTES]
        await until(lambda: found.of("s").remark == TOO_LARGE)
        assert len(found.of("s").names) == MAX_MODELS


async def test_stored_figures_of_a_model_count_once_it_is_there(tmp_path: Path):
    server = OipServer("mlserver")
    del server.models["typed_fp32"]
    listening, port = await start(server)
    place = OipConfig(
        name="s", kind="oip", url=f"grpc://127.0.0.1:{port}", location=Location(tier=Tier.CLOUD)
    )
    figures = Profile("s", "typed_fp32", "", time.time(), 4.0, 9.0, 123.0, 30, 100, 100, place.identity)
    ProfileStore(tmp_path).save([figures])
    try:
        async with gateway_to(port, [], tmp_path) as front:
            server.models["typed_fp32"] = MODELS["typed_fp32"]
            await until(lambda: "typed_fp32" in front.runtime._discovery.of("s").names)
            (view,) = await front.runtime.endpoints_view()
            (found,) = [model for model in view["models"] if model["model"] == "typed_fp32"]
            assert (found["capacity_rps"], found["latency"]["p50_ms"]) == (123.0, 4.0)
            assert found["latency"]["source"] == "profile"
    finally:
        await listening.stop(None)


async def test_without_an_index_nothing_is_offered_and_that_is_told(tmp_path: Path):
    async with running("kserve", tmp_path, discover=True) as world:
        assert await world.runtime.models_view() == []
        (view,) = await world.runtime.endpoints_view()
        assert (view["up"], view["discover"]["offered"]) == (True, 0)
        assert view["detail"].startswith("its server keeps no index of its models")
        status, text = await world.refused(request("id2d_fp32", FLOATS))
        assert (status, text) == ("NOT_FOUND", "Request for unknown model: 'id2d_fp32' is not found")


TWO = """
version: 1
gateway: {{name: gw, location: {{tier: cloud}}}}
endpoints:
  - {{name: s, kind: oip, url: "grpc://127.0.0.1:{port}", location: {{tier: cloud}}}}
  - {{name: t, kind: triton, url: "grpc://127.0.0.1:{other}", location: {{tier: cloud}}}}
models: [{{name: id2d_fp32, variants: [{{endpoint: s, quality: 1}}, {{endpoint: t, quality: 0.5}}]}}]
privacy: {{default: any, classes: {{any: {{allow: [{{tier: cloud}}]}}}}}}
policies: [{{name: default, match: {{}}, weights: {{quality: 1}}}}]
"""


async def test_a_parameter_that_it_cannot_carry_goes_where_it_can_be(tmp_path: Path):
    """Nothing was sent, so this may be though the model is not idempotent."""
    servers = [await start(OipServer("kserve")) for _ in range(2)]
    (first, port), (second, other) = servers
    message = request("id2d_fp32", FLOATS)
    try:
        async with gateway_of(TWO.format(port=port, other=other), tmp_path) as front:
            for parameter, place in ((None, "s"), (0.5, "t")):
                if parameter is not None:
                    message.parameters["temperature"].double_param = parameter
                call = front.channel.unary_unary(f"{SERVICE}ModelInfer")(message.SerializeToString())
                assert await call
                assert dict(await call.initial_metadata())["tidegate-endpoint"] == place
    finally:
        for server in (first, second):
            await server.stop(None)
