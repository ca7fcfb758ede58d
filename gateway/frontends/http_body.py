"""A request's body over ASGI: taken from the connection only when it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.core.call import Metadata
from gateway.core.errors import Refusal
from oip.content_coding import Inflater, body_coding
from oip.held import BodyShare
from oip.reasons import Reason

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class HttpBody:
    """The body of one request, at most `max_bytes` of it, with its content coding undone and before that.

    `idle_s` bounds each wait for more of it, not the whole.
    """

    def __init__(self, receive: Receive, headers: Metadata, *, max_bytes: int, idle_s: float) -> None:
        self._receive = receive
        self._headers = headers
        self._max_bytes = max_bytes
        self._idle_s = idle_s
        self._skipped = False
        self._taken = asyncio.Event()

    async def read(self, share: BodyShare | None = None) -> bytes:
        """The whole body, inflated as it arrives. Raises OipError: UNSUPPORTED_CODING, TOO_LARGE and
        OVERLOADED before anything is read where the headers say so, TOO_LARGE, OVERLOADED, MALFORMED for
        what is not in its coding, BODY_TIMEOUT, and CANCELLED when the caller left.

        A declared length must fit in `share`'s budget but is not held there before it has arrived:
        otherwise callers that send nothing could fill it.
        """
        if self._skipped:
            return b""
        declared = self._check_headers()
        coding = body_coding(self._headers)
        inflater = None if coding is None else Inflater(coding, self._max_bytes)
        if share is not None:
            share.check(declared)
        chunks: list[bytes] = []
        size = 0
        more = True

        def take(piece: bytes) -> None:
            if share is not None:
                share.take(len(piece))
            chunks.append(piece)

        while more:
            message = await next_part(self._receive, self._idle_s)
            if message["type"] == "http.disconnect":
                raise Refusal(Reason.CANCELLED, "the connection closed before the body was complete")
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > self._max_bytes:
                self._too_large()
            more = message.get("more_body", False)
            if inflater is None:
                take(chunk)
            else:
                await inflater.inflate(chunk, asyncio.to_thread, take)
        if inflater is not None:
            inflater.finish()
        self._taken.set()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def skip(self, *, arrived: bool) -> None:
        """The body says nothing; `arrived`: all of it is here. `read` gives nothing from now on."""
        self._skipped = True
        if arrived:
            self._taken.set()

    async def caller_left(self) -> None:
        """Returns when the connection ends after the body was read or skipped."""
        await self._taken.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def _check_headers(self) -> int:
        """Refuses what the headers alone rule out; the length they declare, 0 without one."""
        declared = 0
        for key, value in self._headers:
            if key == "content-length":
                declared = int(value)
        if declared > self._max_bytes:
            self._too_large()
        return declared

    def _too_large(self) -> None:
        raise Refusal(Reason.TOO_LARGE, f"the body is larger than the limit of {self._max_bytes} bytes")


async def next_part(receive: Receive, idle_s: float) -> MutableMapping[str, Any]:
    """The next message about a body that is not complete. Raises Refusal(BODY_TIMEOUT)."""
    try:
        async with asyncio.timeout(idle_s):
            return await receive()
    except TimeoutError:
        raise Refusal(Reason.BODY_TIMEOUT, f"no more of the body arrived for {idle_s:g} s") from None
