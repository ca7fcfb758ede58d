"""What the pipeline needs from the outside, as protocols that backends and fakes implement."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, Self, runtime_checkable

from edgewire.allowed import AllowedSet
from gateway.core.call import Call, Metadata, Reply, Send
from gateway.core.config import Config, EndpointConfig
from gateway.core.fleet import Group
from gateway.core.homes import Home
from gateway.core.place import Place
from gateway.core.release import Blob, Release
from gateway.core.request import Options
from oip.repository import IndexEntry
from oip.signature import Signature


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """Readiness of one model on an endpoint; `version` "" asks for whichever the endpoint chooses.

    `versions` are those that it answers with now: two while it is replaced; () where only the endpoint
    knows."""

    model: str
    version: str
    ready: bool
    versions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Health:
    """One look at an endpoint. `detail` says why it is not up, in a few words of ours. `replicas` counts
    those it has by their state; None where it has none to count."""

    up: bool
    detail: str = ""
    models: tuple[ModelHealth, ...] = ()
    replicas: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class RemoteSpan:
    """What a place beyond this process's tracer did for an attempt. Instants are monotonic here: a
    device's clock is its own, so it tells durations and we place them."""

    name: str
    began: float
    ended: float
    attributes: Mapping[str, str | int | float] = field(default_factory=dict[str, str | int | float])


def _untimed(queued_s: float, computed_s: float) -> None:
    """For an attempt that nobody counts."""


def _untold(span: RemoteSpan) -> None:
    """For an attempt that nobody traces."""


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave for one attempt, from the privacy wall, and what must travel with the data.

    `allowed` is the set of places that the request may go to: whoever passes data on sends it along,
    and the receiver holds to it. `hops` are the gateways the request has passed, this one last.
    `place` is where this attempt goes; `device` is the one chosen of a group, "" elsewhere.
    `idempotent` is the caller's word, None without one. `tell` takes what the place says of its work,
    `times` how many seconds an answered request waited there and was computed.
    """

    allowed: AllowedSet
    place: Place
    hops: tuple[str, ...] = ()
    device: str = ""
    idempotent: bool | None = None
    max_cost: float | None = None
    tell: Callable[[RemoteSpan], None] = _untold
    times: Callable[[float, float], None] = _untimed


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an endpoint may know of the gateway it is part of.

    `hub` is the gRPC target of the edge hub's inner listener, "" where there is none. `fleet` takes the
    devices of the named group whenever something about them changed; it is called on the loop of
    `start`. `state_dir` is the gateway's own folder, `shared` one that its data plane replicas have for
    themselves; None: there is one replica.
    """

    config: Config
    state_dir: Path
    fleet: Callable[[str, Group], None]
    hub: str = ""
    shared: Path | None = None


class Endpoint(Protocol):
    """A place, or a group of places, that can run models. One file per kind under gateway/backends,
    found by its `kind`.

    Construction does no I/O and may happen outside a loop; `start` is awaited on the loop that
    makes the calls. Every call ends within its `timeout_s`, whatever happens to the channel.
    """

    kind: ClassVar[str]
    params: ClassVar[type[EndpointConfig]]
    """The kind's own configuration model."""

    def __init__(self, config: EndpointConfig, surroundings: Surroundings) -> None: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def infer(
        self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float, permit: Permit
    ) -> bytes:
        """Send a serialized ModelInferRequest, return the serialized ModelInferResponse, both as
        they are. Raises AttemptError. A cancelled task cancels the call at the endpoint."""
        ...

    def stream(
        self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float | None, permit: Permit
    ) -> AsyncGenerator[bytes]:
        """Send a serialized ModelInferRequest and return the serialized ModelInferResponses as they come,
        any number of them; the parameter `triton_final_response` says which is the last, as Triton sets it.
        `timeout_s` is for all of them; None: the caller ends it. Raises AttemptError. Closing the
        generator cancels the call at the endpoint."""
        ...

    async def health(self, models: Sequence[tuple[str, str]], timeout_s: float) -> Health:
        """Ask whether the endpoint and the given (model, version) pairs are ready. Never raises
        for a place that is gone: that is the answer."""
        ...

    async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
        """A serialized ModelMetadataResponse. Raises AttemptError."""
        ...

    async def model_config(self, model: str, version: str, timeout_s: float) -> bytes:
        """A serialized ModelConfigResponse. Raises AttemptError; NOT_SERVED from a place that has no
        configurations."""
        ...

    async def statistics(self, model: str, version: str, timeout_s: float) -> bytes:
        """A serialized ModelStatisticsResponse. Raises AttemptError."""
        ...


@runtime_checkable
class Relay(Protocol):
    """An endpoint that passes questions on to places which this gateway does not know."""

    def under(self, permit: Permit) -> Self:
        """The same endpoint for questions alone, with what must travel with them: where they may go,
        and which gateways they have passed."""
        ...


@runtime_checkable
class Indexed(Protocol):
    """An endpoint that can be asked which models it has."""

    async def ready_models(self, timeout_s: float) -> frozenset[str]:
        """Names of the models that it answers now, as its server gives them. Raises AttemptError;
        NOT_SERVED for a server that keeps no index."""
        ...


class Homes(Protocol):
    """The homes of sequences, by the sequences' names (`gateway.pipeline.sequences`). Calls raise OipError
    UNAVAILABLE where they cannot be told: then nothing is to be sent."""

    async def begin(self, sequence: str, home: Home) -> None:
        """Its first step goes to `home`, and every further one from now on, whichever replica takes it. May be
        said again."""
        ...

    async def find(self, sequence: str) -> Home | None:
        """Where its next step goes; None for one that was not begun, has ended or was forgotten."""
        ...

    def end(self, sequence: str, beginning: str) -> None:
        """Nothing goes on from that beginning of it. Returns at once, and never fails."""
        ...


class Standing(Protocol):
    """The releases that stand, as control tells them, and what is in their files."""

    async def releases(self) -> Mapping[str, Release]:
        """What endpoints are to serve, by the model's name at the gateway. Raises OipError while nobody can tell."""
        ...

    async def content(self, blob: Blob) -> bytes:
        """Raises OipError for a blob that cannot be had, or is not what its digest says."""
        ...


@runtime_checkable
class Follower(Protocol):
    """An endpoint that can be moved to another release of a model, where its configuration says so
    (`EndpointConfig.follows`)."""

    async def follow(self, model: str, release: Release, content: bytes, golden: bytes | None) -> str:
        """Serve a release's file as what the endpoint calls `model`, and return once nothing else answers
        there: "", or in a clause why not, and then what served before serves on. No request fails for it.
        Golden vectors must come out right. Doing it again changes nothing. Raises nothing but cancellation,
        after which the same call may be made again."""
        ...


@runtime_checkable
class Loader(Protocol):
    """An endpoint that loads and unloads models when it is told to."""

    async def repository(self, timeout_s: float) -> frozenset[str]:
        """Names of the models that it can be told to load, those included that it has loaded. Raises
        AttemptError."""
        ...

    async def load(self, model: str, config: str, timeout_s: float) -> None:
        """Load a model, or load it anew. `config` is a model configuration as JSON in place of the one in the
        endpoint's repository, "" for that one. Raises AttemptError."""
        ...

    async def unload(self, model: str, dependents: bool, timeout_s: float) -> None:
        """Unload a model, with what an ensemble is made of if `dependents`. Raises AttemptError."""
        ...


class InferCodec(Protocol):
    """How one binding writes an inference; gRPC's is the identity.

    What would hold up the loop is done elsewhere and awaited; cancelling ends it.
    """

    async def decode(self, body: bytes, takes: Callable[[], Awaitable[Signature]]) -> bytes:
        """The caller's body as a serialized ModelInferRequest; `takes` asks what the model takes, for a body
        that leaves this out. Raises OipError."""
        ...

    async def encode(self, response: bytes) -> tuple[bytes, Sequence[tuple[str, str]]]:
        """A serialized ModelInferResponse as the caller's body and headers. Raises OipError."""
        ...


class GenerateCodec(Protocol):
    """How a request is written that can be read only by its model's signature; otherwise as `InferCodec`."""

    async def decode(self, body: bytes, signature: Signature) -> bytes:
        """The caller's body as a serialized ModelInferRequest. Raises OipError."""
        ...

    async def encode(self, response: bytes) -> tuple[bytes, Sequence[tuple[str, str]]]:
        """One serialized ModelInferResponse as a part of the answer, and its headers. Raises OipError."""
        ...


class Service(Protocol):
    """What the serving surface can do; frontends call it, the pipeline implements it.

    Failures come back as the reply's `error`, never as exceptions, except cancellation.
    """

    async def infer(self, call: Call, codec: InferCodec) -> Reply:
        """One inference, top to bottom. `call.body` is read only after the call's headers have
        passed options and privacy. The reply's metadata are the `tidegate-*` answer headers plus
        the codec's."""
        ...

    async def stream(self, call: Call, codec: InferCodec, send: Send) -> Reply:
        """One inference whose responses go to `send` one by one, as the endpoint gives them; the reply says
        how it ended. The first one's metadata are as `infer`'s. Raises what `send` raises, unless it is an
        OipError."""
        ...

    async def generate(self, call: Call, codec: GenerateCodec, send: Send) -> Reply:
        """As `stream`, for a body that only its model's signature makes an inference of. The call names
        the model."""
        ...

    def live(self) -> bool: ...

    def ready(self) -> bool:
        """Whether new work is taken and some model can be answered."""
        ...

    def options(self, metadata: Metadata) -> Options:
        """The options of a question, and who asks it. Raises Refusal: a wrong option or credential."""
        ...

    def admit(self, options: Options) -> None:
        """Raises Refusal when options alone forbid a question about a model, which nobody has read."""
        ...

    async def model_ready(self, model: str, version: str, options: Options) -> bool:
        """Raises Refusal for an unknown model or version, and for a version that is no number."""
        ...

    async def model_metadata(self, model: str, version: str, options: Options) -> bytes:
        """A serialized ModelMetadataResponse under the gateway's own model name. Raises TidegateError."""
        ...

    async def model_config(self, model: str, version: str, options: Options) -> bytes:
        """A serialized ModelConfigResponse under the gateway's own model name. Raises TidegateError."""
        ...

    async def statistics(self, model: str, version: str, options: Options) -> bytes:
        """A serialized ModelStatisticsResponse of what was served here under the model's name, an entry for
        each version; of all models for "". Raises TidegateError."""
        ...

    async def repository_index(self, options: Options, *, ready: bool) -> Sequence[IndexEntry]:
        """Every model's versions; with `ready` those alone that can answer now."""
        ...

    async def trace_settings(
        self, changes: Mapping[str, Sequence[str] | None]
    ) -> Mapping[str, Sequence[str]]:
        """The gateway's trace settings after `changes`, all of them. Raises OipError, and nothing changes
        then."""
        ...

    async def log_settings(self, changes: Mapping[str, object]) -> Mapping[str, bool | int | str]:
        """The like for its log."""
        ...

    async def load_model(self, model: str, config: str, options: Options) -> None:
        """On every Triton server that has the model and is in an allowed place, with `config` (JSON, "" for none) in place of theirs.
        Raises Refusal, also when some of them did."""
        ...

    async def unload_model(self, model: str, dependents: bool, options: Options) -> None:
        """The like for an unload."""
        ...
