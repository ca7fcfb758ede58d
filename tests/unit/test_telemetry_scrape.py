import json
from typing import Any

import pytest

from gateway.telemetry.merged import as_text
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.scrape import metrics_app


async def get(
    path: str, method: str = "GET", accept: bytes | None = None
) -> tuple[int, dict[bytes, bytes], bytes]:
    metrics = Metrics()
    metrics.endpoint_up("gpu", True)
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body of a scrape is not read")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"accept", accept)] if accept else []
    scope = {"type": "http", "method": method, "path": path, "headers": headers}

    async def render(accept: str) -> tuple[bytes, str]:
        return as_text(list(metrics.collect()), accept)

    await metrics_app(render)(scope, receive, send)
    start, body = sent
    return start["status"], dict(start["headers"]), body["body"]


async def test_the_scrape() -> None:
    status, headers, body = await get("/metrics")
    assert status == 200
    assert headers[b"content-type"].startswith(b"text/plain; version=0.0.4")
    assert int(headers[b"content-length"]) == len(body)
    assert b'tidegate_endpoint_up{endpoint="gpu"} 1.0\n' in body


async def test_openmetrics_is_negotiated() -> None:
    _, headers, body = await get("/metrics", accept=b"text/html, application/openmetrics-text; version=1.0.0")
    assert headers[b"content-type"].startswith(b"application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


async def test_head_has_the_length_and_no_body() -> None:
    status, headers, body = await get("/metrics", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers[b"content-length"]) > 100


async def test_anything_else_is_a_json_error() -> None:
    status, headers, body = await get("/")
    assert (status, headers[b"content-type"]) == (404, b"application/json")
    assert list(json.loads(body)) == ["error"]
    status, headers, _ = await get("/metrics", "POST")
    assert (status, headers[b"allow"]) == (405, b"GET, HEAD")


async def test_nothing_but_http_is_served() -> None:
    async def unused(*message: Any) -> Any:
        raise AssertionError

    with pytest.raises(ValueError, match="does not serve websocket"):
        await metrics_app(unused)({"type": "websocket"}, unused, unused)
