"""The way of an operator's call from the HTTP listener to control."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from oip.errors import error_body
from oip.reasons import STATUS, Reason

CALL_TIMEOUT_S = 10.0
UPLOAD_TIMEOUT_S = 120.0
"""For a file, which may have to go on to a bucket."""

OperatorCall = Callable[[str, str, bytes], Awaitable[tuple[int, list[tuple[str, str]], bytes]]]
"""method, target, body -> status, headers, body."""


class OperatorPassage:
    """ASGI application that hands `/api/v1` to control. The listener bounds the bodies.

    Without operators in the configuration everyone on loopback is one, and nobody else: neither
    whom a proxy on this machine speaks for, nor a page that a browser on this machine was led to
    (its Origin is elsewhere, or a name of its own leads here and is in Host).
    """

    def __init__(self, call: OperatorCall) -> None:
        self._call = call

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        stranger = _stranger(scope)
        if stranger:
            reason = "operator calls are served to loopback only while no operators are configured"
            return await _error(send, Reason.FORBIDDEN, f"{reason}, and {stranger}")
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


def _stranger(scope: Any) -> str:
    """What about a call says that it is not from an operator on this machine; "" when nothing does."""
    client = scope.get("client")
    if client is None or not _is_loopback(client[0]):
        return "this one comes from elsewhere"
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if name in _PROXY_HEADERS or name.startswith("x-forwarded-"):
            return f"this one was forwarded ({name})"
        if name == "host" and not _is_loopback(_host_in(f"//{value}")):
            return "its Host is not loopback: use 127.0.0.1 or localhost"
        if name == "origin" and not _is_loopback(_host_in(value)):
            return "its Origin is not loopback"
    return ""


_PROXY_HEADERS = frozenset({"forwarded", "via", "x-real-ip"})


def _host_in(url: str) -> str:
    try:
        parts = urlsplit(url)
        return "" if "@" in parts.netloc else parts.hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _error(send: Any, reason: Reason, message: str) -> None:
    await _send(send, STATUS[reason].http, [("content-type", "application/json")], error_body(message))


async def _send(send: Any, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
    raw = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers]
    raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
