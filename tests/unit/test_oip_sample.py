"""The id of a request's inputs: the recipe, step by step, and what it tells apart."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from oip.infer import parse_request
from oip.sample import sample_id
from oip.signature import Signature


def test_the_recipe_by_hand():
    """As docs/analytics.md tells it."""

    def text(value: str) -> bytes:
        return struct.pack("<I", len(value.encode())) + value.encode()

    said = text("a") + text("INT32") + struct.pack("<IQQ", 2, 1, 2) + struct.pack("<Q", 8)
    said += struct.pack("<ii", 5, -7)
    said += text("\u00e9") + text("BYTES") + struct.pack("<IQ", 1, 2) + struct.pack("<Q", 11)
    said += struct.pack("<I", 0) + struct.pack("<I", 3) + b"cat"
    inputs = {"\u00e9": np.array([b"", "cat"], object), "a": np.array([[5, -7]], np.int32)}
    assert sample_id(inputs) == hashlib.sha256(said).hexdigest()


def test_neither_order_nor_layout_nor_byte_order_counts():
    one = np.arange(12, dtype="<f4").reshape(3, 4)
    same = [one, one.copy("F"), one.astype(">f4"), np.stack([one, one])[1]]
    other = np.ones(2, np.bool_)
    ids = {sample_id({"x": a, "y": other}) for a in same} | {sample_id({"y": other, "x": one})}
    assert len(ids) == 1


def test_names_types_shapes_and_values_count():
    one = np.arange(4, dtype="<i4")
    other = [
        {"x": one},
        {"y": one},
        {"x": one.reshape(2, 2)},
        {"x": one.view("<f4")},
        {"x": one.view("<u4")},
        {"x": one + 1},
        {"x": one, "y": one},
        {"x": one[:2], "y": one[2:]},
        {"x": np.array([b"ab", b""], object)},
        {"x": np.array([b"a", b"b"], object)},
        {},
    ]
    assert len({sample_id(inputs) for inputs in other}) == len(other)


def test_how_a_request_is_written_does_not_count():
    raw = service_pb2.ModelInferRequest(model_name="a", id="7")
    raw.inputs.add(name="x", datatype="INT32", shape=[3])
    raw.raw_input_contents.append(np.array([1, -2, 3], "<i4").tobytes())
    typed = service_pb2.ModelInferRequest(model_name="b")
    typed.inputs.add(name="x", datatype="INT32", shape=[3]).contents.int_contents.extend([1, -2, 3])
    ids = {sample_id(parse_request(m.SerializeToString(), Signature((), ())).inputs) for m in (raw, typed)}
    assert ids == {sample_id({"x": np.array([1, -2, 3], np.int32)})}


def test_what_is_no_datatype_is_refused():
    with pytest.raises(ValueError, match="complex64"):
        sample_id({"x": np.zeros(1, np.complex64)})
