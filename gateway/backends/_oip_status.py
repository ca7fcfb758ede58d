"""What a failed gRPC call to a server of the Open Inference Protocol means, whatever server it is.

The protocol says little about statuses, and servers use them in their own ways: one answers a request
that does not fit with INVALID_ARGUMENT, another with UNKNOWN, which is what gRPC makes of any exception.
So UNKNOWN and INTERNAL are the endpoint's failure only where the gateway's own validation finds nothing
wrong with the request; the endpoint asks it before it believes them.

No text of such a server goes on: it may quote what was in the request.

| status | text | reason | retryable |
| --- | --- | --- | --- |
| UNAVAILABLE | gRPC could not connect | unavailable, not sent | yes |
| UNAVAILABLE | about one model: not ready | model_unavailable | yes |
| UNAVAILABLE | any other | unavailable | yes |
| CANCELLED | any: the caller's own cancellation never gets here | unavailable | yes |
| UNKNOWN, INTERNAL | stream removed or reset under the call | unavailable | yes |
| UNKNOWN, INTERNAL | any other | endpoint_failed | no |
| NOT_FOUND | any | unknown_model | yes: another place may have it |
| RESOURCE_EXHAUSTED | message larger than the server takes | too_large | no |
| RESOURCE_EXHAUSTED | any other | overloaded | yes |
| DEADLINE_EXCEEDED | any | deadline | no |
| INVALID_ARGUMENT | no more than that a model is not ready | model_unavailable | yes |
| INVALID_ARGUMENT, OUT_OF_RANGE, FAILED_PRECONDITION, ALREADY_EXISTS | any | malformed | no |
| UNIMPLEMENTED | any | not_served | no |
| PERMISSION_DENIED, UNAUTHENTICATED | any: this gateway is not let in | endpoint_failed | yes |
| the rest | any | endpoint_failed | no |
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gateway.core.errors import AttemptError
from oip.reasons import Reason


class Meaning(NamedTuple):
    reason: Reason
    retryable: bool
    words: str
    sent: bool = True


_GONE = Meaning(Reason.UNAVAILABLE, True, "went away before it answered")
_UNREACHED = Meaning(Reason.UNAVAILABLE, True, "cannot be reached", sent=False)
_NOT_READY = Meaning(Reason.MODEL_UNAVAILABLE, True, "does not have the model ready")
_TOO_LARGE = Meaning(Reason.TOO_LARGE, False, "does not take messages of this size")
_REFUSED = Meaning(
    Reason.MALFORMED,
    False,
    "refused the request; its reason is not passed on, because it may quote the request's data",
)
_NOT_LET_IN = Meaning(Reason.ENDPOINT_FAILED, True, "does not let this gateway in")
_FAILED = Meaning(Reason.ENDPOINT_FAILED, False, "failed while it worked on the request")

_MEANINGS = {
    "UNAVAILABLE": _GONE,
    "CANCELLED": _GONE,
    "NOT_FOUND": Meaning(Reason.UNKNOWN_MODEL, True, "does not have the model, or not in this version"),
    "RESOURCE_EXHAUSTED": Meaning(Reason.OVERLOADED, True, "has no room for the request"),
    "DEADLINE_EXCEEDED": Meaning(Reason.DEADLINE, False, "did not answer in time"),
    "INVALID_ARGUMENT": _REFUSED,
    "OUT_OF_RANGE": _REFUSED,
    "FAILED_PRECONDITION": _REFUSED,
    "ALREADY_EXISTS": _REFUSED,
    "UNIMPLEMENTED": Meaning(Reason.NOT_SERVED, False, "does not serve this part of the protocol"),
    "PERMISSION_DENIED": _NOT_LET_IN,
    "UNAUTHENTICATED": _NOT_LET_IN,
}
_ONE_MODEL = re.compile(r"Model [^\n'\"]{1,300} is not ready( yet)?\.?")
_BROKEN_STREAM = (
    "Stream removed",
    "Received RST_STREAM",
    "RST_STREAM",
    "Socket closed",
    "Connection reset",
    "GOAWAY",
)
"""How gRPC's own texts begin; a server's may hold such words somewhere, from a request."""


def failure_of(endpoint: str, status: str, details: str) -> AttemptError:
    """The error for a call that ended with `status` (its gRPC name) and the text `details`."""
    meaning = _meaning(status, details)
    return AttemptError(
        meaning.reason,
        f"Endpoint {endpoint} {meaning.words}.",
        grpc_status=status,
        sent=meaning.sent,
        retryable=meaning.retryable,
    )


def _meaning(status: str, details: str) -> Meaning:
    unreached = "failed to connect to all addresses" in details or "DNS resolution failed" in details
    if status == "UNAVAILABLE" and unreached:
        return _UNREACHED
    if status in ("UNAVAILABLE", "INVALID_ARGUMENT") and _ONE_MODEL.fullmatch(details):
        return _NOT_READY
    if status in ("UNKNOWN", "INTERNAL") and details.startswith(_BROKEN_STREAM):
        return _GONE
    if status == "RESOURCE_EXHAUSTED" and "larger than max" in details:
        return _TOO_LARGE
    return _MEANINGS.get(status, _FAILED)
