"""Deadlines as instants of the monotonic clock, in seconds; None is no deadline."""

from __future__ import annotations

DEFAULT_ATTEMPT_TIMEOUT_S = 300.0
"""How long an attempt may take where the caller sets no deadline."""


def nearest(*deadlines: float | None) -> float | None:
    """The earliest of those given."""
    return min((d for d in deadlines if d is not None), default=None)


def request_deadline(received: float, deadline_ms: float | None, transport: float | None) -> float | None:
    """When a request must be answered: `tidegate-deadline-ms` counts from its arrival, the
    transport's own deadline is an instant already, and the nearer wins."""
    option = None if deadline_ms is None else received + deadline_ms / 1000
    return nearest(option, transport)


def time_left(deadline: float | None, now: float) -> float | None:
    """Seconds until the deadline, 0 once it has passed; None without one."""
    return None if deadline is None else max(0.0, deadline - now)


def attempt_timeout(deadline: float | None, now: float) -> float:
    """Seconds an attempt that begins now may take: never beyond the caller's deadline."""
    left = time_left(deadline, now)
    return DEFAULT_ATTEMPT_TIMEOUT_S if left is None else min(left, DEFAULT_ATTEMPT_TIMEOUT_S)
