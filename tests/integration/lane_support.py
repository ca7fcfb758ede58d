"""What the lanes' tests stand on: a service that remembers what it saw, and a proxy that counts."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tritonclient.grpc import model_config_pb2, service_pb2

from gateway.core.call import Call, Metadata, Reply, Send
from gateway.core.errors import AttemptError, Refusal, TidegateError
from gateway.core.ports import GenerateCodec, InferCodec
from gateway.core.request import Options
from gateway.frontends.codec_pool import CodecPool
from gateway.frontends.codecs import binding_codecs
from gateway.frontends.handlers import Handlers
from gateway.pipeline.options import parse_options
from gateway.telemetry.settings import Settings
from gateway.telemetry.spans import Tracing
from oip.errors import OipError
from oip.reasons import Reason
from oip.repository import READY, UNAVAILABLE, IndexEntry
from oip.signature import Signature, TensorSpec
from tests.support.waiting import until

pb: Any = service_pb2

ANSWER_HEADERS = (("tidegate-endpoint", "gpu-east"), ("tidegate-attempts", "1"))


@dataclass
class FakeService:
    """The port in memory. Knows the models `add_sub` (int32 sum and difference), `slow` (answers
    only when `release` is set), `boom` (raises), `gone` and `rejects` (endpoint failures), `fails`
    (with `failure`)."""

    is_ready: bool = True
    calls: list[Call] = field(default_factory=list)
    bodies: list[int] = field(default_factory=list)
    cancelled: int = 0
    sent: int = 0
    """Parts that were taken."""
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[tuple[str, str]] = field(default_factory=list)
    loads: list[tuple[str, str | bool]] = field(default_factory=list)
    settings: Settings = field(default_factory=lambda: Settings(Tracing(None, 0.05), 0.05))
    failure: TidegateError | None = None
    undecided: asyncio.Event | None = None
    """While given and not set, an inference waits before it looks at its options or its body."""

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        return self.is_ready

    def options(self, metadata: Metadata) -> Options:
        return parse_options(metadata)

    def admit(self, options: Options) -> None:
        if options.privacy == "elsewhere":
            raise Refusal(Reason.PRIVACY, "not here")

    async def model_ready(self, model: str, version: str, options: Options) -> bool:
        self._known(model, version)
        return model != "gone"

    async def model_metadata(self, model: str, version: str, options: Options) -> bytes:
        self._known(model, version)
        if model == "slow":
            await self._wait()
        response = pb.ModelMetadataResponse(name=model, versions=["1"], platform="python")
        for name in ("INPUT0", "INPUT1"):
            response.inputs.add(name=name, datatype="INT32", shape=[-1, 4])
        for name in ("OUTPUT0", "OUTPUT1"):
            response.outputs.add(name=name, datatype="INT32", shape=[-1, 4])
        return response.SerializeToString()

    async def model_config(self, model: str, version: str, options: Options) -> bytes:
        self._known(model, version)
        config = model_config_pb2.ModelConfig(name=model, max_batch_size=8, backend="python")
        return pb.ModelConfigResponse(config=config).SerializeToString()

    async def statistics(self, model: str, version: str, options: Options) -> bytes:
        if model:
            self._known(model, version)
        response = pb.ModelStatisticsResponse()
        response.model_stats.add(name=model, version=version or "1", inference_count=7)
        return response.SerializeToString()

    async def repository_index(self, options: Options, *, ready: bool) -> Sequence[IndexEntry]:
        up = IndexEntry("add_sub", "1", READY)
        return [up] if ready else [up, IndexEntry("gone", "", UNAVAILABLE, "gpu-east: cannot be reached")]

    async def load_model(self, model: str, config: str, options: Options) -> None:
        self._known(model, "")
        self.loads.append((model, config))

    async def unload_model(self, model: str, dependents: bool, options: Options) -> None:
        self._known(model, "")
        self.loads.append((model, dependents))

    async def trace_settings(
        self, changes: Mapping[str, Sequence[str] | None]
    ) -> Mapping[str, Sequence[str]]:
        return self.settings.trace(changes)

    async def log_settings(self, changes: Mapping[str, object]) -> Mapping[str, bool | int | str]:
        return self.settings.log(changes)

    async def infer(self, call: Call, codec: InferCodec) -> Reply:
        self.calls.append(call)
        if self.undecided is not None:
            await self.undecided.wait()
        try:
            options = parse_options(call.metadata)
            if options.privacy == "secret":
                raise Refusal(Reason.PRIVACY, "class secret does not allow this gateway's place")
            body = await call.body.read()
            self.bodies.append(len(body))
            request = pb.ModelInferRequest.FromString(await codec.decode(body, self._takes))
            answer, headers = await codec.encode(await self._answer(request))
        except TidegateError as error:
            return Reply(metadata=ANSWER_HEADERS, error=error)
        except OipError as error:
            return Reply(metadata=ANSWER_HEADERS, error=Refusal(error.reason, error.message))
        return Reply(metadata=(*ANSWER_HEADERS, *headers), body=answer)

    async def _takes(self) -> Signature:
        raise AssertionError("a body that says everything needs no signature")

    async def stream(self, call: Call, codec: InferCodec, send: Send) -> Reply:
        """`parts` of an answer; the request's parameter `parts` says how many, `fails` that it ends so."""
        self.calls.append(call)
        try:
            options = parse_options(call.metadata)
            if options.privacy == "elsewhere":
                raise Refusal(Reason.PRIVACY, "not here")
            request = pb.ModelInferRequest.FromString(await codec.decode(await call.body.read(), self._takes))
            await self._parts(request, codec, send)
        except TidegateError as error:
            return Reply(metadata=ANSWER_HEADERS, error=error)
        except OipError as error:
            return Reply(metadata=ANSWER_HEADERS, error=Refusal(error.reason, error.message))
        return Reply(metadata=ANSWER_HEADERS)

    async def generate(self, call: Call, codec: GenerateCodec, send: Send) -> Reply:
        """As `stream`, of a model that takes TEXT and gives it back."""
        self.calls.append(call)
        try:
            self._known(call.model or "", call.version or "")
            signature = Signature((TensorSpec("TEXT", "BYTES", (-1,)),), ())
            message = await codec.decode(await call.body.read(), signature)
            await self._parts(pb.ModelInferRequest.FromString(message), codec, send)
        except OipError as error:
            return Reply(metadata=ANSWER_HEADERS, error=Refusal(error.reason, error.message))
        return Reply(metadata=ANSWER_HEADERS)

    async def _parts(self, request: Any, codec: InferCodec | GenerateCodec, send: Send) -> None:
        if request.model_name == "slow":
            await self._wait()
        for number in range(request.parameters["parts"].int64_param):
            response = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
            response.outputs.add(name="TEXT", datatype="BYTES", shape=[1])
            text = request.raw_input_contents[0][4:] if request.raw_input_contents else b""
            text += str(number).encode()
            response.raw_output_contents.append(struct.pack("<I", len(text)) + text)
            part, headers = await codec.encode(response.SerializeToString())
            await send((*ANSWER_HEADERS, *headers), part)
            self.sent += 1
            if request.model_name == "gone":
                await self._wait()
        if request.parameters["fails"].bool_param:
            raise AttemptError(
                Reason.ENDPOINT_FAILED, "it broke", grpc_status="INTERNAL", sent=True, retryable=False
            )

    async def _answer(self, request: Any) -> bytes:
        self._known(request.model_name, request.model_version)
        match request.model_name:
            case "slow":
                await self._wait()
            case "fails":
                assert self.failure is not None
                raise self.failure
            case "boom":
                raise ValueError(f"quotes {request.raw_input_contents[0]!r}")
            case "gone":
                raise AttemptError(
                    Reason.UNAVAILABLE,
                    "endpoint gpu-east is gone",
                    grpc_status="UNAVAILABLE",
                    sent=True,
                    retryable=True,
                )
            case "rejects":
                raise AttemptError(
                    Reason.ENDPOINT_FAILED,
                    "endpoint gpu-east says no",
                    grpc_status="FAILED_PRECONDITION",
                    sent=True,
                    retryable=False,
                )
        first, second = (_int32s(raw) for raw in request.raw_input_contents)
        response = pb.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
        for name, values in (
            ("OUTPUT0", [a + b for a, b in zip(first, second, strict=True)]),
            ("OUTPUT1", [a - b for a, b in zip(first, second, strict=True)]),
        ):
            response.outputs.add(name=name, datatype="INT32", shape=request.inputs[0].shape)
            response.raw_output_contents.append(struct.pack(f"<{len(values)}i", *values))
        return response.SerializeToString()

    def _known(self, model: str, version: str) -> None:
        self.asked.append((model, version))
        if model not in ("add_sub", "slow", "boom", "gone", "rejects", "fails", "a b", "ns/m"):
            raise Refusal(Reason.UNKNOWN_MODEL, f"Request for unknown model: '{model}' is not found")
        if version not in ("", "1"):
            raise Refusal(Reason.UNKNOWN_VERSION, f"model '{model}' has no version '{version}'")

    async def _wait(self) -> None:
        self.entered.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


def handlers_of(service: FakeService, pool: CodecPool | None = None) -> Handlers:
    """Handlers of a server "gw"; `pool` is for HTTP bodies over 64 KiB, and its owner closes it."""
    return Handlers(service, binding_codecs(pool or CodecPool(), 2**26), name="gw", version="0.1.0")


def _int32s(raw: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(raw) // 4}i", raw)


def infer_request(model: str = "add_sub", padding: int = 0) -> bytes:
    """A ModelInferRequest of two INT32 [1,4] tensors, followed by `padding` bytes in the id."""
    request = pb.ModelInferRequest(model_name=model, id="x" * padding)
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 4])
    request.raw_input_contents.extend([struct.pack("<4i", 1, 2, 3, 4), struct.pack("<4i", 10, 20, 30, 40)])
    return request.SerializeToString()


class CountingProxy:
    """A TCP relay in front of a port that counts the bytes in both directions. While
    `replying` is not set it holds answers back."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.replying = asyncio.Event()
        self.replying.set()
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._relays = 0
        self.sent = 0
        self.replied = 0

    async def __aenter__(self) -> CountingProxy:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await until(lambda: self._relays == 0)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._relays += 1
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, up_writer]
        await asyncio.gather(
            self._pump(reader, up_writer, count=True), self._pump(up_reader, writer, count=False)
        )
        writer.close()
        up_writer.close()
        self._relays -= 1

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, count: bool) -> None:
        with suppress(OSError, RuntimeError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
                if count:
                    self.sent += len(data)
                else:
                    self.replied += len(data)
                    await self.replying.wait()
            writer.write_eof()
