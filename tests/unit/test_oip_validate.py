"""What is said of requests that do not fit, in Triton's words where it has clear ones.

The texts are those of a real Triton 2.51 for the same requests, without its prefix and its notes.
"""

from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from oip import tensors
from oip.errors import OipError
from oip.infer import parse_request
from oip.reasons import Reason
from oip.signature import Signature, TensorSpec
from oip.validate import check_request, checks_fast

SIMPLE = Signature(
    tuple(TensorSpec(f"INPUT{at}", "INT32", (-1, 16)) for at in (0, 1)),
    tuple(TensorSpec(f"OUTPUT{at}", "INT32", (-1, 16)) for at in (0, 1)),
    max_batch=8,
)
OPTIONAL = Signature(
    tuple(TensorSpec(f"INPUT{at}", "FP32", (-1,), optional=at == 3) for at in range(4)),
    (TensorSpec("OUTPUT0", "FP32", (1,)),),
)
STRINGS = Signature((TensorSpec("S", "BYTES", (-1,)),), (TensorSpec("S", "BYTES", (-1,)),))


def simple(*shapes: tuple[int, ...], **members: Any) -> pb.ModelInferRequest:
    """INPUT0, INPUT1, ... of the given shapes, with data that fits."""
    message = pb.ModelInferRequest(model_name="simple", **members)
    for at, shape in enumerate(shapes):
        message.inputs.add(name=f"INPUT{at}", datatype="INT32", shape=shape)
        size = 4
        for dim in shape:
            size *= max(dim, 0)
        message.raw_input_contents.append(bytes(size))
    return message


def strings(raw: bytes, *shape: int) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="m", raw_input_contents=[raw])
    message.inputs.add(name="S", datatype="BYTES", shape=shape)
    return message


def typed(datatype: str, shape: list[int], **contents: Any) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="X", datatype=datatype, shape=shape)
    tensor.contents.CopyFrom(pb.InferTensorContents(**contents))
    return message


def refused(message: pb.ModelInferRequest, signature: Signature, reason: Reason = Reason.MALFORMED) -> str:
    with pytest.raises(OipError) as caught:
        check_request(message.SerializeToString(), signature, message.model_name)
    assert caught.value.reason is reason
    return caught.value.message


def taken(message: pb.ModelInferRequest, signature: Signature) -> None:
    check_request(message.SerializeToString(), signature, message.model_name)
    parse_request(message.SerializeToString(), signature)


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        (
            [(1, 16)],
            "expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT0'], but missing "
            "required input(s) ['INPUT1']. Please provide all required input(s).",
        ),
        (
            [],
            "expected 2 inputs but got 0 inputs for model 'simple'. Got input(s) [], but missing required "
            "input(s) ['INPUT0','INPUT1']. Please provide all required input(s).",
        ),
        ([(1, 16)] * 3, "unexpected inference input 'INPUT2' for model 'simple'"),
        (
            [(1, 17), (1, 16)],
            "unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [1,17].",
        ),
        (
            [(1, 16), (16,)],
            "unexpected shape for input 'INPUT1' for model 'simple'. Expected [-1,16], got [16].",
        ),
        ([(), (1, 16)], "input 'INPUT0' has no shape but model requires batch dimension for 'simple'"),
        ([(9, 16)] * 2, "inference request batch-size must be <= 8 for 'simple'"),
        ([(2, 16), (1, 16)], "input 'INPUT1' batch size does not match other inputs for 'simple'"),
        ([(0, 16)] * 2, "Input 'INPUT0' for model 'simple' has a batch of 0, but 1 is the least."),
        (
            [(1, 16), (1, -16)],
            "Input 'INPUT1' needs an integer of 0 or more as dimension 1 of its shape.",
        ),
    ],
)
def test_names_and_shapes(shapes: list[tuple[int, ...]], text: str):
    assert refused(simple(*shapes), SIMPLE) == text


def test_a_batch_of_up_to_the_most_is_taken():
    taken(simple((1, 16), (1, 16)), SIMPLE)
    taken(simple((8, 16), (8, 16)), SIMPLE)


def optional(*ats: int) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="opt")
    for at in ats:
        message.inputs.add(name=f"INPUT{at}", datatype="FP32", shape=[2])
        message.raw_input_contents.append(bytes(8))
    return message


def test_optional_inputs():
    taken(optional(0, 1, 2), OPTIONAL)
    taken(optional(3, 2, 1, 0), OPTIONAL)
    assert refused(optional(0, 2), OPTIONAL) == (
        "expected number of inputs between 3 and 4 but got 2 inputs for model 'opt'. Got input(s) "
        "['INPUT0','INPUT2'], but missing required input(s) ['INPUT1']. Please provide all required input(s)."
    )
    # Triton counts only, and would run the model without INPUT2.
    assert "missing required input(s) ['INPUT2']" in refused(optional(0, 1, 3), OPTIONAL)
    assert refused(optional(0, 1, 9), OPTIONAL) == "unexpected inference input 'INPUT9' for model 'opt'"


@pytest.mark.parametrize(
    ("raw", "count", "text"),
    [
        (b"", 2, "expected 2 string elements for inference input 'S' for model 'm', got 0"),
        (
            b"\xff\xff\xff\xffa",
            1,
            "incomplete string data for inference input 'S', expecting string of length 4294967295 "
            "but only 1 bytes available",
        ),
        (
            b"\5\0\0\0a",
            1,
            "incomplete string data for inference input 'S', expecting string of length 5 "
            "but only 1 bytes available",
        ),
        (b"\5\0\0\0a", 2, "expected 2 string elements for inference input 'S' for model 'm', got 1"),
        (b"\1\0\0\0a", 2, "expected 2 string elements for inference input 'S' for model 'm', got 1"),
        (
            b"\1\0\0",
            1,
            "incomplete string length indicator for inference input 'S' for model 'm', "
            "expecting 4 bytes but only 3 bytes available.",
        ),
        (
            b"\1\0\0\0aX",
            1,
            "incomplete string length indicator for inference input 'S' for model 'm', "
            "expecting 4 bytes but only 1 bytes available.",
        ),
        (
            b"\1\0\0\0a\0\0\0\0",
            1,
            "unexpected number of string elements 2 for inference input 'S' for model 'm', expecting 1",
        ),
    ],
)
def test_lies_about_bytes(raw: bytes, count: int, text: str):
    assert refused(strings(raw, count), STRINGS) == text


def test_bytes_that_tell_the_truth():
    taken(strings(b"\1\0\0\0a\0\0\0\0", 2), STRINGS)
    taken(strings(b"\0\0\0\0", 1), STRINGS)
    taken(strings(b"", 0), STRINGS)


def test_with_too_few_inputs_the_missing_ones_are_told_first():
    message = simple((1, 16))
    message.inputs[0].name = "OTHER"
    assert refused(message, SIMPLE) == (
        "expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['OTHER'], but missing "
        "required input(s) ['INPUT0','INPUT1']. Please provide all required input(s)."
    )


ONE_OF = "unexpected explicit tensor data for input tensor 'X' for model 'm'"


@pytest.mark.parametrize(
    ("datatype", "shape", "contents", "text"),
    [
        ("INT32", [2], {"int64_contents": [1, 2]}, f"{ONE_OF} of type 'INT64', expected datatype 'INT32'"),
        ("BF16", [2], {"fp32_contents": [1, 2]}, f"{ONE_OF} of type 'FP32', expected datatype 'BF16'"),
        ("INT32", [1], {"bytes_contents": [b"1"]}, f"{ONE_OF} of type 'BYTES', expected datatype 'INT32'"),
        ("BYTES", [1], {"int_contents": [1]}, f"{ONE_OF} of type 'INT32', expected datatype 'BYTES'"),
        (
            "INT32",
            [2],
            {"int_contents": [1, 2], "int64_contents": [1, 2]},
            f"{ONE_OF}, binary data was already supplied.",
        ),
        (
            "INT32",
            [2],
            {"int_contents": [1, 2], "bool_contents": [True]},
            f"{ONE_OF} of type 'BOOL', expected datatype 'INT32'",
        ),
        (
            "INT32",
            [2],
            {"int_contents": [1, 2], "bytes_contents": [b""]},
            f"{ONE_OF}, binary data was already supplied.",
        ),
        (
            "BYTES",
            [2],
            {"int_contents": [1, 2], "bytes_contents": [b"", b""]},
            f"{ONE_OF} of type 'INT32', expected datatype 'BYTES'",
        ),
        (
            "INT32",
            [2],
            {"int_contents": [1, -2, 3]},
            "input byte size mismatch for input 'X' for model 'm'. Expected 8, got 12",
        ),
        (
            "FP64",
            [2],
            {},
            "input byte size mismatch for input 'X' for model 'm'. Expected 16, got 0",
        ),
        (
            "BYTES",
            [2],
            {"bytes_contents": [b"a"]},
            "expected 2 string elements for inference input 'X' for model 'm', got 1",
        ),
        (
            "BYTES",
            [2],
            {"bytes_contents": [b"a"] * 3},
            "unexpected number of string elements 3 for inference input 'X' for model 'm', expecting 2",
        ),
        (
            "INT8",
            [3],
            {"int_contents": [-128, 127, 128]},
            "Input 'X' has value 2 of its data outside the range of INT8, -128 to 127.",
        ),
        (
            "UINT16",
            [2],
            {"uint_contents": [0, 65536]},
            "Input 'X' has value 1 of its data outside the range of UINT16, 0 to 65535.",
        ),
    ],
)
def test_typed_contents(datatype: str, shape: list[int], contents: dict[str, Any], text: str):
    signature = Signature((TensorSpec("X", datatype, (-1,)),), ())
    assert refused(typed(datatype, shape, **contents), signature) == text


def with_input(datatype: str, size: int, contents: bytes) -> bytes:
    """A message with one input of so many elements and the given bytes as its contents."""
    tensor = b"\x0a\x01X\x12" + bytes((len(datatype),)) + datatype.encode() + b"\x1a\x01" + bytes((size,))
    tensor += b"\x2a" + bytes((len(contents),)) + contents
    return b"\x0a\x01m\x2a" + bytes((len(tensor),)) + tensor


@pytest.mark.parametrize(
    ("datatype", "contents", "values"),
    [
        ("INT32", b"\x10\x01\x12\x02\xac\x02", [1, 300]),
        ("INT32", b"\x12\x00\x12\x02\x05\x06", [5, 6]),
        ("INT32", b"\x1a\x00\x12\x02\x05\x06", [5, 6]),
        ("INT32", b"\x12\x00", []),
        ("BOOL", b"\x08\x02\x08\x00", [True, False]),
        ("FP32", b"\x35\0\0\x80\x3f\x32\x04\0\0\0\0", [1.0, 0.0]),
    ],
)
def test_contents_packed_and_one_by_one(datatype: str, contents: bytes, values: list[Any]):
    body = with_input(datatype, len(values), contents)
    array = parse_request(body, Signature((TensorSpec("X", datatype, (-1,)),), ())).inputs["X"]
    assert array.dtype == tensors.dtype(datatype)
    assert array.tolist() == values
    ((_, found),) = pb.ModelInferRequest.FromString(body).inputs[0].contents.ListFields() or [(0, [])]
    assert list(found) == values


@pytest.mark.parametrize(
    ("datatype", "contents", "text"),
    [
        ("FP32", b"\x32\x05\0\0\0\0\0", "contents end inside a number"),
        ("INT32", b"\x12\x01\x80", "contents end inside a number"),
        ("INT32", b"\x12\x0b" + b"\x80" * 10 + b"\x01", "longer than ten bytes"),
        ("INT32", b"\x12\x0c\x01" + b"\x80" * 10 + b"\x01", "longer than ten bytes"),
        ("INT32", b"\x15\0\0\0\0", "wire type 5"),
        ("BYTES", b"\x42\x05a", "ends inside a field"),
    ],
)
def test_broken_contents(datatype: str, contents: bytes, text: str):
    with pytest.raises(OipError, match=text):
        check_request(with_input(datatype, 1, contents), Signature((), ()), "m")


@pytest.mark.parametrize(
    ("inner", "text"),
    [
        (b"\x0a\x01X\x0a\x01Y", "field 1 of an input occurs twice"),
        (b"\x12\x01X\x12\x01X", "field 2 of an input occurs twice"),
        (b"\x2a\x00\x2a\x00", "field 5 of an input occurs twice"),
        (b"\x0a\x01\xff", "an input's name is not UTF-8"),
        (b"\x1a\x01\x80", "a shape ends inside a number"),
        (b"\x22\x03\x0a\x01a\x22\x03\x0a\x01a", "parameter 'a' occurs twice"),
        (b"\x22\x05\x12\x03\x1a\x01\xff", "a parameter's value is not UTF-8"),
    ],
)
def test_inputs_that_parsers_could_read_differently(inner: bytes, text: str):
    body = b"\x0a\x01m\x2a" + bytes((len(inner),)) + inner
    with pytest.raises(OipError, match=text):
        check_request(body, Signature((), ()), "m")


def test_a_parameter_twice_is_refused():
    twice = b"\x0a\x01m" + b"\x22\x07\x0a\x01a\x12\x02\x10\x01" * 2
    with pytest.raises(OipError, match="parameter 'a' occurs twice"):
        check_request(twice, Signature((), ()), "m")


@pytest.mark.parametrize(
    ("key", "kind", "value", "text"),
    [
        ("sequence_id", "bool_param", True, "expected int64_param or string_param."),
        ("sequence_id", "uint64_param", 3, "expected int64_param or string_param."),
        ("sequence_start", "int64_param", 1, "expected bool_param."),
        ("timeout", "uint64_param", 3, "expected int64_param."),
        ("priority", "string_param", "1", "expected int64_param or uint64_param."),
        ("x", "uint64_param", 3, "expected int64_param, bool_param, or string_param."),
        ("x", None, None, "expected int64_param, bool_param, or string_param."),
    ],
)
def test_kinds_of_parameters(key: str, kind: str | None, value: Any, text: str):
    message = simple((1, 16), (1, 16))
    if kind is None:
        message.parameters[key].SetInParent()
    else:
        setattr(message.parameters[key], kind, value)
    assert refused(message, SIMPLE) == f"invalid value type for '{key}' parameter, {text}"


def test_values_of_parameters():
    message = simple((1, 16), (1, 16))
    message.parameters["priority"].int64_param = 1
    message.parameters["timeout"].int64_param = 1000
    message.parameters["sequence_id"].string_param = "a"
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    message.parameters["x"].double_param = 0.5
    taken(message, SIMPLE)
    message.parameters["priority"].int64_param = -1
    assert refused(message, SIMPLE) == "invalid value for 'priority', expected value >= 0."
    del message.parameters["priority"]
    message.parameters["timeout"].int64_param = -1
    assert refused(message, SIMPLE) == "invalid value for 'timeout', expected value >= 0."
    message = simple((1, 16), (1, 16))
    message.parameters["triton_foo"].int64_param = 1
    assert refused(message, SIMPLE) == (
        "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
        "starting with 'triton_' are allowed: triton_enable_empty_final_response"
    )


def test_what_a_signature_does_not_say_is_not_held_against_a_request():
    odd = simple((1, 2, 3), (0,))
    taken(odd, Signature((), ()))
    taken(odd, Signature(tuple(TensorSpec(f"INPUT{at}", "INT32", (), any_shape=True) for at in (0, 1)), ()))
    taken(odd, Signature((TensorSpec("INPUT0", "str", (1, 2, 3)), TensorSpec("INPUT1", "str", (0,))), ()))
    odd.outputs.add(name="anything")
    taken(odd, Signature((), ()))
    odd.raw_input_contents[0] = b"\0"
    assert "Expected 24, got 1" in refused(odd, Signature((), ()))


def test_long_lists_of_names_and_dimensions_are_cut():
    many = Signature(tuple(TensorSpec(f"I{at}", "INT32", (1,)) for at in range(40)), ())
    text = refused(simple(), many)
    assert "'I15',...]" in text
    assert "'I16'" not in text
    assert refused(simple((1,) * 20, (1, 16)), SIMPLE).endswith(f"got [{'1,' * 16}...].")


def test_megabytes_of_bytes_and_typed_contents_take_long():
    assert checks_fast(bytes(2**18), STRINGS)
    assert not checks_fast(bytes(2**18 + 1), STRINGS)
    one = Signature((TensorSpec("X", "FP32", (-1,)),), ())
    raw = pb.ModelInferRequest(model_name="m", raw_input_contents=[bytes(2**21)])
    raw.inputs.add(name="X", datatype="FP32", shape=[2**19])
    assert checks_fast(raw.SerializeToString(), one)
    raw.inputs[0].datatype = "BYTES"
    assert not checks_fast(raw.SerializeToString(), one)
    long = typed("FP32", [2**19], fp32_contents=[0.0] * 2**19)
    assert not checks_fast(long.SerializeToString(), one)
    assert checks_fast(b"\xff" * 2**21, one)


def test_a_message_of_millions_of_dimensions_or_numbers_is_refused_soon():
    many = pb.ModelInferRequest(model_name="m")
    for at in range(3):
        many.inputs.add(name=f"X{at}", datatype="FP32", shape=[1] * 8000)
    assert "more than 16384 fields and dimensions" in refused(many, Signature((), ()))
    numbers = b"\x35\0\0\0\0" * 16385
    length = len(numbers)
    contents = b"\x2a" + bytes((length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14)) + numbers
    tensor = pb.ModelInferRequest.InferInputTensor(name="X", datatype="FP32", shape=[16385])
    inner = tensor.SerializeToString() + contents
    size = len(inner)
    body = b"\x0a\x01m\x2a" + bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14)) + inner
    pb.ModelInferRequest.FromString(body)
    with pytest.raises(OipError, match="more than 16384 fields"):
        check_request(body, Signature((), ()), "m")


def test_many_bytes_in_typed_contents_are_taken():
    taken(
        typed("BYTES", [20_000], bytes_contents=[b""] * 20_000),
        Signature((TensorSpec("X", "BYTES", (-1,)),), ()),
    )
