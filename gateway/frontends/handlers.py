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
from gateway.resilience.deadline import request_deadline
from oip import wording
from oip.codec import server_metadata
from oip.errors import OipError
from oip.reasons import Reason

logger = logging.getLogger(__name__)

EXTENSIONS = ("binary_tensor_data", "model_configuration", "generate")
"""The protocol's extensions that this version serves; server metadata lists nothing else."""
_INFER = "ModelInfer"
_STREAM = "ModelStreamInfer"
_GENERATE = "generate"
_GENERATE_STREAM = "generate_stream"
ANSWER_TIMEOUT_S = 10.0
"""How long a call other than an inference may take when its caller has set no deadline."""


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
            options = self.service.options(call.metadata)
            deadline = request_deadline(call.received, options.deadline_ms, call.deadline, ANSWER_TIMEOUT_S)
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
