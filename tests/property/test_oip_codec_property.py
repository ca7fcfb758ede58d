"""Tensors there and back on every way, and garbage that ends in nothing but an OipError."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from oip import tensors
from oip.codec import HttpInferContext, decode_infer, encode_infer
from oip.errors import OipError
from oip.http_request import HEADER_LENGTH
from oip.scan import scan_request
from oip.strict_json import loads

SETTINGS = settings(
    max_examples=200,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
MORE = settings(SETTINGS, max_examples=600)

FORMATS = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "FP32": "f", "FP64": "d",
}  # fmt: skip

shapes = st.lists(st.integers(0, 4), max_size=3)


def values_of(datatype: str) -> st.SearchStrategy[Any]:
    if datatype == "BOOL":
        return st.booleans()
    if datatype == "BYTES":
        return st.text(st.characters(codec="utf-8"), max_size=6)
    if datatype == "FP32":
        return st.floats(width=32, allow_nan=False) | st.just(math.nan)
    if datatype == "FP64":
        return st.floats(allow_nan=False) | st.just(math.nan)
    bits = int(datatype.lstrip("UINT"))
    return (
        st.integers(0, 2**bits - 1)
        if datatype[0] == "U"
        else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )


def raw_of(datatype: str, values: list[Any]) -> bytes:
    """The oracle: struct packs the values one by one."""
    if datatype == "BYTES":
        items = [value.encode() for value in values]
        return b"".join(struct.pack("<I", len(item)) + item for item in items)
    return struct.pack(f"<{len(values)}{FORMATS[datatype]}", *values)


def nested(shape: list[int], values: list[Any]) -> Any:
    if not shape:
        return values[0]
    step = math.prod(shape[1:])
    return [nested(shape[1:], values[at * step : at * step + step]) for at in range(shape[0])]


@st.composite
def tensor(draw: st.DrawFn) -> tuple[str, list[int], list[Any]]:
    datatype = draw(st.sampled_from([*FORMATS, "BYTES"]))
    shape = draw(shapes)
    count = math.prod(shape)
    return datatype, shape, draw(st.lists(values_of(datatype), min_size=count, max_size=count))


@SETTINGS
@given(tensor(), st.booleans())
def test_json_and_raw_are_the_same_tensor(given_tensor: tuple[str, list[int], list[Any]], flat: bool):
    datatype, shape, values = given_tensor
    data = values if flat else nested(shape, values)
    raw = tensors.from_json(datatype, shape, loads(json.dumps(data).encode()), "T")
    assert raw == raw_of(datatype, values)
    back = tensors.to_json(datatype, shape, raw, "T")
    assert repr(back) == repr(values)
    assert tensors.from_json(datatype, shape, loads(json.dumps(back).encode()), "T") == raw


@SETTINGS
@given(st.sampled_from(["FP32", "FP64"]), st.data())
def test_every_number_comes_back_from_json_bit_for_bit(datatype: str, data: st.DataObject):
    size = 4 if datatype == "FP32" else 8
    raw = data.draw(st.binary(min_size=size * 3, max_size=size * 3))
    text = json.dumps(tensors.to_json(datatype, [3], raw, "T")).encode()
    back = tensors.from_json(datatype, [3], loads(text), "T")
    for value, other, at in zip(
        struct.unpack(f"<3{FORMATS[datatype]}", raw),
        struct.unpack(f"<3{FORMATS[datatype]}", back),
        range(3),
        strict=True,
    ):
        same = raw[at * size : at * size + size] == back[at * size : at * size + size]
        assert same or (math.isnan(value) and math.isnan(other))


@SETTINGS
@given(st.lists(tensor(), min_size=1, max_size=3), st.lists(st.booleans(), min_size=6, max_size=6))
def test_a_request_crosses_http_and_protobuf_unchanged(
    given_tensors: list[tuple[str, list[int], list[Any]]], ways: list[bool]
):
    entries: list[dict[str, Any]] = []
    outputs: list[dict[str, Any]] = []
    tail = b""
    for at, (datatype, shape, values) in enumerate(given_tensors):
        entry: dict[str, Any] = {"name": f"T{at}", "datatype": datatype, "shape": shape}
        if ways[at]:
            raw = raw_of(datatype, values)
            entry["parameters"] = {"binary_data_size": len(raw)}
            tail += raw
        else:
            entry["data"] = values
        entries.append(entry)
        outputs.append({"name": f"T{at}", "parameters": {"binary_data": ways[at + 3]}})
    text = json.dumps({"id": "7", "inputs": entries, "outputs": outputs}).encode()
    headers = {HEADER_LENGTH.lower(): str(len(text))}
    body, context = decode_infer("m", "2", headers, text + tail)
    view = scan_request(body)
    assert (view.model_name, view.model_version, view.id) == ("m", "2", "7")
    request = pb.ModelInferRequest.FromString(body)
    answer = pb.ModelInferResponse(
        model_name="m", model_version="2", raw_output_contents=request.raw_input_contents
    )
    for entry in request.inputs:
        answer.outputs.add(name=entry.name, datatype=entry.datatype, shape=entry.shape)

    reply, reply_headers = encode_infer(context, answer.SerializeToString())
    cut = int(dict(reply_headers).get("inference-header-content-length", len(reply)))
    at = cut
    for index, (output, (datatype, shape, values)) in enumerate(
        zip(json.loads(reply[:cut])["outputs"], given_tensors, strict=True)
    ):
        assert (output["datatype"], output["shape"]) == (datatype, shape)
        if ways[index + 3]:
            size = output["parameters"]["binary_data_size"]
            assert reply[at : at + size] == raw_of(datatype, values)
            at += size
        else:
            assert repr(output["data"]) == repr(values)
    assert at == len(reply)


@SETTINGS
@given(st.sampled_from(sorted(tensors.SIZES)), shapes, st.binary(max_size=64))
def test_raw_data_is_taken_only_when_it_is_exactly_the_shape(datatype: str, shape: list[int], raw: bytes):
    count, size = math.prod(shape), tensors.SIZES[datatype]
    try:
        tensors.check_raw(datatype, shape, raw, "T")
    except OipError:
        assert size is None or len(raw) != count * size
    else:
        if size is None:
            items = tensors.unpack_bytes(raw, count, "T")
            assert len(items) == count
            assert tensors.pack_bytes(items) == raw
        else:
            assert len(raw) == count * size


words = st.sampled_from(
    [
        *("id", "inputs", "outputs", "parameters", "name", "datatype", "shape", "data", "A", "B"),
        *("binary_data", "binary_data_size", "binary_data_output", "priority", "timeout", "sequence_id"),
    ]
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 20),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([*tensors.SIZES, "A", "B", "", "\ud800", "é"]),
)
garbage = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)
some_shape = garbage | st.lists(st.integers(0, 4), max_size=2)
some_parameters = garbage | st.dictionaries(words, scalars, max_size=3)
some_tensor = garbage | st.fixed_dictionaries(
    {
        "name": st.sampled_from(["A", "B", 5]),
        "datatype": st.sampled_from([*tensors.SIZES, "X"]),
        "shape": some_shape,
    },
    optional={"data": garbage | st.lists(st.integers(0, 300), max_size=4), "parameters": some_parameters},
)
some_request = garbage | st.fixed_dictionaries(
    {"inputs": garbage | st.lists(some_tensor, max_size=3)},
    optional={
        "id": scalars,
        "parameters": some_parameters,
        "outputs": garbage | st.lists(some_tensor, max_size=2),
    },
)
some_header = st.none() | st.integers(-1, 200).map(str) | st.text(max_size=4)


def check_decode(headers: dict[str, str], body: bytes) -> None:
    try:
        request, context = decode_infer("m", "", headers, body)
    except OipError as error:
        error.message.encode()
        return
    message = pb.ModelInferRequest.FromString(request)
    assert len(message.inputs) == len(message.raw_input_contents)
    for entry, raw in zip(message.inputs, message.raw_input_contents, strict=True):
        tensors.check_raw(entry.datatype, list(entry.shape), raw, entry.name)
    assert scan_request(request).id == context.id


@MORE
@given(some_request, st.none() | st.binary(max_size=24), some_header)
def test_json_garbage_ends_in_an_oip_error_or_a_sound_request(
    document: Any, tail: bytes | None, header: str | None
):
    text = json.dumps(document).encode()
    headers = {} if header is None else {HEADER_LENGTH.lower(): header}
    if tail is not None:
        headers = {HEADER_LENGTH.lower(): str(len(text))}
    check_decode(headers, text + (tail or b""))


@MORE
@given(
    st.binary(max_size=100)
    | st.text(alphabet='{}[]",:0123456789eE.-+ \\udnultrfas', max_size=60).map(str.encode)
)
def test_random_text_ends_in_an_oip_error(body: bytes):
    check_decode({}, body)
    check_decode({HEADER_LENGTH.lower(): str(len(body))}, body)


@MORE
@given(some_request, st.data())
def test_mutated_json_ends_in_an_oip_error_or_a_sound_request(document: Any, data: st.DataObject):
    body = bytearray(json.dumps(document, ensure_ascii=True).encode())
    at = data.draw(st.integers(0, len(body)))
    body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    check_decode({}, bytes(body))


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    output = st.builds(
        pb.ModelInferResponse.InferOutputTensor,
        name=st.sampled_from("AB"),
        datatype=st.sampled_from([*tensors.SIZES, "X"]),
        shape=st.lists(st.integers(-1, 3), max_size=2),
        contents=st.none()
        | st.builds(pb.InferTensorContents, int_contents=st.lists(st.integers(-9, 300), max_size=3)),
    )
    message = pb.ModelInferResponse(
        model_name="m",
        outputs=draw(st.lists(output, max_size=3)),
        raw_output_contents=draw(st.lists(st.binary(max_size=12), max_size=3)),
    )
    return message.SerializeToString()


@MORE
@given(
    answers() | st.binary(max_size=60), st.booleans(), st.dictionaries(st.sampled_from("AB"), st.booleans())
)
def test_any_answer_ends_in_an_oip_error_or_a_sound_body(
    response: bytes, default: bool, own: dict[str, bool]
):
    try:
        body, headers = encode_infer(HttpInferContext("", default, own), response)
    except OipError:
        return
    cut = int(dict(headers).get("inference-header-content-length", len(body)))
    document = json.loads(body[:cut])
    sizes = [output.get("parameters", {}).get("binary_data_size", 0) for output in document["outputs"]]
    assert sum(sizes) == len(body) - cut
