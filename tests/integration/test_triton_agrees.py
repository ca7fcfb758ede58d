"""A real Triton and `check_request` agree on which requests are good."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.demo.triton import TritonServer
from oip import codec
from oip.errors import OipError
from oip.signature import Signature
from oip.validate import check_request
from tests.support.odd_requests import good_request, odd_request
from tests.support.triton import REPOSITORY

MODELS = ["simple", "simple_string", "id_bytes", "id_int8", "id2d_fp32", "opt_in", "pt_identity"]
ROUNDS = int(os.environ.get("TIDEGATE_ODD_REQUESTS", "150"))
"""Odd requests for each model."""

STRICTER = (
    "needs an integer of 0 or more as dimension",
    "The request names output",
    "raw_input_contents, but",
    "outside the range of",
    "expected number of inputs between",
)
"""What `oip.validate` refuses though Triton may answer it; its docstring says why. Of these, negative
dimensions end Triton's model process at times, so they are not sent there."""


@pytest.fixture(scope="module")
def stub() -> Iterator[Any]:
    with (
        TritonServer(REPOSITORY, load=MODELS) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def signature_of(stub: Any, model: str) -> Signature:
    metadata = stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=model))
    config = stub.ModelConfig(service_pb2.ModelConfigRequest(name=model))
    return codec.signature_of(metadata.SerializeToString(), config.SerializeToString())


def fault(message: Any, signature: Signature) -> str | None:
    """What check_request has against it."""
    try:
        check_request(message.SerializeToString(), signature, message.model_name)
    except OipError as error:
        return error.message
    return None


def triton_fault(stub: Any, message: Any) -> str | None:
    """What Triton has against it, without its prefix and its note on configurations."""
    call = stub.ModelInfer.future(message, timeout=20)
    code, text = call.code(), call.details() or ""
    if code is grpc.StatusCode.OK or "invalid literal for int()" in text:
        return None  # The latter is simple_string's own opinion of a string that is no number.
    assert code is grpc.StatusCode.INVALID_ARGUMENT, f"{text} for {message}"
    return text.removeprefix("[request id: <id_unknown>] ").split(" NOTE:")[0].strip()


@pytest.mark.parametrize("model", MODELS)
def test_both_take_good_requests(stub: Any, model: str):
    rng = random.Random(model)
    signature = signature_of(stub, model)
    for _ in range(20):
        message = good_request(rng, model, signature)
        assert (fault(message, signature), triton_fault(stub, message)) == (None, None)


@pytest.mark.parametrize("model", MODELS)
def test_both_refuse_the_same(stub: Any, model: str):
    rng = random.Random(f"odd {model}")
    signature = signature_of(stub, model)
    same = refused = 0
    for _ in range(ROUNDS):
        message = odd_request(rng, model, signature)
        ours = fault(message, signature)
        if ours is not None and STRICTER[0] in ours:
            continue
        theirs = triton_fault(stub, message)
        if ours is None or not any(text in ours for text in STRICTER):
            assert (ours is None) == (theirs is None), f"{ours!r} but {theirs!r} for {message}"
        refused += ours is not None
        same += ours is not None and ours.rstrip(".") == (theirs or "").rstrip(".")
    assert refused > ROUNDS / 3
    # Triton's own words where it has clear ones; two mistakes at once may be told in another order.
    assert same > refused / 2
