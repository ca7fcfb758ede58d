"""What the handlers need written in the words of a binding."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from gateway.core.call import Binding, Call, Reply
from gateway.core.errors import Refusal
from gateway.core.ports import GenerateCodec, InferCodec
from gateway.frontends.codec_pool import CodecPool
from gateway.frontends.http_events import EVENTS, event
from oip import codec, codec_operators, codec_raw
from oip.http_request import is_raw, joined_headers
from oip.reasons import Reason
from oip.repository import IndexEntry, flag, json_index, request_members, request_parameters
from oip.settings import json_trace, json_trace_changes
from oip.signature import Signature

_JSON = (("content-type", "application/json"),)


class BindingCodec(Protocol):
    """One of OIP's bindings: how a call says which model it means, and how an answer is written."""

    def infer(self, call: Call) -> InferCodec:
        """A codec for this one inference."""
        ...

    def generate(self, call: Call) -> GenerateCodec | None:
        """A codec for this one `generate` or `generate_stream`; None where the binding has neither."""
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

    def server_metadata(self, message: bytes) -> Reply:
        """From a serialized ServerMetadataResponse."""
        ...

    def model_metadata(self, message: bytes) -> Reply:
        """From a serialized ModelMetadataResponse. Raises OipError."""
        ...

    def model_config(self, message: bytes) -> Reply:
        """From a serialized ModelConfigResponse. Raises OipError."""
        ...

    def model_statistics(self, message: bytes) -> Reply:
        """From a serialized ModelStatisticsResponse. Raises OipError."""
        ...

    async def index(self, call: Call) -> bool:
        """Whether a call for the repository's index asks for what is ready alone. Raises OipError."""
        ...

    def repository_index(self, entries: Sequence[IndexEntry]) -> Reply: ...

    async def load(self, call: Call) -> tuple[str, Mapping[str, object]]:
        """The model that a load or unload is about, and its parameters. Raises OipError."""
        ...

    async def trace_changes(self, call: Call) -> tuple[str, Mapping[str, Sequence[str] | None]]:
        """The model ("" for none) and the changes of a call for trace settings; none to ask for them.
        Raises OipError."""
        ...

    def trace_settings(self, told: Mapping[str, Sequence[str]]) -> Reply: ...

    async def log_changes(self, call: Call) -> Mapping[str, object]:
        """The like for a call for log settings."""
        ...

    def log_settings(self, told: Mapping[str, bool | int | str]) -> Reply: ...


class IdentityInferCodec:
    """gRPC's: the bytes go through as they are."""

    async def decode(self, body: bytes, takes: Callable[[], Awaitable[Signature]]) -> bytes:
        return body

    async def encode(self, response: bytes) -> tuple[bytes, Sequence[tuple[str, str]]]:
        return response, ()


class GrpcCodec:
    """OIP over gRPC."""

    _IDENTITY = IdentityInferCodec()

    def infer(self, call: Call) -> InferCodec:
        return self._IDENTITY

    def generate(self, call: Call) -> GenerateCodec | None:
        return None

    async def model(self, call: Call) -> tuple[str, str]:
        return codec.named_model(await call.body.read())

    def live(self, live: bool) -> Reply:
        return Reply(body=codec.server_live(live))

    def ready(self, ready: bool) -> Reply:
        return Reply(body=codec.server_ready(ready))

    def model_ready(self, ready: bool) -> Reply:
        return Reply(body=codec.model_ready(ready))

    def model_unknown(self, refusal: Refusal) -> Reply:
        """As Triton does: clients ask this way whether a model exists, and expect no error."""
        return self.model_ready(False)

    def server_metadata(self, message: bytes) -> Reply:
        return Reply(body=message)

    def model_metadata(self, message: bytes) -> Reply:
        return Reply(body=message)

    def model_config(self, message: bytes) -> Reply:
        return Reply(body=message)

    def model_statistics(self, message: bytes) -> Reply:
        return Reply(body=message)

    async def index(self, call: Call) -> bool:
        return codec_operators.index_request(await call.body.read())

    def repository_index(self, entries: Sequence[IndexEntry]) -> Reply:
        return Reply(body=codec_operators.repository_index(entries))

    async def load(self, call: Call) -> tuple[str, Mapping[str, object]]:
        return codec_operators.named_load(f"{call.method}Request", await call.body.read())

    async def trace_changes(self, call: Call) -> tuple[str, Mapping[str, Sequence[str] | None]]:
        return codec_operators.trace_changes(await call.body.read())

    def trace_settings(self, told: Mapping[str, Sequence[str]]) -> Reply:
        return Reply(body=codec_operators.trace_settings(told))

    async def log_changes(self, call: Call) -> Mapping[str, object]:
        return codec_operators.log_changes(await call.body.read())

    def log_settings(self, told: Mapping[str, bool | int | str]) -> Reply:
        return Reply(body=codec_operators.log_settings(told))


class HttpInferCodec:
    """JSON, with or without binary tensor data, for one inference of one model.

    What takes long is done by `pool`. Tensors are at most `max_tensor_bytes` together.
    `encode` needs what `decode` learnt of the request, so it comes after it.
    """

    def __init__(self, call: Call, pool: CodecPool, max_tensor_bytes: int) -> None:
        self._pool = pool
        self._max_tensor_bytes = max_tensor_bytes
        self._model = call.model or ""
        self._version = call.version or ""
        self._headers = joined_headers(call.metadata)
        self._context: codec.HttpInferContext | None = None

    async def decode(self, body: bytes, takes: Callable[[], Awaitable[Signature]]) -> bytes:
        if is_raw(self._headers):
            message, self._context = codec_raw.decode_raw(self._model, self._version, body, await takes())
            return message
        given = (self._model, self._version, self._headers, body, self._max_tensor_bytes)
        if codec.decodes_fast(self._headers, body):
            message, self._context = codec.decode_infer(*given)
        else:
            message, self._context = await self._pool.run("decode_infer", *given)
        return message

    async def encode(self, response: bytes) -> tuple[bytes, Sequence[tuple[str, str]]]:
        if self._context is None:
            raise RuntimeError("encode needs a request that was decoded")
        if codec.encodes_fast(self._context, response):
            return codec.encode_infer(self._context, response)
        return await self._pool.run("encode_infer", self._context, response)


class HttpGenerateCodec:
    """The JSON of Triton's generate extension, for one request; of generate_stream, each response is an
    event. What takes long is done by `pool`."""

    def __init__(self, call: Call, pool: CodecPool, max_tensor_bytes: int) -> None:
        self._pool = pool
        self._max_tensor_bytes = max_tensor_bytes
        self._model = call.model or ""
        self._version = call.version or ""
        self._is_stream = call.method == "generate_stream"
        self._id = ""

    async def decode(self, body: bytes, signature: Signature) -> bytes:
        given = (self._model, self._version, body, signature, self._max_tensor_bytes)
        if len(body) <= codec.FAST_JSON_BYTES:
            message, self._id = codec.decode_generate(*given)
        else:
            message, self._id = await self._pool.run("decode_generate", *given)
        return message

    async def encode(self, response: bytes) -> tuple[bytes, Sequence[tuple[str, str]]]:
        if len(response) <= codec.FAST_JSON_BYTES:
            text = codec.encode_generate(self._id, response)
        else:
            text = await self._pool.run("encode_generate", self._id, response)
        return (event(text), (EVENTS,)) if self._is_stream else (text, _JSON)


class HttpCodec:
    """OIP over HTTP: what is true is an empty 200, as from Triton; what is false an error."""

    def __init__(self, pool: CodecPool, max_tensor_bytes: int) -> None:
        self._pool = pool
        self._max_tensor_bytes = max_tensor_bytes

    def infer(self, call: Call) -> InferCodec:
        return HttpInferCodec(call, self._pool, self._max_tensor_bytes)

    def generate(self, call: Call) -> GenerateCodec | None:
        return HttpGenerateCodec(call, self._pool, self._max_tensor_bytes)

    async def model(self, call: Call) -> tuple[str, str]:
        return call.model or "", call.version or ""

    def live(self, live: bool) -> Reply:
        return self._truth(live, "the server is not live")

    def ready(self, ready: bool) -> Reply:
        return self._truth(ready, "the server is not ready")

    def model_ready(self, ready: bool) -> Reply:
        return self._truth(ready, "the model is not ready")

    def model_unknown(self, refusal: Refusal) -> Reply:
        return Reply(error=refusal)

    def server_metadata(self, message: bytes) -> Reply:
        return Reply(metadata=_JSON, body=codec.server_metadata_to_json(message))

    def model_metadata(self, message: bytes) -> Reply:
        return Reply(metadata=_JSON, body=codec.metadata_to_json(message))

    def model_config(self, message: bytes) -> Reply:
        return Reply(metadata=_JSON, body=codec.config_to_json(message))

    def model_statistics(self, message: bytes) -> Reply:
        return Reply(metadata=_JSON, body=codec.statistics_to_json(message))

    async def index(self, call: Call) -> bool:
        return flag(request_members(await call.body.read()), "ready")

    def repository_index(self, entries: Sequence[IndexEntry]) -> Reply:
        return Reply(metadata=_JSON, body=json.dumps(json_index(entries)).encode())

    async def load(self, call: Call) -> tuple[str, Mapping[str, object]]:
        return call.model or "", request_parameters(request_members(await call.body.read()))

    async def trace_changes(self, call: Call) -> tuple[str, Mapping[str, Sequence[str] | None]]:
        return call.model or "", json_trace_changes(request_members(await call.body.read()))

    def trace_settings(self, told: Mapping[str, Sequence[str]]) -> Reply:
        return Reply(metadata=_JSON, body=json.dumps(json_trace(told)).encode())

    async def log_changes(self, call: Call) -> Mapping[str, object]:
        return request_members(await call.body.read())

    def log_settings(self, told: Mapping[str, bool | int | str]) -> Reply:
        return Reply(metadata=_JSON, body=json.dumps(told).encode())

    def _truth(self, holds: bool, otherwise: str) -> Reply:
        return Reply() if holds else Reply(error=Refusal(Reason.UNAVAILABLE, otherwise))


def binding_codecs(pool: CodecPool, max_tensor_bytes: int) -> dict[Binding, BindingCodec]:
    """The codec of every binding; HTTP's takes tensors of at most `max_tensor_bytes` together."""
    return {Binding.GRPC: GrpcCodec(), Binding.HTTP: HttpCodec(pool, max_tensor_bytes)}
