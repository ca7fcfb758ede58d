"""Raw binary requests: the body is the data of the model's one input."""

from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from oip import codec_raw
from oip.errors import OipError
from oip.reasons import Reason
from oip.signature import Signature, TensorSpec

pb: Any = service_pb2


def takes(datatype: str, *shape: int, max_batch: int = 0, **spec: bool) -> Signature:
    return Signature((TensorSpec("x", datatype, shape, **spec),), (), max_batch)


def read(body: bytes, signature: Signature) -> tuple[list[int], bytes]:
    message, context = codec_raw.decode_raw("m", "3", body, signature)
    assert (context.id, context.binary_default, context.binary_outputs) == ("", True, {})
    request = pb.ModelInferRequest.FromString(message)
    assert (request.model_name, request.model_version) == ("m", "3")
    (tensor,) = request.inputs
    (raw,) = request.raw_input_contents
    assert (tensor.name, tensor.datatype) == ("x", signature.inputs[0].datatype)
    return list(tensor.shape), raw


@pytest.mark.parametrize(
    ("body", "signature", "shape"),
    [
        (bytes(32), takes("FP32", -1), [8]),
        (b"", takes("FP32", -1), [0]),
        (bytes(64), takes("INT32", -1, 16, max_batch=8), [1, 16]),
        (bytes(12), takes("INT16", -1, 3, -1, max_batch=8), [1, 3, 2]),
        (bytes(24), takes("FP64", 3, -1), [3, 1]),
        (bytes(6), takes("BF16", 3), [3]),
        (b"", takes("FP32", -1, 0), [0, 0]),
    ],
)
def test_the_shape_follows_from_the_size(body: bytes, signature: Signature, shape: list[int]):
    assert read(body, signature) == (shape, body)


def test_one_element_of_bytes_is_the_whole_body():
    assert read(b"427", takes("BYTES", 1)) == ([1], b"\x03\0\0\x00427")
    assert read(b"", takes("BYTES", -1, 1, max_batch=2)) == ([1, 1], bytes(4))


@pytest.mark.parametrize(
    ("body", "signature", "words"),
    [
        (
            bytes(31),
            takes("FP32", -1),
            "input byte size mismatch for input 'x' for model 'm'. Expected 28, got 31",
        ),
        (bytes(60), takes("INT32", -1, 16, max_batch=8), "Expected 64, got 60"),
        (bytes(5), takes("FP32", -1, 0), "Expected 0, got 5"),
        (bytes(32), takes("FP32", -1, -1), "more than one variable-sized dimension"),
        (bytes(32), takes("FP32", -1, -1, -1, max_batch=2), "more than one variable-sized dimension"),
        (bytes(32), takes("FP32", any_shape=True), "can not be deduced"),
        (b"427", takes("BYTES", -1), "must have input shape [1]"),
        (b"427", takes("BYTES", 2), "must have input shape [1]"),
        (bytes(32), Signature((), ()), "must only have 1 input to be deduced but got 0"),
        (
            bytes(32),
            Signature(takes("FP32", 1).inputs * 2, ()),
            "but got 2 inputs in 'm' model configuration",
        ),
    ],
)
def test_what_leaves_the_shape_open_is_malformed(body: bytes, signature: Signature, words: str):
    with pytest.raises(OipError, match=None) as caught:
        read(body, signature)
    assert caught.value.reason is Reason.MALFORMED
    assert words in caught.value.message
