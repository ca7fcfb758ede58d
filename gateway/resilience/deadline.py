"""Deadlines as instants of the monotonic clock, in seconds; None is no deadline."""

from __future__ import annotations


def nearest(*deadlines: float | None) -> float | None:
    """The earliest of those given."""
    return min((d for d in deadlines if d is not None), default=None)


def given_deadline(received: float, deadline_ms: float | None, transport: float | None) -> float | None:
    """When a caller wants its answer, if it says so. `tidegate-deadline-ms` counts from the arrival,
    the transport's own deadline is an instant already; the nearer wins."""
    return nearest(None if deadline_ms is None else received + deadline_ms / 1000, transport)


def request_deadline(
    received: float, deadline_ms: float | None, transport: float | None, default_s: float
) -> float:
    """When a request must be answered: as `given_deadline`, or after the default where none is given."""
    given = given_deadline(received, deadline_ms, transport)
    return received + default_s if given is None else given
