"""Streams from top to bottom, over endpoints that do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import pytest
from tritonclient.grpc import service_pb2

import gateway.pipeline.director as director_module
from gateway.core.call import Binding, Call
from gateway.core.errors import AttemptError
from oip.reasons import Reason
from oip.signature import Signature
from tests.support.fakes import CODEC, Bench, FakeEndpoint, bench, call_of, config_of, failure, response

Part = tuple[dict[str, str], service_pb2.ModelInferResponse]


class Taken:
    """What the caller gets."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.came = asyncio.Event()

    async def __call__(self, metadata: Sequence[tuple[str, str]], body: bytes) -> None:
        self.parts.append((dict(metadata), service_pb2.ModelInferResponse.FromString(body)))
        self.came.set()


def gives(endpoint: FakeEndpoint, count: int, error: AttemptError | None = None) -> None:
    async def responses(message: service_pb2.ModelInferRequest) -> AsyncGenerator[bytes]:
        for _ in range(count):
            yield response(message.model_name)
        if error is not None:
            raise error

    endpoint.responses = responses


def hangs_after(endpoint: FakeEndpoint, count: int) -> None:
    async def responses(message: service_pb2.ModelInferRequest) -> AsyncGenerator[bytes]:
        for _ in range(count):
            yield response(message.model_name)
        await asyncio.Event().wait()

    endpoint.responses = responses


def record_of(b: Bench, taken: Taken) -> list[tuple[str, str]]:
    record = b.records.get(taken.parts[0][0]["tidegate-decision"])
    assert record is not None
    return [(a["endpoint"], a["outcome"]) for a in record["attempts"]]


async def test_responses_come_under_the_callers_name_and_the_first_has_the_headers():
    b = await bench(config_of(policies=[{"name": "all", "match": {}, "weights": {"quality": 1}}]))
    b.state.gone("site")
    gives(b.endpoints["cloud"], 3)
    taken = Taken()
    reply = await b.director.stream(call_of(), CODEC, taken)
    assert reply.error is None
    assert [part.model_name for _, part in taken.parts] == ["digits"] * 3
    first = taken.parts[0][0]
    assert (first["tidegate-endpoint"], first["tidegate-attempts"]) == ("cloud", "1")
    assert "tidegate-cost" not in first
    assert taken.parts[1][0] == {}
    assert dict(reply.metadata)["tidegate-cost"] == "0"
    assert record_of(b, taken) == [("cloud", "ok")]


async def test_before_the_first_response_another_place_is_asked():
    b = await bench()
    gives(b.endpoints["site"], 0, failure(Reason.UNAVAILABLE))
    gives(b.endpoints["cloud"], 2)
    taken = Taken()
    assert (await b.director.stream(call_of(), CODEC, taken)).error is None
    assert [part.model_name for _, part in taken.parts] == ["digits"] * 2
    assert taken.parts[0][0]["tidegate-attempts"] == "2"
    assert record_of(b, taken) == [("site", "unavailable"), ("cloud", "ok")]


async def test_after_the_first_response_nothing_is_sent_again():
    b = await bench()
    gives(b.endpoints["site"], 1, failure(Reason.UNAVAILABLE))
    taken = Taken()
    reply = await b.director.stream(call_of(), CODEC, taken)
    assert reply.error is not None
    assert reply.error.reason is Reason.UNAVAILABLE
    assert (len(taken.parts), b.endpoints["cloud"].seen) == (1, [])
    assert record_of(b, taken) == [("site", "unavailable")]
    assert b.looked == ["site"]


async def test_none_at_all_is_an_answer_and_not_a_failure():
    b = await bench()
    gives(b.endpoints["site"], 0)
    taken = Taken()
    assert (await b.director.stream(call_of(), CODEC, taken)).error is None
    assert (taken.parts, b.endpoints["cloud"].seen) == ([], [])


async def test_a_caller_who_leaves_ends_it_at_the_endpoint():
    b = await bench()
    hangs_after(b.endpoints["site"], 1)
    taken = Taken()
    task = asyncio.create_task(b.director.stream(call_of(), CODEC, taken))
    await taken.came.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert b.endpoints["site"].cancelled == 1
    assert record_of(b, taken) == [("site", "cancelled")]


async def test_a_deadline_is_for_the_whole_stream():
    b = await bench()
    hangs_after(b.endpoints["site"], 1)
    taken = Taken()
    reply = await b.director.stream(call_of(deadline_s=0.1), CODEC, taken)
    assert reply.error is not None
    assert reply.error.reason is Reason.DEADLINE
    assert len(taken.parts) == 1
    (given,) = b.endpoints["site"].whole
    assert given is not None
    assert 0 < given <= 0.1
    assert b.endpoints["site"].cancelled == 1


async def test_without_a_deadline_pauses_of_the_endpoint_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(director_module, "DEFAULT_TIMEOUT_S", 0.2)
    b = await bench()
    hangs_after(b.endpoints["site"], 2)
    taken = Taken()

    async def slowly(metadata: Sequence[tuple[str, str]], body: bytes) -> None:
        await asyncio.sleep(0.3)  # longer than the pause that is allowed
        await taken(metadata, body)

    reply = await b.director.stream(call_of(), CODEC, slowly)
    assert reply.error is not None
    assert (reply.error.reason, len(taken.parts)) == (Reason.DEADLINE, 2)
    assert reply.error.message == "no further response came for 0.2 s"
    assert b.endpoints["site"].whole == [None]


async def test_latency_counts_to_the_first_response():
    b = await bench()

    async def responses(message: service_pb2.ModelInferRequest) -> AsyncGenerator[bytes]:
        yield response(message.model_name)
        await asyncio.sleep(0.5)  # what must not count
        yield response(message.model_name)

    b.endpoints["site"].responses = responses
    await b.director.stream(call_of(), CODEC, Taken())
    (figure,) = (v.latency for k, v in b.state.snapshot.variants.items() if k.endpoint == "site")
    assert figure is not None
    assert figure.p50_ms < 500


async def learnt(b: Bench) -> None:
    for endpoint in b.endpoints.values():
        endpoint.decoupled = True


async def test_a_decoupled_model_answers_a_stream_only():
    b = await bench()
    await learnt(b)
    for key in b.state.snapshot.variants:
        b.state.learnt(key, Signature((), (), decoupled=True), asyncio.get_running_loop().time())
    reply = await b.director.infer(call_of(), CODEC)
    assert reply.error is not None
    assert (reply.error.reason, b.endpoints["site"].seen) == (Reason.NOT_SERVED, [])
    assert reply.error.message == "ModelInfer RPC doesn't support models with decoupled transaction policy"
    gives(b.endpoints["site"], 1)
    taken = Taken()
    assert (await b.director.stream(call_of(), CODEC, taken)).error is None
    assert len(taken.parts) == 1


class Typed:
    """A generate codec that keeps by which signature it read."""

    def __init__(self) -> None:
        self.by: list[Signature] = []

    async def decode(self, body: bytes, signature: Signature) -> bytes:
        self.by.append(signature)
        message = service_pb2.ModelInferRequest(model_name="digits", id="g")
        for spec in signature.inputs:
            message.inputs.add(name=spec.name, datatype=spec.datatype, shape=[2])
            message.raw_input_contents.append(b"\0" * 8)
        return message.SerializeToString()

    async def encode(self, response: bytes) -> tuple[bytes, Sequence[tuple[str, str]]]:
        return response, (("content-type", "x"),)


def generate_call(**options: str) -> Call:
    return replace(call_of(b"{}", **options), binding=Binding.HTTP, method="generate", model="digits")


async def test_generate_asks_what_the_chosen_variant_takes():
    b = await bench()
    await learnt(b)
    gives(b.endpoints["site"], 1)
    codec, taken = Typed(), Taken()
    reply = await b.director.generate(generate_call(), codec, taken)
    assert reply.error is None
    assert [[spec.name for spec in signature.inputs] for signature in codec.by] == [["x"]]
    (sent,) = b.endpoints["site"].seen
    assert [tensor.name for tensor in sent.inputs] == ["x"]
    assert taken.parts[0][0]["content-type"] == "x"


async def test_generate_is_refused_by_privacy_before_anything_is_read():
    b = await bench()
    call = generate_call(privacy="own")
    reply = await b.director.generate(call, Typed(), Taken())
    assert reply.error is not None
    assert reply.error.reason is Reason.PRIVACY
    assert call.body.was_read is False  # type: ignore[attr-defined]


async def test_generate_of_a_version_that_nobody_has_is_an_unknown_model():
    b = await bench()

    async def missing(model: str, version: str, timeout_s: float) -> bytes:
        raise failure(Reason.UNKNOWN_MODEL)

    for endpoint in b.endpoints.values():
        endpoint.model_metadata = missing
    call = replace(generate_call(), version="9")
    reply = await b.director.generate(call, Typed(), Taken())
    assert reply.error is not None
    assert reply.error.message == "Request for unknown model: 'digits' version 9 is not found"
    reply = await b.director.generate(generate_call(), Typed(), Taken())
    assert reply.error is not None
    assert reply.error.reason is Reason.MODEL_UNAVAILABLE
