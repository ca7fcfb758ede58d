"""The operator API as a FastAPI application over what control knows.

Every error body is `{"error": "<one sentence>"}`, FastAPI's own included.
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from oip.errors import OipError
from oip.reasons import Reason

PREFIX = "/api/v1"
NOT_SERVED = (*(f"{PREFIX}/{name}" for name in ("devices", "rollouts", "updates", "costs")), "/console")
"""Paths of later versions."""


def _printable(text: str) -> str:
    """JSON can spell control characters and lone surrogates, which no header or answer can carry."""
    if not text.isprintable():
        raise ValueError("holds characters that cannot be shown")
    return text


Text = Annotated[str, Field(max_length=256), AfterValidator(_printable)]


class RouteQuery(BaseModel):
    """What a dry run supposes about a request. The names are those of the request options."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Annotated[Text, Field(min_length=1)]
    version: Text = ""
    privacy: Text | None = None
    policy: Text | None = None
    deadline_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    payload_bytes: Annotated[int, Field(ge=0, lt=2**63)] = 0
    site: Text | None = None
    device: Text | None = None
    tenant: Text | None = None


class ControlPlane(Protocol):
    """What the operator API asks for. Views are JSON-ready; failures are OipError."""

    def config_view(self) -> dict[str, Any]: ...

    async def endpoints_view(self) -> list[dict[str, Any]]: ...

    async def models_view(self) -> list[dict[str, Any]]: ...

    async def route(self, query: RouteQuery) -> dict[str, Any]:
        """The decision record that such a request would get now. Sends nothing."""
        ...

    async def decision(self, decision_id: str) -> dict[str, Any] | None: ...


def operator_app(control: ControlPlane, version: str) -> FastAPI:
    app = FastAPI(
        title="Tidegate operator API",
        version=version,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )

    @app.get(f"{PREFIX}/config")
    async def config() -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """The running configuration revision and the last error in reading one."""
        return control.config_view()

    @app.get(f"{PREFIX}/endpoints")
    async def endpoints() -> list[dict[str, Any]]:  # pyright: ignore[reportUnusedFunction]
        """Every endpoint with its place, state, measurements and what it counted itself."""
        return await control.endpoints_view()

    @app.get(f"{PREFIX}/models")
    async def models() -> list[dict[str, Any]]:  # pyright: ignore[reportUnusedFunction]
        """Every model with its class and its variants' readiness."""
        return await control.models_view()

    @app.post(f"{PREFIX}/route")
    async def route(query: RouteQuery) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """Dry run: the decision and why not the others."""
        return await control.route(query)

    @app.get(f"{PREFIX}/decisions/{{decision_id}}")
    async def decision(decision_id: str) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """The record of one answered or refused request, while its replica still holds it."""
        record = await control.decision(decision_id)
        if record is None:
            raise OipError(
                Reason.NOT_FOUND, f"no record of decision {decision_id[:64]!r}: unknown, or too old"
            )
        return record

    async def not_served(request: Request) -> None:
        raise OipError(Reason.NOT_SERVED, f"{request.url.path} is not served by this version")

    for path in NOT_SERVED:
        app.add_api_route(path, not_served, methods=["GET", "POST"], include_in_schema=False)

    @app.exception_handler(OipError)
    async def known(_: Request, error: OipError) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        return JSONResponse({"error": error.message}, error.status.http)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        if first["type"] == "extra_forbidden":
            known = ", ".join(RouteQuery.model_fields)
            return JSONResponse(
                {"error": f"{where} is not a member of the query: the members are {known}"}, 400
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
