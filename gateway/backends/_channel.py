"""A kept gRPC channel to a server that speaks the Open Inference Protocol.

One grpc.aio channel per endpoint carries everything: inferences as raw bytes through identity
serializers, and health, metadata, configuration and statistics with the messages of tritonclient.
tritonclient's own client class would parse each answer only for it to be serialized again, and would
open a second view of the same connection.

How a call ends although the other side does not:
- it waits for a connection only while one is being made, at most half its time and at most a second;
  a place that refuses connections is told apart at once, so that its time is left for another place;
- gRPC's deadline ends it, and a local timer a little later if gRPC does not;
- a connection that has fallen silent under a call is pinged, and closed when no answer comes; the
  next call is made on a new one.

One task watches the channel and dials again after a loss, so the first request after a restart does
not pay for the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.backends._address import AddressedConfig, TlsConfig
from gateway.backends._triton_status import status_of
from gateway.backends._unary import answer_of, leave
from gateway.core.errors import AttemptError, TidegateError
from gateway.core.ports import Health, ModelHealth
from oip.errors import OipError
from oip.reasons import STATUS, Reason
from oip.streamed import REASON, read_stream_response

if TYPE_CHECKING:
    import grpc.aio

CONNECT_WAIT_S = 1.0
"""Longest that a call waits for a connection that is being made."""
CLOSE_S = 1.0
"""How long the end of a closed channel is waited for."""
GUARD_S = 0.5
"""How long after gRPC's own deadline the local timer ends a call."""
MAX_METADATA_BYTES = 2**20
MAX_INDEX_BYTES = 2**21
"""Largest index of models that is read."""
FAST_INDEX_BYTES = 2**16
"""An index up to this size is read in a few milliseconds."""

CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A server's refusal quotes the caller's names and id, and comes as metadata.
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    # Quiet for 5 s with a call under way: ping, and give up after another 3 s. Core waits for a ping's
    # answer by its own setting, whose minute the keepalive timeout does not shorten.
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.ping_timeout_ms", 3000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A proxy from the environment would be a relay that no location was declared for.
    ("grpc.enable_http_proxy", 0),
)

_SERVICE = "/inference.GRPCInferenceService/"
_RPCS = (
    "ModelInfer",
    "ServerLive",
    "ModelReady",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
)


Metadata = Sequence[tuple[str, str]]
Explain = Callable[[str, str, Sequence[tuple[str, str | bytes]]], AttemptError]
"""From a failed call's gRPC status by name, its text and its metadata to what it means."""


class OipChannel:
    """Calls to one server, named as the endpoint is; see the module for how they end.

    `own` goes with every call. Construction does no I/O; everything else runs on the loop of `start`.
    """

    def __init__(self, config: AddressedConfig, explain: Explain, own: Metadata = ()) -> None:
        import grpc.aio
        from google.protobuf.message import DecodeError
        from tritonclient.grpc import service_pb2

        self._config = config
        self._explain = explain
        self._own = tuple(own)
        self._grpc = grpc
        self._pb: Any = service_pb2
        self._decode_error = DecodeError
        self._channel: grpc.aio.Channel | None = None
        self._rpcs: dict[str, Any] = {}
        self._streams: Any = None
        self._changed = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None
        self._index: tuple[bytes, frozenset[str]] = b"", frozenset()
        """The last index and what was read in it: it is asked for again and again."""

    async def start(self) -> None:
        """Begin to connect. Raises TidegateError when a TLS file cannot be read."""
        channel = self._open()
        self._channel = channel
        self._rpcs = {name: channel.unary_unary(_SERVICE + name, _identity, _identity) for name in _RPCS}
        # A stream of one request is the same on the wire.
        self._streams = channel.unary_stream(_SERVICE + "ModelStreamInfer", _identity, _identity)
        self._watcher = asyncio.create_task(self._watch(channel), name=f"watch {self._config.name}")

    async def close(self) -> None:
        """End the calls that run, with an AttemptError, and the connection."""
        channel, self._channel = self._channel, None
        self._tell()
        if channel is not None:
            await channel.close()
        if self._watcher is not None:
            # Its last question ends with the channel. The answer must find this loop still running: gRPC
            # drops what else it has to say, to other loops too, when it meets one that is closed.
            await asyncio.wait([self._watcher], timeout=CLOSE_S)
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)

    async def health(
        self,
        models: Sequence[tuple[str, str]],
        timeout_s: float,
        metadata: Metadata = (),
        words: Mapping[str, str] | None = None,
        not_ready: Container[Reason] = (Reason.UNKNOWN_MODEL,),
    ) -> Health:
        """Up means live, and readiness is asked per model: a server's own also asks for every model it
        holds, and dips while it unloads one. `words` says what a gRPC status in answer to it means, and
        `not_ready` which failures of the question about a model only mean that this one is not ready."""
        live, *ready = await asyncio.gather(
            self._live(timeout_s, metadata),
            *(self._model_ready(model, version, timeout_s, metadata, not_ready) for model, version in models),
            return_exceptions=True,
        )
        for answer in (live, *ready):
            if isinstance(answer, AttemptError):
                return Health(
                    up=False, detail=(words or {}).get(answer.grpc_status) or _detail(answer, timeout_s)
                )
            if isinstance(answer, BaseException):
                raise answer
        if not live:
            return Health(up=False, detail="says that it is not live")
        pairs = zip(models, ready, strict=True)
        return Health(up=True, models=tuple(ModelHealth(*model, bool(is_ready)) for model, is_ready in pairs))

    async def _live(self, timeout_s: float, metadata: Metadata) -> bool:
        answer = await self.call("ServerLive", b"", metadata, timeout_s)
        return bool(self._read("ServerLiveResponse", answer).live)

    async def _model_ready(
        self, model: str, version: str, timeout_s: float, metadata: Metadata, not_ready: Container[Reason]
    ) -> bool:
        try:
            answer = await self.ask("ModelReady", model, version, timeout_s, metadata)
        except AttemptError as error:
            if error.reason in not_ready:
                return False
            raise
        return bool(self._read("ModelReadyResponse", answer).ready)

    async def ask(
        self, rpc: str, model: str, version: str, timeout_s: float, metadata: Metadata = ()
    ) -> bytes:
        """The serialized answer to one question about a model. Raises AttemptError."""
        request = getattr(self._pb, f"{rpc}Request")(name=model, version=version)
        return await self.call(rpc, request.SerializeToString(), metadata, timeout_s)

    async def ready_models(self, timeout_s: float) -> frozenset[str]:
        """Names in the server's index of models that have a version ready. Raises AttemptError."""
        answer = await self._read_index(timeout_s, ready=True)
        if answer != self._index[0]:
            if len(answer) <= FAST_INDEX_BYTES:
                names = self._ready_in(answer)
            else:
                names = await asyncio.to_thread(self._ready_in, answer)
            self._index = answer, names
        return self._index[1]

    async def repository(self, timeout_s: float) -> frozenset[str]:
        """Names in the server's index of models, whatever their state. Raises AttemptError."""
        answer = await self._read_index(timeout_s, ready=False)
        listed = await asyncio.to_thread(self._read, "RepositoryIndexResponse", answer)
        return frozenset(model.name for model in listed.models)

    async def _read_index(self, timeout_s: float, *, ready: bool) -> bytes:
        request = self._pb.RepositoryIndexRequest(ready=ready)
        answer = await self.call("RepositoryIndex", request.SerializeToString(), (), timeout_s)
        if len(answer) > MAX_INDEX_BYTES:
            raise self.failed(
                Reason.TOO_LARGE, "has a larger index of models than is read", sent=True, retryable=False
            )
        return answer

    def _ready_in(self, index: bytes) -> frozenset[str]:
        listed = self._read("RepositoryIndexResponse", index).models
        # MLServer writes the name of its own constant, State.READY.
        return frozenset(model.name for model in listed if model.state.rpartition(".")[2] == "READY")

    def _read(self, message: str, answer: bytes) -> Any:
        try:
            return getattr(self._pb, message).FromString(answer)
        except self._decode_error:
            raise self.failed(
                Reason.ENDPOINT_FAILED, "answered what is not OIP", sent=True, retryable=True
            ) from None

    async def call(self, rpc: str, body: bytes, metadata: Metadata, timeout_s: float) -> bytes:
        """One unary call within `timeout_s` plus the guard. Raises AttemptError, and nothing else
        but cancellation."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        await self._connected(min(timeout_s / 2, CONNECT_WAIT_S))
        left = deadline - loop.time()
        if left <= 0:
            raise self.failed(Reason.DEADLINE, "was given no time", sent=False, retryable=False)
        call = None
        try:
            with self._failures():
                call = self._rpcs[rpc](body, timeout=left, metadata=(*metadata, *self._own))
                async with asyncio.timeout(left + GUARD_S):
                    answer = await answer_of(call)
        finally:
            if call is not None:
                leave(call)
        if answer is None:
            # gRPC lets a status of OK stand although no message, or only a part of it, came before.
            raise self.failed(
                Reason.ENDPOINT_FAILED, "ended the call without an answer", sent=True, retryable=True
            )
        return answer

    async def stream(self, body: bytes, metadata: Metadata, timeout_s: float | None) -> AsyncGenerator[bytes]:
        """The ModelInferResponses of one request on a ModelStreamInfer of its own, read as they are asked
        for, within `timeout_s` plus the guard. Raises AttemptError. Closing it cancels the call.

        Failures are told inside the stream and not by its status: gRPC drops what it has not read yet
        when a status that is an error comes.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        await self._connected(CONNECT_WAIT_S if timeout_s is None else min(timeout_s / 2, CONNECT_WAIT_S))
        left = None if deadline is None else deadline - loop.time()
        if left is not None and left <= 0:
            raise self.failed(Reason.DEADLINE, "was given no time", sent=False, retryable=False)
        ends = None if deadline is None else deadline + GUARD_S
        call = None
        try:
            while True:
                with self._failures():
                    if call is None:
                        call = self._streams(body, timeout=left, metadata=(*metadata, *self._own))
                    async with asyncio.timeout_at(ends):
                        message = await call.read()
                if message is self._grpc.aio.EOF:  # pyright: ignore[reportAttributeAccessIssue]
                    return
                yield self._response(message)
        finally:
            if call is not None and not call.done():
                call.cancel()

    def _response(self, message: bytes) -> bytes:
        try:
            told = read_stream_response(message)
        except OipError:
            raise self.failed(
                Reason.ENDPOINT_FAILED, "answered what is not OIP", sent=True, retryable=True
            ) from None
        if told.error:
            known = told.reason in set(Reason)
            status = STATUS[Reason(told.reason)].grpc if known else status_of(told.error, bool(told.model))
            raise self._explain(status, told.error, ((REASON, told.reason),) if told.reason else ())
        return told.response

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Around what waits for a call: every way it can fail as an AttemptError."""
        try:
            yield
        except self._grpc.aio.AioRpcError as error:
            told = (*(error.initial_metadata() or ()), *(error.trailing_metadata() or ()))
            raise self._explain(error.code().name, error.details() or "", told) from None
        except TimeoutError:
            raise self.failed(Reason.DEADLINE, "did not answer in time", sent=True, retryable=False) from None
        except self._grpc.aio.UsageError:
            raise self.failed(Reason.UNAVAILABLE, "is closed", sent=False, retryable=True) from None
        except (self._grpc.aio.BaseError, TypeError, ValueError):
            # gRPC takes the whole call down for a header that HTTP/2 cannot carry.
            raise self.failed(
                Reason.INTERNAL, "cannot be sent this metadata", sent=False, retryable=False
            ) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Closing the channel cancels its calls, not the tasks that wait for them.
            raise self.failed(Reason.UNAVAILABLE, "was closed", sent=True, retryable=True) from None

    async def _connected(self, wait_s: float) -> None:
        """Return once the channel is ready. Raises AttemptError (not sent) when it is not within
        `wait_s`, or at once when the last try to connect failed."""
        ready = self._grpc.ChannelConnectivity.READY
        failed = self._grpc.ChannelConnectivity.TRANSIENT_FAILURE
        try:
            async with asyncio.timeout(max(wait_s, 0)):
                while self._channel is not None:
                    state = self._channel.get_state(try_to_connect=True)
                    if state is ready:
                        return
                    if state is failed:
                        break
                    await self._changed.wait()
        except TimeoutError:
            pass
        raise self.failed(Reason.UNAVAILABLE, "cannot be reached", sent=False, retryable=True)

    async def _watch(self, channel: grpc.aio.Channel) -> None:
        """Keep the channel connected, and wake the calls that wait for it at every change."""
        while True:
            state = channel.get_state(try_to_connect=True)
            await channel.wait_for_state_change(state)
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _open(self) -> grpc.aio.Channel:
        target, options = self._config.target, CHANNEL_OPTIONS
        if not self._config.secure:
            return self._grpc.aio.insecure_channel(target, options=options)
        tls = self._config.tls or TlsConfig()
        credentials = self._grpc.ssl_channel_credentials(
            root_certificates=self._pem("ca_file", tls.ca_file),
            private_key=self._pem("key_file", tls.key_file),
            certificate_chain=self._pem("cert_file", tls.cert_file),
        )
        return self._grpc.aio.secure_channel(target, credentials, options=options)

    def _pem(self, key: str, path: str | None) -> bytes | None:
        try:
            return None if path is None else Path(path).read_bytes()
        except OSError as error:
            raise TidegateError(
                Reason.INTERNAL,
                f"Endpoint {self._config.name}: tls.{key} {path!r} cannot be read ({error.strerror}).",
            ) from None

    def failed(self, reason: Reason, words: str, *, sent: bool, retryable: bool) -> AttemptError:
        return AttemptError(
            reason,
            f"Endpoint {self._config.name} {words}.",
            grpc_status=STATUS[reason].grpc,
            sent=sent,
            retryable=retryable,
        )


def _identity(message: bytes) -> bytes:
    return message


def _detail(error: AttemptError, timeout_s: float) -> str:
    """Why an endpoint is not up, for its state."""
    if error.reason is Reason.DEADLINE:
        return f"did not answer within {timeout_s:g} s"
    if error.reason is Reason.UNAVAILABLE:
        return "lost the connection" if error.sent else "cannot be reached"
    return f"answered {error.grpc_status} to a health check"
