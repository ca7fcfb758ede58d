"""Edge devices: tokens that enrol them, how each is doing, drain and revocation."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gateway.admin.plane import ControlPlane, DrainQuery, TokenQuery


def device_calls(control: ControlPlane) -> APIRouter:
    router = APIRouter()

    @router.get("/devices")
    async def devices() -> list[dict[str, Any]]:  # pyright: ignore[reportUnusedFunction]
        """Every enrolled device: who it is, whether it is there, its telemetry and what its models do."""
        return await control.devices_view()

    @router.post("/devices/tokens")
    async def token(query: TokenQuery) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """A token that enrols one device once. It is shown here and never again."""
        return await control.issue_token(query)

    @router.get("/devices/{name}")
    async def device(name: str) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """One enrolled device."""
        return await control.device_view(name)

    @router.post("/devices/{name}/drain")
    async def drain(name: str, query: DrainQuery) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """Keep new requests from a device, or let it have them again."""
        return await control.drain_device(name, query.drained)

    @router.post("/devices/{name}/revoke")
    async def revoke(name: str) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """Shut a device out for good. Its name can be enrolled anew, with a new token and credential."""
        return await control.revoke_device(name)

    return router
