"""Control's part in devices: the registry, told together with what the hub sees of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from gateway.admin.plane import TokenQuery
from gateway.registry.devices import Enrolled
from gateway.registry.registry import Registry
from gateway.serve.hub_view import HubView, Live
from oip.errors import OipError
from oip.names import shown
from oip.reasons import Reason

logger = logging.getLogger(__name__)

ABSENT: Mapping[str, Any] = {
    "connected": False,
    "silent_s": None,
    "inflight": 0,
    "telemetry": {},
    "facts": {},
    "models": [],
}
"""Of a device that the hub has not seen since it started."""


class Devices:
    """`hub` is None without an edge endpoint: nobody can connect then."""

    def __init__(self, registry: Registry, hub: HubView | None) -> None:
        self._registry = registry
        self._hub = hub

    async def enrol(self, token: str, device: str, credential_sha256: bytes) -> Enrolled:
        return await self._registry.enrol(token, device, credential_sha256)

    async def enrolled(self) -> tuple[Enrolled, ...]:
        return await self._registry.devices()

    async def view(self) -> list[dict[str, Any]]:
        """One entry a device. Raises OipError, also where the hub cannot be asked: a guess at who is
        connected would be worse."""
        enrolled, live = await asyncio.gather(self._registry.devices(), self._seen())
        return [_entry(device, live) for device in enrolled]

    async def view_of(self, name: str) -> dict[str, Any]:
        for entry in await self.view():
            if entry["name"] == name:
                return entry
        raise OipError(Reason.NOT_FOUND, f"no device {shown(name)} is enrolled")

    async def issue(self, query: TokenQuery) -> dict[str, Any]:
        if self._hub is None:
            raise OipError(
                Reason.NOT_FOUND,
                "no device can connect to this gateway: its configuration has no endpoint of kind edge",
            )
        issued = await self._registry.issue(query.site, query.labels, query.device, query.ttl_s)
        return {
            "token": issued.text,
            "site": query.site,
            "labels": query.labels,
            "device": query.device or None,
            "expires_at": issued.expires_at,
        }

    async def drain(self, name: str, drained: bool) -> dict[str, Any]:
        return await self._told(await self._registry.drain(name, drained))

    async def revoke(self, name: str) -> dict[str, Any]:
        return await self._told(await self._registry.revoke(name))

    async def _told(self, device: Enrolled) -> dict[str, Any]:
        """Let the hub know before it is acknowledged. One that is away reads the registry when it is back."""
        if self._hub is not None:
            try:
                await self._hub.reread()
            except OipError as error:
                logger.warning("the hub was not told of a change to a device: %s", error.message)
        return _standing(device)

    async def _seen(self) -> Live:
        return {} if self._hub is None else await self._hub.live()


def _standing(device: Enrolled) -> dict[str, Any]:
    return {
        "name": device.name,
        "site": device.site,
        "labels": dict(device.labels),
        "drained": device.drained,
        "revoked": device.revoked,
    }


def _entry(device: Enrolled, live: Live) -> dict[str, Any]:
    return {**_standing(device), **live.get(device.name, ABSENT)}
