"""What a failed call to an upstream gateway means here: reason, words for the caller, and whether
another place might answer.

An upstream gateway tells its peers the reason beside the status, as `tidegate-reason`; a call that
never reached its pipeline has none. Its verdict on the request keeps its text, bounded. Everything else
gets words of ours: the upstream's name its classes, places and policies, which are its operator's.

| told | status | reason here | retryable |
| --- | --- | --- | --- |
| privacy, forbidden | PERMISSION_DENIED | privacy: no place there is allowed | yes |
| | UNAUTHENTICATED | endpoint_failed: this gateway is not let in | yes |
| loop | FAILED_PRECONDITION | loop: the request has been there | yes |
| no_candidate, overloaded | UNAVAILABLE | as told: the upstream is there | yes |
| unavailable, model_unavailable | UNAVAILABLE | model_unavailable: the upstream is there, its places are not | yes |
| draining, and what never reached it | UNAVAILABLE, CANCELLED | unavailable | yes |
| too_large | RESOURCE_EXHAUSTED | too_large | no |
| bad_option | INVALID_ARGUMENT | endpoint_failed: the two gateways do not understand each other | yes |
| the rest, such as malformed, not_found, deadline | any | as of a Triton that answers so | as there |
"""

from __future__ import annotations

from gateway.backends._triton_status import failure_of as oip_failure
from gateway.core.errors import AttemptError
from oip.reasons import Reason

REASON_KEY = "tidegate-reason"
"""Where an upstream tells a peer why, in the leading metadata."""

_REFUSES = "takes no request from this gateway: it does not know its token"
_NO_PLACE = "has no place that the request may go to"
_TOLD = {
    "privacy": (Reason.PRIVACY, _NO_PLACE),
    "forbidden": (Reason.PRIVACY, _NO_PLACE),
    "loop": (Reason.LOOP, "has passed this request on already"),
    "no_candidate": (Reason.NO_CANDIDATE, "has no place that can answer"),
    "overloaded": (Reason.OVERLOADED, "is overloaded"),
    "unavailable": (Reason.MODEL_UNAVAILABLE, "cannot reach its places for the model"),
    "model_unavailable": (Reason.MODEL_UNAVAILABLE, "has no place with the model ready"),
    "draining": (Reason.UNAVAILABLE, "is shutting down"),
    "too_large": (Reason.TOO_LARGE, "takes no message of this size"),
    "bad_option": (Reason.ENDPOINT_FAILED, "does not understand this gateway"),
}
_UNTOLD = {
    "PERMISSION_DENIED": _TOLD["privacy"],
    "UNAUTHENTICATED": (Reason.ENDPOINT_FAILED, _REFUSES),
    "FAILED_PRECONDITION": _TOLD["loop"],
}
HEALTH_WORDS = {"UNAUTHENTICATED": "does not know this gateway's token: it must list it among its peers"}
"""What an operator is to hear of an upstream's answer to a health check."""


def failure_of(endpoint: str, status: str, details: str, told: str) -> AttemptError:
    """The error for a call that ended with `status` (its gRPC name) and the text `details`; `told` is
    the reason that the upstream gave, "" without one."""
    found = _TOLD.get(told) or (None if told else _UNTOLD.get(status))
    if found is None:
        return oip_failure(endpoint, status, details)
    reason, words = found
    return AttemptError(
        reason,
        f"Endpoint {endpoint} {words}.",
        grpc_status=status,
        sent=True,
        retryable=reason is not Reason.TOO_LARGE,
    )
