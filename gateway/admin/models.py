"""Releases of models: upload, push, and which devices can run them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from gateway.admin.plane import ControlPlane, ReleaseQuery, Text

UPLOAD = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def model_calls(control: ControlPlane) -> APIRouter:
    router = APIRouter()

    @router.put("/artifacts", openapi_extra=UPLOAD)
    async def upload(request: Request) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """Store a file, raw, that a release is to name within the hour. Answers its digest and size."""
        return await control.upload_artifact(await request.body())

    # A model's name may hold slashes.
    @router.post("/models/{model:path}/releases")
    async def push(model: str, query: ReleaseQuery) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """Make uploaded files a new release of a model, as a candidate that has its gate before it."""
        return await control.push_release(model, query)

    @router.get("/compat")
    async def compat(  # pyright: ignore[reportUnusedFunction]
        model: Annotated[Text | None, Query()] = None, version: Annotated[Text | None, Query()] = None
    ) -> list[dict[str, Any]]:
        """Devices against the release that each model's groups are to run: what they lack."""
        return await control.compat_view(model, version)

    return router
