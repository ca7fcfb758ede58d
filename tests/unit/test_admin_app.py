"""The operator API over a control that does as it is told."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.admin.app import RouteQuery, operator_app
from oip.errors import OipError
from oip.reasons import Reason


class FakeControl:
    """Echoes a dry run's query; decision `boom` is a fault inside."""

    def config_view(self) -> dict[str, Any]:
        return {"revision": "r1"}

    async def endpoints_view(self) -> list[dict[str, Any]]:
        raise OipError(Reason.UNAVAILABLE, "the data plane is not available (X); try again")

    async def models_view(self) -> list[dict[str, Any]]:
        return []

    async def route(self, query: RouteQuery) -> dict[str, Any]:
        return query.model_dump()

    async def decision(self, decision_id: str) -> dict[str, Any] | None:
        if decision_id == "boom":
            raise ZeroDivisionError("secret inside")
        return None


async def call(
    method: str, path: str, content: str | None = None, *, prefix: str = "/api/v1"
) -> httpx.Response:
    transport = httpx.ASGITransport(operator_app(FakeControl(), "0"), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://control") as client:
        headers = {"content-type": "application/json"}
        return await client.request(method, f"{prefix}{path}", content=content, headers=headers)


@pytest.mark.parametrize(
    "body",
    [
        "{",
        "[]",
        '{"model": ""}',
        '{"model": 1}',
        '{"model": "m", "bogus": 1}',
        '{"model": "m", "payload_bytes": -1}',
        '{"model": "m", "payload_bytes": 1' + "0" * 400 + "}",
        '{"model": "m", "deadline_ms": 0}',
        '{"model": "m", "deadline_ms": 1e999}',
        '{"model": "m", "version": "\\ud800"}',
        '{"model": "a\\u0000b"}',
        '{"model": "' + "m" * 300 + '"}',
    ],
)
async def test_malformed_dry_run_is_one_sentence_and_400(body: str):
    answer = await call("POST", "/route", body)
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]


async def test_fault_inside_is_json_and_tells_nothing_of_it():
    answer = await call("GET", "/decisions/boom")
    assert answer.status_code == 500
    assert list(answer.json()) == ["error"]
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("path", "status"),
    [("/endpoints", 503), ("/decisions/x", 404), ("/nope", 404), ("/devices", 501), ("/models", 200)],
)
async def test_statuses_come_from_the_one_table(path: str, status: int):
    assert (await call("GET", path)).status_code == status


async def test_the_console_is_not_served_and_says_so():
    answer = await call("GET", "/console", prefix="")
    assert (answer.status_code, answer.json()) == (501, {"error": "/console is not served by this version"})


async def test_dry_run_passes_its_query_on():
    answer = await call("POST", "/route", '{"model": "m", "deadline_ms": 5, "privacy": "eu"}')
    assert (answer.json()["deadline_ms"], answer.json()["privacy"], answer.json()["tenant"]) == (
        5,
        "eu",
        None,
    )
