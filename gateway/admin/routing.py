"""Decisions: what would be decided, and what was."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gateway.admin.plane import ControlPlane, RouteQuery
from oip.errors import OipError
from oip.reasons import Reason


def routing_calls(control: ControlPlane) -> APIRouter:
    router = APIRouter()

    @router.post("/route")
    async def route(query: RouteQuery) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """Dry run: the decision and why not the others."""
        return await control.route(query)

    @router.get("/decisions/{decision_id}")
    async def decision(decision_id: str) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """The record of one answered or refused request, while its replica still holds it."""
        record = await control.decision(decision_id)
        if record is None:
            raise OipError(
                Reason.NOT_FOUND, f"no record of decision {decision_id[:64]!r}: unknown, or too old"
            )
        return record

    return router
