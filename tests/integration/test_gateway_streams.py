"""Streams through a real gateway to real Tritons: what a model sends is what the caller gets, once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from gateway.demo.triton import TritonServer
from tests.support.gateway import Gateway, running_gateway
from tests.support.triton import REPOSITORY, infer_body, slow_body
from tests.support.waiting import until

pb: Any = service_pb2
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
INFER = "/inference.GRPCInferenceService/ModelInfer"
MODELS = ("repeat_int32", "mock_llm", "simple_sequence", "sequence_sum", "slow_identity")
LONG_MS = 60_000


class Place:
    """A Triton, and what its repeat_int32 has finished with: id -> (sent, cancelled)."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "stream.log"
        self.triton = TritonServer(REPOSITORY, load=MODELS, env={"STREAM_LOG": str(self._log)})

    def done(self) -> dict[str, tuple[int, bool]]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return {e["id"]: (e["sent"], e["cancelled"]) for e in map(json.loads, lines)}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Place]]:
    """The one that is preferred, and the other."""
    found = Place(tmp_path_factory.mktemp("a")), Place(tmp_path_factory.mktemp("b"))
    try:
        for place in found:
            place.triton.start()
        yield found
    finally:
        for place in found:
            place.triton.kill()


@pytest.fixture(scope="module")
def gateway(places: tuple[Place, Place], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    where = "location: {tier: cloud, region: eu}"
    endpoints = "\n".join(
        f'  - {{name: {name}, kind: triton, url: "grpc://127.0.0.1:{place.triton.grpc_port}", {where}}}'
        for name, place in zip("ab", places, strict=True)
    )
    variants = "[{endpoint: a, quality: 0.9}, {endpoint: b, quality: 0.1}]"
    models = "\n".join(f"  - {{name: {m}, idempotent: true, variants: {variants}}}" for m in MODELS)
    drawn = "[{endpoint: a, model: sequence_sum}, {endpoint: b, model: sequence_sum}]"
    config = f"""
version: 1
gateway: {{name: gw, {where}}}
endpoints:
{endpoints}
models:
{models}
  - {{name: sums, idempotent: true, variants: {drawn}}}
  - {{name: renamed, variants: [{{endpoint: a, model: repeat_int32, version: "1"}}]}}
privacy: {{default: any, classes: {{any: {{allow: [{{tier: [device, site, regional, cloud]}}]}}}}}}
policies: [{{name: default, match: {{}}, weights: {{quality: 1}}, retry: {{num_retries: 2}}}}]
"""
    with running_gateway(config, tmp_path_factory.mktemp("gateway"), None, "--lane", "portable") as found:
        found.wait_up("a", "b")
        yield found


@pytest.fixture
async def channel(gateway: Gateway) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(gateway.grpc) as found:
        yield found


def repeat(name: str, delays: list[int], model: str = "repeat_int32", *, empty_final: bool = False) -> bytes:
    """As many responses, each so many ms after the one before."""
    message = pb.ModelInferRequest(model_name=model, id=name)
    for tensor, datatype, value in (
        ("IN", "INT32", np.arange(100, 100 + len(delays), dtype=np.int32)),
        ("DELAY", "UINT32", np.array(delays, np.uint32)),
        ("WAIT", "UINT32", np.zeros(1, np.uint32)),
    ):
        message.inputs.add(name=tensor, datatype=datatype, shape=value.shape)
        message.raw_input_contents.append(value.tobytes())
    if empty_final:
        message.parameters["triton_enable_empty_final_response"].bool_param = True
    return message.SerializeToString()


def llm(name: str, repetition: int, *, fail: bool = False) -> bytes:
    message = pb.ModelInferRequest(model_name="mock_llm", id=name)
    for tensor, datatype, raw in (("PROMPT", "BYTES", b"\x02\0\0\0hi"), ("STREAM", "BOOL", b"\x01")):
        message.inputs.add(name=tensor, datatype=datatype, shape=[1])
        message.raw_input_contents.append(raw)
    message.parameters["REPETITION"].int64_param = repetition
    message.parameters["FAIL_LAST"].bool_param = fail
    return message.SerializeToString()


def opened(channel: grpc.aio.Channel) -> Any:
    return channel.stream_stream(STREAM, response_deserializer=pb.ModelStreamInferResponse.FromString)()


async def answers(channel: grpc.aio.Channel, *requests: bytes) -> list[Any]:
    stream = opened(channel)
    for request in requests:
        await stream.write(request)
    await stream.done_writing()
    found = [message async for message in stream]
    assert await stream.code() is grpc.StatusCode.OK
    return found


def index(message: Any) -> int:
    return int(np.frombuffer(message.infer_response.raw_output_contents[1], np.uint32)[0])


@pytest.mark.parametrize(
    "request_body",
    [
        repeat("three", [0, 0, 0]),
        repeat("final", [0, 0], empty_final=True),
        repeat("none", []),
        repeat("only-final", [], empty_final=True),
        llm("ends", 2),
        llm("fails", 2, fail=True),
        llm("fails-late", 300, fail=True),
        llm("fails-at-once", 0, fail=True),
        slow_body(0, "once"),
    ],
    ids=lambda body: pb.ModelInferRequest.FromString(body).id,
)
async def test_the_messages_are_tritons(
    places: tuple[Place, Place], channel: grpc.aio.Channel, request_body: bytes
):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{places[0].triton.grpc_port}") as direct:
        expected = await answers(direct, request_body)
    assert await answers(channel, request_body) == expected


async def test_requests_interleave_each_in_its_own_order_and_under_its_own_id(channel: grpc.aio.Channel):
    names = [f"r{number}" for number in range(5)]
    found = await answers(channel, *(repeat(name, [20] * 5) for name in names))
    assert len(found) == 25
    for name in names:
        assert [index(m) for m in found if m.infer_response.id == name] == [0, 1, 2, 3, 4]
    stream = opened(channel)
    await stream.write(repeat("long", [0, LONG_MS]))
    assert (await stream.read()).infer_response.id == "long"
    await stream.write(repeat("short", [0]))
    assert (await stream.read()).infer_response.id == "short"
    stream.cancel()


async def test_a_variants_name_is_the_gateways_on_every_response(channel: grpc.aio.Channel):
    found = await answers(channel, repeat("x", [0, 0], "renamed", empty_final=True))
    assert [m.infer_response.model_name for m in found] == ["renamed"] * 3


async def test_steps_of_a_sequence_keep_their_order(channel: grpc.aio.Channel):
    steps = []
    for number in range(10):
        message = pb.ModelInferRequest(model_name="simple_sequence", id=str(number))
        message.inputs.add(name="INPUT", datatype="INT32", shape=[1, 1])
        message.raw_input_contents.append(np.int32(number).tobytes())
        message.parameters["sequence_id"].int64_param = 77
        message.parameters["sequence_start"].bool_param = number == 0
        message.parameters["sequence_end"].bool_param = number == 9
        steps.append(message.SerializeToString())
    found = await answers(channel, *steps)
    assert [m.error_message for m in found] == [""] * 10
    assert [m.infer_response.id for m in found] == [str(number) for number in range(10)]


async def test_an_error_stays_inside_the_stream(channel: grpc.aio.Channel):
    stream = opened(channel)
    await stream.write(infer_body("nope", np.zeros(1, np.int32), request_id="bad"))
    told = await stream.read()
    assert (told.error_message, told.infer_response.id) == (
        "Request for unknown model: 'nope' is not found",
        "bad",
    )
    await stream.write(slow_body(0, "good"))
    assert (await stream.read()).infer_response.id == "good"
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF


async def test_a_cancelled_stream_is_cancelled_at_the_model(
    places: tuple[Place, Place], channel: grpc.aio.Channel
):
    stream = opened(channel)
    await stream.write(repeat("cancelled", [0, 0, LONG_MS]))
    assert [index(await stream.read()) for _ in range(2)] == [0, 1]
    stream.cancel()
    await until(lambda: places[0].done().get("cancelled") == (2, True), 5)


async def test_a_decoupled_model_is_refused_one_answer_on_every_route(
    places: tuple[Place, Place], gateway: Gateway, channel: grpc.aio.Channel
):
    words = "ModelInfer RPC doesn't support models with decoupled transaction policy"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(INFER)(repeat("unary", [0]))
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNIMPLEMENTED, words)
    async with httpx.AsyncClient(base_url=f"http://{gateway.http}") as client:
        tensor = {"datatype": "UINT32", "shape": [1], "data": [0]}
        inputs = [{**tensor, "name": name} for name in ("DELAY", "WAIT")]
        inputs.append({"name": "IN", "datatype": "INT32", "shape": [1], "data": [0]})
        body = {"id": "unary", "inputs": inputs}
        answer = await client.post("/v2/models/repeat_int32/infer", json=body)
        assert (answer.status_code, answer.json()) == (501, {"error": words})
        record = gateway.decision(answer.headers["tidegate-decision"])
    assert record["attempts"] == []


def typed(name: str, delays: list[int]) -> dict[str, object]:
    return {"id": name, "IN": [7] * len(delays), "DELAY": delays, "WAIT": 0}


async def test_events_come_as_the_model_sends_them_and_leaving_cancels_it(
    places: tuple[Place, Place], gateway: Gateway
):
    path = "/v2/models/repeat_int32/generate_stream"
    async with httpx.AsyncClient(base_url=f"http://{gateway.http}", timeout=20) as client:
        async with client.stream("POST", path, json=typed("left", [0, LONG_MS])) as answer:
            assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
            event = await anext(answer.aiter_lines())
            assert json.loads(event.removeprefix("data: ")) == {
                "OUT": 7,
                "IDX": 0,
                "id": "left",
                "model_name": "repeat_int32",
                "model_version": "1",
            }
        await until(lambda: places[0].done().get("left") == (1, True), 5)


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
async def test_generates_answers_are_tritons(places: tuple[Place, Place], gateway: Gateway, path: str):
    at = f"/v2/models/mock_llm/{path}"
    direct = f"http://127.0.0.1:{places[0].triton.http_port}"
    async with httpx.AsyncClient(timeout=20) as client:
        for body in (
            {"PROMPT": "hé\n", "STREAM": False},
            {"PROMPT": ["hi"], "STREAM": [False], "id": "7"},
            {"PROMPT": [["hi"]], "STREAM": False, "x": 1.5, "y": "s"},
            {"PROMPT": "hi", "STREAM": False, "input_ids": [1, 2]},
            {"PROMPT": "hi", "STREAM": False, "OUTPUT_0_DIM": True},
        ):
            expected = await client.post(direct + at, json=body)
            answer = await client.post(f"http://{gateway.http}{at}", json=body)
            assert (answer.status_code, answer.text.replace(" ", "")) == (200, expected.text.replace(" ", ""))
        twice = {"PROMPT": "hi", "STREAM": True, "parameters": {"REPETITION": 2}}
        answer = await client.post(f"http://{gateway.http}{at}", json=twice)
        assert answer.status_code == (200 if path == "generate_stream" else 400)
        assert answer.text.count("data:") == (2 if path == "generate_stream" else 0)


async def test_killed_under_a_stream_a_place_is_not_replaced_but_before_it_is(
    places: tuple[Place, Place], gateway: Gateway, channel: grpc.aio.Channel
):
    preferred, other = places
    stream = opened(channel)
    await stream.write(repeat("midway", [0, 0, 0, LONG_MS]))
    assert [index(await stream.read()) for _ in range(3)] == [0, 1, 2]
    await asyncio.to_thread(preferred.triton.kill)
    try:
        told = await stream.read()
        assert (told.infer_response.id, told.error_message) == (
            "midway",
            "Endpoint a went away before it answered.",
        )
        stream.cancel()
        found = await answers(channel, repeat("elsewhere", [0, 0]))
        assert [index(m) for m in found] == [0, 1]
        await until(lambda: "elsewhere" in other.done())
        assert "midway" not in other.done()
    finally:
        await asyncio.to_thread(preferred.triton.start)
        await asyncio.to_thread(gateway.wait_up, "a", "b")


async def test_sequences_stay_where_their_state_is(gateway: Gateway, channel: grpc.aio.Channel):
    """Thirty at once over two servers, their steps over both bindings: each sum is its own."""
    infer = channel.unary_unary(INFER)

    async def over_grpc(id: int, value: int, start: bool, end: bool) -> tuple[int, str]:
        message = pb.ModelInferRequest(model_name="sums")
        message.inputs.add(name="INPUT", datatype="INT32", shape=[1, 1])
        message.raw_input_contents.append(np.int32(value).tobytes())
        message.parameters["sequence_id"].int64_param = id
        message.parameters["sequence_start"].bool_param = start
        message.parameters["sequence_end"].bool_param = end
        call = infer(message.SerializeToString(), timeout=20)
        metadata = dict(await call.initial_metadata())
        answer = pb.ModelInferResponse.FromString(await call)
        return int(np.frombuffer(answer.raw_output_contents[0], np.int32)[0]), metadata["tidegate-endpoint"]

    async def over_http(
        client: httpx.AsyncClient, id: int, value: int, start: bool, end: bool
    ) -> tuple[int, str]:
        body = {
            "parameters": {"sequence_id": id, "sequence_start": start, "sequence_end": end},
            "inputs": [{"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [value]}],
        }
        answer = await client.post(f"http://{gateway.http}/v2/models/sums/infer", json=body)
        assert answer.status_code == 200, answer.text
        outputs = {output["name"]: output["data"][0] for output in answer.json()["outputs"]}
        return outputs["OUTPUT"], answer.headers["tidegate-endpoint"]

    async def whole(client: httpx.AsyncClient, id: int) -> str:
        places: set[str] = set()
        for at in range(6):
            step = (id, id + at, at == 0, at == 5)
            total, place = await (over_grpc(*step) if at % 2 else over_http(client, *step))
            assert total == sum(id + n for n in range(at + 1))
            places.add(place)
        (home,) = places
        return home

    async with httpx.AsyncClient(timeout=20) as client:
        homes = await asyncio.gather(*(whole(client, id) for id in range(1, 31)))
        late = await client.post(
            f"http://{gateway.http}/v2/models/sums/infer",
            json={
                "parameters": {"sequence_id": 1},
                "inputs": [{"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [1]}],
            },
        )
    assert set(homes) == {"a", "b"}
    assert late.status_code == 400
    assert "must specify the START flag" in late.json()["error"]
