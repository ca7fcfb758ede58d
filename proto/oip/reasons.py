"""Why a request was not answered, and the one table that turns a reason into a public status.

A reason is the name used in decision records, metrics and logs. Its gRPC status and HTTP code
come from `STATUS` alone, so that both protocols agree on every route.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Reason(StrEnum):
    """One per kind of failure; the value is the public name."""

    MALFORMED = "malformed"
    """The message breaks the protocol: bad JSON, bad protobuf, sizes that do not add up."""
    BAD_OPTION = "bad_option"
    """An unknown, repeated or ill-formed `tidegate-*` option."""
    UNKNOWN_MODEL = "unknown_model"
    UNKNOWN_VERSION = "unknown_version"
    NOT_FOUND = "not_found"
    """No such route, decision or other named thing."""
    CONFLICT = "conflict"
    """An operator's call that does not go with how things are now."""
    METHOD_NOT_ALLOWED = "method_not_allowed"
    UNSUPPORTED_CODING = "unsupported_coding"
    TOO_LARGE = "too_large"
    PRIVACY = "privacy"
    """No place is left that the request's privacy classes allow."""
    UNAUTHENTICATED = "unauthenticated"
    """A credential that is nobody's, or none where one is needed."""
    LOOP = "loop"
    """The request has passed this gateway before."""
    FORBIDDEN = "forbidden"
    """An operator's call from someone who is not one."""
    NO_CANDIDATE = "no_candidate"
    """Places are allowed, but none meets the policy's requirements or is up."""
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    OVERLOADED = "overloaded"
    DRAINING = "draining"
    UNAVAILABLE = "unavailable"
    """Every attempt ended with the endpoint gone or not answering."""
    MODEL_UNAVAILABLE = "model_unavailable"
    """The endpoint is there, but does not have the model ready; others may."""
    ENDPOINT_FAILED = "endpoint_failed"
    """The endpoint answered with a failure of its own."""
    NOT_SERVED = "not_served"
    """Part of the protocol that this version does not serve."""
    BODY_TIMEOUT = "body_timeout"
    INTERNAL = "internal"


class Status(NamedTuple):
    """Public status of a reason: the gRPC status code's name and the HTTP status code."""

    grpc: str
    http: int


STATUS: dict[Reason, Status] = {
    Reason.MALFORMED: Status("INVALID_ARGUMENT", 400),
    Reason.BAD_OPTION: Status("INVALID_ARGUMENT", 400),
    Reason.UNKNOWN_MODEL: Status("NOT_FOUND", 404),
    Reason.UNKNOWN_VERSION: Status("NOT_FOUND", 404),
    Reason.NOT_FOUND: Status("NOT_FOUND", 404),
    Reason.CONFLICT: Status("FAILED_PRECONDITION", 409),
    Reason.METHOD_NOT_ALLOWED: Status("UNIMPLEMENTED", 405),
    Reason.UNSUPPORTED_CODING: Status("UNIMPLEMENTED", 415),
    Reason.TOO_LARGE: Status("RESOURCE_EXHAUSTED", 413),
    Reason.PRIVACY: Status("PERMISSION_DENIED", 403),
    Reason.FORBIDDEN: Status("PERMISSION_DENIED", 403),
    Reason.UNAUTHENTICATED: Status("UNAUTHENTICATED", 401),
    Reason.LOOP: Status("FAILED_PRECONDITION", 508),
    Reason.NO_CANDIDATE: Status("UNAVAILABLE", 503),
    Reason.DEADLINE: Status("DEADLINE_EXCEEDED", 504),
    Reason.CANCELLED: Status("CANCELLED", 499),
    Reason.OVERLOADED: Status("UNAVAILABLE", 503),
    Reason.DRAINING: Status("UNAVAILABLE", 503),
    Reason.UNAVAILABLE: Status("UNAVAILABLE", 503),
    Reason.MODEL_UNAVAILABLE: Status("UNAVAILABLE", 503),
    Reason.ENDPOINT_FAILED: Status("INTERNAL", 500),
    Reason.NOT_SERVED: Status("UNIMPLEMENTED", 501),
    Reason.BODY_TIMEOUT: Status("DEADLINE_EXCEEDED", 408),
    Reason.INTERNAL: Status("INTERNAL", 500),
}
