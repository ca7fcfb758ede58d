"""One handler per RPC of the Open Inference Protocol, on every lane and in both bindings."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace

from gateway.core.call import Binding, Call, Reply, Send
from gateway.core.errors import Refusal, TidegateError
from gateway.core.ports import GenerateCodec, Service
from gateway.core.request import Options
from gateway.frontends.codecs import BindingCodec
from gateway.frontends.operators import refuse_stranger
from gateway.resilience.deadline import request_deadline
from oip import wording
from oip.codec import server_metadata
from oip.errors import OipError
from oip.reasons import Reason
from oip.repository import load_config, unload_dependents

logger = logging.getLogger(__name__)

EXTENSIONS = (
    "binary_tensor_data",
    "generate",
    "logging",
    "model_configuration",
    "model_repository",
    "statistics",
    "trace",
)
"""The protocol's extensions that this version serves; server metadata lists nothing else."""
_INFER = "ModelInfer"
_STREAM = "ModelStreamInfer"
_GENERATE = "generate"
_GENERATE_STREAM = "generate_stream"
ANSWER_TIMEOUT_S = 10.0
"""How long a call other than an inference may take when its caller has set no deadline."""
OPERATORS = {
    "RepositoryIndex": ANSWER_TIMEOUT_S,
    "RepositoryModelLoad": 300.0,
    "RepositoryModelUnload": 300.0,
}
"""Calls for operators alone, and the like of these."""


class Handlers:
    """Answers calls from a `Service`, whatever wire they came over.

    `codecs` are the bindings'; `name` and `version` are the server's in its metadata.
    """

    def __init__(
        self, service: Service, codecs: Mapping[Binding, BindingCodec], *, name: str, version: str
    ) -> None:
        self.service = service
        self._codecs = codecs
        self._name = name
        self._version = version
        self._served: dict[str, Callable[[Call, BindingCodec, Options], Awaitable[Reply]]] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
            "TraceSetting": self._trace_setting,
            "LogSettings": self._log_settings,
        }

    @property
    def methods(self) -> Collection[str]:
        """Names of the RPCs that are served."""
        return (*self._served, _INFER, _STREAM)

    @staticmethod
    def answers_in_parts(method: str) -> bool:
        """Whether calls of a method are for `stream`, not for `handle`."""
        return method in (_STREAM, _GENERATE_STREAM)

    def admits(self, call: Call) -> bool:
        """Whether a call's metadata alone do not forbid it."""
        try:
            self.service.admit(self.service.options(call.metadata))
        except OipError:
            return False
        return True

    async def handle(self, call: Call) -> Reply:
        """The reply to a call. Raises nothing but cancellation: failures are in `Reply.error`."""
        try:
            codec = self._codecs[call.binding]
            if call.method == _INFER:
                return await self.service.infer(call, codec.infer(call))
            if call.method == _GENERATE and (generate := codec.generate(call)) is not None:
                return await self._generate(call, generate)
            handler = self._served.get(call.method)
            if handler is None:
                raise Refusal(Reason.NOT_SERVED, f"{call.method} is not served by this version")
            if call.method in OPERATORS:
                refuse_stranger(call.client, call.metadata)
            options = self.service.options(call.metadata)
            limit_s = OPERATORS.get(call.method, ANSWER_TIMEOUT_S)
            deadline = request_deadline(call.received, options.deadline_ms, call.deadline, limit_s)
            async with asyncio.timeout_at(deadline):
                return await handler(call, codec, options)
        except TimeoutError:
            return Reply(
                error=Refusal(Reason.DEADLINE, f"the deadline passed before {call.method} was answered")
            )
        except TidegateError as error:
            return Reply(error=error)
        except OipError as error:
            return Reply(error=_refusal(error))
        except Exception as error:
            return Reply(error=unexpected(error, call.method))

    async def stream(self, call: Call, send: Send) -> Reply:
        """One request whose answer goes to `send` in parts, and how it ended. Raises nothing but
        cancellation."""
        try:
            codec = self._codecs[call.binding]
            if call.method == _STREAM:
                return await self.service.stream(call, codec.infer(call), send)
            generate = codec.generate(call)
            if generate is None:
                raise Refusal(Reason.NOT_SERVED, f"{call.method} is not served by this version")
            return await self.service.generate(call, generate, send)
        except TidegateError as error:
            return Reply(error=error)
        except Exception as error:
            return Reply(error=unexpected(error, call.method))

    async def _generate(self, call: Call, codec: GenerateCodec) -> Reply:
        """The one response of a generate call; more or fewer are an error."""
        parts: list[bytes] = []
        kind: list[tuple[str, str]] = []

        async def take(metadata: Sequence[tuple[str, str]], body: bytes) -> None:
            if parts:
                raise wording.not_one_response()
            parts.append(body)
            kind.extend(pair for pair in metadata if pair[0] == "content-type")

        reply = await self.service.generate(call, codec, take)
        if reply.error is not None:
            return reply
        if not parts:
            return replace(reply, error=_refusal(wording.not_one_response()))
        return Reply((*reply.metadata, *kind), parts[0])

    async def _server_live(self, call: Call, codec: BindingCodec, options: Options) -> Reply:
        return codec.live(self.service.live())

    async def _server_ready(self, call: Call, codec: BindingCodec, options: Options) -> Reply:
        return codec.ready(self.service.ready())

    async def _model_ready(self, call: Call, codec: BindingCodec, options: Options) -> Reply:
        model, version, _ = await self._question(call, codec, options)
        try:
            return codec.model_ready(await self.service.model_ready(model, version, options))
        except Refusal as refusal:
            if refusal.reason not in (Reason.UNKNOWN_MODEL, Reason.UNKNOWN_VERSION):
                raise
            return codec.model_unknown(refusal)

    async def _server_metadata(self, call: Call, codec: BindingCodec, options: Options) -> Reply:
        return codec.server_metadata(server_metadata(self._name, self._version, EXTENSIONS))

    async def _model_metadata(self, call: Call, codec: BindingCodec, options: Options) -> Reply:
        return codec.model_metadata(
            await self.service.model_metadata(*await self._question(call, codec, options))
        )

    async def _model_config(self, call: Call, codec: BindingCodec, options: Options) -> Reply:
        return codec.model_config(
            await self.service.model_config(*await self._question(call, codec, options))
        )

    async def _model_statistics(self, call: Call, codec: BindingCodec, options: Options) -> Reply:
        return codec.model_statistics(
            await self.service.statistics(*await self._question(call, codec, options))
        )

    async def _repository_index(self, call: Call, codec: BindingCodec, options: Options) -> Reply:
        entries = await self.service.repository_index(options, ready=await codec.index(call))
        return codec.repository_index(entries)

    async def _load(self, call: Call, codec: BindingCodec, options: Options) -> Reply:
        self.service.admit(options)
        model, parameters = await codec.load(call)
        await self.service.load_model(model, load_config(parameters), options)
        return Reply()

    async def _unload(self, call: Call, codec: BindingCodec, options: Options) -> Reply:
        self.service.admit(options)
        model, parameters = await codec.load(call)
        await self.service.unload_model(model, unload_dependents(parameters), options)
        return Reply()

    async def _trace_setting(self, call: Call, codec: BindingCodec, options: Options) -> Reply:
        model, changes = await codec.trace_changes(call)
        if model:
            raise Refusal(
                Reason.NOT_SERVED, "trace settings are the gateway's, not a model's: ask for them without one"
            )
        if changes:
            refuse_stranger(call.client, call.metadata)
        return codec.trace_settings(await self.service.trace_settings(changes))

    async def _log_settings(self, call: Call, codec: BindingCodec, options: Options) -> Reply:
        changes = await codec.log_changes(call)
        if changes:
            refuse_stranger(call.client, call.metadata)
        return codec.log_settings(await self.service.log_settings(changes))

    async def _question(self, call: Call, codec: BindingCodec, options: Options) -> tuple[str, str, Options]:
        """What a call asks about: model, version and under which options. These are heeded before the
        message that names the model is read."""
        self.service.admit(options)
        return *await codec.model(call), options


def _refusal(error: OipError) -> Refusal:
    return Refusal(error.reason, error.message)


def unexpected(error: BaseException, where: str) -> Refusal:
    """Logs a fault of ours and says so to the caller.

    The log gets the exception's type and its stack, not its text, which may quote request data.
    """
    stack = "".join(traceback.format_tb(error.__traceback__))
    logger.error("%s failed with %s\n%s", where, type(error).__name__, stack)
    return Refusal(Reason.INTERNAL, "the gateway failed inside; its log says where")
