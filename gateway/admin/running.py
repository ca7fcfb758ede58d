"""What runs: the configuration, endpoints and models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gateway.admin.plane import ControlPlane


def running_calls(control: ControlPlane) -> APIRouter:
    router = APIRouter()

    @router.get("/config")
    async def config() -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """The running configuration revision and the last error in reading one."""
        return control.config_view()

    @router.get("/endpoints")
    async def endpoints() -> list[dict[str, Any]]:  # pyright: ignore[reportUnusedFunction]
        """Every endpoint with its place, state, measurements and what it counted itself."""
        return await control.endpoints_view()

    @router.get("/models")
    async def models() -> list[dict[str, Any]]:  # pyright: ignore[reportUnusedFunction]
        """Every model with its class and its variants' readiness."""
        return await control.models_view()

    return router
