"""Updates of models: the drift that is watched, what it set off, and what came of it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gateway.admin.plane import ControlPlane, UpdateQuery


def update_calls(control: ControlPlane) -> APIRouter:
    router = APIRouter()

    @router.get("/updates")
    async def updates() -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """`watches`: the drift of every model that is watched; `updates`: the newest first."""
        return await control.updates_view()

    @router.post("/updates")
    async def start(query: UpdateQuery) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """Begin an update of a model, whether it drifts or not."""
        return await control.start_update(query.model)

    @router.get("/updates/samples/{model:path}")
    async def samples(model: str) -> list[dict[str, Any]]:  # pyright: ignore[reportUnusedFunction]
        """The samples that are kept of a model, the newest first: what a label file names, and no contents."""
        return await control.samples_view(model)

    @router.get("/updates/{id}")
    async def update(id: str) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """One update with its times, its training run's log, the gate's rules and the trials."""
        return await control.update_view(id)

    @router.post("/updates/{id}/cancel")
    async def cancel(id: str) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """End an update; a rollout of its that is under way is taken back first."""
        return await control.cancel_update(id)

    @router.post("/updates/{id}/retry")
    async def retry(id: str) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """Begin an ended update anew, as an update of its own."""
        return await control.retry_update(id)

    return router
