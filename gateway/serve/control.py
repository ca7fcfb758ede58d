"""The control deployment: configuration and the operator API."""

from __future__ import annotations

from typing import Any

import httpx
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

import gateway
from gateway.admin.app import RouteQuery, operator_app
from gateway.core.config import Config
from gateway.serve.loopback import bind_replica_to_loopback
from oip.errors import OipError, error_body
from oip.reasons import STATUS, Reason

APP = "tidegate"
DATA_PLANE = "DataPlane"


class Control:
    """Answers operators. What only a data plane replica knows it asks that replica for."""

    def __init__(self, config: Config, revision: str, source: str) -> None:
        bind_replica_to_loopback()
        self._config = config
        self._revision = revision
        self._source = source
        self._app = operator_app(self, gateway.__version__)
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self._app, raise_app_exceptions=False), base_url="http://control"
        )

    async def operator(
        self, method: str, target: str, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """One call of the operator API, as the data plane passed it on."""
        # The API takes JSON alone, whatever a caller's tool calls it.
        headers = {"content-type": "application/json"}
        try:
            request = self._client.build_request(method, target, content=body, headers=headers)
        except httpx.InvalidURL:
            text = error_body("the request's target is too long or not a URL")
            return STATUS[Reason.MALFORMED].http, [("content-type", "application/json")], text
        response = await self._client.send(request)
        kept = [(k, v) for k, v in response.headers.items() if k in ("content-type", "allow")]
        return response.status_code, kept, response.content

    def config_view(self) -> dict[str, Any]:
        return {
            "revision": self._revision,
            "source": self._source,
            "gateway": self._config.gateway.name,
            "last_error": None,
        }

    async def endpoints_view(self) -> list[dict[str, Any]]:
        return await self._ask("endpoints_view")

    async def models_view(self) -> list[dict[str, Any]]:
        return await self._ask("models_view")

    async def route(self, query: RouteQuery) -> dict[str, Any]:
        return await self._ask("dry_run", query.model_dump())

    async def decision(self, decision_id: str) -> dict[str, Any] | None:
        return await self._ask("decision", decision_id)

    async def _ask(self, method: str, *args: Any) -> Any:
        plane = serve.get_deployment_handle(DATA_PLANE, APP)
        try:
            answer = await getattr(plane, method).remote(*args)
        except (RayError, RayServeException) as error:
            text = f"the data plane is not available ({type(error).__name__}); try again"
            raise OipError(Reason.UNAVAILABLE, text) from error
        if "error" in answer:
            raise OipError(Reason(answer["error"]["reason"]), answer["error"]["message"])
        return answer["value"]
