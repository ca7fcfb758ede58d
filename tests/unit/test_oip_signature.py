"""Signatures out of metadata and configuration, and into them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from oip import codec
from oip.counters import Counters, Duration
from oip.errors import OipError
from oip.reasons import Reason
from oip.signature import Signature, TensorSpec
from oip.tensors import SIZES

PLAIN = Signature(
    (TensorSpec("text", "BYTES", (-1, 16)), TensorSpec("mask", "BOOL", (-1, -1), optional=True)),
    (TensorSpec("label", "INT32", (-1, 1)),),
    max_batch=8,
)


def both(signature: Signature) -> tuple[bytes, bytes]:
    return codec.metadata_of("m", "3", "onnx", signature), codec.config_of("m", "onnx", signature)


def test_metadata_has_the_batch_and_configuration_has_not():
    metadata, config = both(PLAIN)
    assert json.loads(codec.metadata_to_json(metadata)) == {
        "name": "m",
        "versions": ["3"],
        "platform": "onnx",
        "inputs": [
            {"name": "text", "datatype": "BYTES", "shape": [-1, 16]},
            {"name": "mask", "datatype": "BOOL", "shape": [-1, -1]},
        ],
        "outputs": [{"name": "label", "datatype": "INT32", "shape": [-1, 1]}],
    }
    shown = json.loads(codec.config_to_json(config))
    assert (shown["name"], shown["backend"], shown["max_batch_size"]) == ("m", "onnx", 8)
    assert [(i["name"], i["data_type"], i["dims"], i["optional"]) for i in shown["input"]] == [
        ("text", "TYPE_STRING", [16], False),
        ("mask", "TYPE_BOOL", [-1], True),
    ]
    assert [(o["name"], o["data_type"], o["dims"]) for o in shown["output"]] == [("label", "TYPE_INT32", [1])]
    assert "dynamic_batching" not in shown


def test_without_a_batch_dimensions_are_whole_in_both():
    signature = Signature((TensorSpec("x", "FP32", (-1, 64)),), (TensorSpec("y", "FP32", (-1, 10)),))
    _, config = both(signature)
    shown = json.loads(codec.config_to_json(config))
    assert (shown["max_batch_size"], shown["input"][0]["dims"]) == (0, [-1, 64])


def test_the_delay_of_batching_is_shown_where_there_is_some():
    shown = json.loads(codec.config_to_json(codec.config_of("m", "onnx", PLAIN, batch_delay_us=2000)))
    assert shown["dynamic_batching"]["max_queue_delay_microseconds"] == 2000


@st.composite
def signatures(draw: st.DrawFn) -> Signature:
    max_batch = draw(st.sampled_from([0, 8]))

    def specs(optional: bool) -> tuple[TensorSpec, ...]:
        names = draw(st.lists(st.text(min_size=1, max_size=5), unique=True, max_size=3))
        return tuple(
            TensorSpec(
                name,
                draw(st.sampled_from([*SIZES])),
                ((-1,) if max_batch else ()) + tuple(draw(st.lists(st.integers(-1, 2**40), max_size=3))),
                optional and draw(st.booleans()),
            )
            for name in names
        )

    return Signature(specs(True), specs(False), max_batch)


@settings(max_examples=100, derandomize=True, database=None, deadline=None)
@given(signatures())
def test_what_is_written_is_read(signature: Signature):
    assert codec.signature_of(*both(signature)) == signature


def test_without_a_configuration_any_input_may_be_optional():
    signature = codec.signature_of(both(PLAIN)[0], None)
    assert [spec.optional for spec in signature.inputs] == [True, True]
    assert not any(spec.optional for spec in signature.outputs)
    told = codec.signature_of(
        codec.metadata_of("m", "1", "p", signature), codec.config_of("m", "p", signature)
    )
    assert [spec.optional for spec in told.inputs] == [True, True]
    assert signature.max_batch == 0
    assert [spec.shape for spec in signature.inputs] == [(-1, 16), (-1, -1)]


def test_a_shape_of_nothing_says_nothing_unless_there_is_a_configuration():
    scalar = Signature((TensorSpec("x", "FP32", ()),), ())
    metadata, config = both(scalar)
    assert codec.signature_of(metadata, None).inputs[0].any_shape
    assert codec.signature_of(metadata, config) == scalar


@pytest.mark.parametrize("flag", ["is_shape_tensor", "allow_ragged_batch", "is_non_linear_format_io"])
def test_shapes_that_are_not_what_the_data_takes_are_unknown(flag: str):
    metadata, config = both(PLAIN)
    message = pb.ModelConfigResponse.FromString(config)
    setattr(message.config.input[0], flag, True)
    signature = codec.signature_of(metadata, message.SerializeToString())
    assert [spec.any_shape for spec in signature.inputs] == [True, False]


def test_a_reshape_inside_the_server_changes_nothing_for_requests():
    metadata, config = both(PLAIN)
    message = pb.ModelConfigResponse.FromString(config)
    message.config.input[0].reshape.shape.extend([4, 4])
    assert codec.signature_of(metadata, message.SerializeToString()) == PLAIN


def test_broken_bytes_are_the_endpoints_fault():
    for messages in ((b"\xff", None), (both(PLAIN)[0], b"\xff")):
        with pytest.raises(OipError) as caught:
            codec.signature_of(*messages)
        assert caught.value.reason is Reason.ENDPOINT_FAILED


def test_statistics_in_tritons_form():
    counters = Counters(
        inferences=5,
        executions=2,
        last_inference_ms=1_700_000_000_000,
        success=Duration(3, 30),
        fail=Duration(1, 7),
        queue=Duration(4, 8),
        compute=Duration(3, 12),
        batches=((1, Duration(1, 4)), (4, Duration(1, 8))),
    )
    (model,) = json.loads(codec.statistics_to_json(codec.statistics_of("m", "3", counters)))["model_stats"]
    assert (model["name"], model["version"]) == ("m", "3")
    assert (model["inference_count"], model["execution_count"]) == (5, 2)
    assert model["last_inference"] == 1_700_000_000_000
    stats = model["inference_stats"]
    assert stats["success"] == {"count": 3, "ns": 30}
    assert stats["fail"] == {"count": 1, "ns": 7}
    assert stats["queue"] == {"count": 4, "ns": 8}
    assert stats["compute_infer"] == {"count": 3, "ns": 12}
    assert stats["compute_input"] == {"count": 3, "ns": 0}
    assert [(b["batch_size"], b["compute_infer"]) for b in model["batch_stats"]] == [
        (1, {"count": 1, "ns": 4}),
        (4, {"count": 1, "ns": 8}),
    ]
