"""What a caller asks for, in the terms the policy decides on. Never holds payload."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """The `tidegate-*` request options and the trace context, as validated from headers or metadata.

    `deadline_ms` and `max_cost` (in the configured currency) are positive. None: not given.
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


@dataclass(frozen=True, slots=True)
class Request:
    """One inference as `decide` sees it.

    `version` is "" when the caller asked for none. `time_left_s` is what remains until the
    nearest deadline, None without one. `payload_bytes` is the size of the message's body.
    `decision_id` and `wall_time` (seconds since the epoch) only go into the record.
    """

    model: str
    version: str
    options: Options
    payload_bytes: int
    time_left_s: float | None
    decision_id: str
    wall_time: float
