"""The operator API as a FastAPI application over what control knows.

Every error body is `{"error": "<one sentence>"}`, FastAPI's own included.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gateway.admin.devices import device_calls
from gateway.admin.measuring import measuring_calls
from gateway.admin.models import model_calls
from gateway.admin.plane import PREFIX, ControlPlane, Fault
from gateway.admin.rollouts import rollout_calls
from gateway.admin.routing import routing_calls
from gateway.admin.running import running_calls
from gateway.admin.updates import update_calls
from oip.errors import OipError
from oip.reasons import Reason

NOT_SERVED = (*(f"{PREFIX}/{name}" for name in ("costs",)), "/console")
"""Paths of later versions."""


def operator_app(control: ControlPlane, version: str) -> FastAPI:
    app = FastAPI(
        title="Tidegate operator API",
        version=version,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={"default": {"model": Fault, "description": "What failed"}},
    )
    for calls in (
        running_calls,
        model_calls,
        routing_calls,
        device_calls,
        measuring_calls,
        rollout_calls,
        update_calls,
    ):
        app.include_router(calls(control), prefix=PREFIX)

    async def not_served(request: Request) -> None:
        raise OipError(Reason.NOT_SERVED, f"{request.url.path} is not served by this version")

    for path in NOT_SERVED:
        app.add_api_route(path, not_served, methods=["GET", "POST"], include_in_schema=False)

    @app.exception_handler(OipError)
    async def known(_: Request, error: OipError) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        return JSONResponse({"error": error.message}, error.status.http)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        if first["type"] == "extra_forbidden":
            members = ", ".join(_members(request))
            return JSONResponse(
                {"error": f"{where} is not a member of the query: the members are {members}"}, 400
            )
        return JSONResponse({"error": f"{where or 'body'}: {first['msg']}"}, 400)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        text = {
            404: "no such operator call; see /api/v1/openapi.json",
            405: "this call needs another HTTP method",
        }
        return JSONResponse(
            {"error": text.get(error.status_code, str(error.detail))},
            error.status_code,
            headers=error.headers,
        )

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        return JSONResponse({"error": f"the operator API failed ({type(error).__name__}); see its log"}, 500)

    return app


def _members(request: Request) -> list[str]:
    """Of the body that the called route takes."""
    field: Any = request.scope["route"].body_field
    return list(field.field_info.annotation.model_fields)
