"""Requests taken apart, held against signatures and read as arrays, beside protobuf and numpy."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from oip.errors import OipError
from oip.infer import parse_request
from oip.parts import read_request
from oip.reasons import Reason
from oip.scan import scan_request
from oip.signature import Signature, TensorSpec
from oip.tensors import SIZES
from oip.validate import check_request
from tests.property.test_oip_scan_property import requests
from tests.support.odd_requests import good_request, odd_request

SETTINGS = settings(
    max_examples=150,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
REFUSALS = {Reason.MALFORMED, Reason.BAD_OPTION, Reason.NOT_SERVED}

dims = st.sampled_from([-1, 0, 1, 2, 16])
seeds = st.integers(0, 2**32)


@st.composite
def signatures(draw: st.DrawFn) -> Signature:
    max_batch = draw(st.sampled_from([0, 0, 1, 8]))
    batch = (-1,) if max_batch else ()

    def spec(name: str, optional: bool) -> TensorSpec:
        shape = (*batch, *draw(st.lists(dims, max_size=3)))
        return TensorSpec(name, draw(st.sampled_from([*SIZES])), shape, optional)

    inputs = tuple(spec(f"INPUT{at}", draw(st.booleans())) for at in range(draw(st.integers(1, 3))))
    return Signature(inputs, tuple(spec(f"OUTPUT{at}", False) for at in range(2)), max_batch)


@SETTINGS
@given(requests())
def test_parts_are_what_protobuf_reads(message: pb.ModelInferRequest):
    body = message.SerializeToString()
    parts = read_request(body)
    assert (parts.model_name, parts.model_version, parts.id) == (
        message.model_name,
        message.model_version,
        message.id,
    )
    assert [(p.name, p.datatype, p.shape) for p in parts.inputs] == [
        (t.name, t.datatype, tuple(t.shape)) for t in message.inputs
    ]
    for part, tensor in zip(parts.inputs, message.inputs, strict=True):
        assert (part.contents is not None) == tensor.HasField("contents")
        if part.contents is not None:
            low, high = part.contents
            assert pb.InferTensorContents.FromString(body[low:high]) == tensor.contents
    assert [body[low:high] for low, high in parts.raws] == list(message.raw_input_contents)
    assert {p.key: (p.kind, p.value) for p in parts.parameters} == {
        key: (kind or "", getattr(value, kind) if kind else None)
        for key, value in message.parameters.items()
        for kind in [value.WhichOneof("parameter_choice")]
    }
    assert [(o.name, {p.key for p in o.parameters}) for o in parts.outputs] == [
        (o.name, set(o.parameters)) for o in message.outputs
    ]


@SETTINGS
@given(signatures(), seeds)
def test_what_fits_the_signature_comes_out_as_arrays(signature: Signature, seed: int):
    message = good_request(random.Random(seed), "m", signature)
    work = parse_request(message.SerializeToString(), signature)
    assert list(work.inputs) == [tensor.name for tensor in message.inputs]
    for at, tensor in enumerate(message.inputs):
        array = work.inputs[tensor.name]
        assert array.shape == tuple(tensor.shape)
        if message.raw_input_contents:
            raw = message.raw_input_contents[at]
            if tensor.datatype == "BYTES":
                raw = b"".join(array.ravel().tolist())
                assert len(message.raw_input_contents[at]) == len(raw) + 4 * array.size
            else:
                assert array.tobytes() == raw
        else:
            ((_, values),) = tensor.contents.ListFields() or [(None, [])]
            assert array.ravel().tolist() == list(values)
    asked = {output.name for output in message.outputs}
    every = [spec.name for spec in signature.outputs]
    assert list(work.outputs) == ([name for name in every if name in asked] if asked else every)
    if signature.max_batch:
        sizes = {tensor.shape[0] for tensor in message.inputs}
        assert work.rows == (sizes.pop() if sizes else None)


def refusal(call: Callable[..., object], *given: object) -> OipError | None:
    try:
        call(*given)
    except OipError as error:
        return error
    return None


@settings(SETTINGS, max_examples=400)
@given(signatures(), seeds, st.data())
def test_tampered_messages_are_refused_and_nothing_else(signature: Signature, seed: int, data: st.DataObject):
    body = bytearray(odd_request(random.Random(seed), "m", signature).SerializeToString())
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, max(len(body) - 1, 0)))
        match data.draw(st.integers(0, 2)):
            case 0 if body:
                body[at] = data.draw(st.integers(0, 255))
            case 1:
                body[at:at] = data.draw(st.binary(max_size=4))
            case _:
                del body[at : at + data.draw(st.integers(1, 4))]
    given_body = bytes(body)
    refused = refusal(check_request, given_body, signature, "m")
    assert refused is None or refused.reason in REFUSALS
    misread = refusal(parse_request, given_body, signature)
    if misread is not None:
        if refused is not None and (b"\x0a\x01m" in given_body):
            assert (misread.reason, misread.message) == (refused.reason, refused.message)
        return
    assert refused is None
    work = parse_request(given_body, signature)
    message = pb.ModelInferRequest.FromString(given_body)
    assert [tuple(tensor.shape) for tensor in message.inputs] == [a.shape for a in work.inputs.values()]


@SETTINGS
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes):
    refused = refusal(check_request, body, Signature((TensorSpec("a", "BYTES", (-1,)),), ()), "m")
    assert refused is not None
    assert refused.reason in REFUSALS


@settings(SETTINGS, max_examples=300)
@given(seeds, signatures(), st.integers(0, 400), st.integers(0, 255))
def test_what_passes_the_scan_and_protobuf_has_its_parts(seed: int, signature: Signature, at: int, byte: int):
    body = bytearray(odd_request(random.Random(seed), "m", signature).SerializeToString())
    body[at % len(body)] = byte
    given_body = bytes(body)
    if refusal(scan_request, given_body) is not None or not protobuf_reads(given_body):
        return
    view = scan_request(given_body)
    refused = refusal(read_request, given_body)
    if refused is not None:
        # More is read than by the scan: what lies inside descriptions and parameters' values.
        assert refused.reason is Reason.MALFORMED
        return
    parts = read_request(given_body)
    assert (parts.model_name, parts.model_version, parts.id) == (
        view.model_name,
        view.model_version,
        view.id,
    )
    assert tuple(parameter.key for parameter in parts.parameters) == view.parameters


def protobuf_reads(body: bytes) -> bool:
    try:
        pb.ModelInferRequest.FromString(body)
    except DecodeError:
        return False
    return True


@pytest.mark.parametrize("datatype", ["INT8", "INT16", "INT32", "INT64", "UINT8", "UINT64", "BOOL"])
def test_typed_numbers_are_protobufs(datatype: str):
    wide = {"INT64": 2**63 - 1, "UINT64": 2**64 - 1, "BOOL": 1}
    most = wide.get(datatype) or int(np.iinfo(datatype.lower()).max)
    least = 0 if datatype[0] in "UB" else -most - 1
    values = [least, most, 0, 1, most // 3]
    message = pb.ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="x", datatype=datatype, shape=[5])
    member = {
        "INT64": "int64_contents",
        "UINT64": "uint64_contents",
        "BOOL": "bool_contents",
        "UINT8": "uint_contents",
    }
    getattr(tensor.contents, member.get(datatype, "int_contents")).extend(values)
    signature = Signature((TensorSpec("x", datatype, (-1,)),), ())
    assert parse_request(message.SerializeToString(), signature).inputs["x"].tolist() == values
