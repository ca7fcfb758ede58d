"""Requests and answers in KServe's dialect: nothing is lost on the way, and answers come out in one form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from oip.errors import OipError
from oip.kserve import is_raw, to_dialect, to_raw
from oip.reasons import Reason

pb: Any = service_pb2


def dialect_parameter() -> Any:
    """KServe's InferParameter, which knows three kinds of values."""
    file = FileDescriptorProto(name="dialect.proto", package="dialect", syntax="proto3")
    message = file.message_type.add(name="InferParameter")
    message.oneof_decl.add(name="parameter_choice")
    kinds = (
        ("bool_param", FieldDescriptorProto.TYPE_BOOL),
        ("int64_param", FieldDescriptorProto.TYPE_INT64),
        ("string_param", FieldDescriptorProto.TYPE_STRING),
    )
    for number, (name, kind) in enumerate(kinds, 1):
        message.field.add(name=name, number=number, type=kind, label=1, oneof_index=0)
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("dialect.InferParameter"))


Dialect = dialect_parameter()


def request(**parameters: tuple[str, object]) -> Any:
    message = pb.ModelInferRequest(model_name="m", id="7")
    tensor = message.inputs.add(name="x", datatype="FP32", shape=[1])
    output = message.outputs.add(name="y")
    message.raw_input_contents.append(b"\0\0\0\0")
    for key, (kind, value) in parameters.items():
        for holder in (message, tensor, output):
            setattr(holder.parameters[key], kind, value)
    return message


def understood(body: bytes) -> dict[str, object]:
    """The request's parameters, as a server of the dialect reads them; those of its tensors must equal them."""
    message = pb.ModelInferRequest.FromString(body)
    found = []
    for holder in (message, message.inputs[0], message.outputs[0]):
        read = {
            key: Dialect.FromString(value.SerializeToString()) for key, value in holder.parameters.items()
        }
        found.append(
            {k: getattr(v, v.WhichOneof("parameter_choice") or "bool_param") for k, v in read.items()}
        )
    assert found[0] == found[1] == found[2]
    return found[0]


@given(st.dictionaries(st.text(), st.one_of(
    st.booleans().map(lambda v: ("bool_param", v)),
    st.integers(-(2**63), 2**63 - 1).map(lambda v: ("int64_param", v)),
    st.integers(0, 2**63 - 1).map(lambda v: ("uint64_param", v)),
    st.text().map(lambda v: ("string_param", v)),
), max_size=5))  # fmt: skip
def test_what_the_dialect_can_carry_arrives(parameters: dict[str, tuple[str, object]]):
    message = request()
    for key, (kind, value) in parameters.items():
        for holder in (message, message.inputs[0], message.outputs[0]):
            setattr(holder.parameters[key], kind, value)
    sent = to_dialect(message.SerializeToString())
    assert understood(sent) == {key: value for key, (_, value) in parameters.items()}
    for holder in (found := pb.ModelInferRequest.FromString(sent), found.inputs[0], found.outputs[0]):
        holder.ClearField("parameters")
    for holder in (message, message.inputs[0], message.outputs[0]):
        holder.ClearField("parameters")
    assert found == message


def test_a_request_without_such_parameters_is_sent_as_it_is():
    body = request(a=("string_param", "x"), b=("int64_param", -1)).SerializeToString()
    assert to_dialect(body) is body


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (("double_param", 0.5), "Parameter 'p' is a double, which"),
        (("uint64_param", 2**63), "Parameter 'p' is a uint64 beyond 2^63-1, which"),
    ],
)
@pytest.mark.parametrize("where", ["request", "input", "output"])
def test_what_it_cannot_carry_is_refused_by_name(value: tuple[str, object], said: str, where: str):
    message = request()
    holder = {"request": message, "input": message.inputs[0], "output": message.outputs[0]}[where]
    setattr(holder.parameters["p"], *value)
    with pytest.raises(OipError) as caught:
        to_dialect(message.SerializeToString())
    assert caught.value.reason is Reason.MALFORMED
    assert caught.value.message.startswith(said)
    assert caught.value.message.endswith("Send it as a string.")
    assert "0.5" not in caught.value.message


def answer() -> Any:
    return pb.ModelInferResponse(model_name="m", model_version="3", id="7")


def raw_of(body: bytes) -> dict[str, bytes]:
    response = pb.ModelInferResponse.FromString(body)
    assert not any(output.HasField("contents") for output in response.outputs)
    names = [output.name for output in response.outputs]
    return dict(zip(names, response.raw_output_contents, strict=True))


CASES: dict[str, tuple[str, list[int], list[Any], bytes]] = {
    "bool": ("BOOL", [2], [True, False], b"\1\0"),
    "int8": ("INT8", [2], [-128, 127], b"\x80\x7f"),
    "int16": ("INT16", [1], [-2], b"\xfe\xff"),
    "int32": ("INT32", [1, 2], [-1, 7], b"\xff\xff\xff\xff\7\0\0\0"),
    "int64": ("INT64", [1], [-(2**63)], b"\0\0\0\0\0\0\0\x80"),
    "uint8": ("UINT8", [2], [0, 255], b"\0\xff"),
    "uint16": ("UINT16", [1], [65535], b"\xff\xff"),
    "uint32": ("UINT32", [1], [2**32 - 1], b"\xff\xff\xff\xff"),
    "uint64": ("UINT64", [1], [2**64 - 1], b"\xff" * 8),
    "fp32": ("FP32", [], [-0.0], b"\0\0\0\x80"),
    "fp64": ("FP64", [1], [1.5], np.float64(1.5).tobytes()),
    "bytes": ("BYTES", [3], [b"a", b"", b"\xc3\xa9"], b"\1\0\0\0a\0\0\0\0\2\0\0\0\xc3\xa9"),
    "nothing": ("FP32", [0, 3], [], b""),
    "no strings": ("BYTES", [0], [], b""),
}
FIELDS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_typed_contents_become_raw(name: str):
    datatype, shape, values, expected = CASES[name]
    message = answer()
    message.parameters["p"].bool_param = True
    output = message.outputs.add(name="y", datatype=datatype, shape=shape)
    output.parameters["q"].int64_param = 1
    output.contents.SetInParent()
    getattr(output.contents, FIELDS[datatype]).extend(values)
    body = message.SerializeToString()
    assert not is_raw(body)
    raw = to_raw(body)
    assert is_raw(raw)
    assert raw_of(raw) == {"y": expected}
    found = pb.ModelInferResponse.FromString(raw)
    output.ClearField("contents")
    del found.raw_output_contents[:]
    assert found == message


def test_every_output_gets_its_own_data_where_some_are_typed():
    message = answer()
    for name, value in (("a", None), ("b", 7), ("c", None), ("d", 8)):
        output = message.outputs.add(name=name, datatype="INT32", shape=[1])
        if value is not None:
            output.contents.int_contents.append(value)
    message.raw_output_contents.extend([b"\1\0\0\0", b"\3\0\0\0"])
    body = message.SerializeToString()
    assert not is_raw(body)
    assert raw_of(to_raw(body)) == {"a": b"\1\0\0\0", "b": b"\7\0\0\0", "c": b"\3\0\0\0", "d": b"\x08\0\0\0"}


def test_an_answer_that_is_raw_or_empty_is_one_form_already():
    message = answer()
    assert is_raw(message.SerializeToString())
    output = message.outputs.add(name="y", datatype="FP32", shape=[1])
    output.contents.SetInParent()  # as MLServer writes it beside raw data
    message.raw_output_contents.append(b"\0\0\0\0")
    assert is_raw(message.SerializeToString())


@pytest.mark.parametrize(
    ("datatype", "shape", "field", "values", "raws"),
    [
        ("FP32", [2], "fp32_contents", [1.0], []),
        ("FP32", [1], "fp64_contents", [1.0], []),
        ("INT8", [1], "int_contents", [300], []),
        ("FP16", [1], "fp32_contents", [1.0], []),
        ("STRING", [1], "bytes_contents", [b"x"], []),
        ("FP32", [-1], "fp32_contents", [1.0], []),
        ("FP32", [1], "fp32_contents", [1.0], [b"\0" * 4, b"\0" * 4]),
        ("FP32", [1], None, [], []),
    ],
)
def test_an_answer_that_contradicts_itself_is_the_endpoints_failure(
    datatype: str, shape: list[int], field: str | None, values: list[Any], raws: list[bytes]
):
    message = answer()
    output = message.outputs.add(name="y", datatype=datatype, shape=shape)
    if field is not None:
        getattr(output.contents, field).extend(values)
    message.raw_output_contents.extend(raws)
    with pytest.raises(OipError) as caught:
        to_raw(message.SerializeToString())
    assert caught.value.reason is Reason.ENDPOINT_FAILED
    assert "300" not in caught.value.message


def reason_of(work: Callable[[bytes], object], body: bytes) -> Reason | None:
    try:
        work(body)
    except OipError as error:
        return error.reason
    return None


@given(st.binary(max_size=60))
def test_any_bytes_are_an_answer_or_the_endpoints_failure(body: bytes):
    assert reason_of(is_raw, body) in (None, Reason.ENDPOINT_FAILED)
    assert reason_of(to_raw, body) in (None, Reason.ENDPOINT_FAILED)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_malformed(body: bytes):
    assert reason_of(to_dialect, body) in (None, Reason.MALFORMED)
