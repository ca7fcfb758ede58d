"""Arrays out of requests and into responses, bit for bit."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from oip import codec
from oip.errors import OipError
from oip.infer import build_response, is_batchable, parse_request, parse_response, select
from oip.reasons import Reason
from oip.signature import Signature, TensorSpec

NAN_BITS = [0x7FC00001, 0xFFC00000, 0x7F800001, 0x80000000]
NUMPY = {
    "BOOL": np.bool_,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "BF16": np.uint16,
    "FP32": np.float32,
    "FP64": np.float64,
}


def signature(*names: str, datatype: str = "FP32", shape: tuple[int, ...] = (-1,)) -> Signature:
    specs = tuple(TensorSpec(name, datatype, shape) for name in names)
    return Signature(specs, specs)


def request(datatype: str, shape: list[int], raw: bytes) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="m", model_version="2", id="é", raw_input_contents=[raw])
    message.inputs.add(name="X", datatype=datatype, shape=shape)
    return message


def answer(body: bytes) -> pb.ModelInferResponse:
    return pb.ModelInferResponse.FromString(body)


def failed(outputs: dict[str, Any], given: Signature) -> str:
    with pytest.raises(OipError) as caught:
        build_response("m", "1", "", outputs, given)
    assert caught.value.reason is Reason.ENDPOINT_FAILED
    return caught.value.message


def test_a_request_without_its_tensors():
    message = request("FP32", [2, 1], bytes(8))
    message.parameters["sequence_id"].int64_param = -7
    message.parameters["big"].double_param = 0.5
    work = parse_request(message.SerializeToString(), signature("X", shape=(-1, 1)))
    assert (work.model, work.version, work.id, work.rows) == ("m", "2", "é", 2)
    assert work.parameters == {"sequence_id": -7, "big": 0.5}
    assert work.outputs == ("X",)


@pytest.mark.parametrize("datatype", NUMPY)
def test_raw_data_is_viewed_and_goes_back_bit_for_bit(datatype: str):
    kind = np.dtype(NUMPY[datatype])
    raw = bytes(range(1, 1 + 6 * kind.itemsize)) if datatype != "BOOL" else b"\1\0\1\1\0\0"
    given = signature("X", datatype=datatype, shape=(-1, 3))
    body = request(datatype, [2, 3], raw).SerializeToString()
    array = parse_request(body, given).inputs["X"]
    assert (array.dtype, array.shape) == (kind, (2, 3))
    assert array.base is not None
    assert not array.flags.writeable
    response = answer(build_response("m", "2", "é", {"X": array}, given))
    assert response.raw_output_contents == [raw]
    ((name, shape, contents),) = [
        (o.datatype, list(o.shape), o.HasField("contents")) for o in response.outputs
    ]
    assert (name, shape, contents) == (datatype, [2, 3], False)
    assert (response.model_name, response.model_version, response.id) == ("m", "2", "é")


def test_every_nan_keeps_its_bits():
    raw = struct.pack("<4I", *NAN_BITS)
    given = signature("X")
    array = parse_request(request("FP32", [4], raw).SerializeToString(), given).inputs["X"]
    assert answer(build_response("m", "", "", {"X": array}, given)).raw_output_contents[0] == raw


def test_bytes_are_objects_and_back():
    raw = b"\1\0\0\0a\0\0\0\0\2\0\0\0\x00\xff"
    given = signature("X", datatype="BYTES", shape=(-1, 1))
    array = parse_request(request("BYTES", [3, 1], raw).SerializeToString(), given).inputs["X"]
    assert array.tolist() == [[b"a"], [b""], [b"\x00\xff"]]
    assert answer(build_response("m", "", "", {"X": array}, given)).raw_output_contents[0] == raw
    text = np.array([["é"]], dtype=object)
    assert (
        answer(build_response("m", "", "", {"X": text}, given)).raw_output_contents[0] == b"\2\0\0\0\xc3\xa9"
    )


def test_outputs_come_in_the_models_order():
    message = request("FP32", [1], bytes(4))
    message.outputs.add(name="B")
    message.outputs.add(name="A")
    given = Signature((TensorSpec("X", "FP32", (-1,)),), tuple(TensorSpec(n, "FP32", (-1,)) for n in "ABC"))
    work = parse_request(message.SerializeToString(), given)
    outputs = {n: np.full(1, at, np.float32) for at, n in enumerate("ABC")}
    response = answer(build_response("m", "1", "", select(work, outputs), given))
    assert [output.name for output in response.outputs] == ["A", "B"]
    assert [struct.unpack("<f", raw)[0] for raw in response.raw_output_contents] == [0.0, 1.0]
    with pytest.raises(OipError, match="it gave no output 'B'"):
        select(work, {"A": outputs["A"]})


@pytest.mark.parametrize("shape", [(0,), (0, 4), (2, 0, 3)])
def test_empty_tensors_keep_their_shape(shape: tuple[int, ...]):
    given = signature("X", "Y", shape=(-1,) * len(shape))
    message = request("FP32", list(shape), b"")
    message.inputs.add(name="Y", datatype="FP32", shape=[1] * len(shape))
    message.raw_input_contents.append(b"\0\0\x80?")
    work = parse_request(message.SerializeToString(), given)
    assert work.inputs["X"].shape == shape
    response = answer(build_response("m", "1", "", dict(work.inputs), given))
    assert [list(output.shape) for output in response.outputs] == [list(shape), [1] * len(shape)]
    assert list(response.raw_output_contents) == [b"", b"\0\0\x80?"]


def test_arrays_of_any_layout_and_byte_order_are_written_row_by_row():
    given = signature("X", datatype="INT32", shape=(-1, -1))
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    raw = answer(build_response("m", "1", "", {"X": array}, given)).raw_output_contents[0]
    assert struct.unpack("<6i", raw) == (0, 3, 1, 4, 2, 5)


def test_a_scalar_has_one_element():
    given = signature("X", shape=())
    array = parse_request(request("FP32", [], b"\0\0\x80?").SerializeToString(), given).inputs["X"]
    assert (array.shape, array.item()) == ((), 1.0)
    response = answer(build_response("m", "1", "", {"X": array}, given))
    assert (list(response.outputs[0].shape), response.raw_output_contents[0]) == ([], b"\0\0\x80?")


def test_an_answer_that_is_not_what_the_signature_says():
    given = signature("X", shape=(-1, 2))
    assert "output 'Y', which its signature does not name" in failed({"Y": np.zeros(2, np.float32)}, given)
    text = failed({"X": np.zeros((1, 2))}, given)
    assert text == (
        "The model's answer is broken: output 'X' is of numpy type float64, but FP32 needs float32."
    )
    assert "has shape [2, 3], but its signature [-1, 2]" in failed({"X": np.zeros((2, 3), np.float32)}, given)
    assert "has shape [2], but" in failed({"X": np.zeros(2, np.float32)}, given)
    strings = signature("X", datatype="BYTES")
    assert "holds a int where bytes are due" in failed({"X": np.array([1], dtype=object)}, strings)


def test_a_response_is_what_http_shows():
    given = signature("X", "Y")
    body = build_response("m", "1", "id", {"Y": np.ones(2, np.float32), "X": np.zeros(0, np.float32)}, given)
    text, _ = codec.encode_infer(codec.HttpInferContext("id", False, {}), body)
    assert text == (
        b'{"id":"id","model_name":"m","model_version":"1","outputs":['
        b'{"name":"Y","datatype":"FP32","shape":[2],"data":[1.0,1.0]},'
        b'{"name":"X","datatype":"FP32","shape":[0],"data":[]}]}'
    )


@pytest.mark.parametrize(
    ("given", "batchable"),
    [
        (Signature((TensorSpec("X", "FP32", (-1, 64)),), (TensorSpec("Y", "FP32", (-1, 10)),)), True),
        (Signature((TensorSpec("X", "FP32", (1, 64)),), (TensorSpec("Y", "FP32", (-1, 10)),)), False),
        (Signature((TensorSpec("X", "FP32", (-1, 64)),), (TensorSpec("Y", "FP32", (1,)),)), False),
        (Signature((TensorSpec("X", "FP32", ()),), ()), False),
        (Signature((TensorSpec("X", "FP32", (-1,), any_shape=True),), ()), False),
        (Signature((TensorSpec("X", "FP32", (-1,)),), (), max_batch=4), True),
        (Signature((), ()), False),
    ],
)
def test_which_models_have_a_batch(given: Signature, batchable: bool):
    assert is_batchable(given) is batchable


def test_inputs_of_different_first_dimensions_have_no_rows():
    given = signature("X", "Y", shape=(-1, 1))
    message = request("FP32", [2, 1], bytes(8))
    message.inputs.add(name="Y", datatype="FP32", shape=[3, 1])
    message.raw_input_contents.append(bytes(12))
    assert parse_request(message.SerializeToString(), given).rows is None


def test_a_shape_that_numpy_cannot_hold_is_refused():
    given = Signature((TensorSpec("X", "FP32", (), any_shape=True),), ())
    with pytest.raises(OipError, match=r"Input 'X' has a shape that this runtime cannot hold\."):
        parse_request(request("FP32", [1] * 40, bytes(4)).SerializeToString(), given)
    with pytest.raises(OipError, match="cannot hold"):
        parse_request(request("FP32", [2], bytes(7)).SerializeToString(), given)


def test_an_answer_is_read_back_as_it_was_written():
    given = Signature((), tuple(TensorSpec(n, d, (-1, 2)) for n, d in (("X", "FP32"), ("Y", "BYTES"))))
    words = np.array([[b"a", b""], [b"cat", b"\x00"]], object)
    numbers = np.array([[1.5, np.nan], [-0.0, np.inf]], np.float32)
    found = parse_response(build_response("m", "1", "", {"Y": words, "X": numbers}, given))
    assert list(found) == ["Y", "X"]
    assert found["Y"].tolist() == words.tolist()
    assert found["X"].tobytes() == numbers.tobytes()


def test_typed_contents_of_an_answer_are_read():
    message = pb.ModelInferResponse(model_name="m")
    message.outputs.add(name="p", datatype="FP32", shape=[1, 2]).contents.fp32_contents.extend([0.25, 0.75])
    message.outputs.add(name="n", datatype="INT8", shape=[2]).contents.int_contents.extend([-1, 2])
    found = parse_response(message.SerializeToString())
    assert {name: array.tolist() for name, array in found.items()} == {"p": [[0.25, 0.75]], "n": [-1, 2]}
    assert parse_response(b"") == {}


def broken(datatype: str = "FP32", shape: Sequence[int] = (2,), raws: Sequence[bytes] = (bytes(8),)) -> bytes:
    message = pb.ModelInferResponse(raw_output_contents=raws)
    message.outputs.add(name="p", datatype=datatype, shape=shape)
    return message.SerializeToString()


@pytest.mark.parametrize(
    "body",
    [
        broken(shape=(3,)),
        broken(shape=(-2,)),
        broken(shape=(2**62, 2**62)),
        broken(datatype="FP12"),
        broken("BYTES", (3,)),
        broken(raws=()),
        broken(raws=(bytes(8), bytes(8))),
        broken() + broken(),
        broken()[:-3],
        b"\x28\x01",
        b"\xff",
    ],
)
def test_an_answer_that_contradicts_itself_is_the_endpoints_failure(body: bytes):
    with pytest.raises(OipError, match="its outputs cannot be read") as caught:
        parse_response(body)
    assert caught.value.reason is Reason.ENDPOINT_FAILED
