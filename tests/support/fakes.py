"""An endpoint and a configuration for tests of the pipeline: the port implemented, no network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from tritonclient.grpc import service_pb2

from gateway.core.call import Binding, Call, Metadata
from gateway.core.config import Config, EndpointConfig, PlacedConfig
from gateway.core.errors import AttemptError, Refusal
from gateway.core.ports import Health, Homes, ModelHealth, Permit, Surroundings
from gateway.frontends.codecs import IdentityInferCodec
from gateway.pipeline.director import Director
from gateway.pipeline.dispatch import Dispatcher
from gateway.pipeline.records import DecisionRing
from gateway.pipeline.state import ReplicaState
from gateway.telemetry import Telemetry
from oip.held import BodyShare
from oip.reasons import Reason
from oip.streamed import as_final
from tests.support.configs import config_from
from tests.support.permits import ALONE

Behaviour = Callable[[service_pb2.ModelInferRequest, float], Awaitable[bytes]]
"""Request and timeout in seconds -> serialized response; raises AttemptError."""
Responses = Callable[[service_pb2.ModelInferRequest], AsyncGenerator[bytes]]
"""Of a stream, the same."""


def request(model: str = "digits", version: str = "", payload: bytes = b"\0" * 8) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=model, model_version=version, id="r1")
    tensor = message.inputs.add(name="x", datatype="FP32")
    tensor.shape.extend([len(payload) // 4])
    message.raw_input_contents.append(payload)
    return message.SerializeToString()


def response(model: str, version: str = "1") -> bytes:
    return service_pb2.ModelInferResponse(
        model_name=model, model_version=version, id="r1"
    ).SerializeToString()


def failure(reason: Reason, *, sent: bool = True, retryable: bool = True) -> AttemptError:
    return AttemptError(reason, "it failed", grpc_status="UNAVAILABLE", sent=sent, retryable=retryable)


async def answers(message: service_pb2.ModelInferRequest, timeout_s: float) -> bytes:
    return response(message.model_name, message.model_version or "1")


class FakeEndpoint:
    """Answers as `behaviour` says and keeps what it was sent."""

    kind = "fake"
    params = PlacedConfig

    def __init__(self, config: EndpointConfig, surroundings: Surroundings = ALONE) -> None:
        self.name = config.name
        self.behaviour: Behaviour = answers
        self.responses: Responses | None = None
        self.whole: list[float | None] = []
        """Timeouts of streams."""
        self.decoupled = False
        self.seen: list[service_pb2.ModelInferRequest] = []
        self.timeouts: list[float] = []
        self.metadata: list[dict[str, str]] = []
        self.cancelled = 0
        self.permits: list[Permit] = []

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def infer(
        self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float, permit: Permit
    ) -> bytes:
        self.permits.append(permit)
        message = service_pb2.ModelInferRequest.FromString(body)
        self.seen.append(message)
        self.timeouts.append(timeout_s)
        self.metadata.append(dict(metadata))
        try:
            return await self.behaviour(message, timeout_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def stream(
        self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float | None, permit: Permit
    ) -> AsyncGenerator[bytes]:
        self.whole.append(timeout_s)
        if self.responses is None:
            yield as_final(await self.infer(body, metadata, timeout_s or 0.0, permit))
            return
        message = service_pb2.ModelInferRequest.FromString(body)
        self.seen.append(message)
        try:
            async with aclosing(self.responses(message)) as responses:
                async for answer in responses:
                    yield answer
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise

    async def health(self, models: Sequence[tuple[str, str]], timeout_s: float) -> Health:
        return Health(True, "", tuple(ModelHealth(m, v, True) for m, v in models))

    async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
        message = service_pb2.ModelMetadataResponse(name=model, versions=[version or "1"])
        if self.decoupled:
            message.inputs.add(name="x", datatype="FP32", shape=[-1])
        return message.SerializeToString()

    async def model_config(self, model: str, version: str, timeout_s: float) -> bytes:
        message = service_pb2.ModelConfigResponse()
        message.config.model_transaction_policy.decoupled = self.decoupled
        return message.SerializeToString()

    async def statistics(self, model: str, version: str, timeout_s: float) -> bytes:
        return service_pb2.ModelStatisticsResponse().SerializeToString()


def config_of(**changes: object) -> Config:
    """Three places: `site` and `cloud` in eu, `far` in us. Keys in `changes` replace top-level ones."""
    base: dict[str, object] = {
        "version": 1,
        "gateway": {"name": "gw", "location": {"tier": "site", "site": "s1", "region": "eu"}},
        "endpoints": [
            {"name": "site", "kind": "fake", "location": {"tier": "site", "site": "s1"}},
            {"name": "cloud", "kind": "fake", "location": {"tier": "cloud", "region": "eu"}},
            {"name": "far", "kind": "fake", "location": {"tier": "cloud", "region": "us"}},
        ],
        "models": [
            {
                "name": "digits",
                "privacy": "public",
                "idempotent": True,
                "variants": [
                    {"endpoint": "site", "quality": 0.9},
                    {"endpoint": "cloud", "model": "digits-big", "version": "3", "quality": 0.8},
                    {"endpoint": "far", "quality": 0.7},
                ],
            }
        ],
        "privacy": {
            "default": "public",
            "classes": {
                "public": {"allow": [{"tier": ["device", "site", "regional", "cloud"]}]},
                "eu": {"allow": [{"tier": ["device", "site"]}, {"tier": ["cloud"], "region": ["eu"]}]},
                "own": {"allow": [{"tier": ["device"], "same": ["device"]}]},
            },
        },
        "policies": [{"name": "all", "match": {}, "weights": {"quality": 1}, "retry": {"num_retries": 2}}],
        "telemetry": {"sample_ratio": 0.0},
    }
    return config_from({**base, **changes})


@dataclass(slots=True)
class Bench:
    """A director over fakes. `endpoints` by name; `looked` holds names that a check was asked for."""

    config: Config
    endpoints: dict[str, FakeEndpoint]
    state: ReplicaState
    director: Director
    records: DecisionRing
    telemetry: Telemetry
    looked: list[str] = field(default_factory=list[str])


def looking(looked: list[str]) -> Callable[[str], Awaitable[None]]:
    """A look at an endpoint that finds nothing new, noted."""

    async def look(name: str) -> None:
        looked.append(name)

    return look


async def bench(config: Config | None = None, homes: Homes | None = None) -> Bench:
    """Everything up and ready."""
    config = config or config_of()
    endpoints = {e.name: FakeEndpoint(e) for e in config.endpoints}
    state = ReplicaState(config, "rev1")
    for name, endpoint in endpoints.items():
        state.heard(name, await endpoint.health(state.models_of(name), 1.0))
    looked: list[str] = []
    loop = asyncio.get_running_loop()
    dispatcher = Dispatcher(state, endpoints, looked.append, loop.time)
    records = DecisionRing("t")
    telemetry = Telemetry(config.telemetry, config.gateway.name)
    director = Director(config, state, endpoints, dispatcher, records, telemetry, looking(looked), homes)
    return Bench(config, endpoints, state, director, records, telemetry, looked)


class BytesBody:
    """A body that tells whether it was read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.was_read = False

    async def read(self, share: BodyShare | None = None) -> bytes:
        self.was_read = True
        if share is not None:
            share.take(len(self.data))
        return self.data


class EndlessBody:
    """A body that never comes."""

    async def read(self, share: BodyShare | None = None) -> bytes:
        await asyncio.Event().wait()
        raise Refusal(Reason.INTERNAL, "unreachable")


def call_of(
    body: bytes | BytesBody | EndlessBody | None = None,
    *,
    deadline_s: float | None = None,
    metadata: Metadata = (),
    **options: str,
) -> Call:
    """A gRPC ModelInfer call; keyword `privacy="eu"` becomes `tidegate-privacy: eu`."""
    now = asyncio.get_running_loop().time()
    given = [*metadata, *((f"tidegate-{key.replace('_', '-')}", value) for key, value in options.items())]
    held = BytesBody(request()) if body is None else BytesBody(body) if isinstance(body, bytes) else body
    deadline = None if deadline_s is None else now + deadline_s
    return Call(Binding.GRPC, "ModelInfer", given, held, now, deadline=deadline)


CODEC = IdentityInferCodec()
