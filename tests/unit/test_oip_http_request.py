"""HTTP requests, good and hostile, as `decode_infer` reads them."""

from __future__ import annotations

import copy
import json
import struct
from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from oip.codec import HttpInferContext, decode_infer, decodes_fast
from oip.errors import OipError
from oip.http_request import HEADER_LENGTH, is_raw, joined_headers
from oip.reasons import Reason

VALUES = list(range(16))
RAW = struct.pack("<16i", *VALUES)
SIMPLE: dict[str, Any] = {
    "inputs": [
        {"name": name, "datatype": "INT32", "shape": [1, 16], "data": VALUES} for name in ("INPUT0", "INPUT1")
    ]
}
BINARY: dict[str, Any] = {
    "inputs": [
        {
            "name": name,
            "datatype": "INT32",
            "shape": [1, 16],
            "parameters": {"binary_data_size": 64},
        }
        for name in ("INPUT0", "INPUT1")
    ]
}


def read(
    document: Any, tail: bytes = b"", header: str | None = None
) -> tuple[pb.ModelInferRequest, HttpInferContext]:
    """Decode a document (or raw text); a tail brings its truthful header unless one is given."""
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    if header is None and tail:
        header = str(len(text))
    headers = {} if header is None else {HEADER_LENGTH.lower(): header}
    request, context = decode_infer("simple", "1", headers, text + tail)
    return pb.ModelInferRequest.FromString(request), context


def refused(
    document: Any, tail: bytes = b"", header: str | None = None, reason: Reason = Reason.MALFORMED
) -> str:
    with pytest.raises(OipError) as caught:
        read(document, tail, header)
    assert caught.value.reason is reason
    return caught.value.message


def changed(at: int = 0, **members: Any) -> dict[str, Any]:
    """The simple request with members of one input replaced; Ellipsis removes one."""
    document = copy.deepcopy(SIMPLE)
    entry = document["inputs"][at]
    entry.update(members)
    for key in [key for key, value in entry.items() if value is ...]:
        del entry[key]
    return document


def test_json_becomes_raw_contents_under_the_urls_name():
    request, context = read({"id": "42", **SIMPLE, "model_name": "other", "model_version": "9", "x": {}})
    assert (request.model_name, request.model_version, request.id) == ("simple", "1", "42")
    assert [tensor.name for tensor in request.inputs] == ["INPUT0", "INPUT1"]
    assert [list(tensor.shape) for tensor in request.inputs] == [[1, 16], [1, 16]]
    assert list(request.raw_input_contents) == [RAW, RAW]
    assert not request.outputs
    assert context == HttpInferContext("42", False, {})


def test_binary_data_is_cut_where_its_sizes_say():
    mixed = {"inputs": [BINARY["inputs"][0], SIMPLE["inputs"][1]]}
    assert list(read(mixed, bytes(64))[0].raw_input_contents) == [bytes(64), RAW]
    first, second = bytes(64), b"\x01" * 64
    request, _ = read(BINARY, first + second)
    assert list(request.raw_input_contents) == [first, second]
    assert not request.inputs[0].parameters


def test_an_empty_tensor_moves_no_offset():
    inputs = [
        {"name": "A", "datatype": "FP32", "shape": [0, 4], "parameters": {"binary_data_size": 0}},
        {"name": "B", "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": 4}},
        {"name": "C", "datatype": "FP16", "shape": [1], "parameters": {"binary_data_size": 2}},
    ]
    request, _ = read({"inputs": inputs}, bytes(4) + b"\xcd\x46")
    assert list(request.raw_input_contents) == [b"", bytes(4), b"\xcd\x46"]
    assert list(request.inputs[0].shape) == [0, 4]


@pytest.mark.parametrize("tail", [bytes(range(1, 129)), b" " * 128, bytes(128), b""])
def test_binary_data_without_its_header_names_the_header(tail: bytes):
    assert HEADER_LENGTH in refused(json.dumps(BINARY).encode() + tail)


@pytest.mark.parametrize(
    "header",
    [
        *("-1", "abc", "99999999999", "9" * 5000, "1e3", "", "1_0", "٢٠٨", "+208", "208abc", "208.0"),
        *("0xd0", "208, 207", " 208", "208\n", "²"),
    ],
)
def test_header_lengths_that_are_no_lengths_are_refused(header: str):
    assert HEADER_LENGTH in refused(BINARY, bytes(128), header)


def test_a_header_length_off_by_one_is_refused():
    length = len(json.dumps(BINARY))
    refused(BINARY, bytes(128), str(length - 1))
    refused(BINARY, bytes(128), str(length + 1))
    refused(BINARY, b" " + bytes(127), str(length + 1))
    refused(BINARY, bytes(128), str(length + 129))
    read(BINARY, bytes(128), "000" + str(length))


@pytest.mark.parametrize(
    ("declared", "raw"), [("0", True), ("000", True), ("", False), ("10", False), ("-0", False)]
)
def test_a_header_length_of_0_makes_a_raw_request(declared: str, raw: bool):
    assert is_raw({HEADER_LENGTH.lower(): declared}) is raw
    assert not is_raw({})


@pytest.mark.parametrize("size", [0, 64, 127, 129, 256])
def test_the_sizes_add_up_to_the_tail(size: int):
    message = refused(BINARY, bytes(size), str(len(json.dumps(BINARY))))
    assert "binary data beyond" in message if size > 128 else "bytes of data are left" in message


def test_data_behind_json_inputs_is_not_ignored():
    assert "5 bytes of binary data beyond" in refused(SIMPLE, bytes(5))


@pytest.mark.parametrize("size", [24, 33, 40])
def test_a_size_that_contradicts_the_shape_says_both(size: int):
    entry = {"name": "X", "datatype": "FP32", "shape": [1, 8], "parameters": {"binary_data_size": size}}
    message = refused({"inputs": [entry]}, bytes(size))
    assert message == f"input byte size mismatch for input 'X' for model 'simple'. Expected 32, got {size}"


@pytest.mark.parametrize("size", [-1, "64", 64.0, True, None, [64], 10**4200])
def test_sizes_that_are_no_sizes_are_refused(size: Any):
    document = copy.deepcopy(BINARY)
    document["inputs"][0]["parameters"]["binary_data_size"] = size
    refused(document, bytes(128))


def test_data_and_binary_data_together_are_refused():
    assert "both" in refused(changed(parameters={"binary_data_size": 64}), bytes(64))


def test_bytes_framing_is_checked():
    entry = {"name": "X", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 5}}
    assert "'X'" in refused({"inputs": [entry]}, bytes.fromhex("ffffffff61"))


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ({}, "inputs"),
        ({"inputs": None}, "inputs"),
        ({"inputs": {}}, "inputs"),
        ({"inputs": "INPUT0"}, "inputs"),
        ({"inputs": ["INPUT0"]}, "inputs[0]"),
        ({"inputs": [None]}, "inputs[0]"),
        (changed(name=...), "name of inputs[0]"),
        (changed(name=""), "name of inputs[0]"),
        (changed(name=5), "name of inputs[0]"),
        (changed(1, name="INPUT0"), "input 'INPUT0' already exists"),
        (changed(datatype=...), "'INPUT0' has no datatype"),
        (changed(datatype=None), "datatype"),
        (changed(datatype="STRING"), "datatype 'STRING'"),
        (changed(shape=...), "'INPUT0' has no shape"),
        (changed(shape=[2, -5]), "dimension 1"),
        (changed(shape=[True, 16]), "dimension 0"),
        (changed(data=...), "neither data"),
        (changed(data=None), "neither data"),
        (changed(data=VALUES[:15]), "15 values"),
        (changed(parameters=[]), "parameters"),
        (changed(parameters={"x": []}), "parameter 'x'"),
        ({**SIMPLE, "id": 42}, "id"),
        ({**SIMPLE, "id": True}, "id"),
        ({**SIMPLE, "id": ["42"]}, "id"),
        ({**SIMPLE, "parameters": "x"}, "parameters"),
        ({**SIMPLE, "outputs": {}}, "outputs"),
        ({**SIMPLE, "outputs": ["OUTPUT0"]}, "outputs[0]"),
        ({**SIMPLE, "outputs": [{}]}, "name of outputs[0]"),
        ({**SIMPLE, "outputs": [{"name": "A"}, {"name": "A"}]}, "output 'A' twice"),
        ({**SIMPLE, "outputs": [{"name": "A", "parameters": {"binary_data": 1}}]}, "binary_data"),
        ({**SIMPLE, "parameters": {"binary_data_output": "true"}}, "binary_data_output"),
        ([], "JSON object"),
        (5, "JSON object"),
        (b"null", "JSON object"),
        (b"", "JSON"),
        (b'{"inputs":[],"inputs":[]}', "'inputs' twice"),
    ],
)
def test_malformed_members_are_named(document: Any, word: str):
    assert word in refused(document)


def test_names_in_messages_are_bounded_and_escaped():
    message = refused(changed(name="a\n\x1b[31m" + "x" * 10_000, datatype="?"))
    assert len(message) < 400
    assert message.isprintable()


def test_null_members_count_as_absent():
    document = {**changed(parameters=None), "id": None, "parameters": None, "outputs": None}
    assert read(document)[0] == read(SIMPLE)[0]
    nulls = {**SIMPLE, "parameters": {"binary_data_output": None, "priority": None, "x": None}}
    assert read(nulls)[0] == read(SIMPLE)[0]
    wanted = {**SIMPLE, "outputs": [{"name": "A", "parameters": None}]}
    assert [output.name for output in read(wanted)[0].outputs] == ["A"]


@pytest.mark.parametrize(
    "request_id", ["42", "", "é-日本-\U0001f600", 'a"b\\c\nd\u0001', "x" * 10240, "a\0b"]
)
def test_ids_are_carried_exactly(request_id: str):
    request, context = read({**SIMPLE, "id": request_id})
    assert request.id == request_id
    assert context.id == request_id


def test_parameters_keep_their_types():
    given = {
        "b": True,
        "i": -(2**63),
        "u": 2**64 - 1,
        "d": 0.5,
        "s": "é",
        "priority": 3,
        "timeout": 1000,
        "sequence_id": 7,
        "sequence_start": True,
        "sequence_end": False,
    }
    parameters = read({**SIMPLE, "parameters": given})[0].parameters
    kinds = {key: parameter.WhichOneof("parameter_choice") for key, parameter in parameters.items()}
    assert kinds == {
        "b": "bool_param",
        "i": "int64_param",
        "u": "uint64_param",
        "d": "double_param",
        "s": "string_param",
        "priority": "uint64_param",
        "timeout": "int64_param",
        "sequence_id": "int64_param",
        "sequence_start": "bool_param",
        "sequence_end": "bool_param",
    }
    assert {key: getattr(parameters[key], kind) for key, kind in kinds.items()} == given
    assert (
        read({**SIMPLE, "parameters": {"sequence_id": "a"}})[0].parameters["sequence_id"].string_param == "a"
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [("timeout", value) for value in ("5", -1, 1.5, True, 2**63)]
    + [("priority", value) for value in ("1", -1, 1.5, True, 2**64)]
    + [("sequence_id", value) for value in (True, -1, 1.5, 2**63)]
    + [("sequence_start", 1), ("sequence_end", "true")]
    + [("x", value) for value in ([], {}, 2**64, -(2**63) - 1, float("nan"), float("inf"))]
    + [("triton_enable_empty_final_response", True), ("triton_foo", 1)],
)
def test_parameters_of_the_wrong_kind_are_refused(key: str, value: Any):
    assert key in refused({**SIMPLE, "parameters": {key: value}})


def test_a_double_parameter_beyond_its_range_is_refused():
    refused(json.dumps({**SIMPLE, "parameters": {"x": 0}}).replace('"x": 0', '"x": 1e400').encode())


@pytest.mark.parametrize("key", ["tidegate-privacy", "Tidegate_Site", "tidegate-anything"])
@pytest.mark.parametrize("where", ["request", "input", "output"])
def test_options_in_the_body_are_refused_with_their_header(key: str, where: str):
    document = {
        "request": {**SIMPLE, "parameters": {key: "x"}},
        "input": changed(parameters={key: "x"}),
        "output": {**SIMPLE, "outputs": [{"name": "A", "parameters": {key: "x"}}]},
    }[where]
    message = refused(document, reason=Reason.BAD_OPTION)
    assert f"header (gRPC: metadata) {key.lower().replace('_', '-')}." in message


def test_shared_memory_is_not_served():
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 64}
    assert "shared memory" in refused(changed(data=..., parameters=region), reason=Reason.NOT_SERVED)
    assert "shared memory" in refused(changed(parameters=region), reason=Reason.NOT_SERVED)
    outputs = {**SIMPLE, "outputs": [{"name": "A", "parameters": region}]}
    assert "shared memory" in refused(outputs, reason=Reason.NOT_SERVED)


def test_classification_is_not_served():
    outputs = [{"name": "A", "parameters": {"classification": 2}}]
    assert "classification" in refused({**SIMPLE, "outputs": outputs}, reason=Reason.NOT_SERVED)


def test_what_the_request_wants_as_binary_data():
    outputs = [
        {"name": "A"},
        {"name": "B", "parameters": {"binary_data": False}},
        {"name": "C", "parameters": {"binary_data": True, "x": 1}},
    ]
    document = {**SIMPLE, "parameters": {"binary_data_output": True}, "outputs": outputs}
    request, context = read(document)
    assert context == HttpInferContext("", True, {"A": True, "B": False, "C": True})
    assert [output.name for output in request.outputs] == ["A", "B", "C"]
    assert list(request.outputs[2].parameters) == ["x"]
    assert not request.parameters


def test_an_empty_list_of_inputs_is_the_models_affair():
    assert not read({"inputs": []})[0].inputs


def test_a_name_from_the_url_that_is_no_unicode_is_refused():
    with pytest.raises(OipError, match="not valid Unicode"):
        decode_infer("\ud800", "", {}, json.dumps(SIMPLE).encode())


@pytest.mark.parametrize(
    ("inputs", "size"),
    [
        pytest.param([("FP64", [2**40], [0])], 2**43, id="by its shape before its data is looked at"),
        pytest.param([("FP32", [3], [1, 2, 3]), ("INT64", [1], [4])], 20, id="all inputs together"),
        pytest.param([("BYTES", [5], [""] * 5)], 20, id="BYTES by the lengths alone"),
        pytest.param([("BYTES", [1], ["x" * 13])], 17, id="BYTES by their content"),
    ],
)
def test_tensors_over_the_limit_are_refused_with_both_numbers(inputs: list[Any], size: int):
    document = {
        "inputs": [
            {"name": str(at), "datatype": datatype, "shape": shape, "data": data}
            for at, (datatype, shape, data) in enumerate(inputs)
        ]
    }
    text = json.dumps(document).encode()
    with pytest.raises(OipError) as caught:
        decode_infer("m", "", {}, text, 16)
    assert caught.value.reason is Reason.TOO_LARGE
    assert f"{size} bytes" in caught.value.message
    assert "limit of 16." in caught.value.message


def test_tensors_of_exactly_the_limit_are_taken():
    inputs = [
        {"name": "A", "datatype": "FP32", "shape": [2], "data": [1, 2]},
        {"name": "B", "datatype": "BYTES", "shape": [1], "data": ["abcd"]},
    ]
    request, _ = decode_infer("m", "", {}, json.dumps({"inputs": inputs}).encode(), 16)
    assert [len(raw) for raw in pb.ModelInferRequest.FromString(request).raw_input_contents] == [8, 8]


@pytest.mark.parametrize(
    ("text", "tail", "fast"),
    [
        pytest.param(b'{"BYTES"' + b" " * 2**16, 0, False, id="much JSON"),
        pytest.param(b"{}", 2**21, True, id="little JSON, much binary data"),
        pytest.param(b'{"BYTES"}', 2**21, False, id="much binary data that may be BYTES"),
        pytest.param(b'{"\\u0042YTES"}', 2**21, False, id="and that an escape names"),
        pytest.param(b'{"BYTES"}', 2**19, True, id="little of it"),
    ],
)
def test_what_takes_long_to_decode_is_known_beforehand(text: bytes, tail: int, fast: bool):
    assert decodes_fast({HEADER_LENGTH.lower(): str(len(text))}, text + b"\0" * tail) is fast


def test_a_broken_header_length_counts_as_all_json():
    for broken in ("x", "9" * 5000, "-1", str(2**40)):
        assert not decodes_fast({HEADER_LENGTH.lower(): broken}, b"\0" * (2**16 + 1))


def test_headers_that_came_twice_are_joined():
    headers = [("a", "1"), ("b", b"\xe9"), ("a", "2")]
    assert joined_headers(headers) == {"a": "1,2", "b": "é"}
