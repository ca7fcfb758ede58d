"""The operator API over a control that does as it is told."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.admin.app import operator_app
from gateway.admin.plane import MeasureQuery, RouteQuery, TokenQuery
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

    async def devices_view(self) -> list[dict[str, Any]]:
        return [{"name": "cam-7a"}]

    async def device_view(self, name: str) -> dict[str, Any]:
        return {"name": name}

    async def issue_token(self, query: TokenQuery) -> dict[str, Any]:
        return query.model_dump()

    async def drain_device(self, name: str, drained: bool) -> dict[str, Any]:
        return {"name": name, "drained": drained}

    async def measure(self, query: MeasureQuery) -> dict[str, Any]:
        return query.model_dump()

    async def measurement(self, number: str) -> dict[str, Any]:
        raise OipError(Reason.NOT_FOUND, f"no measurement {number!r}: unknown, or too old")

    async def revoke_device(self, name: str) -> dict[str, Any]:
        raise OipError(Reason.NOT_FOUND, f"no device {name!r} is enrolled")


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
    [("/endpoints", 503), ("/decisions/x", 404), ("/nope", 404), ("/costs", 501), ("/models", 200)],
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


async def test_token_has_an_hour_and_no_labels_unless_asked_for_more():
    answer = await call("POST", "/devices/tokens", '{"site": "plant-7"}')
    assert answer.json() == {"site": "plant-7", "labels": {}, "device": "", "ttl_s": 3600}


@pytest.mark.parametrize(
    "body",
    [
        "{}",
        '{"site": ""}',
        '{"site": 7}',
        '{"site": "p", "ttl_s": 0}',
        '{"site": "p", "ttl_s": 1e999}',
        '{"site": "p", "ttl_s": "1h"}',
        '{"site": "p", "labels": ["a"]}',
        '{"site": "p", "labels": {"a": 1}}',
        '{"site": "p", "labels": {"a": "\\ud800"}}',
        '{"site": "p", "name": "cam"}',
    ],
)
async def test_malformed_token_query_is_one_sentence_and_400(body: str):
    answer = await call("POST", "/devices/tokens", body)
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]


async def test_odd_member_is_told_the_members_of_the_call_it_was_sent_to():
    token = await call("POST", "/devices/tokens", '{"site": "p", "name": "cam"}')
    assert token.json()["error"].endswith("the members are site, labels, device, ttl_s")
    drain = await call("POST", "/devices/cam/drain", '{"drained": true, "undo": 1}')
    assert drain.json()["error"].endswith("the members are drained")


async def test_drain_wants_a_truth_value_and_goes_to_the_device_in_the_path():
    assert (await call("POST", "/devices/cam-7a/drain", '{"drained": 1}')).status_code == 400
    assert (await call("POST", "/devices/cam-7a/drain")).status_code == 400
    answer = await call("POST", "/devices/cam-7a/drain", '{"drained": false}')
    assert answer.json() == {"name": "cam-7a", "drained": False}


async def test_device_that_nobody_knows_is_404():
    answer = await call("POST", "/devices/nope/revoke")
    assert (answer.status_code, answer.json()) == (404, {"error": "no device 'nope' is enrolled"})
    assert (await call("GET", "/devices/cam-7a/revoke")).status_code == 405


async def test_documentation_names_every_device_call():
    paths = (await call("GET", "/openapi.json")).json()["paths"]
    assert {p for p in paths if p.startswith("/api/v1/devices")} == {
        "/api/v1/devices",
        "/api/v1/devices/tokens",
        "/api/v1/devices/{name}",
        "/api/v1/devices/{name}/drain",
        "/api/v1/devices/{name}/revoke",
    }


async def test_measurement_is_of_one_variant_by_its_endpoints_names():
    answer = await call("POST", "/measurements", '{"endpoint": "cameras", "model": "digits"}')
    assert answer.json() == {"endpoint": "cameras", "model": "digits", "version": ""}
    assert (await call("POST", "/measurements", '{"model": "digits"}')).status_code == 400
    assert (await call("GET", "/measurements/x")).status_code == 404


async def test_the_description_tells_how_errors_look():
    described = (await call("GET", "/openapi.json")).json()
    for path in described["paths"].values():
        for operation in path.values():
            assert set(operation["responses"]) == {"200", "default"}
            schema = operation["responses"]["default"]["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/Fault"}
    assert described["components"]["schemas"]["Fault"]["required"] == ["error"]
