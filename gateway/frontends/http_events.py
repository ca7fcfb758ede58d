"""An answer that comes in parts, as server-sent events over ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from gateway.core.call import Reply
from oip.errors import error_body
from oip.wiretext import header_value

EVENTS = ("content-type", "text/event-stream; charset=utf-8")


def event(text: bytes) -> bytes:
    """JSON without line breaks as one event."""
    return b"data: " + text + b"\n\n"


class EventStream:
    """Events of one answer. Until the first one, the answer may still become another one."""

    def __init__(self, send: Callable[[MutableMapping[str, Any]], Awaitable[None]]) -> None:
        self._send = send
        self.begun = False

    async def part(self, metadata: Sequence[tuple[str, str]], body: bytes) -> None:
        """Send events; returns when the connection takes more."""
        if not self.begun:
            self.begun = True
            headers = [(key.encode("ascii"), header_value(value).encode("ascii")) for key, value in metadata]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self, reply: Reply) -> None:
        """After the last event: an error goes as one more."""
        body = b"" if reply.error is None else event(error_body(reply.error.message))
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
