"""Answers and errors in a form that crosses processes: an exception of ours would not survive it whole."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from oip.errors import OipError
from oip.reasons import Reason

APP = "tidegate"
"""The Serve application that holds the gateway's deployments."""


async def answered(work: Awaitable[Any]) -> dict[str, Any]:
    """The value, or what OipError it raised."""
    try:
        return {"value": await work}
    except OipError as error:
        return {"error": {"reason": error.reason.value, "message": error.message}}


async def ask(deployment: str, what: str, method: str, *args: Any) -> Any:
    """Call a deployment's method that is `answered`. `what` names it in messages. Raises OipError."""
    try:
        handle = serve.get_deployment_handle(deployment, APP)
        answer = await getattr(handle, method).remote(*args)
    except (RayError, RayServeException) as error:
        text = f"{what} is not available ({type(error).__name__}); try again"
        raise OipError(Reason.UNAVAILABLE, text) from error
    return value_of(answer)


async def ask_all(deployment: str, what: str, method: str, *args: Any) -> list[dict[str, Any]]:
    """Call it of every replica that runs; what each `answered`. Those that end meanwhile are left out. Raises
    OipError where none is left."""
    try:
        handle: Any = serve.get_deployment_handle(deployment, APP)
        answers: list[Any] = await handle.broadcast(method, *args).results_async(return_exceptions=True)
    except (RayError, RayServeException) as error:
        answers = [error]
    told = [answer for answer in answers if not isinstance(answer, BaseException)]
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, RayError | RayServeException):
            raise answer
    if not told:
        fault = type(answers[0]).__name__ if answers else "no replica"
        raise OipError(Reason.UNAVAILABLE, f"{what} is not available ({fault}); try again")
    return told


def value_of(answer: dict[str, Any]) -> Any:
    """What an `answered` call gave. Raises the OipError that it raised there."""
    if "error" in answer:
        raise OipError(Reason(answer["error"]["reason"]), answer["error"]["message"])
    return answer["value"]
