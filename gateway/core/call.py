"""A call as every lane hands it to the handlers, and the reply it gets back.

A lane (grpc.aio, the ASGI server, later HAProxy's two) turns its wire into a `Call` and a `Reply`
back into its wire. Handlers know neither, so a new lane touches no handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from gateway.core.errors import TidegateError
from oip.held import BodyShare

Metadata = Sequence[tuple[str, str | bytes]]
"""Lower-case keys in arrival order, duplicates kept; values of `-bin` keys are bytes."""


class Binding(StrEnum):
    """Which of OIP's two bindings the caller speaks."""

    GRPC = "grpc"
    HTTP = "http"


class Body(Protocol):
    """The request's body, not read before it is asked for."""

    async def read(self, share: BodyShare | None = None) -> bytes:
        """The whole body, its bytes taken from `share` as they arrive; None counts nothing.
        Raises Refusal (too large, timed out, cut short, no room)."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """One call on the serving surface.

    `method` is the OIP RPC's name ("ModelInfer", "ServerReady", ...). `model` and `version` are
    set where the address names them (HTTP) and None where only the body does (gRPC). `client` is the
    IP address of who holds the connection, "" where that has none.
    `deadline` is an instant of the monotonic clock from the transport itself, None without one;
    `received` is the one of arrival.
    """

    binding: Binding
    method: str
    metadata: Metadata
    body: Body
    received: float
    model: str | None = None
    version: str | None = None
    deadline: float | None = None
    client: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back: leading metadata and a body, or an error with them.

    `metadata` are HTTP response headers or gRPC initial metadata (the `tidegate-*` answer headers).
    """

    metadata: Sequence[tuple[str, str]] = field(default=())
    body: bytes = b""
    error: TidegateError | None = None


Send = Callable[[Sequence[tuple[str, str]], bytes], Awaitable[None]]
"""Takes one part of an answer that comes in parts, with the metadata that a whole reply would have; those
of the first part are sent. Returns when the caller's connection takes more."""
