"""Asking a teacher for the labels of a sample: one more place that request data goes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgewire.allowed import decode
from gateway.core.config import Config
from gateway.core.ports import Endpoint, Permit
from oip.errors import OipError
from oip.infer import parse_response
from oip.names import shown
from oip.reasons import Reason
from oip.scan import scan_request, splice

TIMEOUT_S = 10.0


async def teach(
    config: Config,
    endpoints: Mapping[str, Endpoint],
    model: str,
    teacher: str,
    request: bytes,
    allowed: str,
) -> Sequence[int]:
    """The label of every row: the greatest entry of the teacher's first output. `request` is a serialized
    ModelInferRequest, `allowed` the places that it may go to. Raises OipError, PRIVACY where the teacher's
    is none of them."""
    variant = next(
        (v for m in config.models if m.name == model for v in m.variants if v.endpoint == teacher), None
    )
    place = next((e.place for e in config.endpoints if e.name == teacher), None)
    if variant is None or place is None:
        raise OipError(Reason.NOT_FOUND, f"model {shown(model)} has no teacher on {shown(teacher)}")
    try:
        places = decode(allowed)
    except ValueError:
        raise OipError(Reason.PRIVACY, "where the sample may go cannot be read, so it goes nowhere") from None
    if not places.allows(place):
        raise OipError(Reason.PRIVACY, f"the sample may not go to {shown(teacher)} ({place})")
    body = splice(
        request,
        scan_request(request),
        model_name=variant.model or model,
        model_version=variant.version or "",
    )
    permit = Permit(places, place, (config.gateway.name,), idempotent=True)
    response = await endpoints[teacher].infer(body, (), TIMEOUT_S, permit)
    outputs = parse_response(response)
    return labels_of(outputs)


def labels_of(outputs: Mapping[str, np.ndarray]) -> list[int]:
    """Raises OipError for an answer that is no classification."""
    for array in outputs.values():
        if array.dtype.kind in "iuf" and array.ndim >= 2 and array.shape[-1] >= 2:
            return np.argmax(array.reshape(-1, array.shape[-1]), axis=-1).tolist()
    raise OipError(Reason.ENDPOINT_FAILED, "The teacher's answer is no classification.")
