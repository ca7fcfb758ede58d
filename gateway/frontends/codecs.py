"""What the handlers need written in the words of a binding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from gateway.core.call import Call, Reply
from gateway.core.errors import Refusal
from gateway.core.ports import InferCodec
from oip.reasons import Reason

pb: Any = service_pb2  # generated without types

SERVICE = "inference.GRPCInferenceService"


class BindingCodec(Protocol):
    """One of OIP's bindings: how a call says which model it means, and how an answer is written."""

    def infer(self, call: Call) -> InferCodec:
        """A codec for this one inference."""
        ...

    async def model(self, call: Call) -> tuple[str, str]:
        """Name and version ("" for none) of a call about a model. Raises OipError."""
        ...

    def live(self, live: bool) -> Reply: ...

    def ready(self, ready: bool) -> Reply: ...

    def model_ready(self, ready: bool) -> Reply: ...

    def model_unknown(self, refusal: Refusal) -> Reply:
        """The answer to "is it ready" for a model or version that nobody knows."""
        ...

    def server_metadata(self, name: str, version: str, extensions: Sequence[str]) -> Reply: ...

    def model_metadata(self, message: bytes) -> Reply:
        """From a serialized ModelMetadataResponse."""
        ...

    def model_config(self, message: bytes) -> Reply:
        """From a serialized ModelConfigResponse."""
        ...


class IdentityInferCodec:
    """gRPC's: the bytes go through as they are."""

    def decode(self, body: bytes) -> bytes:
        return body

    def encode(self, response: bytes) -> tuple[bytes, Sequence[tuple[str, str]]]:
        return response, ()


class GrpcCodec:
    """OIP over gRPC."""

    _IDENTITY = IdentityInferCodec()

    def infer(self, call: Call) -> InferCodec:
        return self._IDENTITY

    async def model(self, call: Call) -> tuple[str, str]:
        """ModelReady, ModelMetadata and ModelConfig requests have one shape: name = 1, version = 2."""
        try:
            request = pb.ModelMetadataRequest.FromString(await call.body.read())
        except DecodeError:
            raise Refusal(
                Reason.MALFORMED, f"the message of {call.method} is not a {call.method}Request"
            ) from None
        return request.name, request.version

    def live(self, live: bool) -> Reply:
        return Reply(body=pb.ServerLiveResponse(live=live).SerializeToString())

    def ready(self, ready: bool) -> Reply:
        return Reply(body=pb.ServerReadyResponse(ready=ready).SerializeToString())

    def model_ready(self, ready: bool) -> Reply:
        return Reply(body=pb.ModelReadyResponse(ready=ready).SerializeToString())

    def model_unknown(self, refusal: Refusal) -> Reply:
        """As Triton does: clients ask this way whether a model exists, and expect no error."""
        return self.model_ready(False)

    def server_metadata(self, name: str, version: str, extensions: Sequence[str]) -> Reply:
        message = pb.ServerMetadataResponse(name=name, version=version, extensions=extensions)
        return Reply(body=message.SerializeToString())

    def model_metadata(self, message: bytes) -> Reply:
        return Reply(body=message)

    def model_config(self, message: bytes) -> Reply:
        return Reply(body=message)
