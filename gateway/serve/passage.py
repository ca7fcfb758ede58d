"""The way of an operator's call from the HTTP listener to control."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable
from typing import Any

from oip.reasons import STATUS, Reason

MAX_BODY_BYTES = 1 << 20
CALL_TIMEOUT_S = 10.0

OperatorCall = Callable[[str, str, str, bytes], Awaitable[tuple[int, list[tuple[str, str]], bytes]]]
"""method, target, content type, body -> status, headers, body."""


class OperatorPassage:
    """ASGI application that hands `/api/v1` to control.

    Without operators in the configuration everyone on loopback is one, and nobody else.
    """

    def __init__(self, call: OperatorCall) -> None:
        self._call = call

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if not _is_loopback(scope.get("client")):
            reason = "operator calls are served to loopback only while no operators are configured"
            return await _error(send, Reason.FORBIDDEN, reason)
        body = bytearray()
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                return None
            body += event.get("body", b"")
            if len(body) > MAX_BODY_BYTES:
                return await _error(
                    send, Reason.TOO_LARGE, f"an operator call takes at most {MAX_BODY_BYTES} bytes"
                )
            if not event.get("more_body"):
                break
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        query = scope.get("query_string", b"").decode("latin-1")
        target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        try:
            status, reply_headers, content = await self._call(
                scope["method"], target, headers.get("content-type", "application/json"), bytes(body)
            )
        except TimeoutError:
            return await _error(send, Reason.UNAVAILABLE, "control did not answer in time; try again")
        except Exception as error:  # Ray raises whatever ended the replica; the caller gets one sentence
            return await _error(
                send, Reason.UNAVAILABLE, f"control is not available ({type(error).__name__}); try again"
            )
        await _send(send, status, reply_headers, content)
        return None


def _is_loopback(client: Any) -> bool:
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except (TypeError, ValueError):
        return False


async def _error(send: Any, reason: Reason, message: str) -> None:
    body = json.dumps({"error": message}).encode()
    await _send(send, STATUS[reason].http, [("content-type", "application/json")], body)


async def _send(send: Any, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
    raw = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers]
    raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
