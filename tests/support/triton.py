"""Real Tritons over the fixture models, endpoints to them, and requests for those models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tritonclient.grpc import service_pb2

from gateway.backends._address import TlsConfig
from gateway.backends.triton import TritonConfig, TritonEndpoint
from gateway.core.config import Location
from gateway.core.place import Tier
from tests.support.permits import ALONE

REPOSITORY = Path(__file__).parents[1] / "conformance" / "model_repository"

_DATATYPES = {"int32": "INT32", "float32": "FP32"}


def triton_endpoint(port: int, *, tls: TlsConfig | None = None) -> TritonEndpoint:
    """An endpoint named "t", not started."""
    url = f"{'grpc' if tls is None else 'grpcs'}://127.0.0.1:{port}"
    location = Location(tier=Tier.CLOUD)
    return TritonEndpoint(TritonConfig(name="t", kind="triton", url=url, tls=tls, location=location), ALONE)


def infer_body(
    model: str, *inputs: np.ndarray, request_id: str = "", version: str = "", seconds: float | None = None
) -> bytes:
    """A serialized ModelInferRequest with inputs INPUT0, INPUT1, ...; `seconds` is slow_identity's
    parameter."""
    request = service_pb2.ModelInferRequest(model_name=model, model_version=version, id=request_id)
    for index, value in enumerate(inputs):
        datatype = _DATATYPES[value.dtype.name]
        request.inputs.add(name=f"INPUT{index}", datatype=datatype, shape=value.shape)
        request.raw_input_contents.append(value.tobytes())
    if seconds is not None:
        # A string, because not every server of the protocol knows doubles.
        request.parameters["seconds"].string_param = str(seconds)
    return request.SerializeToString()


def slow_body(seconds: float, request_id: str = "", value: int = 7) -> bytes:
    return infer_body("slow_identity", np.array([value], np.int32), request_id=request_id, seconds=seconds)


def output0(answer: bytes, dtype: str) -> np.ndarray:
    """OUTPUT0 of a serialized ModelInferResponse, in its shape."""
    response = service_pb2.ModelInferResponse.FromString(answer)
    (output,) = response.outputs
    assert output.name == "OUTPUT0"
    return np.frombuffer(response.raw_output_contents[0], dtype).reshape(tuple(output.shape))


def slow_log(path: Path) -> dict[str, bool]:
    """Of the requests that slow_identity has finished with: id -> whether it saw a cancellation."""
    if not path.exists():
        return {}
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return {entry["id"]: entry["cancelled"] for entry in entries}
