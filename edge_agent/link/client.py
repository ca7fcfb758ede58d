"""The edge link's calls over grpc.aio, and what their ends mean."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import grpc

from edge_agent.link.dialing import Setback
from edge_agent.state import DeviceState, Enrolment
from edgewire.v1 import edge_pb2, edge_pb2_grpc
from oip.errors import OipError
from oip.reasons import Reason

KEEPALIVE_S = 10.0
"""How often an idle connection is asked whether it still is one; it has half of that to answer."""
CALL_TIMEOUT_S = 10.0
"""For enrolling, and for the hub's welcome."""
FETCH_IDLE_S = 30.0
"""A download that brings nothing for so long has ended."""
METADATA_S = 120.0
"""The longest that one file of the metadata may take, some tens of kilobytes as a rule."""
MAX_HINT_S = 600.0
_RETRY_AFTER = "retry-after-ms"

WINDOW_BYTES = 256 * 1024
"""How much of what the hub sends may be under way unread."""

_OPTIONS = (
    ("grpc.keepalive_time_ms", round(KEEPALIVE_S * 1000)),
    ("grpc.keepalive_timeout_ms", round(KEEPALIVE_S * 500)),
    # A ping that is already under way would otherwise be waited for a minute.
    ("grpc.http2.ping_timeout_ms", round(KEEPALIVE_S * 500)),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    # Every channel has connections of its own: none inherits another's wait after a failure, and a
    # download shares no flow control with the stream.
    ("grpc.use_local_subchannel_pool", 1),
    # A window that grows with the link's delay lets a slow link fill up with one large request, and what
    # comes behind it waits.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
)
EOF: Any = grpc.aio.EOF  # pyright: ignore[reportAttributeAccessIssue]
"""What reading a call gives at its end."""
_REFUSED = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
_SETBACKS = {
    grpc.StatusCode.UNAUTHENTICATED: Setback.UNKNOWN,
    # Two agents with one credential would otherwise throw each other out without a pause.
    grpc.StatusCode.ABORTED: Setback.UNKNOWN,
    grpc.StatusCode.PERMISSION_DENIED: Setback.REVOKED,
}
_WORDS = {
    grpc.StatusCode.UNAUTHENTICATED: "does not know this device's credential, which is kept: ask the gateway's operator",
    grpc.StatusCode.PERMISSION_DENIED: "says that this device is revoked: to let it in, a new token and a new --state folder are needed",
    grpc.StatusCode.ABORTED: "has a newer stream of this device: does another agent use a copy of its state folder?",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "has too many devices at once",
    grpc.StatusCode.INVALID_ARGUMENT: "found this agent to break the edge link's protocol: are their versions far apart?",
    grpc.StatusCode.UNIMPLEMENTED: "is no edge hub: check --hub",
}


class EnrolmentRefused(Exception):
    """The hub was asked and said no: a token that is used up or expired, a name that is taken."""


class CallEnded(Exception):
    """A call came to its end. `setback` sets the pace of the next; `hint_s` is the pause that the hub
    asks for, in seconds; `words` are a clause that follows "the hub"."""

    def __init__(self, setback: Setback, hint_s: float, words: str) -> None:
        super().__init__(words)
        self.setback = setback
        self.hint_s = hint_s
        self.words = words


@asynccontextmanager
async def channel_to(hub: str) -> AsyncIterator[edge_pb2_grpc.EdgeHubStub]:
    """The hub's calls on connections of their own, closed at the end."""
    async with grpc.aio.insecure_channel(hub, options=_OPTIONS) as channel:
        yield edge_pb2_grpc.EdgeHubStub(channel)


async def reach(hub: str) -> None:
    """Connect and hang up. Raises CallEnded for a hub that is not there.

    gRPC's core keeps some 0.4 KB of each channel that never connected (measured with 1.85), which would
    be megabytes for each day that a hub is away.
    """
    host, _, port = hub.rpartition(":")
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else "no answer"
        raise CallEnded(Setback.UNREACHABLE, 0.0, f"cannot be reached ({why})") from None
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def bearer(credential: str) -> tuple[tuple[str, str], ...]:
    """The metadata that says who calls."""
    return (("authorization", f"Bearer {credential}"),)


async def enrol(hub: str, state: DeviceState, token: str, device: str) -> Enrolment:
    """Redeem a token; `device` is the name to ask for, "" for none. Keeps nothing.

    Raises EnrolmentRefused, and CallEnded when the hub could not be asked.
    """
    await reach(hub)
    request = edge_pb2.EnrolRequest(token=token, device=device, credential_sha256=state.credential_sha256)
    async with channel_to(hub) as stub:
        try:
            reply = await stub.Enrol(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() in _REFUSED:
                raise EnrolmentRefused(_sentence(error.details())) from None
            raise call_ended(error) from None
    try:
        return Enrolment(reply.device, reply.site, dict(reply.labels), reply.root)
    except ValueError as error:
        raise CallEnded(Setback.UNKNOWN, 0.0, f"gave an enrolment that cannot be used: {error}") from None


async def fetch(hub: str, credential: str, digest: str, offset: int) -> AsyncGenerator[bytes, None]:
    """An artifact's bytes from `offset`, on a connection of its own. Raises OipError UNAVAILABLE, and
    NOT_FOUND where the hub has none of the digest."""
    async with channel_to(hub) as stub:
        request = edge_pb2.FetchRequest(digest=digest, offset=offset)
        async with aclosing(_pieces(stub.Fetch(request, metadata=bearer(credential)))) as pieces:
            async for piece in pieces:
                yield piece


async def metadata(hub: str, credential: str, name: str) -> AsyncGenerator[bytes, None]:
    """A file of the signed metadata; raises as `fetch`. Whoever reads it bounds it."""
    async with channel_to(hub) as stub:
        request = edge_pb2.MetadataRequest(name=name)
        call = stub.Metadata(request, metadata=bearer(credential), timeout=METADATA_S)
        async with aclosing(_pieces(call)) as pieces:
            async for piece in pieces:
                yield piece


async def _pieces(call: Any) -> AsyncGenerator[bytes, None]:
    """A download's chunks. Raises OipError when it ends before the hub says that it is whole."""
    try:
        while True:
            async with asyncio.timeout(FETCH_IDLE_S):
                chunk = await call.read()
            if chunk is EOF:
                break
            yield chunk.piece
        if await call.code() is not grpc.StatusCode.OK:
            raise _not_whole(await call.code())
    except grpc.aio.AioRpcError as error:
        raise _not_whole(error.code()) from None
    except TimeoutError:
        raise OipError(Reason.UNAVAILABLE, f"the hub sent nothing of it for {FETCH_IDLE_S:g} s") from None
    finally:
        call.cancel()


def call_ended(error: grpc.aio.AioRpcError) -> CallEnded:
    """What a call's status means for whoever made it."""
    code = error.code()
    return ended_with(code, dict(error.trailing_metadata() or ()).get(_RETRY_AFTER))


def ended_with(code: grpc.StatusCode, retry_after_ms: str | bytes | None = None) -> CallEnded:
    """The like from a status and the hub's wish for a pause, where it has one."""
    words = _WORDS.get(code, f"is gone ({code.name})")
    return CallEnded(_SETBACKS.get(code, Setback.UNREACHABLE), _hint(retry_after_ms), words)


def _not_whole(code: grpc.StatusCode) -> OipError:
    reason = Reason.NOT_FOUND if code is grpc.StatusCode.NOT_FOUND else Reason.UNAVAILABLE
    return OipError(reason, f"the hub ended the download with {code.name}")


def _hint(value: str | bytes | None) -> float:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}", value):
        return min(int(value) / 1000, MAX_HINT_S)
    return 0.0


def _sentence(details: str | None) -> str:
    """A hub's words for the log: one line, of bounded length."""
    return " ".join((details or "it gives no reason").split())[:300]
