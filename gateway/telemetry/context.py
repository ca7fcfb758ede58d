"""W3C Trace Context: reading a caller's headers, writing the one that goes on.

Specification: https://www.w3.org/TR/trace-context/ (level 1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from gateway.core.call import Metadata

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?")
_MAX_TRACEPARENT = 512
_STATE_MEMBER = re.compile(
    r"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_MAX_STATE_MEMBERS = 32
_LONG_MEMBER = 128
MAX_TRACESTATE = 4096
"""So many characters of a `tracestate` go on. The specification asks for 512 at least; a gRPC server
takes 8 KiB of metadata in all."""


class TraceParent(NamedTuple):
    """A caller's place in its trace: non-zero ids of 128 and 64 bits."""

    trace_id: int
    span_id: int
    sampled: bool


def trace_context(metadata: Metadata) -> tuple[str | None, str | None]:
    """The caller's `traceparent` and `tracestate`, each None unless valid; without the first the
    second means nothing. A `tracestate` given in several headers becomes one, in order."""
    parents = [value for key, value in metadata if key == "traceparent"]
    if len(parents) != 1 or not isinstance(parents[0], str) or parse_traceparent(parents[0]) is None:
        return None, None
    return parents[0], _state(value for key, value in metadata if key == "tracestate")


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


def _state(values: Iterable[str | bytes]) -> str | None:
    members: list[str] = []
    for value in values:
        if isinstance(value, bytes):
            return None
        members += [member for part in value.split(",") if (member := part.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    if not members or len(members) > _MAX_STATE_MEMBERS or len(keys) != len(members):
        return None
    if not all(_STATE_MEMBER.fullmatch(member) for member in members):
        return None
    return ",".join(_bounded(members))


def _bounded(members: list[str]) -> list[str]:
    """As many members as may go on: long ones are left out first, then those at the end."""
    kept = list(members)
    for index in sorted(range(len(members)), key=lambda i: (len(members[i]) <= _LONG_MEMBER, -i)):
        if len(",".join(kept)) <= MAX_TRACESTATE:
            break
        kept.remove(members[index])
    return kept
