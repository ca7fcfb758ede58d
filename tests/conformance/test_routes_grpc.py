"""Over gRPC: whatever the route, the same answer to the same message, unary and on a stream."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.conformance.stage import HEADER, ROUTES, Stage

pb: Any = service_pb2
INVALID, NOT_FOUND = "INVALID_ARGUMENT", "NOT_FOUND"
ONES = np.ones((1, 16), "<i4").tobytes()


@pytest.fixture(scope="module")
def stub(stage: Stage) -> Iterator[Any]:
    with grpc.insecure_channel(stage.gateway.grpc) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def simple(*, raw: int = 2, contents: int = 0, model: str = "simple", **members: Any) -> Any:
    """Two inputs of ones, the first `raw` in raw_input_contents, the last `contents` in their own."""
    message = pb.ModelInferRequest(model_name=model, **members)
    for at in range(2):
        tensor = message.inputs.add(name=f"INPUT{at}", datatype="INT32", shape=[1, 16])
        if at >= 2 - contents:
            tensor.contents.int_contents.extend([1] * 16)
    message.raw_input_contents.extend([ONES] * raw)
    return message


def identity(datatype: str, shape: list[int], raw: bytes | None = None, **members: Any) -> Any:
    message = pb.ModelInferRequest(model_name=f"id_{datatype.lower()}", **members)
    message.inputs.add(name="INPUT0", datatype=datatype, shape=shape)
    if raw is not None:
        message.raw_input_contents.append(raw)
    return message


def with_parameter(key: str, kind: str, value: Any) -> Any:
    message = identity("FP32", [1], struct.pack("<f", 1.5))
    setattr(message.parameters[key], kind, value)
    return message


def with_unset_parameter() -> Any:
    message = identity("FP32", [1], struct.pack("<f", 1.5))
    message.parameters["nothing"].SetInParent()
    return message


def asking_for(*names: str) -> Any:
    message = simple()
    for name in names:
        message.outputs.add(name=name)
    return message


def told(stub: Any, route: str, message: Any) -> tuple[str, str]:
    """Status and words of what is refused."""
    call = stub.ModelInfer.future(message, timeout=60, metadata=((HEADER, route),))
    return call.code().name, call.details() or ""


def outputs(response: Any) -> list[tuple[str, str, list[int], bytes]]:
    assert len(response.outputs) == len(response.raw_output_contents)
    return [
        (o.name, o.datatype, list(o.shape), raw)
        for o, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    ]


SUM = ("OUTPUT0", "INT32", [1, 16], np.full(16, 2, "<i4").tobytes())
DIFFERENCE = ("OUTPUT1", "INT32", [1, 16], bytes(64))
GOOD: dict[str, tuple[Callable[[], Any], list[Any]]] = {
    "raw data": (simple, [SUM, DIFFERENCE]),
    "typed contents": (lambda: simple(raw=0, contents=2), [SUM, DIFFERENCE]),
    "one output": (lambda: asking_for("OUTPUT1"), [DIFFERENCE]),
    "both, the other way round": (lambda: asking_for("OUTPUT1", "OUTPUT0"), [SUM, DIFFERENCE]),
    "no elements": (lambda: identity("FP32", [0], b""), [("OUTPUT0", "FP32", [0], b"")]),
    "half precision": (
        lambda: identity("FP16", [2], bytes.fromhex("cd46007e")),
        [("OUTPUT0", "FP16", [2], bytes.fromhex("cd46007e"))],
    ),
    "bfloat16": (
        lambda: identity("BF16", [2], bytes.fromhex("803f00c0")),
        [("OUTPUT0", "BF16", [2], bytes.fromhex("803f00c0"))],
    ),
    "bytes of any kind": (
        lambda: identity("BYTES", [1], struct.pack("<I", 3) + b"\x00\xff\xfe"),
        [("OUTPUT0", "BYTES", [1], struct.pack("<I", 3) + b"\x00\xff\xfe")],
    ),
    "a parameter of every kind": (
        lambda: with_parameter("weight", "double_param", 0.5),
        [("OUTPUT0", "FP32", [1], struct.pack("<f", 1.5))],
    ),
    "a sequence's parameters to a model without state": (
        lambda: with_parameter("sequence_id", "string_param", "a"),
        [("OUTPUT0", "FP32", [1], struct.pack("<f", 1.5))],
    ),
}
BAD: dict[str, tuple[Callable[[], Any], str, str]] = {
    "raw data and contents": (
        lambda: simple(contents=2),
        INVALID,
        "contents field must not be specified when using raw_input_contents",
    ),
    "contents of the second input beside raw data": (lambda: simple(raw=1, contents=1), INVALID, ""),
    "raw data of one input": (lambda: simple(raw=1), INVALID, ""),
    "raw data of a third input": (lambda: simple(raw=3), INVALID, "raw_input_contents"),
    "no data": (lambda: simple(raw=0), INVALID, ""),
    "half an element": (lambda: identity("FP16", [1], b"\0"), INVALID, ""),
    "half precision without raw data": (lambda: identity("FP16", [1]), INVALID, ""),
    "the wrong size": (lambda: identity("FP32", [2], bytes(12)), INVALID, ""),
    "a negative dimension": (lambda: identity("FP32", [-1], bytes(4)), INVALID, ""),
    "an output that there is not": (lambda: asking_for("OUTPUT9"), INVALID, "OUTPUT9"),
    "a model that there is not": (lambda: simple(model="nobody"), NOT_FOUND, "Request for unknown model"),
    "no model": (lambda: simple(model=""), INVALID, ""),
    "a version that there is not": (
        lambda: simple(model_version="999"),
        NOT_FOUND,
        "Request for unknown model",
    ),
    "a version that is no number": (lambda: simple(model_version="one"), INVALID, ""),
    "a version with a sign": (lambda: simple(model_version="+1"), INVALID, ""),
    "a parameter of no kind": (with_unset_parameter, INVALID, "nothing"),
    "a priority in words": (
        lambda: with_parameter("priority", "string_param", "high"),
        INVALID,
        "priority",
    ),
    "a timeout in words": (lambda: with_parameter("timeout", "string_param", "5"), INVALID, "timeout"),
    "a parameter of Triton's own": (lambda: with_parameter("triton_x", "int64_param", 1), INVALID, "triton_"),
    "a request option as a parameter": (
        lambda: with_parameter("tidegate-site", "string_param", "s"),
        INVALID,
        "metadata",
    ),
    "a region of shared memory": (
        lambda: _shared(),
        "UNIMPLEMENTED",
        "shared memory",
    ),
}  # fmt: skip


def _shared() -> Any:
    message = identity("FP32", [1])
    message.inputs[0].parameters["shared_memory_region"].string_param = "r"
    message.inputs[0].parameters["shared_memory_byte_size"].int64_param = 4
    return message


@pytest.mark.parametrize("name", GOOD)
def test_the_same_answer(stub: Any, name: str):
    make, expected = GOOD[name]
    for route in ROUTES:
        response = stub.ModelInfer(make(), timeout=60, metadata=((HEADER, route),))
        assert outputs(response) == expected, route
        assert response.model_version == "1"


@pytest.mark.parametrize("name", BAD)
def test_the_same_mistake_the_same_words(stub: Any, name: str):
    make, status, words = BAD[name]
    found = [told(stub, route, make()) for route in ROUTES]
    assert found == [(status, found[0][1])] * 3
    assert words in found[0][1]
    for route in ROUTES:
        assert outputs(stub.ModelInfer(simple(), timeout=60, metadata=((HEADER, route),)))[0] == SUM


@pytest.mark.parametrize("route", ROUTES)
def test_a_stream_answers_each_request(stub: Any, route: str):
    """Good and bad ones at once: what is wrong with one is told under its id, and the stream goes on."""
    asked = [
        simple(id="0"),
        identity("FP32", [2], bytes(12), id="1"),
        simple(model="nobody", id="2"),
        identity("BYTES", [0], b"", id="3"),
        simple(id="4"),
    ]
    answers = list(stub.ModelStreamInfer(iter(asked), timeout=60, metadata=((HEADER, route),)))
    answers.sort(key=lambda answer: answer.infer_response.id)
    assert [answer.infer_response.id for answer in answers] == ["0", "1", "2", "3", "4"]
    faults = [answer.error_message for answer in answers]
    assert [bool(fault) for fault in faults] == [False, True, True, False, False]
    assert faults[1] == told(stub, route, asked[1])[1]
    assert "Request for unknown model" in faults[2]
    assert outputs(answers[4].infer_response) == [SUM, DIFFERENCE]


@pytest.mark.parametrize("route", ROUTES)
def test_a_stream_tells_its_last_answer_where_it_is_asked_to(stub: Any, route: str):
    message = simple(id="a")
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    (answer,) = stub.ModelStreamInfer(iter([message]), timeout=60, metadata=((HEADER, route),))
    assert answer.infer_response.parameters["triton_final_response"].bool_param
