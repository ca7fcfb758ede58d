"""Rollouts: begin one, watch it, hold it, turn it back."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gateway.admin.plane import ControlPlane, RolloutQuery


def rollout_calls(control: ControlPlane) -> APIRouter:
    router = APIRouter()

    @router.get("/rollouts")
    async def rollouts() -> list[dict[str, Any]]:  # pyright: ignore[reportUnusedFunction]
        """Every rollout that is under way, and the last that have ended; the newest first."""
        return await control.rollouts_view()

    @router.post("/rollouts")
    async def start(query: RolloutQuery) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """Begin to roll a release out."""
        return await control.start_rollout(query)

    @router.get("/rollouts/{id}")
    async def rollout(id: str) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """One rollout: its waves, its devices, what was seen, and what it waits for."""
        return await control.rollout_view(id)

    @router.post("/rollouts/{id}/pause")
    async def pause(id: str) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """Move nobody until it is resumed. What has moved is watched on, and still turns back on a fault."""
        return await control.pause_rollout(id)

    @router.post("/rollouts/{id}/resume")
    async def resume(id: str) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """Go on with a paused rollout."""
        return await control.resume_rollout(id)

    @router.post("/rollouts/{id}/abort")
    async def abort(id: str) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """Move everything back to the old version and withdraw the new one."""
        return await control.abort_rollout(id)

    return router
