"""Whom the operator API listens to while no operators are configured."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.serve.passage import OperatorPassage

LOCAL = ("127.0.0.1", 5)


async def ask(client: tuple[str, int] | None, headers: list[tuple[str, str]]) -> tuple[int, str]:
    """Status and error of a call; 200 means that control was asked."""

    async def control(method: str, target: str, body: bytes) -> Any:
        return 200, [("content-type", "application/json")], b"{}"

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "method": "GET",
        "raw_path": b"/api/v1/config",
        "query_string": b"",
        "client": client,
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
    }
    await OperatorPassage(control)(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"]).get("error", "")


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("host", "127.0.0.1")],
        [("host", "127.0.0.1:8080")],
        [("host", "127.1.2.3:8080")],
        [("host", "localhost:8080")],
        [("host", "LOCALHOST")],
        [("host", "[::1]:8080")],
        [("host", "127.0.0.1:8080"), ("origin", "http://127.0.0.1:8080")],
    ],
)
async def test_calls_from_this_machine_are_an_operators(headers: list[tuple[str, str]]):
    assert await ask(LOCAL, headers) == (200, "")


@pytest.mark.parametrize(
    "client", [None, ("10.0.0.1", 5), ("::ffff:10.0.0.1", 5), ("", 5), ("fe80::1%lo", 5)]
)
async def test_calls_from_elsewhere_are_refused(client: tuple[str, int] | None):
    status, error = await ask(client, [("host", "127.0.0.1"), ("x-forwarded-for", "127.0.0.1")])
    assert (status, "from elsewhere" in error) == (403, True)


@pytest.mark.parametrize(
    "headers",
    [
        [("host", "rebound.example:8080")],
        [("host", "127.0.0.1.rebound.example")],
        [("host", "localhost.example")],
        [("host", "rebound.example@127.0.0.1")],
        [("host", "127.0.0.1@rebound.example")],
        [("host", "[::1")],
        [("host", "")],
        [("host", "2130706433")],
        [("host", "127.0.0.1"), ("origin", "http://elsewhere.example")],
        [("host", "127.0.0.1"), ("origin", "null")],
        [("host", "127.0.0.1"), ("x-forwarded-for", "127.0.0.1")],
        [("host", "127.0.0.1"), ("x-forwarded-host", "a")],
        [("host", "127.0.0.1"), ("x-real-ip", "127.0.0.1")],
        [("host", "127.0.0.1"), ("forwarded", "for=127.0.0.1")],
        [("host", "127.0.0.1"), ("via", "1.1 proxy")],
    ],
)
async def test_calls_on_behalf_of_others_are_refused(headers: list[tuple[str, str]]):
    status, error = await ask(LOCAL, headers)
    assert status == 403
    assert "rebound" not in error
