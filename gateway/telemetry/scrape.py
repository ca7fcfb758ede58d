"""The scrape's address as an ASGI application: GET /metrics, and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from oip.errors import error_body

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Render = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Takes the Accept header; gives body and content type."""
App = Callable[[Message, Receive, Send], Awaitable[None]]


def metrics_app(render: Render) -> App:
    """An ASGI application for what `render` gives."""

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError(f"the scrape address does not serve {scope['type']}")
        await _http(render, scope, send)

    return app


async def _http(render: Render, scope: Message, send: Send) -> None:
    method = scope["method"]
    headers: list[tuple[bytes, bytes]] = []
    if scope["path"] != "/metrics":
        status, body, content_type = 404, error_body("Not found: metrics are at /metrics"), "application/json"
    elif method not in ("GET", "HEAD"):
        status, body, content_type = 405, error_body("Use GET for /metrics"), "application/json"
        headers.append((b"allow", b"GET, HEAD"))
    else:
        accept = ",".join(v.decode("latin-1") for k, v in scope["headers"] if k == b"accept")
        status = 200
        body, content_type = await render(accept)
    headers.append((b"content-type", content_type.encode()))
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})
