"""What a failed gRPC call to a Triton means: reason, words for the caller, and whether another place
might answer. The caller's status follows from the reason, over gRPC and HTTP alike.

A verdict of the server on the request keeps its text, bounded and without any Python traceback. What
is between the gateway and the endpoint gets words of ours: gRPC's text names addresses, and that
the endpoint does not let the gateway in is no refusal of the caller.

| status | text of Triton or gRPC | reason | retryable |
| --- | --- | --- | --- |
| UNAVAILABLE | failed to connect | unavailable, not sent | yes |
| UNAVAILABLE | the server loads no models when it is told to | not_served | no |
| UNAVAILABLE | queue is full, waited too long in it | overloaded | yes |
| UNAVAILABLE | about one model: no version available, not ready | model_unavailable | yes |
| UNAVAILABLE | any other: connection lost, server stopping | unavailable | yes |
| CANCELLED | any: the caller's own cancellation never gets here | unavailable | yes |
| UNKNOWN, INTERNAL | stream removed or reset under the call | unavailable | yes |
| INTERNAL | a model's process is not healthy | endpoint_failed | yes |
| INTERNAL | unable to parse request | malformed | no |
| NOT_FOUND | any | unknown_model | yes: another place may have it |
| RESOURCE_EXHAUSTED | message larger than the server takes | too_large | no |
| RESOURCE_EXHAUSTED | metadata too large: a refusal that quotes more of the request than can be read | malformed | no |
| RESOURCE_EXHAUSTED | any other | overloaded | yes |
| DEADLINE_EXCEEDED | any | deadline | no |
| INVALID_ARGUMENT, OUT_OF_RANGE, FAILED_PRECONDITION, ALREADY_EXISTS | any | malformed | no |
| UNIMPLEMENTED | any | not_served | no |
| PERMISSION_DENIED, UNAUTHENTICATED | any: this gateway is not let in | endpoint_failed | yes |
| the rest, such as INTERNAL from a model that raised | any | endpoint_failed | no |
"""

from __future__ import annotations

from gateway.core.errors import AttemptError
from oip.reasons import Reason

MAX_TEXT = 1000
"""Longest text of a server that is passed on, in characters."""

_REFUSED_REQUEST = frozenset({"INVALID_ARGUMENT", "OUT_OF_RANGE", "FAILED_PRECONDITION", "ALREADY_EXISTS"})
_REFUSED_GATEWAY = frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED"})
_BROKEN_STREAM = ("Stream removed", "RST_STREAM", "Socket closed", "Connection reset", "GOAWAY")
_FULL = ("Exceeds maximum queue size", "Request timeout expired")
_ONE_MODEL = ("unknown model", "no available versions", "is not ready", "not available")


def failure_of(endpoint: str, status: str, details: str) -> AttemptError:
    """The error for a call that ended with `status` (its gRPC name) and the text `details`."""
    reason, sent, retryable = _classify(status, details)
    if reason is Reason.UNAVAILABLE:
        words = "went away before it answered" if sent else "cannot be reached"
    elif reason is Reason.DEADLINE:
        words = "did not answer in time"
    elif reason is Reason.MALFORMED and status == "RESOURCE_EXHAUSTED":
        words = "refused the request, and its reason is too long to be read"
    elif status in _REFUSED_GATEWAY:
        words = "does not let this gateway in"
    else:
        words = ""
    if words:
        message = f"Endpoint {endpoint} {words}."
    else:
        message = _shortened(details) or f"Endpoint {endpoint} answered {status} without a reason."
    return AttemptError(reason, message, grpc_status=status, sent=sent, retryable=retryable)


def status_of(text: str, by_model: bool) -> str:
    """The status that belongs to an error of which a stream gave the text alone; `by_model`: the request had
    got to its model."""
    if text.startswith("Request for unknown model") and "is not ready" not in text:
        return "UNAVAILABLE" if "no available versions" in text else "NOT_FOUND"
    if _has(text, (*_FULL, *_ONE_MODEL)):
        return "UNAVAILABLE"
    return "INTERNAL" if by_model else "INVALID_ARGUMENT"


def _classify(status: str, details: str) -> tuple[Reason, bool, bool]:
    """Reason, whether it was sent, whether another place might answer."""
    reason, sent, retryable = Reason.ENDPOINT_FAILED, True, False
    if status == "UNAVAILABLE":
        retryable = True
        if "failed to connect to all addresses" in details or "DNS resolution failed" in details:
            reason, sent = Reason.UNAVAILABLE, False
        elif "explicit model load / unload is not allowed" in details:
            reason, retryable = Reason.NOT_SERVED, False
        elif _has(details, _FULL):
            reason = Reason.OVERLOADED
        else:
            reason = Reason.MODEL_UNAVAILABLE if _has(details, _ONE_MODEL) else Reason.UNAVAILABLE
    elif status == "CANCELLED" or (status in ("UNKNOWN", "INTERNAL") and _has(details, _BROKEN_STREAM)):
        reason, retryable = Reason.UNAVAILABLE, True
    elif status == "INTERNAL" and "Unable to parse request" in details:
        reason = Reason.MALFORMED
    elif status == "INTERNAL":
        retryable = "Stub process" in details and "is not healthy" in details
    elif status == "NOT_FOUND":
        reason, retryable = Reason.UNKNOWN_MODEL, True
    elif status == "RESOURCE_EXHAUSTED" and "metadata size exceeds" in details:
        reason = Reason.MALFORMED
    elif status == "RESOURCE_EXHAUSTED":
        too_large = "larger than max" in details
        reason, retryable = (Reason.TOO_LARGE, False) if too_large else (Reason.OVERLOADED, True)
    elif status == "DEADLINE_EXCEEDED":
        reason = Reason.DEADLINE
    elif status in _REFUSED_REQUEST:
        reason = Reason.MALFORMED
    elif status == "UNIMPLEMENTED":
        reason = Reason.NOT_SERVED
    elif status in _REFUSED_GATEWAY:
        retryable = True
    return reason, sent, retryable


def _has(details: str, phrases: tuple[str, ...]) -> bool:
    return any(phrase in details for phrase in phrases)


def _shortened(details: str) -> str:
    text = details.partition("\n\nAt:\n")[0].strip()
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
