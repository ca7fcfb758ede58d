"""Deadlines as instants of the monotonic clock, in seconds; None is no deadline."""

from __future__ import annotations


def nearest(*deadlines: float | None) -> float | None:
    """The earliest of those given."""
    return min((d for d in deadlines if d is not None), default=None)


def request_deadline(
    received: float, deadline_ms: float | None, transport: float | None, default_s: float
) -> float:
    """When a request must be answered. `tidegate-deadline-ms` counts from its arrival, the
    transport's own deadline is an instant already; the nearer wins, and only without either the
    default counts."""
    option = None if deadline_ms is None else received + deadline_ms / 1000
    given = nearest(option, transport)
    return received + default_s if given is None else given
