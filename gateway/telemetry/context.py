"""W3C Trace Context: reading a caller's `traceparent`, writing the one that goes on.

Specification: https://www.w3.org/TR/trace-context/ (level 1).
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_MAX_TRACEPARENT = 512
_TRACESTATE = re.compile(r"[\x20-\x7e]+", re.ASCII)
_MAX_TRACESTATE = 512


class TraceParent(NamedTuple):
    """A caller's place in its trace: non-zero ids of 128 and 64 bits."""

    trace_id: int
    span_id: int
    sampled: bool


def parse_traceparent(value: str | None) -> TraceParent | None:
    """The context that a header names, or None where there is none or it is not one. A later
    version than 00 is read by its first four fields, as the specification asks."""
    if not value or len(value) > _MAX_TRACEPARENT:
        return None
    match = _TRACEPARENT.fullmatch(value)
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest):
        return None
    parent = TraceParent(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & 1))
    return parent if parent.trace_id and parent.span_id else None


def format_traceparent(trace_id: int, span_id: int, sampled: bool) -> str:
    return f"00-{trace_id:032x}-{span_id:016x}-{'01' if sampled else '00'}"


def usable_tracestate(value: str | None) -> str | None:
    """A caller's `tracestate` if it may go on: printable ASCII of at most 512 characters."""
    if not value or len(value) > _MAX_TRACESTATE or not _TRACESTATE.fullmatch(value):
        return None
    return value
