"""What the agent's rooms ask of each other."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from edgewire.allowed import NOTHING
from edgewire.places import Place
from edgewire.signals import Array
from edgewire.v1 import edge_pb2

Fetch = Callable[[str, int], AsyncGenerator[bytes, None]]
"""Digest and offset -> the artifact's bytes from there. Raises OipError when the hub cannot give them."""
Metadata = Callable[[str], AsyncGenerator[bytes, None]]
"""Name -> a file of the signed metadata, in pieces. Raises OipError, NOT_FOUND where the hub has none of
the name."""


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub that has welcomed the device. `here` is the device's own place, `there` the gateway's, None
    where it does not say. `root` is the root of trust for signed updates, b"" before there is one; `pin`
    keeps the first that was found, and raises OSError when it cannot."""

    fetch: Fetch
    metadata: Metadata
    here: Place
    there: Place | None = None
    root: bytes = field(default=b"", repr=False)
    pin: Callable[[bytes], None] = lambda root: None


class Models(Protocol):
    """The models of a device: what serves now, and the way from the desired state to it.

    Implemented by edge_agent.update over edge_agent.runtime; called by link and local. Everything runs
    on one loop.
    """

    async def infer(self, request: bytes, timeout_s: float, asked: str | None = NOTHING) -> bytes:
        """A serialized ModelInferRequest to a serialized ModelInferResponse. Validates by proto/oip, so
        raises OipError in the words that every route uses; UNKNOWN_MODEL, MODEL_UNAVAILABLE (not
        active, or its worker is gone), DEADLINE. A cancelled task frees its caller at once.

        `asked`: where the request's data may go, as text of edgewire.allowed; None where its caller, on the
        device itself, leaves that to the model."""
        ...

    def metadata(self, model: str, version: str) -> bytes:
        """A serialized ModelMetadataResponse. Raises OipError."""
        ...

    def config(self, model: str, version: str) -> bytes:
        """A serialized ModelConfigResponse. Raises OipError."""
        ...

    def ready(self, model: str, version: str) -> bool:
        """Raises OipError for a model or version that the device does not have at all."""
        ...

    def states(self) -> Sequence[edge_pb2.ModelState]:
        """One entry a model, for heartbeats."""
        ...

    def trials(self) -> Sequence[edge_pb2.Trial]:
        """One entry a trial, for heartbeats."""
        ...

    @property
    def inflight(self) -> int: ...

    def desire(self, desired: edge_pb2.Desired, hub: Hub) -> None:
        """Take note of a new desired state and work towards it in the background: verify what is signed of
        it, fetch by digest, try in a process of its own, swap without dropping a request. The last one
        given counts. What was desired and active is kept on disk and serves again after a restart without
        a hub."""
        ...

    async def start(self) -> None:
        """Bring back what served last."""
        ...

    async def close(self) -> None: ...


class Served(NamedTuple):
    """What answers: a version of a model, and its file."""

    model: str
    version: str
    digest: str


Seen = Callable[[Mapping[str, Array], Mapping[str, Array]], None]
"""Given a request's inputs and the model's outputs."""


class Observer(Protocol):
    """Sees what becomes of every inference. Implemented by edge_agent.analytics, called by
    edge_agent.update."""

    def desire(self, desired: edge_pb2.Desired, there: Place | None) -> None:
        """What is to be gathered, by the word of a hub whose gateway is `there`."""
        ...

    async def observe(
        self,
        served: Served,
        request: bytes,
        asked: str | None,
        timeout_s: float,
        infer: Callable[[Seen], Awaitable[bytes]],
    ) -> bytes:
        """What `infer` gives or raises. The others as of `Models.infer`."""
        ...
