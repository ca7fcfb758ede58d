"""What a caller asks for, in the terms the policy decides on. Never holds payload."""

from __future__ import annotations

from dataclasses import dataclass

from edgewire.allowed import AllowedSet
from gateway.core.place import Origin

MAX_HOPS = 16
"""Most gateways that a request may have passed."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom a credential proved the caller to be.

    `peer` is the name of a gateway that passes a request on, `device` of an enrolled device that
    asks by itself; both "" for a caller without a credential. `origin` is what the credential says of
    where the data comes from; None without one, and the gateway's own place then counts.
    """

    peer: str = ""
    device: str = ""
    origin: Origin | None = None


ANYBODY = Caller()
"""A caller without a credential."""


@dataclass(frozen=True, slots=True)
class Options:
    """The `tidegate-*` request options and the trace context, as validated from headers or metadata.

    `deadline_ms` and `max_cost` (in the configured currency) are positive. None: not given.
    `caller` is what the call's credential proved; nothing but the pipeline's `Callers` sets it. The
    credential itself is nowhere kept. `allowed` and `hops` are from a peer gateway alone: the places it
    leaves, and the gateways the request has passed.
    """

    privacy: str | None = None
    policy: str | None = None
    deadline_ms: float | None = None
    max_cost: float | None = None
    site: str | None = None
    device: str | None = None
    idempotent: bool | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    allowed: AllowedSet | None = None
    hops: tuple[str, ...] = ()
    caller: Caller = ANYBODY


@dataclass(frozen=True, slots=True)
class Request:
    """One inference as `decide` sees it.

    `version` is "" when the caller asked for none. `time_left_s` is what remains until the
    nearest deadline, None without one. `payload_bytes` is the size of the message's body.
    `decision_id` and `wall_time` (seconds since the epoch) only go into the record.
    `home`: of a step of a sequence, the endpoint that has the sequence's state, "" for the first step; None
    of any other request.
    """

    model: str
    version: str
    options: Options
    payload_bytes: int
    time_left_s: float | None
    decision_id: str
    wall_time: float
    home: str | None = None
