"""Streams of endpoints that answer every request once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from gateway.core.ports import Endpoint, Permit
from oip.streamed import as_final

TIMEOUT_S = 60.0
"""How long an answer may take whose caller sets no end: a place that is asked once must be given one."""


async def answered_once(
    endpoint: Endpoint,
    body: bytes,
    metadata: Sequence[tuple[str, str]],
    timeout_s: float | None,
    permit: Permit,
) -> AsyncGenerator[bytes]:
    """`Endpoint.stream` by `Endpoint.infer`: one response, which says that it is the last, as Triton's does
    of a model that is not decoupled."""
    given_s = TIMEOUT_S if timeout_s is None else timeout_s
    yield as_final(await endpoint.infer(body, metadata, given_s, permit))
