"""What the pipeline needs from the outside, as protocols that backends and fakes implement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from gateway.core.config import EndpointConfig


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """Readiness of one model on an endpoint; `version` "" asks for whichever the endpoint chooses."""

    model: str
    version: str
    ready: bool


@dataclass(frozen=True, slots=True)
class Health:
    """One look at an endpoint. `detail` says why it is not up, in a few words of ours."""

    up: bool
    detail: str = ""
    models: tuple[ModelHealth, ...] = ()


class Endpoint(Protocol):
    """A place that can run models. One file per kind under gateway/backends, found by its `kind`.

    Construction does no I/O and may happen outside a loop; `start` is awaited on the loop that
    makes the calls. Every call ends within its `timeout_s`, whatever happens to the channel.
    """

    kind: ClassVar[str]
    params: ClassVar[type[EndpointConfig]]
    """The kind's own configuration model."""

    def __init__(self, config: EndpointConfig) -> None: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def infer(self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float) -> bytes:
        """Send a serialized ModelInferRequest, return the serialized ModelInferResponse, both as
        they are. Raises AttemptError. A cancelled task cancels the call at the endpoint."""
        ...

    async def health(self, models: Sequence[tuple[str, str]], timeout_s: float) -> Health:
        """Ask whether the endpoint and the given (model, version) pairs are ready. Never raises
        for a place that is gone: that is the answer."""
        ...

    async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
        """A serialized ModelMetadataResponse. Raises AttemptError."""
        ...

    async def model_config(self, model: str, version: str, timeout_s: float) -> bytes:
        """A serialized ModelConfigResponse. Raises AttemptError."""
        ...

    async def statistics(self, model: str, version: str, timeout_s: float) -> bytes:
        """A serialized ModelStatisticsResponse. Raises AttemptError."""
        ...
