"""Measuring variants that only the gateway itself reaches."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gateway.admin.plane import ControlPlane, MeasureQuery


def measuring_calls(control: ControlPlane) -> APIRouter:
    router = APIRouter()

    @router.post("/measurements")
    async def measure(query: MeasureQuery) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """Begin to measure a variant with made-up data. One is measured at a time."""
        return await control.measure(query)

    @router.get("/measurements/{number}")
    async def measurement(number: str) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """How far a measurement is (`share`, 0 to 1), and its figures or error once it has ended."""
        return await control.measurement(number)

    return router
