"""ModelStreamInfer and generate over the portable lane, on a service that remembers what it saw."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from tritonclient.grpc import service_pb2

from gateway.frontends.codec_pool import CodecPool
from gateway.frontends.grpc_lane import GrpcLane
from gateway.frontends.grpc_stream import MOST_REQUESTS
from gateway.frontends.http_lane import HttpLane
from tests.integration.lane_support import FakeService, handlers_of
from tests.support.waiting import until

pb: Any = service_pb2
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


class Lanes:
    def __init__(self, service: FakeService) -> None:
        self.service = service
        self.pool = CodecPool()
        handlers = handlers_of(service, self.pool)
        self.grpc = GrpcLane(handlers, "127.0.0.1", 0, max_message_bytes=2**20)
        self.http = HttpLane(handlers, None, "127.0.0.1", 0, max_body_bytes=2**20)

    async def start(self) -> None:
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{await self.grpc.start()}")
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{await self.http.start()}", timeout=10)

    async def stop(self) -> None:
        await self.client.aclose()
        await self.channel.close()
        await self.grpc.drain(0)
        await self.http.drain(0)
        await self.pool.close()

    def stream(self, *metadata: tuple[str, str]) -> Any:
        rpc = self.channel.stream_stream(STREAM, response_deserializer=pb.ModelStreamInferResponse.FromString)
        return rpc(metadata=metadata)


@pytest.fixture
async def lanes() -> AsyncIterator[Lanes]:
    found = Lanes(FakeService())
    await found.start()
    yield found
    found.service.release.set()
    await found.stop()


def request(
    name: str, parts: int = 1, *, model: str = "add_sub", fails: bool = False, sequence: int = 0
) -> bytes:
    message = pb.ModelInferRequest(model_name=model, id=name)
    message.parameters["parts"].int64_param = parts
    if fails:
        message.parameters["fails"].bool_param = True
    if sequence:
        message.parameters["sequence_id"].int64_param = sequence
    return message.SerializeToString()


async def rest(stream: Any) -> list[Any]:
    found = []
    while (message := await stream.read()) is not grpc.aio.EOF:
        found.append(message)
    return found


async def test_half_closed_it_answers_everything_and_ends_well(lanes: Lanes):
    stream = lanes.stream()
    for name in "abc":
        await stream.write(request(name, 2))
    await stream.done_writing()
    ids = [message.infer_response.id for message in await rest(stream)]
    assert sorted(ids) == ["a", "a", "b", "b", "c", "c"]
    assert await stream.code() is grpc.StatusCode.OK
    assert dict(await stream.initial_metadata())["tidegate-endpoint"] == "gpu-east"


async def test_a_slow_request_holds_up_no_other(lanes: Lanes):
    stream = lanes.stream()
    await stream.write(request("slow", model="slow"))
    await stream.write(request("quick"))
    assert (await stream.read()).infer_response.id == "quick"
    lanes.service.release.set()
    assert (await stream.read()).infer_response.id == "slow"


async def test_steps_of_a_sequence_wait_for_each_other_and_other_sequences_do_not(lanes: Lanes):
    stream = lanes.stream()
    await stream.write(request("1", model="slow", sequence=7))
    await stream.write(request("2", model="slow", sequence=7))
    await stream.write(request("other", model="add_sub", sequence=7))
    assert (await stream.read()).infer_response.id == "other"
    assert len(lanes.service.calls) == 2
    lanes.service.release.set()
    assert [(await stream.read()).infer_response.id for _ in "12"] == ["1", "2"]


async def test_an_error_is_its_requests_and_the_stream_goes_on(lanes: Lanes):
    stream = lanes.stream()
    await stream.write(request("bad", 1, fails=True))
    assert (await stream.read()).infer_response.id == "bad"
    told = await stream.read()
    assert (told.error_message, told.infer_response.id) == ("it broke", "bad")
    assert told.infer_response.parameters["triton_final_response"].bool_param is True
    await stream.write(b"\xff")
    assert (await stream.read()).error_message != ""
    await stream.write(request("good"))
    assert (await stream.read()).infer_response.id == "good"


async def test_who_asks_for_a_status_gets_it(lanes: Lanes):
    stream = lanes.stream(("triton_grpc_error", "true"))
    await stream.write(request("waits", model="slow"))
    await stream.write(request("bad", 1, fails=True))
    assert (await stream.read()).infer_response.id == "bad"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INTERNAL, "it broke")
    await until(lambda: lanes.service.cancelled == 1)


@pytest.mark.parametrize(
    ("option", "code"),
    [
        (("tidegate-privacy", "elsewhere"), grpc.StatusCode.PERMISSION_DENIED),
        (("tidegate-what", "x"), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_what_the_metadata_forbid_ends_the_stream_unread(
    lanes: Lanes, option: tuple[str, str], code: grpc.StatusCode
):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await lanes.stream(option).read()
    assert caught.value.code() is code


async def test_a_cancelled_stream_ends_what_runs_on_it(lanes: Lanes):
    stream = lanes.stream()
    for name in "ab":
        await stream.write(request(name, model="slow"))
    await until(lambda: len(lanes.service.calls) == 2)
    stream.cancel()
    await until(lambda: lanes.service.cancelled == 2)


async def test_requests_are_read_ahead_within_bounds(lanes: Lanes):
    stream = lanes.stream()

    async def write() -> None:
        for number in range(2 * MOST_REQUESTS):
            await stream.write(request(str(number), model="slow"))
        await stream.done_writing()

    writing = asyncio.create_task(write())
    await until(lambda: len(lanes.service.calls) >= MOST_REQUESTS)
    await asyncio.wait({writing}, timeout=0.3)  # for more to be read, if they were
    assert len(lanes.service.calls) == MOST_REQUESTS
    lanes.service.release.set()
    assert len(await rest(stream)) == 2 * MOST_REQUESTS


async def test_parts_are_taken_no_faster_than_the_caller_reads(lanes: Lanes):
    stream = lanes.stream()
    message = pb.ModelInferRequest.FromString(request("much", 1000))
    message.raw_input_contents.append(b"\0" * 100_000)
    await stream.write(message.SerializeToString())
    await stream.read()
    await asyncio.sleep(1)  # for more to be sent, if it were
    assert lanes.service.sent < 100
    stream.cancel()


async def test_on_shutdown_what_runs_ends_first_and_the_stream_says_why(lanes: Lanes):
    stream = lanes.stream()
    await stream.write(request("slow", model="slow"))
    await lanes.service.entered.wait()
    drain = asyncio.create_task(lanes.grpc.drain(10))
    await asyncio.wait({drain}, timeout=0.1)
    lanes.service.release.set()
    assert (await stream.read()).infer_response.id == "slow"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "shutting down" in str(caught.value.details())
    await asyncio.wait_for(drain, 8)


async def generate(lanes: Lanes, tail: str = "", **members: object) -> httpx.Response:
    return await lanes.client.post(f"/v2/models/add_sub/generate{tail}", json=members)


async def test_generate_takes_exactly_one_response(lanes: Lanes):
    answer = await generate(lanes, TEXT="a", parts=1, id="7")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == {"TEXT": "a0", "id": "7", "model_name": "add_sub"}
    assert answer.headers["tidegate-endpoint"] == "gpu-east"
    for parts in (0, 2):
        answer = await generate(lanes, TEXT="a", parts=parts)
        assert answer.status_code == 400
        assert "exactly 1 response" in answer.json()["error"]
    answer = await generate(lanes, TEXT="a", parts=1, fails=True)
    assert (answer.status_code, answer.json()) == (500, {"error": "it broke"})


def events(text: str) -> list[Any]:
    assert text.endswith("\n\n")
    return [json.loads(event.removeprefix("data: ")) for event in text[:-2].split("\n\n")]


async def test_generate_stream_sends_events_and_an_error_as_the_last(lanes: Lanes):
    answer = await generate(lanes, "_stream", TEXT="a", parts=2, fails=True)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert [e.get("TEXT") for e in events(answer.text)] == ["a0", "a1", None]
    assert events(answer.text)[2] == {"error": "it broke"}


async def test_generate_stream_without_a_response_is_empty_or_an_http_error(lanes: Lanes):
    answer = await generate(lanes, "_stream", TEXT="a", parts=0)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    for members in ({"TEXT": "a", "parts": 0, "fails": True}, {"TEXT": 5}):
        answer = await generate(lanes, "_stream", **members)
        assert answer.status_code >= 400
        assert answer.headers["content-type"] == "application/json"
        assert "error" in answer.json()


async def test_an_event_comes_before_the_next_is_there_and_leaving_ends_the_rest(lanes: Lanes):
    async with lanes.client.stream(
        "POST", "/v2/models/gone/generate_stream", json={"TEXT": "a", "parts": 2}
    ) as answer:
        first = await anext(answer.aiter_text())
        assert events(first)[0]["TEXT"] == "a0"
        assert lanes.service.sent == 1
    await until(lambda: lanes.service.cancelled == 1)


async def test_generate_is_an_extension_and_takes_post_only(lanes: Lanes):
    assert "generate" in (await lanes.client.get("/v2")).json()["extensions"]
    answer = await lanes.client.get("/v2/models/add_sub/generate")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_an_older_client_is_told_that_it_gets_no_events(lanes: Lanes):
    reader, writer = await asyncio.open_connection("127.0.0.1", lanes.client.base_url.port)
    body = b'{"TEXT": "a", "parts": 1}'
    path = b"/v2/models/add_sub/generate_stream"
    writer.write(b"POST %b HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (path, len(body), body))
    answer = await reader.read()
    writer.close()
    assert answer.split(b" ")[1] == b"501"
    assert b"needs HTTP/1.1" in answer


async def test_over_grpc_generate_is_no_rpc(lanes: Lanes):
    for name in ("generate", "generate_stream"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await lanes.channel.unary_unary(f"/inference.GRPCInferenceService/{name}")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_large_json_is_translated_beside_the_loop(lanes: Lanes):
    text = "x" * 100_000
    answer = await generate(lanes, TEXT=text, parts=1)
    assert answer.json()["TEXT"] == text + "0"
