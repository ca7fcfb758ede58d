"""What is asked and answered: two FP32 identity models, one small and one large tensor.

Requests and answers are whole message bodies, made once. An answer is right when it is a success
and ends in the tensor's bytes, which both bindings put last: nothing is parsed while the clock runs.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

pb: Any = service_pb2
"""The stubs make their classes at run time, which a type checker cannot see."""

SERVICE = "inference.GRPCInferenceService"
JSON_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Payload:
    """A model, and the one request it is sent. `name` is what the table calls it."""

    name: str
    model: str
    shape: tuple[int, ...]

    @cached_property
    def tensor(self) -> bytes:
        """Little-endian FP32 values of a fixed seed."""
        values = np.random.default_rng(len(self.shape)).standard_normal(math.prod(self.shape))
        return values.astype("<f4").tobytes()

    @cached_property
    def grpc_request(self) -> bytes:
        request = pb.ModelInferRequest(model_name=self.model, raw_input_contents=[self.tensor])
        request.inputs.add(name="INPUT0", datatype="FP32", shape=self.shape)
        return request.SerializeToString()

    @cached_property
    def grpc_answer(self) -> bytes:
        answer = pb.ModelInferResponse(
            model_name=self.model, model_version="1", raw_output_contents=[self.tensor]
        )
        answer.outputs.add(name="OUTPUT0", datatype="FP32", shape=self.shape)
        return answer.SerializeToString()

    @cached_property
    def http_request(self) -> bytes:
        """Request line, headers and body; the tensor goes and comes as binary data."""
        size = {"binary_data_size": len(self.tensor)}
        head = {
            "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": self.shape, "parameters": size}],
            "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
        }
        return _http(f"POST /v2/models/{self.model}/infer HTTP/1.1\r\nHost: bench\r\n", head, self.tensor)

    @cached_property
    def http_answer(self) -> bytes:
        size = {"binary_data_size": len(self.tensor)}
        head = {
            "model_name": self.model,
            "model_version": "1",
            "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": self.shape, "parameters": size}],
        }
        return _http("HTTP/1.1 200 OK\r\n", head, self.tensor)


def _http(first: str, head: dict[str, Any], tensor: bytes) -> bytes:
    text = json.dumps(head, separators=(",", ":")).encode()
    headers = (
        f"{first}Content-Type: application/octet-stream\r\n"
        f"{JSON_LENGTH}: {len(text)}\r\nContent-Length: {len(text) + len(tensor)}\r\n\r\n"
    )
    return headers.encode() + text + tensor


PAYLOADS = {
    payload.name: payload
    for payload in (
        Payload("small", "identity_small", (1, 16)),
        Payload("large", "identity_large", (1, 3, 224, 224)),
    )
}


IDENTITY = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())]
            )
            for request in requests
        ]
"""
"""A payload's model as Triton's Python backend runs it."""


def triton_config(payload: Payload) -> str:
    """The model's config.pbtxt."""
    dims = ", ".join(map(str, payload.shape))
    return (
        f'name: "{payload.model}"\nbackend: "python"\n'
        f'input [{{ name: "INPUT0", data_type: TYPE_FP32, dims: [{dims}] }}]\n'
        f'output [{{ name: "OUTPUT0", data_type: TYPE_FP32, dims: [{dims}] }}]\n'
        "instance_group [{ kind: KIND_CPU, count: 1 }]\n"
    )
