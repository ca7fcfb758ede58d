"""One handler for each RPC of the Open Inference Protocol, over both bindings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import edge_agent
from edge_agent.faults import unexpected
from edge_agent.local.options import Metadata, deadline_ms, names_class
from edge_agent.ports import Models
from edgewire.allowed import NOTHING
from edgewire.places import Tier
from oip import codec, codec_raw
from oip.errors import OipError
from oip.held import BodyBudget, BodyShare
from oip.http_request import is_raw, joined_headers
from oip.reasons import Reason
from oip.signature import Signature

EXTENSIONS = ("binary_tensor_data", "model_configuration")
"""The protocol's extensions that are served; server metadata lists nothing else."""
INFER_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 10.0
"""How long an inference, and any other call, may take when its caller has set no deadline."""
SERVER_NAME = "tidegate-agent"

_JSON = (("content-type", "application/json"),)


class Body(Protocol):
    """The request's body, not read before it is asked for."""

    async def read(self, share: BodyShare | None = None) -> bytes:
        """The whole body, taken from `share` as it arrives. Raises OipError."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `method` is the RPC's name; `model` and `version` are set where the address names them
    (HTTP) and None where only the body does (gRPC), which also tells the bindings apart. `received` and
    `deadline`, the transport's own, are instants of the monotonic clock."""

    method: str
    metadata: Metadata
    body: Body
    received: float
    http: bool
    model: str = ""
    version: str = ""
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """Headers (gRPC: initial metadata) and a body, or an error with them."""

    metadata: Sequence[tuple[str, str]] = field(default=())
    body: bytes = b""
    error: OipError | None = None


class Handlers:
    """Answers calls from `models`. `name` gives the device's name as it is now, for answer headers.

    HTTP's tensors are at most `max_body_bytes` together, and all bodies at once what `budget` allows.
    """

    def __init__(
        self, models: Models, name: Callable[[], str], budget: BodyBudget, max_body_bytes: int
    ) -> None:
        self._models = models
        self._name = name
        self._budget = budget
        self._max_body_bytes = max_body_bytes
        self._draining = False
        self._served: dict[str, Callable[[Call], Awaitable[Reply]]] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelInfer": self._model_infer,
        }

    @property
    def methods(self) -> Collection[str]:
        """Names of the RPCs that are served."""
        return self._served.keys()

    def drain(self) -> None:
        """From now on only liveness is true; what comes is refused."""
        self._draining = True

    def ready(self) -> bool:
        """Whether some model serves."""
        return not self._draining and any(state.active_digest for state in self._models.states())

    async def handle(self, call: Call) -> Reply:
        """The reply to a call. Raises nothing but cancellation: failures are in `Reply.error`."""
        what = "an answer came" if call.method == "ModelInfer" else f"{call.method} was answered"
        try:
            handler = self._served.get(call.method)
            if handler is None:
                raise OipError(Reason.NOT_SERVED, f"{call.method} is not served by this version")
            async with asyncio.timeout_at(_deadline(call)):
                if self._draining and call.method != "ServerLive":
                    raise OipError(Reason.DRAINING, "this device is shutting down: try again later")
                return await handler(call)
        except TimeoutError:
            return Reply(error=OipError(Reason.DEADLINE, f"the deadline passed before {what}"))
        except OipError as error:
            return Reply(error=error)
        except Exception as error:
            return Reply(error=unexpected(error, call.method))

    async def _server_live(self, call: Call) -> Reply:
        return _truth(call, True, codec.server_live, "")

    async def _server_ready(self, call: Call) -> Reply:
        return _truth(call, self.ready(), codec.server_ready, "the server is not ready")

    async def _model_ready(self, call: Call) -> Reply:
        model, version = await _named(call)
        try:
            ready = self._models.ready(model, version)
        except OipError as error:
            # Over gRPC clients ask this way whether a model exists, and expect no error.
            if call.http or error.reason not in (Reason.UNKNOWN_MODEL, Reason.UNKNOWN_VERSION):
                raise
            ready = False
        return _truth(call, ready, codec.model_ready, "the model is not ready")

    async def _server_metadata(self, call: Call) -> Reply:
        message = codec.server_metadata(SERVER_NAME, edge_agent.__version__, EXTENSIONS)
        return _message(call, message, codec.server_metadata_to_json)

    async def _model_metadata(self, call: Call) -> Reply:
        return _message(call, self._models.metadata(*await _named(call)), codec.metadata_to_json)

    async def _model_config(self, call: Call) -> Reply:
        return _message(call, self._models.config(*await _named(call)), codec.config_to_json)

    async def _model_infer(self, call: Call) -> Reply:
        with self._budget.share() as share:
            body = await call.body.read(share)
            if not call.http:
                response, headers = await self._infer(body, call)
                return Reply(headers, response)
            asked = joined_headers(call.metadata)
            given = (call.model, call.version, asked, body, self._max_body_bytes)
            if is_raw(asked):
                message, context = codec_raw.decode_raw(call.model, call.version, body, self._takes(call))
            elif codec.decodes_fast(asked, body):
                message, context = codec.decode_infer(*given)
            else:
                message, context = await asyncio.to_thread(codec.decode_infer, *given)
            share.settle(len(message))
            response, headers = await self._infer(message, call)
            if codec.encodes_fast(context, response):
                answer, more = codec.encode_infer(context, response)
            else:
                answer, more = await asyncio.to_thread(codec.encode_infer, context, response)
            return Reply((*headers, *more), answer)

    def _takes(self, call: Call) -> Signature:
        asked = call.model, call.version
        return codec.signature_of(self._models.metadata(*asked), self._models.config(*asked))

    async def _infer(self, message: bytes, call: Call) -> tuple[bytes, tuple[tuple[str, str], ...]]:
        headers = (("tidegate-endpoint", self._name()), ("tidegate-tier", Tier.DEVICE.value))
        left = _deadline(call) - time.monotonic()
        return await self._models.infer(message, max(left, 0.0), _asked(call)), headers


def _deadline(call: Call) -> float:
    """When the call must be answered: the nearest deadline that is given, or the default. Raises OipError
    for a wrong option."""
    option_ms = deadline_ms(call.metadata)
    default_s = INFER_TIMEOUT_S if call.method == "ModelInfer" else ANSWER_TIMEOUT_S
    given = [d for d in (call.deadline, None if option_ms is None else call.received + option_ms / 1000) if d]
    return min(given, default=call.received + default_s)


def _asked(call: Call) -> str | None:
    """The caller's own set of places. The device does not know what its class allows, so that nothing is
    gathered of such a request."""
    return NOTHING if names_class(call.metadata) else None


async def _named(call: Call) -> tuple[str, str]:
    """Name and version ("" for none) of a call about a model. Raises OipError."""
    if call.http:
        return call.model, call.version
    return codec.named_model(await call.body.read())


def _truth(call: Call, holds: bool, message: Callable[[bool], bytes], otherwise: str) -> Reply:
    """What is true is an empty 200 over HTTP, as from Triton; what is false an error."""
    if not call.http:
        return Reply(body=message(holds))
    return Reply() if holds else Reply(error=OipError(Reason.UNAVAILABLE, otherwise))


def _message(call: Call, message: bytes, as_json: Callable[[bytes], bytes]) -> Reply:
    return Reply(_JSON, as_json(message)) if call.http else Reply(body=message)
