"""edge_agent.ports.Models in memory: identities that are quick, wait for a word, or fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2, service_pb2

from edge_agent.config import AgentConfig
from edge_agent.ports import Hub, Observer
from edgewire.allowed import NOTHING
from edgewire.v1 import edge_pb2
from oip.errors import OipError
from oip.reasons import Reason
from oip.scan import scan_request
from oip.signature import Signature, TensorSpec
from oip.validate import check_request

pb: Any = service_pb2

NAMES = ("identity", "slow", "boom", "fails", "digits")
DIGITS = Signature(
    (TensorSpec("pixels", "FP32", (-1, 64)),), (TensorSpec("probabilities", "FP32", (-1, 10)),)
)


@dataclass
class TinyModels:
    """Identities, version 1; `digits` validates as the digits model of `tests.support.mistakes`. `slow` answers when `release` is set, `boom` raises
    something with the request in its text, `fails` raises OipError MODEL_UNAVAILABLE."""

    names: Sequence[str] = NAMES
    release: asyncio.Event = field(default_factory=asyncio.Event)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: int = 0
    inflight: int = 0
    timeouts: list[float] = field(default_factory=list[float])
    asked: list[str | None] = field(default_factory=list[str | None])
    desired: list[edge_pb2.Desired] = field(default_factory=list[edge_pb2.Desired])
    hub: Hub | None = None
    state: edge_pb2.ModelState.State.ValueType = edge_pb2.ModelState.ACTIVE
    closed: bool = False
    nap_s: float | None = None
    """So long `slow` takes by itself, for an agent in another process."""

    async def infer(self, request: bytes, timeout_s: float, asked: str | None = NOTHING) -> bytes:
        view = scan_request(request)
        self._known(view.model_name, view.model_version)
        if view.model_name == "digits":
            check_request(request, DIGITS, "digits")
        self.timeouts.append(timeout_s)
        self.asked.append(asked)
        self.inflight += 1
        try:
            if view.model_name == "slow":
                self.entered.set()
                await (self.release.wait() if self.nap_s is None else asyncio.sleep(self.nap_s))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.inflight -= 1
        if view.model_name == "boom":
            raise ValueError(f"quotes {request!r}")
        if view.model_name == "fails":
            raise OipError(Reason.MODEL_UNAVAILABLE, "model 'fails' is not active on this device")
        asked = pb.ModelInferRequest.FromString(request)
        answer = pb.ModelInferResponse(model_name=asked.model_name, model_version="1", id=asked.id)
        for tensor, raw in zip(asked.inputs, asked.raw_input_contents, strict=True):
            answer.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            answer.raw_output_contents.append(raw)
        return answer.SerializeToString()

    def metadata(self, model: str, version: str) -> bytes:
        self._known(model, version)
        message = pb.ModelMetadataResponse(name=model, versions=["1"], platform="tflite")
        message.inputs.add(name="x", datatype="FP32", shape=[-1, 4])
        message.outputs.add(name="x", datatype="FP32", shape=[-1, 4])
        return message.SerializeToString()

    def config(self, model: str, version: str) -> bytes:
        self._known(model, version)
        config = model_config_pb2.ModelConfig(name=model, backend="tflite")
        return pb.ModelConfigResponse(config=config).SerializeToString()

    def ready(self, model: str, version: str) -> bool:
        self._known(model, version)
        return model != "fails"

    def states(self) -> Sequence[edge_pb2.ModelState]:
        return [
            edge_pb2.ModelState(model=name, version="1", state=self.state, active_digest=f"sha256:{'0' * 64}")
            for name in self.names
        ]

    def trials(self) -> Sequence[edge_pb2.Trial]:
        return []

    def desire(self, desired: edge_pb2.Desired, hub: Hub) -> None:
        self.desired.append(desired)
        self.hub = hub

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        self.closed = True

    def _known(self, model: str, version: str) -> None:
        if model not in self.names or version not in ("", "1"):
            raise OipError(Reason.UNKNOWN_MODEL, f"Request for unknown model: '{model}' is not found")


def tiny_models(folder: Path, config: AgentConfig, observer: Observer) -> TinyModels:
    """In place of the agent's own, for its process; `slow` takes half a second."""
    return TinyModels(nap_s=0.5)


def identity_request(
    model: str = "identity", raw: bytes = b"\x00" * 16, request_id: str = "", padding: int = 0
) -> bytes:
    """A serialized ModelInferRequest with an FP32 input of `raw`, and `padding` bytes of BYTES besides."""
    request = pb.ModelInferRequest(model_name=model, id=request_id)
    request.inputs.add(name="x", datatype="FP32", shape=[len(raw) // 16, 4])
    request.raw_input_contents.append(raw)
    if padding:
        request.inputs.add(name="pad", datatype="UINT8", shape=[padding])
        request.raw_input_contents.append(b"p" * padding)
    return request.SerializeToString()
