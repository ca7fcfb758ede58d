"""Generate's JSON: which tensors and parameters a body means, and which bodies mean none."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from oip.codec import decode_generate, encode_generate
from oip.errors import OipError
from oip.generate import parse_generate
from oip.reasons import Reason
from oip.signature import Signature, TensorSpec

LLM = Signature((TensorSpec("PROMPT", "BYTES", (1,)), TensorSpec("STREAM", "BOOL", (1,))), ())


def one(datatype: str, *shape: int, max_batch: int = 0, any_shape: bool = False) -> Signature:
    return Signature((TensorSpec("A", datatype, shape, any_shape=any_shape),), (), max_batch)


def parsed(signature: Signature, **members: object):
    return parse_generate(json.dumps(members).encode(), signature, model="m")


def test_members_are_inputs_by_name_and_parameters_otherwise():
    asked = parsed(
        LLM, PROMPT="é", STREAM=True, id="7", top=0.5, n=3, stop="x", parameters={"deep": False}, gone=None
    )
    assert [(i.name, i.datatype, i.shape, bytes(i.raw)) for i in asked.inputs] == [
        ("PROMPT", "BYTES", (1,), b"\x02\0\0\0\xc3\xa9"),
        ("STREAM", "BOOL", (1,), b"\x01"),
    ]
    assert asked.id == "7"
    assert {p.key: (p.kind, p.value) for p in asked.parameters} == {
        "top": ("double_param", 0.5),
        "n": ("int64_param", 3),
        "stop": ("string_param", "x"),
        "deep": ("bool_param", False),
    }


def test_an_input_may_have_any_name():
    signature = Signature(tuple(TensorSpec(name, "INT32", (1,)) for name in ("id", "parameters")), ())
    asked = parsed(signature, id=1, parameters=2)
    assert [i.name for i in asked.inputs] == ["id", "parameters"]
    assert (asked.id, asked.parameters) == ("", ())


@pytest.mark.parametrize(
    ("shape", "max_batch", "data", "found"),
    [
        ((1,), 0, 5, (1,)),
        ((1,), 0, [5], (1,)),
        ((1,), 0, [[5]], (1,)),
        ((-1,), 0, 5, (1,)),
        ((-1,), 0, [], (0,)),
        ((-1,), 0, [1, 2, 3], (3,)),
        ((-1, -1), 0, [1, 2], (2, 1)),
        ((-1, -1), 0, [[1, 2, 3], [4, 5, 6]], (2, 3)),
        ((2, -1), 0, [1, 2, 3, 4], (2, 2)),
        ((-1, 16), 8, list(range(16)), (1, 16)),
        ((-1, 16), 8, [list(range(16))], (1, 16)),
        ((-1, -1, 2), 8, [1, 2, 3, 4], (1, 2, 2)),
        ((), 0, 5, ()),
    ],
)
def test_the_shape_is_the_models(
    shape: tuple[int, ...], max_batch: int, data: object, found: tuple[int, ...]
):
    (given,) = parsed(one("INT32", *shape, max_batch=max_batch), A=data).inputs
    assert given.shape == found
    assert np.frombuffer(given.raw, "<i4").tolist() == np.ravel(data).astype(int).tolist()


@pytest.mark.parametrize(
    ("shape", "data"),
    [((1,), []), ((1,), [1, 2]), ((2, -1), [1, 2, 3]), ((2, -1), [[1, 2]]), ((2,), [[1], [2]])],
)
def test_data_that_fits_no_shape_is_refused_in_tritons_words(shape: tuple[int, ...], data: object):
    with pytest.raises(OipError) as caught:
        parsed(one("INT32", *shape), A=data)
    assert caught.value.message == "The schema can not convert input 'A' to tensor with proper shape"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"PROMPT": 5}', "Input 'PROMPT' needs a string"),
        ('{"PROMPT": {"a": 1}}', "Input 'PROMPT' needs a string"),
        ('{"STREAM": "yes"}', "Input 'STREAM' needs true or false"),
        ('{"x": [1]}', "its parameter 'x'"),
        ('{"parameters": 5}', "an object as its parameters"),
        ('{"id": 5}', "a string as its id"),
        ('{"x": 1, "parameters": {"x": 2}}', "the parameter 'x' both"),
        ('{"triton_x": 1}', "names beginning triton_ are reserved"),
        ("[1]", "is not a JSON object"),
        ("{", "does not parse"),
    ],
)
def test_a_wrong_body_is_told_where(body: str, said: str):
    with pytest.raises(OipError) as caught:
        parse_generate(body.encode(), LLM)
    assert caught.value.reason is Reason.MALFORMED
    assert said in caught.value.message


def test_an_option_is_told_to_be_a_header():
    with pytest.raises(OipError) as caught:
        parsed(LLM, tidegate_privacy="public")
    assert caught.value.reason is Reason.BAD_OPTION


def test_tensors_are_bounded_before_they_are_made():
    with pytest.raises(OipError) as caught:
        parse_generate(b'{"A": [1, 2, 3]}', one("INT64", -1), max_bytes=16)
    assert caught.value.reason is Reason.TOO_LARGE


def test_the_message_names_what_the_url_names():
    body, request_id = decode_generate("m", "3", b'{"PROMPT": "a", "id": "x"}', LLM)
    message = pb.ModelInferRequest.FromString(body)
    assert (message.model_name, message.model_version, message.id, request_id) == ("m", "3", "x", "x")
    assert list(message.raw_input_contents) == [b"\x01\0\0\0a"]


def answer(datatype: str, values: np.ndarray | bytes, shape: list[int]) -> bytes:
    message = pb.ModelInferResponse(model_name="m", model_version="1", id="other")
    message.outputs.add(name="OUT", datatype=datatype, shape=shape)
    message.raw_output_contents.append(values if isinstance(values, bytes) else values.tobytes())
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("response", "shown"),
    [
        (answer("INT32", np.array([5], np.int32), [1, 1]), "5"),
        (answer("INT32", np.array([], np.int32), [0]), "[]"),
        (answer("FP32", np.array([np.nan, 0.5], np.float32), [1, 2]), "[NaN,0.5]"),
        (answer("BYTES", b"\x03\0\0\0a\nb", [1]), '"a\\nb"'),
    ],
)
def test_an_output_is_its_element_or_a_flat_list(response: bytes, shown: str):
    expected = f'{{"OUT":{shown},"id":"7","model_name":"m","model_version":"1"}}'
    assert encode_generate("7", response) == expected.encode()


def test_bytes_that_are_not_utf_8_have_no_json():
    with pytest.raises(OipError) as caught:
        encode_generate("", answer("BYTES", b"\x01\0\0\0\xff", [1]))
    assert caught.value.reason is Reason.MALFORMED
