"""The way of an operator's call from the HTTP listener to control."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from gateway.core.errors import Refusal
from gateway.frontends.operators import refuse_stranger
from oip.errors import error_body
from oip.reasons import STATUS, Reason

CALL_TIMEOUT_S = 10.0
UPLOAD_TIMEOUT_S = 120.0
"""For a file, which may have to go on to a bucket."""

OperatorCall = Callable[[str, str, bytes], Awaitable[tuple[int, list[tuple[str, str]], bytes]]]
"""method, target, body -> status, headers, body."""


class OperatorPassage:
    """ASGI application that hands `/api/v1` to control. The listener bounds the bodies.

    Without operators in the configuration everyone on loopback is one, and nobody else (frontends.operators).
    """

    def __init__(self, call: OperatorCall) -> None:
        self._call = call

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        try:
            refuse_stranger((scope.get("client") or ("",))[0], headers)
        except Refusal as refusal:
            return await _error(send, refusal.reason, refusal.message)
        body = bytearray()
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                return None
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        query = scope.get("query_string", b"").decode("latin-1")
        target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        try:
            status, reply_headers, content = await self._call(scope["method"], target, bytes(body))
        except TimeoutError:
            return await _error(send, Reason.UNAVAILABLE, "control did not answer in time; try again")
        except Exception as error:  # Ray raises whatever ended the replica; the caller gets one sentence
            return await _error(
                send, Reason.UNAVAILABLE, f"control is not available ({type(error).__name__}); try again"
            )
        await _send(send, status, reply_headers, content)
        return None


async def _error(send: Any, reason: Reason, message: str) -> None:
    await _send(send, STATUS[reason].http, [("content-type", "application/json")], error_body(message))


async def _send(send: Any, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
    raw = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers]
    raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
