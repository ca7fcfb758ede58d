"""The control deployment: configuration, the registry of devices and the operator API."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx

import gateway
from gateway.admin.app import operator_app
from gateway.admin.plane import MeasureQuery, RouteQuery, TokenQuery
from gateway.core.config import Config
from gateway.pool.loopback import bind_replica_to_loopback
from gateway.registry.registry import Registry
from gateway.serve.crossing import answered, ask
from gateway.serve.devices import Devices
from gateway.serve.hub_view import HubView
from gateway.store.database import migrate, open_database
from oip.errors import error_body
from oip.reasons import STATUS, Reason

DATA_PLANE = "DataPlane"
EDGE_HUB = "EdgeHub"


class Control:
    """Answers operators and the hub, and alone writes the registry. What only a data plane replica or the
    hub knows it asks them for. `inside` is the path of the hub's inner socket, None without a hub."""

    def __init__(
        self, config: Config, revision: str, source: str, state_dir: Path, inside: Path | None
    ) -> None:
        bind_replica_to_loopback()
        self._config = config
        self._revision = revision
        self._source = source
        migrate(state_dir)
        registry = Registry(open_database(state_dir))
        hub = None if inside is None else HubView(f"unix:{inside}", _hub_reread)
        self._devices = Devices(registry, hub)
        self._app = operator_app(self, gateway.__version__)
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self._app, raise_app_exceptions=False), base_url="http://control"
        )

    async def describe(self) -> dict[str, Any]:
        return {"pid": os.getpid()}

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

    async def enrol(self, token: str, device: str, credential_sha256: bytes) -> dict[str, Any]:
        """For the hub: a device redeems its token."""
        return await answered(self._devices.enrol(token, device, credential_sha256))

    async def enrolled(self) -> dict[str, Any]:
        """For the hub: every device, revoked ones too."""
        return await answered(self._devices.enrolled())

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

    async def measure(self, query: MeasureQuery) -> dict[str, Any]:
        return await self._ask("measure", query.endpoint, query.model, query.version)

    async def measurement(self, number: str) -> dict[str, Any]:
        return await self._ask("measurement", number)

    async def devices_view(self) -> list[dict[str, Any]]:
        return await self._devices.view()

    async def device_view(self, name: str) -> dict[str, Any]:
        return await self._devices.view_of(name)

    async def issue_token(self, query: TokenQuery) -> dict[str, Any]:
        return await self._devices.issue(query)

    async def drain_device(self, name: str, drained: bool) -> dict[str, Any]:
        return await self._devices.drain(name, drained)

    async def revoke_device(self, name: str) -> dict[str, Any]:
        return await self._devices.revoke(name)

    async def _ask(self, method: str, *args: Any) -> Any:
        return await ask(DATA_PLANE, "the data plane", method, *args)


async def _hub_reread() -> None:
    await ask(EDGE_HUB, "the edge hub", "reread")
